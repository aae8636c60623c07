# SPDX-License-Identifier: Apache-2.0
"""`best_range`: of neighbouring segments, the range that costs least for each segment freed.

A range of k segments with v valid bytes frees `k - ceil(v / fill)` of them, where `fill` bytes always fit into an
output. So of all ranges of k segments only the cheapest counts, and one pass in C finds it. Most lengths need no pass:
k neighbours cost at least as much as the k emptiest segments, and as the cheapest ranges into which they can be cut,
such as one of the next shorter length that had a pass. A few lengths of low bounds are tried first, then all from the
shortest on; a bound above the best price needs no pass. Prices are compared exactly.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Sequence
from functools import cache
from heapq import nsmallest
from itertools import accumulate, chain
from operator import sub
from typing import NamedTuple

_FIRST = 8
"""How many lengths are tried for a low price to begin with."""


class SegmentRange(NamedTuple):
    """A range of segments, with the cost and benefit of compacting it."""

    start: int  # the place of the first segment
    end: int  # the place after the last segment
    cost: int  # the sum of their valid bytes
    benefit: int  # how many segments are freed at least

    def compared_with(self, other: SegmentRange) -> int:
        """Return a negative number if it costs less for each segment freed, 0 for the same; benefits are positive."""
        return self.cost * other.benefit - other.cost * self.benefit


def best_range(valid_bytes: Sequence[int], fill_bytes: int, min_benefit: int = 1) -> SegmentRange | None:
    """Return the range of least cost / benefit: the first of equal ranges, of equal starts the longest.

    `None` if no range has the benefit. O(n log n) for most segments, and O(n) for each further pass: some hundreds of
    16,000 segments, if very many must be freed at once.

    Args:
        valid_bytes: bytes that a compaction copies of each segment, >= 0.
        fill_bytes: bytes that always fit into an output segment, > 0.
        min_benefit: how many segments a range has to free, >= 1.
    """
    count, sums = len(valid_bytes), list(accumulate(valid_bytes, initial=0))

    def priced(start: int, length: int, cost: int) -> SegmentRange:
        return SegmentRange(start, start + length, cost, length - -(-cost // fill_bytes))

    def cheapest(length: int, starts: int) -> SegmentRange:
        costs = list(map(sub, sums[length:length + starts], sums))
        return priced(costs.index(cost := min(costs)), length, cost)

    @cache
    def costs_of_parts(starts: int) -> dict[int, int]:
        return {1 << power: cheapest(1 << power, starts).cost for power in range(count.bit_length())}

    parts, bounds = costs_of_parts(count), [0]
    for length, cost in enumerate(accumulate(sorted(valid_bytes)), 1):
        part = 1 << length.bit_length() - 1
        bounds.append(max(cost, parts[part] + bounds[length - part]))
    lengths = [found for length, cost in enumerate(bounds) if (found := priced(0, length, cost)).benefit >= min_benefit]
    best: SegmentRange | None = None
    passed = [0]  # lengths of which the bound is the cost of the cheapest range
    for bound in chain(nsmallest(_FIRST, lengths, key=lambda each: each.cost / each.benefit), lengths):
        starts, length = count, bound.end
        shorter = passed[bisect_right(passed, length) - 1]
        bound = priced(0, length, max(bound.cost, bounds[shorter] + bounds[length - shorter]))
        if bound.benefit < min_benefit:
            continue
        if best is not None and (compared := bound.compared_with(best)) >= 0:
            # It can at best be as cheap, and counts only if it starts earlier.
            part = 1 << length.bit_length() - 1
            if compared or not best.start or priced(0, length, costs_of_parts(best.start)[part] + bounds[length - part]
                                                    ).compared_with(best) > 0:
                continue
            starts = best.start
        found = cheapest(length, starts)
        if starts == count:
            bounds[length] = found.cost
            insort(passed, length)
        if found.benefit >= min_benefit and (best is None or (found.compared_with(best), found.start) < (
                0, best.start)):
            best = found
    if best is None:
        return None
    every = (priced(best.start, end - best.start, sums[end] - sums[best.start]) for end in range(count, best.start, -1))
    return next(each for each in every if each.benefit >= min_benefit and not each.compared_with(best))
