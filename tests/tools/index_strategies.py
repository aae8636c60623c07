# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for index sets and for the ranges of segments.

The places that index sets trip over are crowded: both ends of the range, and where words and containers end.
"""

from __future__ import annotations

from hypothesis import strategies as st

from compactlib.indexset import MAX_INDEX, IndexSet
from compactlib.raftlog.model.values import SegmentRef

BOUNDARIES: tuple[int, ...] = (0, 1 << 6, 1 << 16, 1 << 30, 1 << 32, 1 << 63, MAX_INDEX)
"""Where members are counted, stored or compared in another way than just before: words, containers, signed numbers."""
_NEAR = 12
_MOST_DENSE = 10_000


def indexes(first: int = 0, last: int = MAX_INDEX) -> st.SearchStrategy[int]:
    """Single indexes: close to a boundary, close to either end, or anywhere. Shrinks to `first`.

    Args:
        first: the lowest.
        last: the highest, at least `first`.
    """
    places = sorted({first, last, *(place for place in BOUNDARIES if first <= place <= last)})
    near = st.builds(lambda place, by: min(max(place + by, first), last), st.sampled_from(places),
                     st.integers(-_NEAR, _NEAR))
    return near | st.integers(first, last)


def index_runs(first: int = 0, last: int = MAX_INDEX, *, max_length: int = 30) -> st.SearchStrategy[tuple[int, int]]:
    """Runs of indexes, from one to the other, both among them.

    Args:
        first: the lowest index.
        last: the highest.
        max_length: the most indexes in a run.
    """
    return st.tuples(indexes(first, last), st.integers(0, max_length - 1)).map(
        lambda run: (run[0], min(run[0] + run[1], last)))


def live_sets(first: int = 0, last: int = MAX_INDEX, *, max_members: int = 40, max_runs: int = 12,
              max_length: int = 30) -> st.SearchStrategy[IndexSet]:
    """Live sets of every shape: none, few, runs, every n-th; across boundaries. Shrinks to none.

    If the range holds at most 10,000 indexes, also all of it, and all but a few. So a set can always be listed.

    Args:
        first: the lowest index that may be live.
        last: the highest.
        max_members: the most members of a sparse one, and the most holes of a dense one.
        max_runs: the most runs.
        max_length: the most members of one run, and of one that has every n-th index.
    """
    sparse = st.sets(indexes(first, last), max_size=max_members).map(IndexSet.from_iterable)
    runs = st.lists(index_runs(first, last, max_length=max_length), max_size=max_runs).map(IndexSet.from_runs)
    every = st.builds(lambda start, step, count: IndexSet.from_sorted(range(start, last + 1, step)[:count]),
                      indexes(first, last), st.sampled_from([2, 3, 63, 64, 65]), st.integers(0, max_length))
    if last - first >= _MOST_DENSE:
        return sparse | runs | every
    return sparse | runs | every | sparse.map(IndexSet.range(first, last).difference)


@st.composite
def segment_refs(draw: st.DrawFn, *, max_segments: int = 6, max_span: int = 7, first: int = 0,
                 gaps: bool = True) -> list[SegmentRef]:
    """The segments of one log, oldest to newest, each with its range. Shrinks to none, then to ranges of one index.

    Args:
        max_segments: the most segments.
        max_span: the most indexes in one's range.
        first: where the first may begin.
        gaps: whether indexes may be missing between two of them.
    """
    refs: list[SegmentRef] = []
    last = first - 1
    for number in range(1, draw(st.integers(0, max_segments)) + 1):
        start = last + 1 + (draw(st.sampled_from([0, 0, 3])) if gaps else 0)
        last = start + draw(st.integers(0, max_span - 1))
        refs.append(SegmentRef(number, start, last))
    return refs


def written_refs(*, max_segments: int = 10, last: int = 40, max_span: int = 13) -> st.SearchStrategy[list[SegmentRef]]:
    """Segments as they were written one after the other, each over whatever range: later ones take back earlier ones'.

    Args:
        max_segments: the most segments.
        last: where the last range may begin.
        max_span: the most indexes in one's range.
    """
    spans = st.lists(st.tuples(st.integers(0, last), st.integers(0, max_span - 1)), max_size=max_segments)
    return spans.map(lambda drawn: [SegmentRef(number, start, start + more)
                                    for number, (start, more) in enumerate(drawn, 1)])
