# SPDX-License-Identifier: Apache-2.0
"""A write without an answer, and a store that is away for the look after it: unknown until it was seen."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest

from compactlib.catalog import CreateSchema, HybridClock, LowWatermark, PublishedTimes, UpdateLog
from compactlib.catalog.errors import CommandRefused, RetriesExhausted
from compactlib.catalog.log.keys import publisher_key
from compactlib.catalog.log.log_model import AlreadyCompacted, Appended, LostRace, SnapshotSaved
from compactlib.catalog.log.reclaim import reclaim
from compactlib.catalog.log.recover import recover_history
from compactlib.catalog.sense.pins import Pins
from compactlib.catalog.service.service import Executed
from compactlib.clock import ManualClock
from compactlib.errors import AuditFailed, CompactlibError
from compactlib.kv import KVStore, MemoryStore, OutcomeUnknown
from compactlib.outcome import Done, Failed
from tests.catalog.services import service_in, update
from tests.harness.catalog_logs import log_in
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation

LOST = (KVFault.UNKNOWN_DONE, KVFault.UNKNOWN_LOST, KVFault.UNKNOWN_LATE)
AWAY = (0, 1, 3, 1000)


def losing(store: KVStore, number: int, fault: KVFault, away: int, *, reads: bool = True) -> FaultyStore:
    """The n-th write gets no answer, and so many operations after it fail, or so many writes."""
    at: list[int] = []
    writes = failed = 0

    def choose(operation: KVOperation) -> KVFault | None:
        nonlocal writes, failed
        if at:
            fails = (reads or operation.changes) and failed < away
            failed += fails
            return KVFault.FAIL if fails else None
        writes += operation.changes
        if operation.changes and writes == number:
            at.append(operation.number)
            return fault
        return None

    return FaultyStore(store, choose)


def told(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except CompactlibError as error:
        return error


def explored(prepare: Callable[[KVStore], object], call: Callable[[KVStore], Any],
             changed: Callable[[KVStore], bool]) -> list[tuple[Any, bool]]:
    """What `call` tells, and whether it has changed anything, for each write that is lost and each time away."""
    found = []
    undisturbed = MemoryStore()
    prepare(undisturbed)
    whole = FaultyStore(undisturbed)
    call(whole)
    for number in range(1, sum(one.changes for one in whole.operations) + 1):
        for fault in LOST:
            for away, reads in product(AWAY, (True, False)):
                store = MemoryStore()
                prepare(store)
                assert not changed(store)
                lossy = losing(store, number, fault, away, reads=reads)
                answer = told(lambda lossy=lossy: call(lossy))  # type: ignore[misc]
                lossy.settle()
                found.append((answer, changed(store)))
    return found


def is_true(answer: Any, changed: bool, done: type | tuple[type, ...]) -> bool:
    """Whether what was told is so: done if it says so, anything if it is unknown, else nothing."""
    error = answer.error if isinstance(answer, Failed) else answer
    if isinstance(answer, Failed):
        assert answer.changed == ("unknown" if isinstance(error, OutcomeUnknown) else "no")
    return isinstance(error, OutcomeUnknown) or isinstance(error, done) is changed


def schemas(store: KVStore) -> set[str]:
    view = recover_history(UpdateLog(store))
    return {schema.name for schema in view.catalog(view.latest).schemas.values()}


def with_clock(store: KVStore, seed: int) -> UpdateLog:
    return log_in(store, seed=seed, clock=ManualClock(1000.0))


@pytest.mark.parametrize("before", [0, 2])
def test_execute_never_says_that_nothing_was_changed_when_it_was(before: int) -> None:
    def prepare(store: KVStore) -> None:
        service = service_in(store, seed=1)
        for number in range(before):
            service.execute([CreateSchema(f"S{number}")], wait=False)

    def execute(store: KVStore) -> Any:
        return service_in(store, seed=2).execute([CreateSchema("NEW")], wait=False)


    for answer, changed in explored(prepare, execute, lambda store: "NEW" in schemas(store)):
        assert is_true(answer, changed, Executed), answer
        assert not isinstance(answer, CommandRefused), "its own schema was taken for somebody else's"


def test_what_was_appended_is_told_although_the_store_is_away_right_after_it() -> None:
    store = MemoryStore()
    away = [False]
    faulty = FaultyStore(store, lambda one: KVFault.FAIL if away[0] and not one.changes else None)
    service = service_in(faulty, seed=2)
    transact = faulty.transact

    def transact_and_go(*args: Any, **named: Any) -> None:
        transact(*args, **named)
        away[0] = True

    faulty.transact = transact_and_go  # type: ignore[method-assign]
    assert service.execute([CreateSchema("NEW")], wait=False).version == 1
    assert service.history.latest == 1


def filled(store: KVStore, latest: int = 8) -> None:
    log = log_in(store)
    for version in range(1, latest + 1):
        assert log.append(update(version)) == Appended(version)


def test_a_snapshot_never_says_that_nothing_was_changed_when_it_was() -> None:
    whole = MemoryStore()
    filled(whole)
    catalog = recover_history(UpdateLog(whole)).catalog(6)

    def cut(store: KVStore) -> Any:
        return with_clock(store, 2).save_snapshot(catalog)

    def is_cut(store: KVStore) -> bool:
        state = UpdateLog(store).state()
        return state is not None and state.compacted

    for answer, changed in explored(filled, cut, is_cut):
        assert is_true(answer, changed, (SnapshotSaved, AlreadyCompacted)), answer


@pytest.mark.parametrize("cut", [4, 6])
def test_a_writer_that_was_not_told_cannot_know_once_the_log_was_cut(cut: int) -> None:
    """Its record is gone, or a snapshot stands in its place, and that does not say whose update it was."""
    store = MemoryStore()
    filled(store, 3)
    other = UpdateLog(store)
    writes = 0

    def choose(operation: KVOperation) -> KVFault | None:
        nonlocal writes
        if operation.name == "get" and writes == 1 and other.state().latest == 4:  # type: ignore[union-attr]
            for version in range(5, cut + 1):
                other.append(update(version))
            other.save_snapshot(recover_history(other).catalog(cut))
        writes += operation.changes
        return KVFault.UNKNOWN_DONE if operation.changes and writes == 1 else None

    log = UpdateLog(FaultyStore(store, choose), clock=ManualClock(1000.0))
    with pytest.raises(OutcomeUnknown, match="version 4"):
        log.append(update(4))


def test_the_last_try_without_an_answer_is_no_loss() -> None:
    """The store keeps nothing of what it does not answer, ten times: perhaps it does so later."""
    late = FaultyStore(MemoryStore(), lambda one: KVFault.UNKNOWN_LOST if one.name == "transact" else None)
    log = log_in(late, clock=ManualClock(1000.0))
    with pytest.raises(OutcomeUnknown, match="append of catalog version 1"):
        log.append(update(1))
    conflict = FaultyStore(MemoryStore(), lambda one: KVFault.CONFLICT if one.name == "transact" else None)
    with pytest.raises(RetriesExhausted):
        log_in(conflict).append(update(1))


@pytest.mark.parametrize("then", [KVFault.FAIL, KVFault.CONFLICT])
def test_a_cut_of_which_one_try_had_no_answer_is_not_told_as_refused(then: KVFault) -> None:
    """What is refused later may have been carried out by the first try, which may still be on its way."""
    whole = MemoryStore()
    filled(whole)
    tries = 0

    def choose(operation: KVOperation) -> KVFault | None:
        nonlocal tries
        if operation.name != "transact":
            return None
        tries += 1
        return KVFault.UNKNOWN_LOST if tries == 1 else then

    with pytest.raises(OutcomeUnknown, match="snapshot of catalog version 6"):
        with_clock(FaultyStore(whole, choose), 2).save_snapshot(recover_history(UpdateLog(whole)).catalog(6))
    assert tries > 1


def test_a_lost_race_is_told_as_one_whatever_was_not_answered() -> None:
    store = MemoryStore()
    filled(store, 3)
    other = UpdateLog(store)
    writes = 0

    def choose(operation: KVOperation) -> KVFault | None:
        nonlocal writes
        writes += operation.changes
        if operation.changes and writes == 1:
            other.append(update(4))
            return KVFault.UNKNOWN_LOST
        return None

    assert UpdateLog(FaultyStore(store, choose), clock=ManualClock(1000.0)).append(update(4)) == LostRace(4)


def test_pins_never_say_that_nothing_was_changed_when_it_was() -> None:
    def pins(store: KVStore, seed: int = 2) -> Pins:
        return Pins(with_clock(store, seed), HybridClock(ManualClock(1000.0)))

    def prepare(store: KVStore) -> None:
        filled(store)
        pins(store).pin("old", 5, recover_history(UpdateLog(store)), ttl_seconds=60)

    def names(store: KVStore) -> dict[str, tuple[int, int]]:
        return {pin.owner: (pin.version, pin.expires) for pin in pins(store).all()}

    empty = MemoryStore()
    prepare(empty)
    before = names(empty)
    view = recover_history(UpdateLog(empty))
    for answer, changed in explored(prepare, lambda store: pins(store).pin("new", 6, view, ttl_seconds=9),
                                    lambda store: "new" in names(store)):
        assert isinstance(answer, OutcomeUnknown) or (isinstance(answer, CompactlibError) is not changed), answer
    for answer, changed in explored(prepare, lambda store: pins(store).release("old"),
                                    lambda store: "old" not in names(store)):
        assert isinstance(answer, OutcomeUnknown) or (answer is None) is changed, answer
    for answer, changed in explored(prepare, lambda store: pins(store).renew("old", ttl_seconds=600),
                                    lambda store: names(store) != before):
        assert isinstance(answer, OutcomeUnknown) or (isinstance(answer, CompactlibError) is not changed), answer


def test_the_low_watermark_never_says_that_it_was_not_kept_when_it_was() -> None:
    def mark(store: KVStore) -> LowWatermark:
        return LowWatermark(store, "A", HybridClock(ManualClock(1000.0)))

    for answer, changed in explored(lambda store: mark(store).advance(50), lambda store: mark(store).advance(70),
                                    lambda store: mark(store).value.time == 70):
        assert is_true(answer, changed, Done), answer


def test_published_times_never_say_that_they_were_not_kept_when_they_were() -> None:
    def times(store: KVStore) -> PublishedTimes:
        made = PublishedTimes(store, "A", clock=ManualClock(1000.0))
        made.register(7, 0, incarnation=3, created_at=10)
        return made

    def publish(store: KVStore) -> Any:
        made = times(store)
        try:
            made.publish(7, 0, 3, 70)
        except CompactlibError:
            assert made.published(7, 0) != 70, "what is not known to be kept is not published"
            assert not isinstance(told(made.audit), AuditFailed)
            raise
        return made.published(7, 0)

    for answer, changed in explored(lambda store: times(store).publish(7, 0, 3, 50), publish,
                                    lambda store: times(store).published(7, 0) == 70):
        assert isinstance(answer, OutcomeUnknown) or (answer == 70) is changed, answer


def test_who_owns_the_published_times_stays_unknown_until_it_is_seen() -> None:
    def register(store: KVStore) -> Any:
        return PublishedTimes(store, "A", clock=ManualClock(1000.0)).register(7, 0, incarnation=3, created_at=10)

    def epoch(store: KVStore) -> object:
        return next(iter(store.scan(b"catalog", prefix=publisher_key("A"))), None)

    # What was not answered and then not seen is unknown, whatever came of it; else it is owned, and registered.
    for answer, changed in explored(lambda _: None, register, lambda store: epoch(store) is not None):
        assert isinstance(answer, OutcomeUnknown) or (answer == 10 and changed), answer


@pytest.mark.parametrize("what", ["pins", "watermark", "published times"])
@pytest.mark.parametrize("is_seen", [False, True])
def test_what_had_no_answer_stays_unknown_whatever_is_refused_later_until_it_is_seen(what: str, is_seen: bool) -> None:
    store, clock = MemoryStore(), ManualClock(1000.0)
    filled(store)
    is_armed, writes, looks = False, 0, 3

    def choose(operation: KVOperation) -> KVFault | None:
        nonlocal writes, looks
        if not is_armed:
            return None
        if operation.changes:
            writes += 1
            first = KVFault.UNKNOWN_DONE if is_seen else KVFault.UNKNOWN_LOST
            return first if writes == 1 else KVFault.FAIL
        looks -= writes > 0
        return KVFault.FAIL if is_seen and writes and looks >= 0 else None

    faulty = FaultyStore(store, choose)
    view = recover_history(UpdateLog(store))
    pins, mark = Pins(with_clock(faulty, 2), HybridClock(clock)), LowWatermark(faulty, "A", HybridClock(clock))
    times = PublishedTimes(faulty, "A", clock=clock)
    times.register(7, 0, incarnation=3, created_at=10)
    calls: dict[str, Callable[[], object]] = {
        "pins": lambda: pins.pin("new", 6, view, ttl_seconds=9), "watermark": lambda: mark.advance(70),
        "published times": lambda: times.publish(7, 0, 3, 70)}
    is_armed = True
    answer = told(calls[what])
    error = answer.error if isinstance(answer, Failed) else answer
    assert isinstance(error, OutcomeUnknown) is not is_seen, answer
    assert isinstance(error, CompactlibError) is not is_seen, answer
    assert writes == (1 if is_seen else 2)


def test_preparing_a_log_ends_although_nothing_is_ever_answered() -> None:
    store = FaultyStore(MemoryStore(), lambda one: KVFault.UNKNOWN_LOST if one.changes else None)
    with pytest.raises(OutcomeUnknown):
        UpdateLog(store, clock=ManualClock(1000.0)).prepare()


def test_a_reclaimer_that_is_overtaken_by_a_cut_finds_no_damage() -> None:
    store = MemoryStore()
    filled(store, 8)
    log = UpdateLog(store)
    view = recover_history(log)
    log.save_snapshot(view.catalog(3))
    once = [True]

    def choose(operation: KVOperation) -> None:
        if operation.name == "scan" and once:
            once.clear()
            log.save_snapshot(view.catalog(6))

    reclaim(UpdateLog(FaultyStore(store, choose)))
    assert recover_history(log).earliest == 6


