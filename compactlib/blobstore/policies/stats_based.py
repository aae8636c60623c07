# SPDX-License-Identifier: Apache-2.0
"""The default policy: the range of segments that costs the fewest bytes copied for each segment freed.

A range of k segments with v valid bytes in all frees `k - ceil(v / fill)` of them, where `fill` is what an output is
sure to take. Of the n(n+1)/2 ranges, `best_range` finds the one of least `cost / benefit` in a few sweeps of
O(n log n), and compares exactly, without rounding.

With prefix sums G of `fill - v`, the benefit of the segments i .. j-1 is `floor((G[j] - G[i]) / fill)`. Write G as
`q * fill + r`, and it is `q[j] - q[i]`, less one if `r[j] < r[i]`. With prefix sums P of the costs, a range is
better than a ratio x exactly if `P[j] - P[i] - x * benefit < 0`; and that splits into a part of j and a part of i:
`(P[j] - x*q[j]) - (P[i] - x*q[i])`, plus x if `r[j] < r[i]`. So one sweep over the ends j, with the starts i in a
list sorted by r that holds only those which may still win, finds the range that beats x by most. That range's own
ratio is the next x (Dinkelbach's method), until none is better.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import ClassVar

import attrs

from compactlib.blobstore.view import BlobChoice, BlobView, SegmentView, fraction, shut_gate, too_little, whole


@attrs.frozen(kw_only=True)
class StatsBased:
    """The contiguous range with the least cost / benefit.

    Cost is what is copied; benefit is the number of segments freed, reckoned as if each output had to leave room for
    the largest blob. Ranges that free fewer than `min_reclaimed_segments` do not count. Of equals, the one that
    starts first wins, and of those the longest. Ratios are compared exactly, without rounding.

    Attributes:
        min_used_fraction: how full the log has to be, 0.0 to 1.0; exactly as full is enough.
        min_reclaimed_segments: by how many segments the log has to get shorter, >= 1.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)

    name: ClassVar[str] = "stats_based"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy.choose`. O(n log n) for n segments, see `best_range`."""
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        found: SegmentRange | None = None
        taken: Sequence[SegmentView] = ()
        for run in view.eligible_runs:
            here = best_range([segment.valid_bytes for segment in run], view.fill_bytes, self.min_reclaimed_segments)
            if here is not None and (found is None or here.is_cheaper_than(found)):
                found, taken = here, run[here.start:here.end]
        if found is None:
            return too_little(view, self.min_reclaimed_segments)
        return BlobChoice(taken, why=f"{found.cost / found.benefit:,.0f} bytes copied for each segment freed is the "
                                     f"least of all ranges that free {self.min_reclaimed_segments} or more")


@attrs.frozen
class SegmentRange:
    """A range of segments and what compacting it would bring.

    Attributes:
        start: the first segment's place.
        end: the place behind the last one.
        cost: the sum of their valid bytes.
        benefit: segments fewer afterwards, at least.
    """

    start: int
    end: int
    cost: int
    benefit: int

    def is_cheaper_than(self, other: SegmentRange) -> bool:
        """Whether it costs less for each segment freed; both free some. Exact."""
        return self.cost * other.benefit < other.cost * self.benefit


def best_range(valid_bytes: Sequence[int], fill_bytes: int, min_benefit: int = 1) -> SegmentRange | None:
    """Return the range of least cost per benefit; of equals the one that starts first, of those the longest.

    O(n log n) for each of a few sweeps; `None` if no range has the benefit.

    Args:
        valid_bytes: what a compaction copies of each segment, >= 0.
        fill_bytes: how many of these an output segment is sure to take, > 0.
        min_benefit: how many segments a range has to free, >= 1.
    """
    sums = _PrefixSums(valid_bytes, fill_bytes)
    chosen = _first_guess(sums, min_benefit)
    if chosen is None:
        return None
    while True:
        better, first_equal = _sweep(sums, min_benefit, chosen)
        if better is None:
            break
        chosen = better
    return sums.longest_as_cheap(first_equal, chosen, min_benefit)


class _PrefixSums:
    def __init__(self, valid: Sequence[int], fill: int) -> None:
        self.fill = fill
        self.room = list(accumulate((fill - each for each in valid), initial=0))
        self.cost = list(accumulate(valid, initial=0))
        self.parts = [divmod(room, fill) for room in self.room]

    def range(self, start: int, end: int) -> SegmentRange:
        return SegmentRange(start, end, self.cost[end] - self.cost[start],
                            (self.room[end] - self.room[start]) // self.fill)

    def longest_as_cheap(self, start: int, as_this: SegmentRange, min_benefit: int) -> SegmentRange:
        for end in range(len(self.cost) - 1, start, -1):
            found = self.range(start, end)
            if found.benefit >= min_benefit and found.cost * as_this.benefit == as_this.cost * found.benefit:
                return found
        return as_this


def _first_guess(sums: _PrefixSums, min_benefit: int) -> SegmentRange | None:
    """Return the range that frees most; `None` if it does not bring the benefit, so that none does."""
    lowest, most = 0, (0, 0, 0)
    for end, room in enumerate(sums.room):
        most = max(most, (room - sums.room[lowest], -lowest, end))
        if room < sums.room[lowest]:
            lowest = end
    found = sums.range(-most[1], most[2])
    return found if found.benefit >= min_benefit else None


def _sweep(sums: _PrefixSums, min_benefit: int, current: SegmentRange) -> tuple[SegmentRange | None, int]:
    """The range that beats the ratio of `current` by most, or else the lowest start of those that equal it.

    A start waits until an end brings the benefit it needs, which is a matter of room alone. Waiting starts ascend
    in room: one with no more room than a later one frees no more segments and costs more, so it is dropped. A
    start that no longer waits may meet ends that bring too little; an end before them brought more for less.
    """
    x, scale = current.cost, current.benefit
    needed = min_benefit * sums.fill
    waiting: deque[tuple[int, int, int, int]] = deque()
    ready = _Starts()
    least, best, first_equal = 0, None, len(sums.room)
    for place, (room, cost, (units, rest)) in enumerate(zip(sums.room, sums.cost, sums.parts, strict=True)):
        while waiting and waiting[0][0] <= room - needed:
            ready.add(*waiting.popleft()[1:])
        worth = cost * scale - x * units
        if ready.worths:
            for gain, start in ready.candidates(rest, x):
                if worth - gain < least:
                    least, best = worth - gain, (start, place)
                elif worth == gain and start < first_equal:
                    first_equal = start
        while waiting and waiting[-1][0] >= room:
            waiting.pop()
        waiting.append((room, rest, worth, place))
    return (None if best is None else sums.range(*best)), first_equal


class _Starts:
    """Starts sorted by rest; one is kept only if it is worth at least as much as all with a smaller rest.

    Of several worth the same, the one with the larger rest came first: it is the lowest start.
    """

    def __init__(self) -> None:
        self.rests: list[int] = []
        self.worths: list[int] = []
        self.places: list[int] = []

    def add(self, rest: int, worth: int, place: int) -> None:
        at = bisect_right(self.rests, rest)
        if at and self.worths[at - 1] >= worth:
            return
        over = at
        while over < len(self.worths) and self.worths[over] < worth:
            over += 1
        self.rests[at:over] = [rest]
        self.worths[at:over] = [worth]
        self.places[at:over] = [place]

    def candidates(self, rest: int, penalty: int) -> list[tuple[int, int]]:
        """The best start with no larger rest, and the best of all, which pays the penalty unless it is the same."""
        at = bisect_right(self.rests, rest)
        found = [(self.worths[at - 1], self.places[at - 1])] if at else []
        if at < len(self.rests):
            found.append((self.worths[-1] - penalty, self.places[-1]))
        return found
