# SPDX-License-Identifier: Apache-2.0
"""The fence in a key-value store: every interleaving of two workers, and faults of the store at every request."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import Busy, CompactlibError, InvalidInput
from compactlib.fences import Admission, Commitment, FencedOff, KVFence
from compactlib.fences.fence import Floor
from compactlib.kv import Condition, KVStore, MemoryStore, OutcomeUnknown, PredicateFailed, Put, SlowDown
from compactlib.kv.cell import CellState, Found, Swap
from compactlib.testing import Request
from tests.harness.faulty_store import FaultyStore

Actor = Callable[[KVFence, list[Any]], None]
_PATIENCE_SECONDS = 60


class Turns:
    """Lets one of several threads make one request at a time, in a given order; then whoever is left, in turn."""

    def __init__(self, actors: int, order: Sequence[int]) -> None:
        self._changed = threading.Condition()
        self._order = list(order)
        self._waiting: set[int] = set()
        self._running = set(range(actors))
        self.taken: list[int] = []

    def request(self, actor: int) -> None:
        with self._changed:
            self._waiting.add(actor)
            self._changed.notify_all()
            assert self._changed.wait_for(lambda: self._next() == actor, _PATIENCE_SECONDS)
            self._waiting.remove(actor)
            self.taken.append(actor)
            if self._order:
                self._order.pop(0)

    def _next(self) -> int | None:
        """Whose turn it is, once everybody who still runs is waiting."""
        if self._waiting != self._running or not self._waiting:
            return None
        while self._order and self._order[0] not in self._running:
            self._order.pop(0)
        return self._order[0] if self._order else min(self._waiting)

    def end(self, actor: int) -> None:
        with self._changed:
            self._running.discard(actor)
            self._changed.notify_all()


def run_in_order(store: KVStore, actors: Sequence[Actor], order: Sequence[int]) -> tuple[list[list[Any]], list[int]]:
    """What each actor noted, and whose turn each request was."""
    turns = Turns(len(actors), order)
    notes: list[list[Any]] = [[] for _ in actors]

    def run(number: int) -> None:
        def wait(_: Request) -> None:
            turns.request(number)

        try:
            actors[number](KVFence(FaultyStore(store, wait), clock=ManualClock()), notes[number])
        except CompactlibError as error:
            notes[number].append(type(error))
        finally:
            turns.end(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(actors))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return notes, turns.taken


def orders(first: int, second: int) -> Iterator[list[int]]:
    """Every way to mix so many turns of actor 0 with so many of actor 1."""
    for places in itertools.combinations(range(first + second), first):
        yield [0 if place in places else 1 for place in range(first + second)]


def old_worker(fence: KVFence, notes: list[Any]) -> None:
    notes.append(fence.admit("job", 5))
    notes.append(fence.commit("job", 5, b"old"))


def new_worker(fence: KVFence, notes: list[Any]) -> None:
    notes.append(fence.admit("job", 9))
    notes.append(fence.commit("job", 9, b"new"))


def floor_raiser(fence: KVFence, notes: list[Any]) -> None:
    notes.append(fence.raise_floor(7))


def check_two_workers(store: KVStore, notes: list[list[Any]]) -> None:
    old, new = notes
    # The new one is never refused, and what it was told at its admission stayed true until it committed.
    assert len(new) == 2
    seen = new[0].committed
    assert new[1] == Admission("job", 9, Commitment(9, b"new"))
    assert KVFence(store).committed("job") == Commitment(9, b"new")
    # The old one has committed if and only if the new one saw it.
    committed = len(old) == 2 and isinstance(old[1], Admission)
    assert committed == (seen == Commitment(5, b"old"))
    if not committed:
        assert old[-1] is FencedOff


def test_two_workers_in_every_order() -> None:
    for order in orders(6, 6):
        store = MemoryStore()
        KVFence(store).admit("job", 2)
        notes, taken = run_in_order(store, [old_worker, new_worker], order)
        assert taken.count(1) >= 6
        check_two_workers(store, notes)


def test_two_workers_who_are_the_first() -> None:
    rng = random.Random(5)
    for order in rng.sample(list(orders(7, 7)), 200):
        store = MemoryStore()
        notes, _ = run_in_order(store, [old_worker, new_worker], order)
        check_two_workers(store, notes)


@pytest.mark.parametrize("worker", [old_worker, new_worker])
def test_a_worker_and_a_rising_floor_in_every_order(worker: Actor) -> None:
    for order in orders(7, 4):
        store = MemoryStore()
        KVFence(store).admit("job", 2)
        notes, _ = run_in_order(store, [worker, floor_raiser], order)
        done = KVFence(store).committed("job")
        if worker is new_worker:
            assert done == Commitment(9, b"new")
            assert len(notes[0]) == 2
        elif done is not None:
            assert notes[0][1] == Admission("job", 5, Commitment(5, b"old"))
        with pytest.raises(FencedOff):
            KVFence(store).commit("job", 5, b"late")
        with pytest.raises(FencedOff):
            KVFence(store).admit("another", 6)
        KVFence(store).raise_floor(7)
        assert KVFence(store).committed("job") == (done if worker is new_worker else None)


def test_a_record_that_the_rising_floor_removes_lets_nobody_in_who_was_too_late_before() -> None:
    for order in orders(5, 4):
        store = MemoryStore()
        KVFence(store).admit("job", 6)
        notes, _ = run_in_order(store, [old_worker, floor_raiser], order)
        assert notes[0] == [FencedOff], order


def test_a_fence_that_checks_before_it_writes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: Any, found: Found, wanted: Swap[Any]) -> None:
        self.store.transact((), [Put(*each, data) for each, data in wanted.writes.items() if data is not None])

    monkeypatch.setattr("compactlib.kv.cell._Swapping._write", careless)
    with pytest.raises(AssertionError):
        test_two_workers_in_every_order()


def test_a_fence_that_forgets_the_floor_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    unfloored = CellState[Floor](None, Condition(b"fences", b"unused", None))
    monkeypatch.setattr(KVFence, "_floor", lambda self: unfloored)
    with pytest.raises((AssertionError, pytest.fail.Exception, InvalidInput)):
        test_a_worker_and_a_rising_floor_in_every_order(old_worker)


# -------------------------------------------------------------------------------------------- faults of the store


def raising(error: CompactlibError, *, changes: bool = False) -> Callable[[Request], None]:
    """Raise at each request, or at each change."""
    def before(request: Request) -> None:
        if request.changes or not changes:
            raise error

    return before


def test_a_store_that_always_conflicts_ends_the_patience() -> None:
    def conflict(request: Request) -> None:
        if request.is_conditional:
            raise PredicateFailed(partition=request.partition, key=request.key)

    fence = KVFence(FaultyStore(MemoryStore(), conflict), clock=ManualClock())
    with pytest.raises(Busy, match="100 times"):
        fence.admit("job", 5)
    with pytest.raises(Busy, match="floor"):
        fence.raise_floor(5)


def test_a_store_that_never_tells_is_told_of() -> None:
    unknown = raising(OutcomeUnknown(operation="write", path="a store under test", detail="lost"), changes=True)
    with pytest.raises(OutcomeUnknown):
        KVFence(FaultyStore(MemoryStore(), unknown), clock=ManualClock()).admit("job", 5)


def test_other_errors_of_the_store_come_through() -> None:
    with pytest.raises(SlowDown):
        KVFence(FaultyStore(MemoryStore(), raising(SlowDown(operation="get", detail="busy")))).admit("job", 5)


def test_a_record_that_is_wanted_again_is_not_forgotten() -> None:
    store = MemoryStore()
    fence = KVFence(store)
    fence.admit("job", 3)

    class NewerComesFirst(FaultyStore):
        def transact(self, conditions: Any = (), puts: Any = (), deletes: Any = ()) -> None:
            fence.admit("job", 9)
            super().transact(conditions, puts, deletes)

    assert KVFence(NewerComesFirst(store)).raise_floor(7) == 0
    assert fence.admit("job", 9).token == 9


def test_a_rising_floor_forgets_a_thousand_resources_in_few_requests_and_spares_those_that_are_wanted_again() -> None:
    store = MemoryStore()
    fence = KVFence(store)
    for number in range(1000):
        fence.admit(f"job-{number:04}", 5)

    def meddle(operation: Request) -> None:
        if operation.kind == "transact":
            KVFence(store).admit("job-0500", 9)

    counted = FaultyStore(store, meddle)
    assert KVFence(counted).raise_floor(7) == 999
    assert len(counted.operations) <= 25
    for number in range(1000):
        fence.admit(f"job-{number:04}", 9)
    counted = FaultyStore(store)
    assert KVFence(counted).raise_floor(10) == 1000
    assert len(counted.operations) <= 6


@pytest.mark.parametrize("before", [1, 2, 3])
def test_a_floor_that_rises_during_a_commit_is_what_it_is_refused_for(before: int) -> None:
    """Also where the record is gone between two of its requests: it was admitted, and says so."""
    store = MemoryStore()
    KVFence(store).admit("job", 5)
    requests = itertools.count(1)

    def meanwhile(_: Request) -> None:
        if next(requests) == before:
            KVFence(store).raise_floor(7)

    with pytest.raises(FencedOff):
        KVFence(FaultyStore(store, meanwhile)).commit("job", 5, b"late")
    assert KVFence(store).committed("job") is None
