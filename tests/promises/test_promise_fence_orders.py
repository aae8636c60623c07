# SPDX-License-Identifier: Apache-2.0
"""Fences in stores: two workers, or a worker and a rising floor, in every order of their requests."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, CorruptData, InvalidInput
from compactlib.fences import Admission, Commitment, Fence, FencedOff, KVFence, ObjectFence
from compactlib.kv import KVStore, MemoryStore, OutcomeUnknown, SlowDown
from compactlib.objects import MemoryObjects
from compactlib.testing import Request
from tests.harness.faulty_store import FaultyStore
from tests.harness.objects.unsure_objects import UnsureObjects

Actor = Callable[[KVFence, list[Any]], None]
_PATIENCE_SECONDS = 60


# -------------------------------------------------------------------------------------------- in a key-value store


class Turns:
    """Lets one of several threads make one request at a time, in a given order; then the remaining ones, in turn."""

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
    """Return every interleaving of the turns of actor 0 and actor 1."""
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
    # The new one is never refused, and the answer at its admission stays true until it commits.
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


def test_two_first_workers_of_a_resource_are_ordered() -> None:
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


def test_a_record_removed_by_the_floor_admits_no_late_worker() -> None:
    for order in orders(5, 4):
        store = MemoryStore()
        KVFence(store).admit("job", 6)
        notes, _ = run_in_order(store, [old_worker, floor_raiser], order)
        assert notes[0] == [FencedOff], order


@pytest.mark.parametrize("before", [1, 2, 3])
def test_a_commit_is_refused_by_a_floor_that_rises_during_it(before: int) -> None:
    """Also if the record is removed between two of its requests: it was admitted, and returns so."""
    store = MemoryStore()
    KVFence(store).admit("job", 5)
    requests = itertools.count(1)

    def meanwhile(_: Request) -> None:
        if next(requests) == before:
            KVFence(store).raise_floor(7)

    with pytest.raises(FencedOff):
        KVFence(FaultyStore(store, meanwhile)).commit("job", 5, b"late")
    assert KVFence(store).committed("job") is None


def test_an_unreadable_floor_leaves_a_first_token_unknown() -> None:
    """Also if the store only throttles: an error of another kind says that nothing was changed."""
    store, requests = MemoryStore(), itertools.count(1)

    def throttled(request: Request) -> None:
        if next(requests) == 4:
            raise SlowDown(operation=request.kind, detail="too many requests")

    with pytest.raises(OutcomeUnknown):
        KVFence(FaultyStore(store, throttled), clock=ManualClock()).admit("job", 5)
    with pytest.raises(FencedOff):
        KVFence(store).admit("job", 4)


# ------------------------------------------------------------------------------------------------ in an object store


def fence_in(objects: MemoryObjects, clock: ManualClock | None = None) -> ObjectFence:
    return ObjectFence(objects, keep_seconds=100.0, clock=ManualClock() if clock is None else clock)


OTHERS: dict[str, Callable[[ObjectFence], Any]] = {
    "a higher token": lambda fence: fence.admit("job", 9),
    "a higher commit": lambda fence: (fence.admit("job", 9), fence.commit("job", 9, b"higher")),
    "the floor": lambda fence: fence.raise_floor(7),
    "the floor, and a higher token": lambda fence: (fence.raise_floor(7), fence.admit("job", 9)),
    "the same token": lambda fence: fence.admit("job", 5),
}


@pytest.mark.parametrize("others", OTHERS)
@pytest.mark.parametrize("known", [False, True])
def test_a_late_commit_changes_nothing_under_any_interleaving(others: str, *, known: bool) -> None:
    for at in itertools.count(1):
        objects = UnsureObjects()
        if known:
            fence_in(objects).admit("job", 4)
        before: list[Commitment | None] = []

        def meanwhile(number: int, at: int = at, objects: UnsureObjects = objects,
                      before: list[Commitment | None] = before) -> None:
            if number == at:
                objects.meanwhile = lambda number: None
                before.append(fence_in(objects).committed("job"))
                OTHERS[others](fence_in(objects))

        objects.arm(0)
        objects.meanwhile = meanwhile
        try:
            fence_in(objects).admit("job", 5)
            fence_in(objects).commit("job", 5, b"ours")
            done = True
        except FencedOff:
            done = False
        if not before:
            assert at > 8
            return
        assert done is (others == "the same token" or before == [Commitment(5, b"ours")])


def test_records_below_the_floor_are_removed_and_later_their_objects() -> None:
    clock = ManualClock(1000.0)
    objects = MemoryObjects(clock=clock)
    fence = fence_in(objects, clock)
    for token in range(1, 21):
        fence.admit(f"job {token}", token)
        fence.commit(f"job {token}", token, b"files")
    assert fence.raise_floor(20) == 19
    assert fence.raise_floor(20) == 0
    clock.advance(101.0)
    assert fence.raise_floor(20) == 0
    # Two of the one that is left, and of each other that it was removed.
    assert len(list(objects.list("fences/resource/"))) == 2 + 19
    with pytest.raises(FencedOff):
        fence.admit("job 3", 3)
    assert fence.admit("job 3", 30) == Admission("job 3", 30, None)


def test_a_record_begun_again_after_its_removal_is_not_overtaken() -> None:
    """At any request of one with a lower token the objects of the old record go, and a higher token commits."""
    for at in itertools.count(1):
        clock = ManualClock(1000.0)
        objects = UnsureObjects(clock=clock)
        fence_in(objects, clock).admit("job", 3)
        assert fence_in(objects, clock).raise_floor(4) == 1
        clock.advance(101.0)
        reached: list[int] = []

        def meanwhile(number: int, at: int = at, objects: UnsureObjects = objects, clock: ManualClock = clock,
                      reached: list[int] = reached) -> None:
            if number == at:
                objects.meanwhile = lambda number: None
                other = fence_in(objects, clock)
                other.raise_floor(4)
                other.admit("job", 9)
                other.commit("job", 9, b"higher")
                reached.append(number)

        objects.arm(0)
        objects.meanwhile = meanwhile
        with contextlib.suppress(FencedOff):
            fence_in(objects, clock).admit("job", 6)
        if not reached:
            assert at > 8
            return
        assert fence_in(objects, clock).committed("job") == Commitment(9, b"higher")


# --------------------------------------------------------------------------------------------------------- in both


def interrupted_at(kind: str, at: int, others: Callable[[Fence], object], *, known: int | None = None
                   ) -> tuple[Fence, Fence, list[object]]:
    """A fence of which request `at` finds that others have come first; one without that; what these others gave."""
    given: list[object] = []
    if kind == "kv":
        store, requests = MemoryStore(), itertools.count(1)

        def before(_: Request) -> None:
            if next(requests) == at:
                given.append(others(KVFence(store)))

        fence: Fence = KVFence(FaultyStore(store, before))
        plain: Fence = KVFence(store)
    else:
        objects = UnsureObjects()

        def meanwhile(number: int) -> None:
            if number == at:
                objects.meanwhile = lambda number: None
                given.append(others(fence_in(objects)))

        fence = plain = fence_in(objects)
    if known is not None:
        plain.admit("job", known)
    if kind == "objects":
        objects.arm(0)
        objects.meanwhile = meanwhile
    return fence, plain, given


@pytest.mark.parametrize("kind", ["kv", "objects"])
def test_a_first_token_below_a_rising_floor_is_refused(kind: str) -> None:
    for at in itertools.count(1):
        fence, _, given = interrupted_at(kind, at, lambda other: other.raise_floor(7))
        try:
            is_admitted = fence.admit("job", 5).token == 5
        except FencedOff:
            is_admitted = False
        if not given:
            assert at > 3
            return
        assert not is_admitted or given == [1], "the floor rose before there was a record"


@pytest.mark.parametrize("kind", ["kv", "objects"])
def test_a_record_used_while_the_floor_rises_is_kept(kind: str) -> None:
    for at in itertools.count(1):
        fence, plain, given = interrupted_at(kind, at, lambda other: other.admit("job", 9), known=3)
        fence.raise_floor(7)
        if not given:
            assert at > 2
            return
        with pytest.raises(FencedOff):
            plain.admit("job", 8)


@pytest.mark.parametrize("kind", ["kv", "objects"])
def test_an_unreadable_record_does_not_stop_other_removals(kind: str) -> None:
    store, objects = MemoryStore(), MemoryObjects()
    fence: Fence = KVFence(store) if kind == "kv" else fence_in(objects)
    names = [f"job {number}" for number in range(5)]
    for name in names:
        fence.admit(name, 5)
        fence.commit(name, 5, b"files")
    if kind == "kv":
        store.set(b"fences", next(iter(store.scan(b"fences", prefix=b"resource/"))).key, b"damaged")
    else:
        first = next(iter(objects.list("fences/resource/"))).key
        objects.delete([first])
        objects.create(first, b"damaged")
    with pytest.raises(CorruptData):
        fence.raise_floor(7)
    left: list[object] = []
    for name in names:
        try:
            left.append(fence.committed(name))
        except CorruptData as error:
            left.append(type(error))
    assert sorted(map(str, left)) == sorted([str(CorruptData), *["None"] * 4])


@pytest.mark.parametrize("seconds", [-1, float("nan")])
def test_a_fence_that_could_not_tidy_is_refused_before_it_raises_the_floor(seconds: float) -> None:
    objects = MemoryObjects()
    with pytest.raises(InvalidInput, match="keep_seconds"):
        ObjectFence(objects, keep_seconds=seconds).raise_floor(7)
    assert not list(objects.list())
