# SPDX-License-Identifier: Apache-2.0
"""IndexSet: cases with known answers, what it accepts, what it costs, and how it behaves as a value.

Cases are written as Ra shows its sequences, from high to low and with ranges only from three members on
(`[11, {5, 9}, {1, 3}]`, but `[2, 1]`). Ours are runs `(first, last)` from low to high, whatever their length: the
second is `[(1, 2)]`.
"""

from __future__ import annotations

import contextlib
import copy
import operator
import pickle
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from attrs.exceptions import FrozenInstanceError

from compactlib.errors import CompactlibError, InvalidInput, NotFound, Unsorted
from compactlib.indexset import IndexSet, IndexSetBuilder
from compactlib.indexset.runs import MAX_INDEX
from compactlib.testing.interrupts import Interrupted

Runs = list[tuple[int, int]]

S = IndexSet.from_iterable([1, 2, 3, 5, 6, 7, 8, 9, 11])


def made(*members: int) -> IndexSet:
    return IndexSet.from_iterable(members)


def runs(index_set: IndexSet) -> Runs:
    index_set.audit()
    return list(index_set.runs())


# --- cases with known answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("members", "expected"), [
    ([1, 2], [(1, 2)]),
    ([1, 2, 3], [(1, 3)]),
    ([9, 1, 2, 4, 3, 9, 20, 21], [(1, 4), (9, 9), (20, 21)]),
])
def test_making_a_set(members: list[int], expected: Runs) -> None:
    assert runs(IndexSet.from_iterable(members)) == expected


def test_appending() -> None:
    builder = IndexSetBuilder()
    builder.append_run(1, 4)
    builder.append(6)
    assert runs(builder.build()) == [(1, 4), (6, 6)]
    for refused in (2, 6):
        with pytest.raises(Unsorted) as caught:
            builder.append(refused)
        assert (caught.value.previous, caught.value.found) == (6, refused)
    assert runs(builder.build()) == [(1, 4), (6, 6)]


@pytest.mark.parametrize(("floor", "expected"), [
    (9, [(9, 9), (11, 11)]),
    (8, [(8, 9), (11, 11)]),
    (7, [(7, 9), (11, 11)]),
    (4, [(5, 9), (11, 11)]),
    (3, [(3, 3), (5, 9), (11, 11)]),
    (2, [(2, 3), (5, 9), (11, 11)]),
    (0, [(1, 3), (5, 9), (11, 11)]),
])
def test_at_least(floor: int, expected: Runs) -> None:
    assert runs(S.at_least(floor)) == expected


@pytest.mark.parametrize(("limit", "expected"), [
    (10, [(1, 3), (5, 9)]),
    (9, [(1, 3), (5, 9)]),
    (8, [(1, 3), (5, 8)]),
    (6, [(1, 3), (5, 6)]),
    (5, [(1, 3), (5, 5)]),
    (4, [(1, 3)]),
    (2, [(1, 2)]),
    (0, []),
])
def test_at_most(limit: int, expected: Runs) -> None:
    assert runs(S.at_most(limit)) == expected


def test_between_is_from_and_up_to() -> None:
    assert runs(S.between(3, 8)) == [(3, 3), (5, 8)]
    assert runs(S.between(4, 4)) == []
    assert runs(S.between(8, 3)) == []
    assert runs(S.between(8, 6)) == []  # both in one run
    assert S.between(0, MAX_INDEX) is S


def test_subtracting() -> None:
    assert runs(S - IndexSet.range(2, 6)) == [(1, 1), (7, 9), (11, 11)]
    assert runs(IndexSet.range(1, 11) - made(4, 5, 6, 10)) == [(1, 3), (7, 9), (11, 11)]


def test_chunks() -> None:
    nine = made(1, 2, 3, 5, 6, 8, 9, 10, 12)
    assert [chunk.members() for chunk in nine.chunks(3)] == [[1, 2, 3], [5, 6, 8], [9, 10, 12]]
    hundred = IndexSet.range(1, 100).chunks(16)
    assert runs(next(hundred)) == [(1, 16)]
    assert runs(next(hundred)) == [(17, 32)]
    assert [chunk.count for chunk in hundred] == [16, 16, 16, 16, 4]


@pytest.mark.parametrize(("index_set", "asked", "answer"), [
    (IndexSet.from_runs([(100, 200), (50, 75), (1, 25)]), (26, 49), False),
    (IndexSet.from_runs([(100, 200), (50, 75), (1, 25)]), (76, 99), False),
    (IndexSet.from_runs([(100, 200), (50, 75), (1, 25)]), (60, 70), True),
    (S, (10, 10), False),
    (S, (10, 12), True),
    (S, (12, 15), False),
    (S, (0, 1), True),
    (S, (6, 5), False),  # undefined in Ra: an empty range
])
def test_overlaps(index_set: IndexSet, asked: tuple[int, int], answer: bool) -> None:
    assert index_set.overlaps(*asked) is answer


# --- what it accepts ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-1, MAX_INDEX + 1, 1.0, "1", None, b"12345678"])
@pytest.mark.parametrize("make", [
    lambda bad: IndexSet.from_iterable([3, 1, bad]),
    lambda bad: IndexSet.from_sorted([1, 3, bad]),
    lambda bad: IndexSet.from_runs([(1, 3), (bad, bad)]),
    lambda bad: IndexSet.range(bad, bad),
    lambda bad: IndexSetBuilder().append(bad),
    lambda bad: IndexSetBuilder().append_run(bad, bad),
])
def test_what_is_no_index_is_named(make: Callable[[Any], object], bad: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        make(bad)
    assert repr(bad) in str(caught.value)


@pytest.mark.parametrize("make", [lambda: IndexSet.range(5, 4), lambda: IndexSet.from_runs([(1, 2), (5, 4)]),
                                  lambda: IndexSetBuilder().append_run(5, 4)])
def test_a_run_that_ends_before_it_begins_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput, match=r"\(5, 4\) ends before it begins"):
        make()


@pytest.mark.parametrize("bad", [[(1, 2, 3)], [(1,)], [7]])
def test_runs_must_be_pairs(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="pairs"):
        IndexSet.from_runs(bad)


@pytest.mark.parametrize(("values", "previous", "found"), [([1, 5, 5], 5, 5), ([1, 2, 9, 4, 3], 9, 4)])
def test_from_sorted_names_the_first_pair_out_of_order(values: list[int], previous: int, found: int) -> None:
    with pytest.raises(Unsorted) as caught:
        IndexSet.from_sorted(values)
    assert (caught.value.previous, caught.value.found) == (previous, found)


def test_chunks_hold_at_least_one_member() -> None:
    with pytest.raises(InvalidInput):
        S.chunks(0)


@pytest.mark.parametrize("refused", [-1, 4, 5, MAX_INDEX + 1, 7.0, "8"])
def test_a_builder_is_unchanged_by_what_it_refuses(refused: Any) -> None:
    builder = IndexSetBuilder()
    builder.append(4)
    builder.append(5)
    attempts: list[Callable[[], None]] = [
        lambda: builder.append(refused), lambda: builder.append_run(refused, refused),
        lambda: builder.append_run(6, refused),
    ]
    for attempt in attempts:
        with pytest.raises(InvalidInput):
            attempt()
    builder.audit()
    assert runs(builder.build()) == [(4, 5)]
    builder.append_run(6, MAX_INDEX)
    with pytest.raises(InvalidInput):
        builder.append(MAX_INDEX + 1)
    assert runs(builder.build()) == [(4, MAX_INDEX)]


def test_a_run_whose_taking_is_interrupted_is_taken_whole_or_not() -> None:
    def taken(place: int) -> tuple[Interrupted, IndexSetBuilder]:
        builder = IndexSetBuilder()
        builder.append_run(1, 3)
        with Interrupted(place) as interrupted, contextlib.suppress(KeyboardInterrupt):
            builder.append_run(7, 9)
        builder.audit()
        assert runs(builder.build()) in ([(1, 3)], [(1, 3), (7, 9)])
        return interrupted, builder

    for place in range(1, taken(0)[0].places + 1):
        builder = taken(place)[1]
        builder.append(12)
        builder.audit()
        assert runs(builder.build())[-1] == (12, 12)


def test_a_set_that_was_built_does_not_change_with_its_builder() -> None:
    builder = IndexSetBuilder()
    builder.append(1)
    before = builder.build()
    builder.append(2)
    assert runs(before) == [(1, 1)]
    assert repr(builder) == "IndexSetBuilder(IndexSet(2 in 1 run, 1..2))"


# --- what it answers ------------------------------------------------------------------------------------------------


def test_the_empty_set() -> None:
    empty = IndexSet()
    assert list(empty) == list(reversed(empty)) == empty.members() == []
    assert runs(empty) == []
    assert list(empty.chunks(3)) == []
    assert not empty
    assert (len(empty), empty.count, empty.run_count) == (0, 0, 0)
    assert 0 not in empty
    for which in ("first", "last"):
        with pytest.raises(NotFound, match=which):
            getattr(empty, which)
    assert empty == IndexSet.from_iterable([]) == IndexSet.from_sorted([]) == IndexSet.from_runs([]) == S - S
    assert empty.union() == empty == empty | empty == empty & S == empty - S
    assert empty.issubset(S)
    assert empty.isdisjoint(S)


def test_all_indexes_there_are() -> None:
    everything = IndexSet.range(0, MAX_INDEX)
    assert (everything.first, everything.last, everything.count) == (0, MAX_INDEX, 1 << 64)
    assert MAX_INDEX in everything
    assert MAX_INDEX + 1 not in everything
    assert -1 not in everything
    assert everything
    with pytest.raises(OverflowError):
        len(everything)
    assert runs(everything - made(0, 7, MAX_INDEX)) == [(1, 6), (8, MAX_INDEX - 1)]
    assert next(reversed(everything)) == MAX_INDEX
    halves = list(everything.chunks(1 << 63))
    assert [half.count for half in halves] == [1 << 63, 1 << 63]
    assert halves[0] | halves[1] == everything
    assert repr(everything) == "IndexSet(18,446,744,073,709,551,616 in 1 run, 0..18446744073709551615)"


def test_membership_of_what_is_no_integer() -> None:
    assert "1" not in S
    assert None not in S
    assert 1.0 not in S
    assert True in S  # as everywhere in Python, a bool is an integer


def test_union_of_many() -> None:
    parts = [made(1, 5), IndexSet(), made(9), made(2, 6), made(3, 4)]
    assert runs(parts[0].union(*parts[1:])) == [(1, 6), (9, 9)]


def test_operators_refuse_other_types() -> None:
    for operate in (operator.or_, operator.and_, operator.sub):
        with pytest.raises(TypeError):
            operate(S, {1})
    assert set(S) != S


# --- as a value -----------------------------------------------------------------------------------------------------


def test_equal_sets_are_equal_values_however_they_were_made() -> None:
    builder = IndexSetBuilder()
    for first, last in S.runs():
        builder.append_run(first, last)
    same = [IndexSet.from_sorted(S), IndexSet.from_runs(S.runs()), builder.build(), S.at_most(6) | S.at_least(7),
            IndexSet.range(1, 11) - made(4, 10), pickle.loads(pickle.dumps(S)), copy.deepcopy(S)]
    assert set(same) == {S}
    assert made(1, 2, 3) != S


def test_it_cannot_be_changed() -> None:
    attempts: list[Callable[[], None]] = [
        lambda: setattr(S, "count", 3), lambda: delattr(S, "count"), lambda: setattr(S, "new", 1),
    ]
    for attempt in attempts:
        with pytest.raises(FrozenInstanceError):
            attempt()
    assert not hasattr(S, "__dict__")


def test_its_repr_is_short() -> None:
    assert repr(IndexSet()) == "IndexSet(empty)"
    assert repr(made(7)) == "IndexSet(1 in 1 run, 7..7)"
    scattered = IndexSet.from_runs([(5, 19_256), *((at, at) for at in range(20_000, 65_000, 45)), (65_312, 65_536)])
    assert repr(scattered) == "IndexSet(20,477 in 1,002 runs, 5..65536)"


@pytest.mark.parametrize("damage", [
    {"_firsts": [5, 1], "_lasts": [6, 2], "_count": 4},
    {"_firsts": [1, 3], "_lasts": [2, 4], "_count": 4},
    {"_firsts": [4], "_lasts": [2], "_count": -1},
    {"_firsts": [1, 5], "_lasts": [2], "_count": 2},
    {"_count": 8},
])
def test_the_audit_finds_what_no_operation_makes(damage: dict[str, Any]) -> None:
    broken = IndexSet.from_iterable(S)
    for field, value in damage.items():
        object.__setattr__(broken, field, value)
    with pytest.raises(CompactlibError, match=r"\d"):
        broken.audit()


# --- what it costs --------------------------------------------------------------------------------------------------


def columns_bytes(index_set: IndexSet) -> int:
    columns = {id(column): sys.getsizeof(column) for column in (index_set._firsts, index_set._lasts)}  # noqa: SLF001
    return sum(columns.values())


HEADERS = 2 * sys.getsizeof(IndexSet()._firsts)  # noqa: SLF001


@pytest.mark.parametrize(("choose", "limit"), [
    (lambda: range(0, 3_000_000, 3), 8),
    (lambda: [*range(0, 2_999_994, 3), 2_999_998, 2_999_999], 16),
    (lambda: random.Random(1).sample(range(10_000_000), 1_000_000), 16),
], ids=["none adjacent", "two adjacent", "at random"])
def test_a_million_scattered_members_take_at_most_16_bytes_each(choose: Callable[[], Sequence[int]], limit: int,
                                                                ) -> None:
    scattered = IndexSet.from_iterable(choose())
    again = IndexSet.from_bytes(scattered.to_bytes())
    cut = (scattered | again) - IndexSet.range(0, 9)
    for index_set in (scattered, again, cut):
        assert columns_bytes(index_set) <= limit * 1_000_000 + HEADERS
    assert again == scattered
    assert len(again) == 1_000_000


def test_a_builder_gives_sets_without_room_to_spare() -> None:
    builder = IndexSetBuilder()
    for index in range(0, 3_000, 3):
        builder.append(index)
    assert columns_bytes(builder.build()) <= 8 * 1_000 + HEADERS
