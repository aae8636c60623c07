# SPDX-License-Identifier: Apache-2.0
"""Where members stand in a column: one merge, checked, whatever the caller passes."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import InvalidInput, Unsorted
from compactlib.indexset.positions import common_positions, merge_positions
from tests.tools.index_strategies import indexes

ASCENDING = (st.sets(st.integers(0, 60)) | st.sets(indexes())).map(sorted)
KINDS: list[Callable[[Sequence[int]], Any]] = [list, tuple, lambda values: array("Q", values)]


@given(ASCENDING, st.data(), st.sampled_from(KINDS), st.sampled_from(KINDS))
def test_positions_of_a_subset(column: list[int], data: st.DataObject, kind: Callable[[Sequence[int]], Any],
                               other_kind: Callable[[Sequence[int]], Any]) -> None:
    members = [value for value in column if data.draw(st.booleans())]
    expected = [column.index(member) for member in members]
    assert merge_positions(kind(column), other_kind(members)) == expected
    assert common_positions(kind(column), other_kind(members)) == expected


@given(ASCENDING, ASCENDING)
def test_positions_of_what_is_in_both(column: list[int], members: list[int]) -> None:
    shared = [member for member in members if member in column]
    assert common_positions(column, members) == [column.index(member) for member in shared]
    if shared == members:
        assert merge_positions(column, members) == [column.index(member) for member in members]
    else:
        absent = next(member for member in members if member not in column)
        with pytest.raises(InvalidInput, match=rf"{len(members) - len(shared)} of {len(members)} .* {absent};"):
            merge_positions(column, members)


@given(st.lists(st.integers(0, 12), max_size=8), st.lists(st.integers(0, 12), max_size=8))
def test_unsorted_input_is_refused_or_answered_rightly(column: list[int], members: list[int]) -> None:
    try:
        positions = merge_positions(column, members)
    except InvalidInput:
        return
    assert [column[position] for position in positions] == members
    assert all(position >= 0 for position in positions)


@pytest.mark.parametrize(("column", "members"), [
    ([1, 5, 3, 9], [3]), ([1, 3, 5, 9], [5, 3]), ([1, 3, 3, 9], [3]), ([4, 6, 5, 7], [5]),
])
def test_what_is_out_of_order_is_named(column: list[int], members: list[int]) -> None:
    for find in (merge_positions, common_positions):
        with pytest.raises(Unsorted) as caught:
            find(column, members)
        assert caught.value.found <= caught.value.previous


def test_a_dense_column_of_any_size_is_answered_by_arithmetic() -> None:
    # A merge could not be: the column would have to be copied.
    column = range(10, 1 << 62)
    assert merge_positions(column, [10, 4_000_000_000, (1 << 62) - 1]) == [0, 3_999_999_990, (1 << 62) - 11]
    with pytest.raises(InvalidInput):
        merge_positions(range(10, 1_000), [9, 10])
    with pytest.raises(InvalidInput):
        merge_positions(range(10, 1_000), [999, 1_000])


def test_of_nothing() -> None:
    assert merge_positions([], []) == common_positions([], []) == []
    assert merge_positions([1, 2], []) == common_positions([1, 2], []) == []
    assert common_positions([], [1, 2]) == []
    with pytest.raises(InvalidInput):
        merge_positions([], [1, 2])
