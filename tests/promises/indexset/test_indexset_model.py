# SPDX-License-Identifier: Apache-2.0
"""IndexSet against the builtin set: every operation alone, and long sequences of them."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, multiple, rule

from compactlib.errors import NotFound, Unsorted
from compactlib.indexset import IndexSet
from tests.harness.index_strategies import MAX_INDEX, index_runs, indexes

RUNS = index_runs()
MODELS = st.sets(indexes(), max_size=40) | st.lists(RUNS, max_size=12).map(lambda runs: set(expanded(runs)))
BOUNDS = indexes() | st.sampled_from([-1, MAX_INDEX + 1])


def expanded(runs: Iterable[tuple[int, int]]) -> list[int]:
    return [index for first, last in runs for index in range(first, last + 1)]


def made(model: set[int]) -> IndexSet:
    return IndexSet.from_iterable(model)


def check(index_set: IndexSet, model: set[int]) -> None:
    """The set is canonical, and every way to read it agrees with the model."""
    index_set.audit()
    ascending = sorted(model)
    assert list(index_set) == index_set.members() == expanded(index_set.runs()) == ascending
    assert list(reversed(index_set)) == ascending[::-1]
    assert len(index_set) == index_set.count == len(model)
    assert bool(index_set) is bool(model)
    assert index_set.run_count == len(list(index_set.runs())) == sum(
        1 for before, after in pairwise([-2, *ascending]) if after != before + 1)
    if model:
        assert (index_set.first, index_set.last) == (ascending[0], ascending[-1])
    assert index_set == IndexSet.from_sorted(ascending)
    assert hash(index_set) == hash(IndexSet.from_sorted(ascending))


@given(st.lists(indexes(), max_size=40))
def test_from_iterable(indexes: list[int]) -> None:
    check(IndexSet.from_iterable(indexes), set(indexes))
    check(IndexSet.from_iterable(iter(indexes)), set(indexes))


@given(st.lists(indexes(), max_size=12))
def test_from_sorted_takes_strictly_ascending_values_only(indexes: list[int]) -> None:
    if all(before < after for before, after in pairwise(indexes)):
        check(IndexSet.from_sorted(indexes), set(indexes))
    else:
        with pytest.raises(Unsorted) as caught:
            IndexSet.from_sorted(indexes)
        place = next(place for place, (one, two) in enumerate(pairwise(indexes)) if two <= one)
        assert (caught.value.previous, caught.value.found) == (indexes[place], indexes[place + 1])


@given(st.lists(RUNS, max_size=12))
def test_from_runs_in_any_order_and_overlapping(runs: list[tuple[int, int]]) -> None:
    check(IndexSet.from_runs(runs), set(expanded(runs)))


@given(MODELS, st.lists(BOUNDS, min_size=1, max_size=5))
def test_membership(model: set[int], asked: list[int]) -> None:
    index_set = made(model)
    edges = [edge + by for run in index_set.runs() for edge in run for by in (-1, 0, 1)]
    for index in [*asked, *edges]:
        assert (index in index_set) is index_set.holds(index) is (index in model)


@given(MODELS, BOUNDS, BOUNDS)
def test_parts(model: set[int], first: int, last: int) -> None:
    index_set = made(model)
    part = {index for index in model if first <= index <= last}
    check(index_set.between(first, last), part)
    check(index_set.at_least(first), {index for index in model if index >= first})
    check(index_set.at_most(last), {index for index in model if index <= last})


@given(MODELS, MODELS)
def test_two_sets(left: set[int], right: set[int]) -> None:
    one, other = made(left), made(right)
    check(one | other, left | right)
    check(one & other, left & right)
    check(one - other, left - right)
    assert (not one - other) is left.issubset(right)
    assert (not one & other) is left.isdisjoint(right)
    assert (one == other) is (left == right)
    check(one, left)
    check(other, right)


@given(st.lists(MODELS, max_size=5))
def test_union_of_many(models: list[set[int]]) -> None:
    check(IndexSet().union(*map(made, models)), set().union(*models))


@given(MODELS)
def test_bytes_and_pickles_bring_the_set_back(model: set[int]) -> None:
    index_set = made(model)
    check(IndexSet.from_bytes(index_set.to_bytes()), model)
    check(IndexSet.from_bytes(memoryview(bytearray(index_set.to_bytes()))), model)
    check(pickle.loads(pickle.dumps(index_set)), model)


class LongLives(RuleBasedStateMachine):
    """Sets made of sets made of sets, each with its model; an operation must leave its operands as they were."""

    pairs = Bundle[tuple[IndexSet, frozenset[int]]]("pairs")

    def kept(self, index_set: IndexSet, model: Iterable[int]) -> tuple[IndexSet, frozenset[int]]:
        members = frozenset(model)
        check(index_set, set(members))
        return index_set, members

    @rule(target=pairs, model=MODELS)
    def make(self, model: set[int]) -> tuple[IndexSet, frozenset[int]]:
        return self.kept(made(model), model)

    @rule(target=pairs, pair=pairs, runs=st.lists(RUNS, max_size=4))
    def add_runs(self, pair: tuple[IndexSet, frozenset[int]], runs: list[tuple[int, int]],
                 ) -> tuple[IndexSet, frozenset[int]]:
        return self.kept(pair[0] | IndexSet.from_runs(runs), pair[1] | set(expanded(runs)))

    @rule(target=pairs, one=pairs, two=pairs)
    def combine(self, one: tuple[IndexSet, frozenset[int]], two: tuple[IndexSet, frozenset[int]],
                ) -> MultipleResults[tuple[IndexSet, frozenset[int]]]:
        return multiple(self.kept(one[0] | two[0], one[1] | two[1]),
                        self.kept(one[0] & two[0], one[1] & two[1]),
                        self.kept(one[0] - two[0], one[1] - two[1]))

    @rule(target=pairs, pair=pairs, first=BOUNDS, last=BOUNDS)
    def cut(self, pair: tuple[IndexSet, frozenset[int]], first: int, last: int) -> tuple[IndexSet, frozenset[int]]:
        return self.kept(pair[0].between(first, last), {index for index in pair[1] if first <= index <= last})

    @rule(target=pairs, pair=pairs)
    def take_the_lowest_run_away(self, pair: tuple[IndexSet, frozenset[int]]) -> tuple[IndexSet, frozenset[int]]:
        index_set, model = pair
        try:
            first = index_set.first
        except NotFound:
            return self.kept(index_set, ())
        _, last = next(index_set.runs())
        return self.kept(index_set - IndexSet.range(first, last), model - set(range(first, last + 1)))

    @rule(target=pairs, pair=pairs, place=BOUNDS)
    def split_and_join(self, pair: tuple[IndexSet, frozenset[int]], place: int) -> tuple[IndexSet, frozenset[int]]:
        whole = pair[0]
        return self.kept(whole.between(0, place - 1).union(whole.between(place, place), whole - whole.at_most(place)),
                         pair[1])

    @rule(target=pairs, pair=pairs)
    def store_and_load(self, pair: tuple[IndexSet, frozenset[int]]) -> tuple[IndexSet, frozenset[int]]:
        return self.kept(IndexSet.from_bytes(pair[0].to_bytes()), pair[1])

    @rule(pair=pairs)
    def read_again(self, pair: tuple[IndexSet, frozenset[int]]) -> None:
        check(pair[0], set(pair[1]))


TestLongLives = LongLives.TestCase
