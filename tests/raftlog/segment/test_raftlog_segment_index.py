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
