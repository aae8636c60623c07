# SPDX-License-Identifier: Apache-2.0
"""`describe`: what a workload asks of a store, before a policy is chosen for it."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Sequence
from statistics import median_low
from typing import Any

import attrs

from compactlib.lab.operations import DELETE, FOREVER, PUT, READ
from compactlib.lab.workloads import Workload
from compactlib.report import Printed

_HOTTEST = (0.01, 0.1)


@attrs.frozen(kw_only=True, repr=False)
class WorkloadDescription(Printed):
    """What a workload asks of a store. Bytes are content; a part of nothing is 0.

    Attributes:
        workload: which one.
        seconds: from the first operation to the last.
        puts: how many write a key.
        overwrites: of these, how many replace one that is there.
        deletes: of a key that is there.
        reads: of any key.
        keys: different ones that were put.
        written_bytes: of all puts.
        peak_live_bytes: the most that is there at one time.
        peak_live_keys: the most keys that are there at one time, perhaps another.
        largest_bytes: the largest put.
        median_bytes: half of the puts are at most so large.
        with_life: the part of the puts that have a time to live.
        median_life_seconds: half of those have at most this one; 0 if none has.
        hottest_percent: the part of the puts that go to the hundredth of the keys that is put most often.
        hottest_tenth: the same of the tenth.
        median_overwrite_bytes: of the puts that are replaced, half are after at most so many bytes were written; it
            says what a placement by inferred lifetime can know. 0 if none is.
    """

    workload: str
    seconds: float
    puts: int
    overwrites: int
    deletes: int
    reads: int
    keys: int
    written_bytes: int
    peak_live_bytes: int
    peak_live_keys: int
    largest_bytes: int
    median_bytes: int
    with_life: float
    median_life_seconds: float
    hottest_percent: float
    hottest_tenth: float
    median_overwrite_bytes: int

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a figure."""
        return [{"figure": name, "value": value} for name, value in attrs.asdict(self).items() if name != "workload"]

    def _summary(self) -> str:
        return self.workload


def describe(workload: Workload, *, seed: int = 0) -> WorkloadDescription:
    """Read a workload once, and say what it asks. About two microseconds an operation; 50 bytes of memory a put.

    Args:
        workload: a trace, or one that is drawn.
        seed: of one that is drawn.
    """
    counts = {PUT: 0, DELETE: 0, READ: 0}
    sizes, lives, distances = array("q"), array("q"), array("q")
    often: dict[int, int] = {}
    # Of each key that is there: its size, what had been written by then, and when it ends, if it does.
    there: dict[int, tuple[int, int, int]] = {}
    ends: list[tuple[int, int]] = []
    first = last = None
    overwrites = written = live = peak = most = 0
    for piece in workload.pieces(seed):
        for kind, key, size, life, time in piece.rows():
            first, last = time if first is None else first, time
            while ends and ends[0][0] < time:
                end, expired = heapq.heappop(ends)
                if expired in there and there[expired][2] == end:
                    live -= there.pop(expired)[0]
            if kind == READ:
                counts[READ] += 1
                continue
            before = there.pop(key, None)
            if before is not None:
                live -= before[0]
            if kind == DELETE:
                counts[DELETE] += before is not None
                continue
            counts[PUT] += 1
            if before is not None:
                overwrites += 1
                distances.append(written - before[1])
            written += size
            often[key] = often.get(key, 0) + 1
            sizes.append(size)
            until = FOREVER
            if life != FOREVER:
                lives.append(life)
                until = time + life
                heapq.heappush(ends, (until, key))
            there[key] = size, written, until
            live += size
            peak, most = max(peak, live), max(most, len(there))
    ranked = sorted(often.values(), reverse=True)
    percent, tenth = (_part(sum(ranked[:max(round(part * len(ranked)), 1)]), counts[PUT]) for part in _HOTTEST)
    return WorkloadDescription(
        workload=str(workload), seconds=0.0 if first is None or last is None else (last - first) / 1000,
        puts=counts[PUT], overwrites=overwrites, deletes=counts[DELETE], reads=counts[READ], keys=len(often),
        written_bytes=written, peak_live_bytes=peak, peak_live_keys=most,
        largest_bytes=max(sizes, default=0), median_bytes=_median(sizes),
        with_life=_part(len(lives), counts[PUT]), median_life_seconds=_median(lives) / 1000, hottest_percent=percent,
        hottest_tenth=tenth, median_overwrite_bytes=_median(distances))


def _part(count: int, of: int) -> float:
    return count / of if of else 0.0


def _median(values: Sequence[int]) -> int:
    return median_low(values) if values else 0
