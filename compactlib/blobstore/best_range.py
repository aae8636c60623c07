# SPDX-License-Identifier: Apache-2.0
"""`best_range`: of neighbouring segments, the range that costs least for each segment freed.

A range of k segments with v valid bytes frees `k - ceil(v / fill)` of them, where `fill` bytes always fit into an
output. Of the n(n+1)/2 ranges, `best_range` finds the best in a few sweeps of O(n log n), and compares exactly, without
rounding.

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

import attrs


@attrs.frozen
class SegmentRange:
    """A range of segments, with the cost and benefit of compacting it.

    Attributes:
        start: the place of the first segment.
        end: the place after the last segment.
        cost: the sum of their valid bytes.
        benefit: how many segments are freed at least.
    """

    start: int
    end: int
    cost: int
    benefit: int

    def is_cheaper_than(self, other: SegmentRange) -> bool:
        """Whether it costs less for each segment freed; both have a positive benefit. Exact."""
        return self.cost * other.benefit < other.cost * self.benefit


def best_range(valid_bytes: Sequence[int], fill_bytes: int, min_benefit: int = 1) -> SegmentRange | None:
    """Return the range of least cost / benefit: the first of equal ranges, of equal starts the longest.

    O(n log n) for each of a few sweeps; `None` if no range has the benefit.

    Args:
        valid_bytes: bytes that a compaction copies of each segment, >= 0.
        fill_bytes: bytes that always fit into an output segment, > 0.
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
    """Return the cheapest of the shortest ranges that bring the benefit, one for each start; `None` if no range does.

    Any range with the benefit would do; a good one saves sweeps.
    """
    needed = min_benefit * sums.fill
    waiting: deque[int] = deque()
    guess: SegmentRange | None = None
    for end, room in enumerate(sums.room):
        while waiting and sums.room[waiting[0]] <= room - needed:
            found = sums.range(waiting.popleft(), end)
            if guess is None or found.is_cheaper_than(guess):
                guess = found
        while waiting and sums.room[waiting[-1]] >= room:
            waiting.pop()
        waiting.append(end)
    return guess


def _sweep(sums: _PrefixSums, min_benefit: int, current: SegmentRange) -> tuple[SegmentRange | None, int]:
    """Return the range that beats the ratio of `current` by most, and the lowest start of the ranges that equal it.

    A start waits until the room up to an end brings the benefit. Waiting starts ascend in room: a start with at least
    the room of a later start frees no more segments and costs more, so it is dropped. A start that has stopped
    waiting may meet ends with too little benefit; an earlier end had more benefit for less cost.
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
    """Starts sorted by rest, with ascending worth: a start is dropped if one with a smaller rest is worth more.

    Of equal worths the start with the larger rest was added first: it is the lowest start.
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
        """Return the best start with at most this rest, and the best with a larger rest, which pays the penalty."""
        at = bisect_right(self.rests, rest)
        found = [(self.worths[at - 1], self.places[at - 1])] if at else []
        if at < len(self.rests):
            found.append((self.worths[-1] - penalty, self.places[-1]))
        return found
