"""Replay of a blob policy: operations a second on one core, memory, and write amplification beside its closed form.

    python benchmarks/lab.py [--quick] [--json FILE]
    python benchmarks/lab.py --policies      # the table of docs/choosing-a-policy.md

10,000,000 overwrites of a log of 100,000 segments with 100 records each, 70 % of them live (written first, and timed
too); `--quick` takes a hundredth. Seconds are those of the processor, so that a busy machine does not count. The goal
is 300,000 operations a second. Memory, as the process's peak and as what the columns take, is printed for each live
object, for two sizes, so that one sees that it is linear. Write amplification is that of a smaller log in its steady
state, at three fill levels.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from random import Random
from typing import Any

from measure import Figure, report

from compactlib.blobstore import CompactionPolicy, Greedy, policy_named
from compactlib.lab import (
    BlobReplay,
    BlobSettings,
    Bursts,
    HotCold,
    OldestFirst,
    TtlMix,
    Uniform,
    Workload,
    Zipf,
    compare,
    greedy_write_amplification,
    replay_blobs,
    run_experiments,
)
from compactlib.report import Table

PER_SEGMENT = 100
FILL = 0.7
GOAL_PER_SECOND = 300_000.0


def replayed(segments: int, overwrites: int, reclaimed: int) -> tuple[float, int, BlobReplay]:
    """Operations a second, live objects, and the replay."""
    workload = Uniform(keys=int(segments * PER_SEGMENT * FILL), writes=overwrites)
    policy = Greedy(min_used_fraction=0.5, min_reclaimed_segments=reclaimed)
    replay = BlobReplay(policy, BlobSettings.of_slots(segments, PER_SEGMENT), expected_operations=workload.operations)
    before = time.process_time()
    for piece in workload.pieces(1):
        replay.feed(piece)
    seconds = time.process_time() - before
    return workload.operations / seconds, workload.keys, replay


def beside_closed_form(fill: float, segments: int) -> Figure:
    """Write amplification of greedy cleaning, and its closed form at the utilisation that was measured."""
    slots = segments * 32
    found = replay_blobs(Uniform(keys=int(fill * slots), writes=4 * slots),
                         Greedy(min_used_fraction=0, min_reclaimed_segments=max(segments // 160, 1)),
                         BlobSettings.of_slots(segments, 32), seed=1).steady(0.5)
    closed = greedy_write_amplification(found.utilisation, 32)
    return Figure(figure=f"lab.greedy_write_amplification.{fill:.0%}", unit="1", values=(found.write_amplification,),
                  reference=f"closed form at {found.utilisation:.4f}", reference_values=(closed,), goal="0.97 .. 1.03")


def policies_table() -> Table:
    """Each policy on each workload: a log of 400 segments of 32 records, three quarters full, second half."""
    trigger: dict[str, Any] = {"min_used_fraction": 0.0, "min_reclaimed_segments": 4}
    policies: list[CompactionPolicy] = [
        policy_named(name, **trigger) for name in ("greedy", "cost_benefit", "stats_based", "expiry_forecast")]
    policies += [policy_named("d_choices", **trigger, random=Random(1)),
                 OldestFirst(min_used_fraction=0.0, min_reclaimed_segments=4)]
    shape: dict[str, Any] = {"keys": 9_600, "writes": 50_000}
    workloads: list[Workload] = [
        Uniform(**shape), HotCold(**shape), Zipf(**shape), Bursts(**shape, every=8_000, burst_keys=1_500),
        TtlMix(**shape, lives_seconds=((0.4, 4.0), (0.2, 1.0)))]
    settings = BlobSettings.of_slots(400, 32, forecast_seconds=30.0, bucket_seconds=0.2)
    with tempfile.TemporaryDirectory() as folder:
        rows = run_experiments(compare(policies, workloads, settings), folder).to_dicts()
    found: dict[str, dict[str, object]] = {}
    for row in rows:
        found.setdefault(row["policy"], {"policy": row["policy"]})[row["workload"]] = row["write_amplification"]
    return Table.from_dicts(list(found.values()), title="write amplification")


def main() -> None:
    """Measure, print, and write the JSON if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a hundredth of the size")
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--runs", type=int, default=1, help="runs of the large replay")
    parser.add_argument("--policies", action="store_true", help="only compare the policies with one another")
    asked = parser.parse_args()
    if asked.policies:
        print(policies_table())
        return
    segments, overwrites = (1_000, 100_000) if asked.quick else (100_000, 10_000_000)
    sizes = ((segments // 2, overwrites // 2), *((segments, overwrites),) * asked.runs)
    speeds: list[float] = []
    memory: list[float] = []
    rows: list[dict[str, object]] = []
    for count, writes in sizes:
        speed, live, replay = replayed(count, writes, max(count // 25, 2))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        columns = replay.log.memory_bytes
        rows.append({"segments": count, "operations": writes + live, "live objects": live, "a second": round(speed),
                     "columns, bytes an object": round(columns / live, 1), "peak of the process, MB": peak >> 20,
                     "peak, bytes an object": round(peak / live, 1)})
        speeds.append(speed)
        memory.append(columns / live)
    print(Table.from_dicts(rows, title="replay of greedy cleaning under uniform overwrites"))
    large = speeds[1:]
    report([
        Figure(figure="lab.blob_replay", unit="operations/s", values=tuple(large), reference="goal of the issue",
               reference_values=(GOAL_PER_SECOND,) * len(large), goal=">= 1"),
        Figure(figure="lab.memory_linear", unit="bytes/live object", values=tuple(memory[1:]),
               reference="half the size", reference_values=(memory[0],) * len(large), goal="about 1"),
        *(beside_closed_form(fill, 800 if asked.quick else 2_000) for fill in (0.5, 0.7, 0.8)),
    ], asked.json)


if __name__ == "__main__":
    main()
