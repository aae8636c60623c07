# SPDX-License-Identifier: Apache-2.0
"""A published simulator's write amplification beside ours: by victims, by placement, and on a real trace.

    python benchmarks/lab_truth.py [--quick] [--json FILE] [--trace cloudphysics_io.csv.gz]

Each row of `lab_published.py` is replayed with the same rules: how long is in that file. Logs of a fixed size are
`compactlib.lab`'s; placements of a user's records are those of `placement/`, in a log of its own, for no store of the
library has them. The goals: write amplification within 3 % on synthetic loads, copies (write amplification less one)
within 5 % on the trace, and schemes in the simulator's order wherever its copies differ by more than 10 %. The trace is
the block trace of CloudPhysics that libCacheSim ships; without `--trace` its rows are left out. `--quick` replays one
row of each kind. All rows take a quarter of an hour on one core.

Where the rules come from: a segment's dead share counts only once the segment is closed; equal segments are taken in
the order of a hash table of 2,048 places (8,192 for many segments), as the simulator keeps them; times are numbers of
writing requests; a copy renews the age by which `root benefit` goes. FADaC's average counts by request: 9.8 pages
each on the trace.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, chain

from fixed_number import FixedNumber, Preference
from lab_published import FIXED, SCHEMES, SYNTHETIC, TRACE, TRACE_SEGMENTS
from measure import Figure, report
from placement.dac import DAC
from placement.fadac import FADaC
from placement.log import PlacedLog, write_amplification
from placement.mixed import Mixed, UserAndSurvivors
from placement.multi_log import MultiLog
from placement.placer import Placement
from placement.sepbit import SepBIT
from placement.sfs import SFS
from placement.warcip import WARCIP

from compactlib.blobstore import CostBenefit, Greedy
from compactlib.lab import BlobLogModel, HotCold, Uniform, Workload, Zipf, replay
from compactlib.report import Table

PAGES, WRITES = 60_000, 600_000
TRACE_PAGES, TRACE_REQUEST = 208_696, 656_169 / 66_898
ROOM = 1.7
"""The size of a log without a fixed size, as a multiple of its live bytes."""


def pages(load: str) -> Iterator[tuple[int, int]]:
    """Write pages in order first, then overwrite them; each write at its own time.

    Args:
        load: `uniform`, `hot/cold` (80 % of the writes go to the first 20 % of the pages) or `zipf` and an exponent,
            the first page the most popular.
    """
    drawn = random.Random(1)
    hot = PAGES // 5
    if load.startswith("zipf"):
        weights = list(accumulate((rank + 1) ** -float(load[5:]) for rank in range(PAGES)))
        later = drawn.choices(range(PAGES), cum_weights=weights, k=WRITES)
    elif load == "hot/cold":
        later = [drawn.randrange(hot) if drawn.random() < 0.8 else hot + drawn.randrange(PAGES - hot)
                 for _ in range(WRITES)]
    else:
        later = [drawn.randrange(PAGES) for _ in range(WRITES)]
    for time, key in enumerate(chain(range(PAGES), later)):
        yield key, time


def requests(path: str) -> Iterator[tuple[int, int]]:
    """Yield the pages of 4 KiB that a CloudPhysics trace writes, at the times 1, 2, 3 and so on of its requests."""
    known: dict[int, int] = {}
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", newline="") as lines:
        writes = (row for row in csv.DictReader(lines) if row["op"] == "2a")
        for number, row in enumerate(writes, 1):
            first, size = int(row["lbn"]) * 512, int(row["size"])
            for page in range(first // 4_096, (first + max(size, 1) - 1) // 4_096 + 1):
                yield known.setdefault(page, len(known)), number


def scheme(name: str, request: float) -> Placement:
    """A scheme with the simulator's parameters."""
    made: dict[str, Callable[[], Placement]] = {
        "mixed": Mixed, "user_and_survivors": UserAndSurvivors, "multi_log": MultiLog, "sfs": SFS, "warcip": WARCIP,
        "dac": DAC, "sepbit": SepBIT, "fadac": lambda: FADaC(request_records=request)}
    return made[name]()


def collected(writes: Iterator[tuple[int, int]], live: int, per_segment: int, victims: int, dead: float,
              prefers: Preference, placement: Placement) -> float:
    """Return the write amplification of collections that start by the dead records, and choose by them."""
    segments = int(live * ROOM) // per_segment
    ties = 8_192 if segments > 3_072 else 2_048
    policy = FixedNumber(victims=victims, min_dead_fraction=dead, prefers=prefers, ties_modulo=ties)
    return write_amplification(writes, PlacedLog(segments, per_segment, live, policy, placement, dead=dead,
                                                 copies_renew=prefers == "root benefit"))


Compared = tuple[str, float, Callable[[], float]]
"""The comparison, the published value, and the function that finds ours."""


def synthetic_rows() -> Iterator[Compared]:
    """Placement on synthetic loads."""
    for (load, prefers), published in SYNTHETIC.items():
        for name, value in zip(SCHEMES, published, strict=True):
            yield (f"{load}.{name}.{_short(prefers)}", value,
                   lambda load=load, name=name, prefers=prefers: collected(  # type: ignore[misc]
                       pages(load), PAGES, 64, 8, 0.15, prefers, scheme(name, 1.0)))


def trace_rows(path: str) -> Iterator[Compared]:
    """Placement, and segments that are closed after each collection, on the trace."""
    for (dead, size, prefers), published in TRACE.items():
        for name, value in zip(SCHEMES, published, strict=True):
            yield (f"trace {dead:.0%} {size}.{name}.{_short(prefers)}", value,
                   lambda dead=dead, size=size, name=name, prefers=prefers: collected(  # type: ignore[misc]
                       requests(path), TRACE_PAGES, size, 16, dead, prefers, scheme(name, TRACE_REQUEST)))
    for (dead, size), (mixed, apart, by_valid, by_benefit) in TRACE_SEGMENTS.items():
        kinds: Sequence[tuple[str, Preference, Placement, float]] = (
            ("mixed", "dead share", Mixed(), mixed), ("user_and_survivors", "dead share", UserAndSurvivors(), apart),
            ("closed", "valid bytes", UserAndSurvivors(keep_open=False), by_valid),
            ("closed", "benefit", UserAndSurvivors(keep_open=False), by_benefit))
        for name, preference, placement, value in kinds:
            if name == "closed" or dead not in (0.10, 0.15):
                yield (f"trace {dead:.0%} {size}.{name}.{_short(preference)}", value,
                       lambda dead=dead, size=size, preference=preference, placement=placement:  # type: ignore[misc]
                       collected(requests(path), TRACE_PAGES, size, 16, dead, preference, placement))


def fixed_rows() -> Iterator[Compared]:
    """Logs of a fixed size, by the library's own policies in their own order."""
    shape = {"keys": PAGES, "writes": 300_000}
    loads: dict[str, Workload] = {"uniform": Uniform(**shape), "hot/cold 10/90": HotCold(**shape),
                                  "zipf 1.0": Zipf(**shape)}
    for (load, fill), (greedy, benefit) in FIXED.items():
        for kind, value in ((Greedy, greedy), (CostBenefit, benefit)):
            policy = kind(min_used_fraction=0, min_reclaimed_segments=8, copy_order="choice")
            model = BlobLogModel.of_slots(int(PAGES / 64 / fill), 64)
            yield (f"fixed {fill:.0%} {load}.{policy.name}", value,
                   lambda load=load, model=model, policy=policy: replay(  # type: ignore[misc]
                       loads[load], policy, model, seed=1).total.write_amplification)


def _short(prefers: Preference) -> str:
    return prefers.replace(" ", "_")


def out_of_order(found: Mapping[str, tuple[float, float]]) -> list[str]:
    """Pairs of schemes that the lab puts the other way round on one load; published copies differ by over 10 %."""
    wrong = []
    groups: dict[tuple[str, str], list[tuple[str, float, float]]] = {}
    for row, (published, ours) in found.items():
        if row.count(".") >= 2 and row.rsplit(".", 2)[1] in SCHEMES:
            load, name, prefers = row.rsplit(".", 2)
            groups.setdefault((load, prefers), []).append((name, published - 1, ours - 1))
    for (load, prefers), rows in groups.items():
        for name, published, ours in rows:
            wrong += [f"{load}, {prefers}: {name} and {other}" for other, theirs, our_other in rows
                      if published > 1.1 * theirs and ours < our_other]
    return wrong


def main() -> None:
    """Replay, print, and write the JSON if asked to."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one row of each kind")
    parser.add_argument("--json", metavar="FILE", help="write the figures here")
    parser.add_argument("--trace", metavar="FILE", help="the CloudPhysics trace")
    parser.add_argument("--rows", metavar="TEXT", default="", help="only rows whose names have this in them")
    asked = parser.parse_args()
    kinds = [list(fixed_rows()), list(synthetic_rows()), list(trace_rows(asked.trace)) if asked.trace else []]
    rows = [row for kind in kinds for row in (kind[:1] if asked.quick else kind) if asked.rows in row[0]]
    found: dict[str, tuple[float, float]] = {}
    for name, published, ours in rows:
        found[name] = (published, ours())
        print(f"{name}: published {published:.4f}, ours {found[name][1]:.4f}", flush=True)
    print(Table.from_dicts(
        [{"row": name, "published": published, "ours": round(ours, 4),
          "write amplification": f"{ours / published - 1:+.2%}",
          "copies": f"{(ours - 1) / (published - 1) - 1:+.2%}"} for name, (published, ours) in found.items()],
        title="write amplification against the published simulator's"))
    print("other order than the simulator's:", "; ".join(out_of_order(found)) or "none")
    report([Figure(figure=f"lab_truth.{name}", unit="copies a write", values=(ours - 1,),
                   reference="published simulator", reference_values=(published - 1,),
                   goal="0.95 .. 1.05" if name.startswith("trace") else "write amplification within 3 %")
            for name, (published, ours) in found.items()], asked.json)


if __name__ == "__main__":
    main()
