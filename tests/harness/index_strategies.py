# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies for index sets.

Critical places are drawn often: both ends of the range, and the ends of words and containers.
"""

from __future__ import annotations

from hypothesis import strategies as st

MAX_INDEX = (1 << 64) - 1
BOUNDARIES: tuple[int, ...] = (0, 1 << 6, 1 << 16, 1 << 30, 1 << 32, 1 << 63, MAX_INDEX)
"""Indexes at which the representation changes: words, containers, signed numbers."""
_NEAR = 12
_LONGEST_RUN = 30


def indexes() -> st.SearchStrategy[int]:
    """Draw single indexes: close to a boundary, or anywhere. Shrinks to 0."""
    near = st.builds(lambda place, by: min(max(place + by, 0), MAX_INDEX), st.sampled_from(BOUNDARIES),
                     st.integers(-_NEAR, _NEAR))
    return near | st.integers(0, MAX_INDEX)


def index_runs() -> st.SearchStrategy[tuple[int, int]]:
    """Draw runs of at most 30 indexes as pairs of the first and the last index."""
    return st.tuples(indexes(), st.integers(0, _LONGEST_RUN - 1)).map(
        lambda run: (run[0], min(run[0] + run[1], MAX_INDEX)))
