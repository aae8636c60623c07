# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for index sets.

Critical places are drawn often: both ends of the range, and the ends of words and containers.
"""

from __future__ import annotations

from hypothesis import strategies as st

from compactlib.indexset import IndexSet

MAX_INDEX = (1 << 64) - 1
BOUNDARIES: tuple[int, ...] = (0, 1 << 6, 1 << 16, 1 << 30, 1 << 32, 1 << 63, MAX_INDEX)
"""Indexes at which the representation changes: words, containers, signed numbers."""
_NEAR = 12
_MOST_DENSE = 10_000


def indexes(first: int = 0, last: int = MAX_INDEX) -> st.SearchStrategy[int]:
    """Draw single indexes: close to a boundary, close to either end, or anywhere. Shrinks to `first`.

    Args:
        first: the lowest.
        last: the highest, at least `first`.
    """
    places = sorted({first, last, *(place for place in BOUNDARIES if first <= place <= last)})
    near = st.builds(lambda place, by: min(max(place + by, first), last), st.sampled_from(places),
                     st.integers(-_NEAR, _NEAR))
    return near | st.integers(first, last)


def index_runs(first: int = 0, last: int = MAX_INDEX, *, max_length: int = 30) -> st.SearchStrategy[tuple[int, int]]:
    """Draw runs of indexes as pairs of the first and the last index.

    Args:
        first: the lowest index.
        last: the highest.
        max_length: the largest number of indexes in a run.
    """
    return st.tuples(indexes(first, last), st.integers(0, max_length - 1)).map(
        lambda run: (run[0], min(run[0] + run[1], last)))


def live_sets(first: int = 0, last: int = MAX_INDEX, *, max_members: int = 40, max_runs: int = 12,
              max_length: int = 30) -> st.SearchStrategy[IndexSet]:
    """Draw live sets of every shape: empty, few, runs, every n-th; across boundaries. Shrinks to the empty set.

    In a range of at most 10,000 indexes, also full and nearly full sets. So a set can always be listed.

    Args:
        first: the lowest index that may be live.
        last: the highest.
        max_members: the largest number of members of a sparse set, and of holes of a dense set.
        max_runs: the largest number of runs.
        max_length: the largest number of members of a run, and of a set of every n-th index.
    """
    sparse = st.sets(indexes(first, last), max_size=max_members).map(IndexSet.from_iterable)
    runs = st.lists(index_runs(first, last, max_length=max_length), max_size=max_runs).map(IndexSet.from_runs)
    every = st.builds(lambda start, step, count: IndexSet.from_sorted(range(start, last + 1, step)[:count]),
                      indexes(first, last), st.sampled_from([2, 3, 63, 64, 65]), st.integers(0, max_length))
    if last - first >= _MOST_DENSE:
        return sparse | runs | every
    return sparse | runs | every | sparse.map(IndexSet.range(first, last).difference)
