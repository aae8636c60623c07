# SPDX-License-Identifier: Apache-2.0
"""The index of a segment in memory against a plain dictionary."""

from __future__ import annotations

import tracemalloc
from array import array

import attrs
import pytest
from hypothesis import given, strategies as st

from compactlib.raftlog.segment.format import Columns
from compactlib.raftlog.segment.index import SegmentIndex, is_dense, is_uniform, picked

writes = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 3), st.integers(0, 5)), max_size=40)


def built(rows: list[tuple[int, int, int]]) -> tuple[SegmentIndex, Columns]:
    """An index made by appending (index, term, length) one by one, and all the records in order."""
    index = SegmentIndex.empty()
    columns = Columns(array("Q"), array("Q"), array("Q"), array("I"), array("I"), array("I"))
    offset = 100
    for number, (entry, term, length) in enumerate(rows):
        row = (entry, term, offset, length, number, number + 1000)
        index.append(*row)
        for column, value in zip(attrs.astuple(columns, recurse=False), row, strict=True):
            column.append(value)
        offset += length
    return index, columns


def survivors(rows: list[tuple[int, int, int]]) -> dict[int, int]:
    """Which row answers for which index, by the rule of Raft: a lower index takes everything from there on back."""
    kept: dict[int, int] = {}
    for number, (entry, _, _) in enumerate(rows):
        kept = {index: row for index, row in kept.items() if index < entry}
        kept[entry] = number
    return kept


@given(writes)
def test_appending_and_reading_records_give_what_raft_says(rows: list[tuple[int, int, int]]) -> None:
    index, columns = built(rows)
    expected = survivors(rows)
    for found in (index, SegmentIndex.from_records(columns)):
        assert list(found.columns.indexes) == sorted(expected)
        # The head was numbered, so it tells which of the records won.
        assert list(found.columns.heads) == [expected[each] for each in sorted(expected)]
        assert list(found.columns.offsets) == sorted(found.columns.offsets)
        assert (found.entries, found.data_bytes) == (len(rows), sum(length for _, _, length in rows))
        assert len(found) == len(expected)
        for wanted in range(-1, 32):
            position = found.find(wanted)
            assert (position >= 0) == (wanted in expected)
            assert position < 0 or found.columns.indexes[position] == wanted
        assert list(found.index_set()) == sorted(expected)


@given(writes, st.integers(-2, 33), st.integers(-2, 33))
def test_positions_between_two_indexes(rows: list[tuple[int, int, int]], first: int, last: int) -> None:
    index, _ = built(rows)
    indexes = index.columns.indexes
    assert [indexes[position] for position in index.positions_between(first, last)] == [
        each for each in indexes if first <= each <= last]


def test_an_append_of_a_lower_index_forgets_all_above() -> None:
    index, _ = built([(5, 1, 0), (2, 2, 0)])
    assert (index.first, index.last, index.find(5)) == (2, 2, -1)
    index, _ = built([*((each, 1, 0) for each in range(1, 6)), *((each, 2, 0) for each in range(3, 6))])
    assert (index.first, index.last, list(index.columns.terms)) == (1, 5, [1, 1, 2, 2, 2])


def test_an_empty_index() -> None:
    index = SegmentIndex.from_records(built([])[1])
    assert (len(index), index.find(0), list(index.index_set())) == (0, -1, [])
    assert not index.positions_between(0, 1 << 64)


def test_the_largest_indexes() -> None:
    top = (1 << 64) - 1
    index, _ = built([(top - 1, 1, 0), (top, 1, 0)])
    assert [index.find(top), index.find(top - 1), index.find(top - 2), index.find(top + 1)] == [1, 0, -1, -1]
    assert list(index.positions_between(top, top)) == [1]
    assert list(index.index_set()) == [top - 1, top]


@given(st.lists(st.integers(0, 9), max_size=20), st.data())
def test_picked_values(values: list[int], data: st.DataObject) -> None:
    column = array("I", values)
    positions = sorted(data.draw(st.sets(st.integers(0, len(values) - 1)))) if values else []
    assert list(picked(column, positions)) == [values[position] for position in positions]
    for start in range(len(values) + 1):
        assert list(picked(column, range(start, len(values)))) == values[start:]
    assert is_uniform(column) == (len(set(values)) <= 1)


@pytest.mark.parametrize(("indexes", "positions", "dense"), [
    ([4, 5, 6], range(3), True), ([4, 6, 7], range(3), False), ([4, 6, 7], range(1, 3), True), ([4], range(1), True),
    ([4], range(0), False)])
def test_dense_means_without_a_gap(indexes: list[int], positions: range, dense: bool) -> None:
    assert is_dense(array("Q", indexes), positions) is dense


def test_an_entry_costs_some_44_bytes() -> None:
    """As the class says: memory is bounded by it."""
    _, columns = built([(each, 1, 1) for each in range(20_000)])
    tracemalloc.start()
    copied = Columns(*(column[:] for column in attrs.astuple(columns, recurse=False)))
    SegmentIndex.from_records(copied)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 60 * 20_000
