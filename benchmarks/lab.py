# SPDX-License-Identifier: Apache-2.0
"""Replay of a blob policy: operations a second on one core, memory, and write amplification against its closed form.

    python benchmarks/lab.py [--quick] [--json FILE]
    python benchmarks/lab.py --policies      # the tables of docs/lab.md

10,000,000 overwrites of a log of 100,000 segments with 100 records each, 70 % of them live (written first, and timed
too), 4,000 segments a plan; `--quick` takes a hundredth. Seconds are those of the processor; a busy machine still
counts, by its caches. The goal is 400,000 operations a second; in a log of 2,500 segments 120,000 with 1, 4 and 16
segments a plan, where each plan shows and sorts all segments for few operations. Memory, as the process's peak, is
printed for each live object, for a quarter, a half and all of it, with the slope of the line through them: it is
linear. Write amplification is that of a smaller log in its steady state, at three fill levels.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Iterator, Sequence

from closed_forms import greedy_write_amplification
from lab_policies import policy_tables
from measure import Figure, report

from compactlib.blobstore import Greedy
from compactlib.lab import BlobLogModel, Uniform, replay
from compactlib.report import Table

PER_SEGMENT = 100
FILL = 0.7
GOAL_PER_SECOND, GOAL_OF_SMALL_PLANS = 400_000.0, 120_000.0
SMALLER = (4, 2)
"""What parts of the whole are measured before it."""


def replayed(segments: int, overwrites: int, reclaimed: int) -> tuple[float, int]:
    """Operations a second, and live objects."""
    workload = Uniform(keys=int(segments * PER_SEGMENT * FILL), writes=overwrites)
    policy = Greedy(min_used_fraction=0.5, min_reclaimed_segments=reclaimed)
    model = BlobLogModel.of_slots(segments, PER_SEGMENT)
    before = time.process_time()
    replay(workload, policy, model, seed=1)
    return workload.operations / (time.process_time() - before), workload.keys


def small_plans(runs: int) -> Iterator[Figure]:
    """Operations a second where a plan frees few of 2,500 segments."""
    for reclaimed in (1, 4, 16):
        yield Figure(figure=f"lab.blob_replay.{reclaimed}_a_plan", unit="operations/s",
                     values=tuple(replayed(2_500, 250_000, reclaimed)[0] for _ in range(runs)), reference="goal",
                     reference_values=(GOAL_OF_SMALL_PLANS,) * runs, goal=">= 1")


def beside_closed_form(fill: float, segments: int) -> Figure:
    """Write amplification of greedy cleaning, and its closed form at the utilisation that was measured."""
    slots = segments * 32
    found = replay(Uniform(keys=int(fill * slots), writes=4 * slots),
                   Greedy(min_used_fraction=0, min_reclaimed_segments=max(segments // 160, 1)),
                   BlobLogModel.of_slots(segments, 32), seed=1).steady(0.5)
    closed = greedy_write_amplification(found.utilisation, 32)
    return Figure(figure=f"lab.greedy_write_amplification.{fill:.0%}", unit="1", values=(found.write_amplification,),
                  reference=f"closed form at {found.utilisation:.4f}", reference_values=(closed,), goal="0.97 .. 1.03")


def slope(points: Sequence[tuple[float, float]]) -> float:
    """Of the line through the points that lies nearest to them all (least squares)."""
    mean_x, mean_y = (statistics.fmean(values) for values in zip(*points, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def main() -> None:
    """Measure, print, and write the JSON if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a hundredth of the size")
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--runs", type=int, default=1, help="runs of the large replay")
    parser.add_argument("--policies", action="store_true", help="only compare the policies with one another")
    asked = parser.parse_args()
    if asked.policies:
        for table in policy_tables():
            print(table, end="\n\n", flush=True)
        return
    segments, overwrites = (1_000, 100_000) if asked.quick else (100_000, 10_000_000)
    speeds: list[float] = []
    points: list[tuple[float, float]] = []
    rows: list[dict[str, object]] = []
    # The small ones first: the process's peak never goes down.
    for part in (*SMALLER, *(1,) * asked.runs):
        count, writes = segments // part, overwrites // part
        speed, live = replayed(count, writes, max(count // 25, 2))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        rows.append({"segments": count, "operations": writes + live, "live objects": live, "a second": round(speed),
                     "peak of the process, MB": peak >> 20, "peak, bytes an object": round(peak / live, 1)})
        points.append((live, peak))
        if part == 1:
            speeds.append(speed)
    print(Table.from_dicts(rows, title="replay of greedy cleaning under uniform overwrites"))
    report([
        Figure(figure="lab.blob_replay", unit="operations/s", values=tuple(speeds), reference="goal",
               reference_values=(GOAL_PER_SECOND,) * len(speeds), goal=">= 1"),
        *small_plans(asked.runs),
        Figure(figure="lab.memory_linear", unit="bytes/live object", values=(slope(points),),
               reference="of the smallest, as a whole", reference_values=(points[0][1] / points[0][0],),
               goal="about 1: the slope over all sizes"),
        *(beside_closed_form(fill, 800 if asked.quick else 2_000) for fill in (0.5, 0.7, 0.8)),
    ], asked.json)


if __name__ == "__main__":
    main()
