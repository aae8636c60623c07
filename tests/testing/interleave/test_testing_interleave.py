# SPDX-License-Identifier: Apache-2.0
"""The interleaving harness: it finds what can go wrong, and its reduction loses nothing."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pytest

from compactlib.errors import InvalidInput
from compactlib.kv import EXISTS, Condition, Delete, KeyNotFound, MemoryStore, PredicateFailed, Put
from compactlib.objects import MemoryObjects, ObjectExists
from compactlib.testing.interleave import (
    Stage,
    SteppedObjects,
    SteppedStore,
    explore_schedules,
    replay_schedule,
    sample_schedules,
)
from compactlib.testing.interleave.failure import InterleavingFailed
from compactlib.testing.interleave.stage import ActorStuck
from compactlib.testing.interleave.tree import NotDeterministic

BANK, ANN, BOB = b"bank", b"ann", b"bob"


def bank(stage: Stage) -> SteppedStore:
    store = SteppedStore(MemoryStore(), stage)
    store.set(BANK, ANN, b"0")
    return store


def pay_in(store: SteppedStore) -> None:
    amount = int(store.get(BANK, ANN).value)
    store.set(BANK, ANN, str(amount + 1).encode())


def pay_in_safely(store: SteppedStore) -> int:
    tries = 0
    while True:
        tries += 1
        found = store.get(BANK, ANN)
        try:
            store.set_if(BANK, ANN, str(int(found.value) + 1).encode(), found.predicate)
        except PredicateFailed:
            continue
        return tries


def all_is_there(store: SteppedStore, results: Any) -> None:
    assert int(store.get(BANK, ANN).value) == len(results)


def test_a_lost_update_is_found_and_told_as_a_story() -> None:
    with pytest.raises(InterleavingFailed) as failed:
        explore_schedules({"left": pay_in, "right": pay_in}, bank, all_is_there)
    assert failed.value.schedule == "left right*2 left"
    assert failed.value.story.splitlines() == [
        "     1  left   get bank ann → 0",
        "     2    right  get bank ann → 0",
        "     3    right  set bank ann 1",
        "     4  left   set bank ann 1",
    ]


def test_a_failing_schedule_can_be_replayed() -> None:
    actors = {"left": pay_in, "right": pay_in}
    with pytest.raises(InterleavingFailed) as failed:
        sample_schedules(actors, bank, all_is_there, schedules=100, random=Random(1))
    with pytest.raises(InterleavingFailed) as again:
        replay_schedule(actors, bank, all_is_there, failed.value.schedule)
    assert again.value.story == failed.value.story
    assert "left" in replay_schedule(actors, bank, all_is_there, "left*2 right*2")


def test_compare_and_set_loses_nothing_under_any_schedule() -> None:
    actors = {"left": pay_in_safely, "right": pay_in_safely, "third": pay_in_safely}
    report = explore_schedules(actors, bank, all_is_there)
    assert report.complete
    assert report.longest > 6  # somebody had to try again


def test_actors_that_touch_nothing_in_common_need_one_schedule() -> None:
    def writes(partition: bytes) -> Any:
        return lambda store: [store.set(partition, b"%d" % number, b"") for number in range(10)]

    report = explore_schedules({"left": writes(b"l"), "right": writes(b"r")}, bank, lambda store, results: None)
    assert (report.schedules, report.abandoned, report.complete) == (1, 0, True)


def test_without_the_reduction_every_order_is_run() -> None:
    def twice(store: SteppedStore) -> None:
        store.get(BANK, ANN)
        store.get(BANK, ANN)

    report = explore_schedules({"left": twice, "right": twice}, bank, lambda store, results: None, reduce=False)
    assert report.schedules == 6  # 4 over 2
    assert explore_schedules({"left": twice, "right": twice}, bank, lambda store, results: None).schedules == 1


def test_the_order_of_an_end_and_a_beginning_is_explored_although_the_operations_commute() -> None:
    seen = set()

    class World:
        def __init__(self, stage: Stage) -> None:
            self.stage = stage
            self.store = bank(stage)
            self.spans: dict[str, Any] = {}

    def reads(name: str) -> Any:
        def act(world: World) -> None:
            with world.stage.operation() as interval:
                world.store.get(BANK, ANN)
                world.store.get(BANK, ANN)
            world.spans[name] = interval
        return act

    def check(world: World, results: Any) -> None:
        left, right = world.spans["left"], world.spans["right"]
        seen.add((left.end < right.begin, right.end < left.begin))

    explore_schedules({"left": reads("left"), "right": reads("right")}, World, check)
    assert seen == {(True, False), (False, True), (False, False)}


# ------------------------------------------------------------------------------ the reduction, against every schedule


class Toy:
    """A store and a record of which operation ended before which other one began."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.store = SteppedStore(MemoryStore(predicates="value"), stage)
        self.intervals: list[tuple[str, int, Any]] = []

    def outcome(self, results: Any) -> Any:
        state = tuple((entry.key, entry.value) for entry in self.store.scan(b"p"))
        intervals = sorted(self.intervals, key=lambda each: each[:2])
        before = {(one[:2], other[:2]) for one in intervals for other in intervals
                  if one[0] != other[0] and one[2].end < other[2].begin}
        return state, tuple(sorted(results.items())), frozenset(before)


def toy_actor(random: Random, name: str, length: int) -> Any:
    keys = (b"a", b"b", b"c")
    program = [(random.choice(("get", "set", "increment", "scan", "delete", "follow", "transact")),
                random.choice(keys), random.choice(keys)) for _ in range(length)]
    marked = random.random() < 0.5

    def act(toy: Toy) -> Any:
        seen: list[Any] = []
        for number, (what, key, other) in enumerate(program):
            if marked:
                with toy.stage.operation() as interval:
                    _toy_step(toy.store, name.encode(), seen, what, key, other)
                toy.intervals.append((name, number, interval))
            else:
                _toy_step(toy.store, name.encode(), seen, what, key, other)
        return tuple(seen)

    return act


def _toy_step(store: SteppedStore, name: bytes, seen: list[Any], what: str, key: bytes, other: bytes) -> None:
    if what == "set":
        store.set(b"p", key, name + str(len(seen)).encode())
    elif what == "delete":
        store.delete(b"p", key)
    elif what == "scan":
        seen.append(tuple((entry.key, entry.value) for entry in store.scan(b"p", prefix=b"" if other == b"a" else key)))
    elif what == "transact":
        try:
            store.transact([Condition(b"p", key, EXISTS)], [Put(b"p", other, name)],
                           [Delete(b"p", key)] if other != key else [])
        except PredicateFailed:
            seen.append("refused")
    else:
        _toy_read(store, name, seen, what, key, other)


def _toy_read(store: SteppedStore, name: bytes, seen: list[Any], what: str, key: bytes, other: bytes) -> None:
    try:
        found = store.get(b"p", key)
        value, predicate = found.value, found.predicate
    except KeyNotFound:
        value, predicate = b"", None
    seen.append(value)
    if what == "follow" and value:
        store.set(b"p", other, value + b"!")
    elif what == "increment":
        try:
            store.set_if(b"p", key, value + name, predicate)
        except PredicateFailed:
            seen.append("refused")


def check_reduction(seed: int, max_schedules: int) -> tuple[int, int] | None:
    """How many schedules without and with the reduction, which must show the same outcomes; `None`: too many."""
    random = Random(seed)
    count = random.choice((2, 2, 3))
    actors = {name: toy_actor(random, name, random.randint(1, 2 if count == 3 else 3)) for name in "xyz"[:count]}
    outcomes: list[set[Any]] = [set(), set()]
    reports = []
    for reduce in (False, True):
        def check(toy: Toy, results: Any, found: set[Any] = outcomes[reduce]) -> None:
            found.add(toy.outcome(results))

        report = explore_schedules(actors, Toy, check, reduce=reduce, max_schedules=max_schedules)
        if not report.complete:
            return None
        reports.append(report.schedules + report.abandoned)
    assert outcomes[0] == outcomes[1], f"seed {seed}: {len(outcomes[0] - outcomes[1])} outcomes are lost"
    return reports[0], reports[1]


def check_reductions(seeds: range, max_schedules: int) -> None:
    found = [counts for counts in (check_reduction(seed, max_schedules) for seed in seeds) if counts is not None]
    assert len(found) > len(seeds) // 2
    assert sum(every for every, _ in found) > 5 * sum(reduced for _, reduced in found)


def test_the_reduction_loses_no_outcome() -> None:
    check_reductions(range(60), 700)


@pytest.mark.soak
def test_the_reduction_loses_no_outcome_of_many_programs() -> None:
    check_reductions(range(300), 10_000)


# ------------------------------------------------------------------------------------------------ when it cannot work


def test_a_run_that_does_not_repeat_is_refused() -> None:
    runs = []

    def fickle(store: SteppedStore) -> None:
        runs.append(1)
        store.set(BANK, b"%d" % len(runs), b"")
        store.set(BANK, ANN, b"5")

    with pytest.raises(NotDeterministic, match="fresh world"):
        explore_schedules({"left": fickle, "right": pay_in}, bank, lambda store, results: None)


def test_an_actor_that_waits_off_the_stage_is_named() -> None:
    stage = Stage(["left", "right"], patience_seconds=0.5)
    lock = threading.Lock()
    store = bank(stage)

    def holds() -> None:
        with lock:
            store.get(BANK, ANN)
            store.get(BANK, ANN)

    with pytest.raises(ActorStuck, match="'right' did not come to its next step"):
        stage.run({"left": holds, "right": holds}, lambda waiting, running: "left")
    stage.close()


def test_what_an_actor_raises_fails_the_run_unless_it_is_the_librarys() -> None:
    def fails(store: SteppedStore) -> None:
        store.get(BANK, ANN)
        raise ZeroDivisionError("a bug")

    def misses(store: SteppedStore) -> None:
        store.get(BANK, BOB)

    with pytest.raises(InterleavingFailed, match="ZeroDivisionError: a bug"):
        explore_schedules({"left": fails, "right": pay_in}, bank, lambda store, results: None)

    def check(store: SteppedStore, results: Any) -> None:
        assert isinstance(results["left"], KeyNotFound)

    explore_schedules({"left": misses, "right": pay_in}, bank, check)


def test_actors_and_schedules_that_make_no_sense_are_refused() -> None:
    nothing: Any = lambda store, results: None  # noqa: E731
    with pytest.raises(InvalidInput, match="no actors"):
        explore_schedules({}, bank, nothing)
    with pytest.raises(InvalidInput, match="letters"):
        explore_schedules({"a b": pay_in}, bank, nothing)
    with pytest.raises(InvalidInput, match="names right"):
        replay_schedule({"left": pay_in}, bank, nothing, "left right")
    with pytest.raises(InvalidInput, match="no part"):
        replay_schedule({"left": pay_in}, bank, nothing, "left*x")


def test_the_same_seed_gives_the_same_runs_ten_times() -> None:
    def trace() -> list[str]:
        schedules: list[str] = []

        def check(store: SteppedStore, results: Any) -> None:
            schedules.append(repr(results))

        sample_schedules({"left": pay_in_safely, "right": pay_in_safely}, bank, check, schedules=20, random=Random(7))
        return schedules

    assert len({tuple(trace()) for _ in range(10)}) == 1


def test_objects_take_steps_too() -> None:
    def world(stage: Stage) -> SteppedObjects:
        return SteppedObjects(MemoryObjects(), stage)

    def creates(objects: SteppedObjects) -> bool:
        try:
            objects.create("a", b"mine")
        except ObjectExists:
            return False
        return [info.key for info in objects.list()] == ["a"] and objects.get("a") == b"mine"

    seen = set()

    def check(objects: SteppedObjects, results: Any) -> None:
        seen.add(tuple(results.values()))

    explore_schedules({"left": creates, "right": creates}, world, check)
    assert seen == {(True, False), (False, True)}
