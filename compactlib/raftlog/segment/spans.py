# SPDX-License-Identifier: Apache-2.0
"""Which entries to read with one system call: neighbours in the file, whatever their indexes. Pure functions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress, count, islice, repeat
from operator import gt, sub

MAX_GAP_BYTES = 16 << 10
MAX_SPAN_BYTES = 1 << 20


def adjacent_runs(starts: Sequence[int], ends: Sequence[int], max_gap: int = 0) -> list[tuple[int, int]]:
    """Cut a list of byte ranges (ascending, disjoint) wherever more than `max_gap` bytes lie between two.

    Returns half-open position ranges `(i, j)` that together cover the list. O(n), in C but for the cuts.
    """
    if not starts:
        return []
    gaps = map(sub, islice(starts, 1, None), ends)
    cuts = list(compress(count(1), map(gt, gaps, repeat(max_gap))))
    return list(zip([0, *cuts], [*cuts, len(starts)], strict=True))


def read_spans(starts: Sequence[int], ends: Sequence[int], *, max_gap: int = MAX_GAP_BYTES,
               max_bytes: int = MAX_SPAN_BYTES) -> Iterator[tuple[int, int]]:
    """Cut a list of byte ranges into spans to be read whole: reading over a small gap is cheaper than another call.

    No span is longer than `max_bytes`, unless it is one entry that is.
    """
    for first, stop in adjacent_runs(starts, ends, max_gap):
        while first < stop:
            split = bisect_right(ends, starts[first] + max_bytes, first, stop)
            split = max(split, first + 1)
            yield first, split
            first = split
