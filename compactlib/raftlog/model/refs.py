# SPDX-License-Identifier: Apache-2.0
"""Search in the ordered list of segments. Pure functions over `SegmentRef`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

from compactlib.indexset import IndexSet
from compactlib.raftlog.model.values import SegmentRef


def next_ref(refs: Sequence[SegmentRef], index: int) -> SegmentRef | None:
    """The oldest segment with an index >= `index`, `None` without any. O(log n)."""
    place = bisect_right(refs, index, key=_first)
    if place and refs[place - 1].last >= index:
        place -= 1
    return refs[place] if place < len(refs) else None


def refs_holding(refs: Sequence[SegmentRef], indexes: IndexSet) -> Iterator[tuple[SegmentRef, IndexSet]]:
    """The segments whose ranges contain some of `indexes`, oldest first, each with these indexes.

    O(log n + log runs) for each, and a copy of `indexes`.
    """
    firsts, lasts = indexes.columns
    beyond = 0
    while (run := bisect_left(lasts, beyond)) < len(lasts):
        ref = next_ref(refs, max(firsts[run], beyond))
        if ref is None:
            return
        here = indexes.between(ref.first, ref.last)
        if here:
            yield ref, here
        beyond = ref.last + 1


def _first(ref: SegmentRef) -> int:
    return ref.first
