# SPDX-License-Identifier: Apache-2.0
"""Canonical families of runs in, canonical families out: the arithmetic of `IndexSet`.

Two families are combined by a sweep over all their starts and all their ends, each in order and no longer paired;
how many runs are open at a place follows from how many starts and ends lie below. Each step is one C loop
(`list.sort`, which merges two sorted stretches in linear time, then `map` and `compress`), so nothing is ever looked
up member by member. Families are first cut to where their ranges meet, by bisection.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, compress, islice, repeat
from operator import add, ge, sub

from compactlib.indexset.runs import Column, Runs, joined


def between(runs: Runs, first: int, last: int) -> Runs:
    """What lies in `first..last`. O(log runs) and a copy of what is kept; the same columns if that is everything."""
    firsts, lasts = runs
    start, stop = bisect_left(lasts, first), bisect_right(firsts, last)
    if start >= stop or first > last:
        return array("Q"), array("Q")
    if not start and stop == len(firsts) and first <= firsts[0] and lasts[-1] <= last:
        return runs
    if firsts is lasts:  # runs of one: nothing to cut within a run
        firsts = lasts = firsts[start:stop]
        return firsts, lasts
    firsts, lasts = firsts[start:stop], lasts[start:stop]
    firsts[0] = max(firsts[0], first)
    lasts[-1] = min(lasts[-1], last)
    return firsts, lasts


def union(families: Sequence[Runs]) -> Runs:
    """What any of the families covers. O(runs) for two, O(runs log families) for more."""
    held = [runs for runs in families if runs[0]]
    if not held:
        return array("Q"), array("Q")
    if len(held) == 1:
        return held[0]
    if len(held) == 2:
        low, high = sorted(held, key=_first)
        if low[1][-1] < high[0][0]:
            return _followed(low, high)
    starts: list[int] = []
    ends: list[int] = []
    for firsts, lasts in held:
        starts += firsts
        ends += lasts
    starts.sort()
    ends.sort()
    return joined(starts, ends)


def intersection(left: Runs, right: Runs) -> Runs:
    """What both families cover. O(runs where their ranges meet)."""
    left, right = _met(left, right)
    if len(left[0]) < 2 or len(right[0]) < 2:
        one, other = sorted((left, right), key=_run_count)
        return between(other, one[0][0], one[1][-1]) if one[0] else one
    starts, ends = _swept(left, right)
    # Two runs are open from the (k+1)-th start to the k-th end, if that is not before it.
    overlaps = list(map(ge, ends, islice(starts, 1, None)))
    return (array("Q", list(compress(islice(starts, 1, None), overlaps))),
            array("Q", list(compress(ends, overlaps))))


def overlap(left: Runs, right: Runs) -> bool:
    """Whether the families share a member. O(runs where their ranges meet)."""
    left, right = _met(left, right)
    if not left[0] or not right[0]:
        return False
    starts, ends = _swept(left, right)
    return any(map(ge, ends, islice(starts, 1, None)))


def difference(runs: Runs, removed: Runs) -> Runs:
    """What `runs` covers and `removed` does not. O(runs where their ranges meet), and a copy of what lies beside."""
    if not runs[0]:
        return runs
    first, last = runs[0][0], runs[1][-1]
    firsts, lasts = between(removed, first, last)
    if not firsts:
        return runs
    between_removed = (array("Q", list(map(add, islice(lasts, len(lasts) - 1), repeat(1)))),
                       array("Q", list(map(sub, islice(firsts, 1, None), repeat(1)))))
    below, above = between(runs, first, firsts[0] - 1), between(runs, lasts[-1] + 1, last)
    return _followed(_followed(below, intersection(runs, between_removed)), above)


def chunks(runs: Runs, size: int) -> Iterator[Runs]:
    """The members in families of `size` each, the last one smaller. O(runs) at first, then O(log runs + its runs)."""
    firsts, lasts = runs
    held: list[int] = list(accumulate(map(add, map(sub, lasts, firsts), repeat(1))))  # up to the end of each run

    def member(position: int) -> int:
        run = bisect_right(held, position)
        return lasts[run] - (held[run] - 1 - position)

    count = held[-1] if held else 0
    start = 0
    while start < count:
        stop = min(start + size, count)
        yield between(runs, member(start), member(stop - 1))
        start = stop


def _first(runs: Runs) -> int:
    return runs[0][0]


def _run_count(runs: Runs) -> int:
    return len(runs[0])


def _met(left: Runs, right: Runs) -> tuple[Runs, Runs]:
    """Both cut to the range of the other."""
    if left[0] and right[0]:
        left, right = (between(left, right[0][0], right[1][-1]), between(right, left[0][0], left[1][-1]))
    return left, right


def _followed(low: Runs, high: Runs) -> Runs:
    """Both, where the second begins above the end of the first; a copy, and one look at where they meet."""
    if low[0] and high[0] and low[1][-1] + 1 == high[0][0]:
        return low[0] + high[0][1:], low[1][:-1] + high[1]
    return low[0] + high[0], low[1] + high[1]


def _swept(left: Runs, right: Runs) -> tuple[list[int], list[int]]:
    """All starts and all ends, each in order."""
    starts = _merged(left[0], right[0])
    if left[0] is left[1] and right[0] is right[1]:  # runs of one: every start is its own end
        return starts, starts
    return starts, _merged(left[1], right[1])


def _merged(left: Column, right: Column) -> list[int]:
    values = left.tolist()
    values += right
    values.sort()
    return values
