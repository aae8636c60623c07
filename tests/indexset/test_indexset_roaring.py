# SPDX-License-Identifier: Apache-2.0
"""The extra `fast`: the same results with and without roaring bitmaps, and exchange with them."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, strategies as st
from pyroaring import BitMap64, FrozenBitMap64

from compactlib.errors import InvalidInput, MissingDependency
from compactlib.indexset import IndexSet
from compactlib.indexset.index_set import Engine
from compactlib.indexset.runs import MAX_INDEX
from tests.tools.index_strategies import index_runs, indexes

INDEXES = indexes()
RUNS = index_runs(max_length=100_000)

ENGINES: list[Engine] = ["plain", "roaring", "auto"]


def shuffled(members: Sequence[int]) -> list[int]:
    listed = list(members)
    random.Random(3).shuffle(listed)
    return listed


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("choose", [
    list,
    lambda: [7],
    lambda: [MAX_INDEX, 0, MAX_INDEX - 1],
    lambda: shuffled(range(10_000)),
    lambda: shuffled(range(5, 100_000, 7)) * 2,
    lambda: [random.Random(1).randrange(10**6) for _ in range(20_000)],
    lambda: [random.Random(2).randrange(MAX_INDEX) for _ in range(5_000)],
    lambda: shuffled(range(MAX_INDEX - 9_999, MAX_INDEX + 1)),
], ids=["empty", "one", "ends", "dense", "even, twice", "at random", "far apart", "highest"])
def test_every_engine_makes_the_same_set(engine: Engine, choose: Callable[[], list[int]]) -> None:
    members = choose()
    index_set = IndexSet.from_iterable(members, engine=engine)
    index_set.audit()
    assert index_set.members() == sorted(set(members))


@given(st.lists(INDEXES, max_size=60))
def test_engines_agree_on_anything(members: list[int]) -> None:
    assert IndexSet.from_iterable(members, engine="roaring") == IndexSet.from_iterable(members, engine="plain")


@given(st.lists(RUNS, max_size=8))
def test_there_and_back(runs: list[tuple[int, int]]) -> None:
    index_set = IndexSet.from_runs(runs)
    bitmap = index_set.to_roaring()
    assert len(bitmap) == len(index_set)
    again = IndexSet.from_roaring(bitmap)
    again.audit()
    assert again == index_set
    assert all(bitmap.contains_range(first, last) and last in bitmap for first, last in index_set.runs())


@given(st.sets(INDEXES, max_size=60))
def test_what_roaring_reads_is_what_was_in_the_set(members: set[int]) -> None:
    assert IndexSet.from_iterable(members).to_roaring() == BitMap64(members)
    assert IndexSet.from_roaring(FrozenBitMap64(members)) == IndexSet.from_iterable(members)


def test_a_set_too_large_for_a_bitmap_is_refused() -> None:
    with pytest.raises(InvalidInput, match=str(1 << 40)):
        IndexSet.range(0, 1 << 40).to_roaring()


def test_without_roaring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyroaring", None)
    members = shuffled(range(0, 50_000, 3))
    assert IndexSet.from_iterable(members).members() == sorted(members)
    for attempt in (lambda: IndexSet.from_iterable(members, engine="roaring"), lambda: IndexSet().to_roaring()):
        with pytest.raises(MissingDependency) as caught:
            attempt()
        assert caught.value.extra == "fast"
        assert "pip install 'compactlib[fast]'" in str(caught.value)
