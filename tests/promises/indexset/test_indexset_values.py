# SPDX-License-Identifier: Apache-2.0
"""`IndexSet` as a value: accepted values, results at its ends, its memory."""

from __future__ import annotations

import copy
import pickle
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from compactlib.errors import InvalidInput, NotFound
from compactlib.indexset import IndexSet
from tests.harness.index_strategies import MAX_INDEX

S = IndexSet.from_iterable([1, 2, 3, 5, 6, 7, 8, 9, 11])


@pytest.mark.parametrize("bad", [-1, MAX_INDEX + 1])
@pytest.mark.parametrize("make", [
    lambda bad: IndexSet.from_iterable([3, 1, bad]),
    lambda bad: IndexSet.from_sorted([1, 3, bad]),
    lambda bad: IndexSet.from_runs([(1, 3), (bad, bad)]),
    lambda bad: IndexSet.range(bad, bad),
])
def test_value_out_of_range_is_named(make: Callable[[Any], object], bad: int) -> None:
    with pytest.raises(InvalidInput, match=str(bad)):
        make(bad)


@pytest.mark.parametrize("make", [lambda: IndexSet.range(5, 4), lambda: IndexSet.from_runs([(1, 2), (5, 4)])])
def test_run_that_ends_before_it_begins_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput, match=r"\(5, 4\) ends before it begins"):
        make()


def test_empty_set_has_no_ends() -> None:
    empty = IndexSet()
    assert (list(empty), len(empty), empty.run_count, bool(empty)) == ([], 0, 0, False)
    for which in ("first", "last"):
        with pytest.raises(NotFound, match=which):
            getattr(empty, which)
    assert empty == S - S == empty.union() == empty & S


def test_all_indexes_there_are() -> None:
    everything = IndexSet.range(0, MAX_INDEX)
    assert (everything.first, everything.last, everything.count) == (0, MAX_INDEX, 1 << 64)
    assert [index in everything for index in (-1, 0, MAX_INDEX, MAX_INDEX + 1)] == [False, True, True, False]
    with pytest.raises(OverflowError):
        len(everything)
    assert list((everything - IndexSet.from_iterable([0, 7, MAX_INDEX])).runs()) == [(1, 6), (8, MAX_INDEX - 1)]
    assert [half.count for half in (everything.at_most((1 << 63) - 1), everything.at_least(1 << 63))] == [1 << 63] * 2


def test_equal_sets_are_equal_values() -> None:
    same = [IndexSet.from_sorted(S), IndexSet.from_runs(S.runs()), S.at_most(6) | S.at_least(7),
            IndexSet.range(1, 11) - IndexSet.from_iterable([4, 10]), pickle.loads(pickle.dumps(S)), copy.deepcopy(S)]
    assert set(same) == {S}
    assert repr(S) == "IndexSet(9 in 3 runs, 1..11)"
    with pytest.raises(AttributeError):
        S.count = 3  # type: ignore[misc]
    assert "1" not in S


@pytest.mark.parametrize(("members", "bytes_each"), [(range(0, 300_000, 3), 8), (range(0, 300_000, 3), 16)])
def test_scattered_members_take_at_most_16_bytes_each(members: range, bytes_each: int) -> None:
    runs = [(first, first + bytes_each // 16) for first in members]
    stored = IndexSet.from_runs(runs).to_bytes()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        kept = IndexSet.from_bytes(stored)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken <= bytes_each * len(members) + 4096
    assert kept.run_count == len(members)
