# SPDX-License-Identifier: Apache-2.0
"""The sources of need: rebalance, transactions, published times, the low watermark, pins."""

from __future__ import annotations

import contextlib
from random import Random
from typing import Any

import pytest

from compactlib.catalog import (
    ActiveTransactions,
    CatalogService,
    CatalogTable,
    DropObject,
    Factor,
    Floor,
    HybridClock,
    LowWatermark,
    NodeId,
    Placement,
    PublishedTimes,
    PutObject,
    RebalanceNeed,
    Schema,
    UpdateLog,
    Zone,
    ZoneProgress,
    local_report,
)
from compactlib.catalog.errors import (
    BelowLowWatermark,
    CatalogVersionNotFound,
    StaleIncarnation,
    TimeBeforeHistory,
)
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.kv import KVStore, MemoryStore, StoreFailed
from compactlib.testing import Interrupted, Request, StoreInFront

ZONE = 1


def service_at(clock: ManualClock, *, delay: float = 0.0, store: KVStore | None = None) -> CatalogService:
    log = UpdateLog(MemoryStore() if store is None else store, rng=Random(1), clock=clock)
    return CatalogService(log, HybridClock(clock, max_skew_seconds=min(delay, 0.5)), delay_seconds=delay)


def put_zone(disk: str, *, if_exists: str = "replace", note: str = "") -> PutObject:
    return PutObject(Zone("Z", 4, {"disk": disk}, {"note": note}), if_exists=if_exists)  # type: ignore[arg-type]


# -------------------------------------------------------------------------------------------------------- rebalance


class Rebalances:
    """A zone whose disks change in versions 4 and 5, of which 5 is committed before 4 is in force."""

    def __init__(self, *disks: str) -> None:
        clock = ManualClock(1000.0)
        self.service = service_at(clock, delay=5.0)
        for command in (PutObject(Schema("S")), put_zone("hdd"), PutObject(CatalogTable("T"), schema="S", zone="Z")):
            self.service.execute([command], wait=False)
            clock.advance(10.0)
        for number, disk in enumerate(disks):
            self.service.execute([put_zone(disk, note=str(number))], wait=False)
            clock.advance(1.0)
        clock.advance(100.0)
        self.safe = self.service.clock.now()

    def commit(self, version: int) -> int:
        return self.service.catalog(version).zones[ZONE].updated_at

    def activation(self, version: int) -> int:
        return self.service.history.activation(version)

    def need(self, progress: ZoneProgress | None) -> int:
        class Source:
            def placement(_) -> Placement:  # noqa: N805
                return Placement(safe=self.safe, zones={} if progress is None else {ZONE: progress})

        found = RebalanceNeed(Source()).need(self.service.history)
        assert isinstance(found, Floor)
        assert found.factor is Factor.REBALANCE
        assert found.culprit.zone == (ZONE if found.time < self.safe else None)
        return found.time


def everywhere(time: int) -> dict[int, int]:
    return dict.fromkeys(range(4), time)


def test_zone_keeps_the_versions_before_a_change_not_yet_followed() -> None:
    world = Rebalances("ssd")
    first, change = world.commit(2), world.commit(4)
    held = change - 1
    for progress, expected in [
        (None, held), (ZoneProgress(), held), (ZoneProgress(stable=everywhere(first)), held),
        (ZoneProgress(pending=everywhere(change), trigger=change), world.safe),
        (ZoneProgress(pending={0: change, 2: change}, trigger=change), held),
        (ZoneProgress(pending={0: change, 2: change}, stable=everywhere(first), trigger=change), held),
        (ZoneProgress(pending={**everywhere(first), 3: change}, trigger=change), held),
        (ZoneProgress(stable=everywhere(change), trigger=change), world.safe),
        (ZoneProgress(stable=everywhere(first), planned=everywhere(change), trigger=change), held),
    ]:
        assert world.need(progress) == expected, progress


def test_zone_does_not_follow_a_change_older_than_the_last() -> None:
    world = Rebalances("ssd", "nvme")
    assert world.commit(5) < world.activation(4)
    held = world.commit(5) - 1
    first, second = world.commit(4), world.commit(5)
    for progress, expected in [
        (ZoneProgress(trigger=first), held), (ZoneProgress(stable=everywhere(first), trigger=first), held),
        (ZoneProgress(pending={**everywhere(second), 2: first}, trigger=second), held),
        (ZoneProgress(stable=everywhere(first), planned=everywhere(second), trigger=second), held),
        (ZoneProgress(pending=everywhere(second), stable=everywhere(first), trigger=second), world.safe),
        (ZoneProgress(stable=everywhere(second), trigger=second), world.safe),
    ]:
        assert world.need(progress) == expected, progress


def test_change_that_moves_no_data_holds_nothing() -> None:
    world = Rebalances("ssd", "ssd")
    for change in (world.commit(4), world.commit(5)):
        assert world.need(ZoneProgress(stable=everywhere(change), trigger=change)) == world.safe


def test_dropped_zone_holds_while_something_of_it_is_left() -> None:
    world = Rebalances("ssd")
    for command in (DropObject("table", "T", schema="S"), DropObject("zone", "Z")):
        world.service.execute([command], wait=False)
    left = ZoneProgress(stable=everywhere(world.commit(4)), trigger=world.commit(4))
    world.safe = world.activation(6) + 1000
    assert world.need(left) == world.activation(6) - 1
    assert world.need(None) == world.safe


# ----------------------------------------------------------------------------------------------------- transactions


def test_oldest_version_in_use_counts_until_its_last_transaction_ends() -> None:
    clock = ManualClock(1000.0)
    service = service_at(clock)
    active = ActiveTransactions(service)
    begun = []
    for number in range(4):
        service.execute([PutObject(Schema(f"S{number}"))], wait=False)
        clock.advance(1.0)
        begun += [active.begin() for _ in range(3)]
    for number, transaction in enumerate(begun):
        assert active.need(service.history).time == service.history.activation(1 + number // 3)
        active.end(transaction)
        active.end(transaction)
    before = service.clock.now()
    assert before < active.need(service.history).time < active.begin().began


# -------------------------------------------------------------------------------------------------- published times


def test_time_counts_after_a_flush_that_began_later() -> None:
    store = service_at(ManualClock(1000.0))
    times = PublishedTimes(store, "A")
    assert times.register(7, 0, incarnation=1, created_at=10) == 10
    times.applied(7, 0, 1, index=1, time=20)
    first = times.begin_flush(7, 0, 1)
    times.applied(7, 0, 1, index=2, time=30)
    assert times.published(7, 0) == 10
    assert times.flushed([first]) == 1
    assert times.published(7, 0) == 20
    assert times.flushed([first]) == 0
    times.flushed([times.begin_flush(7, 0, 1)])
    assert times.needs_and_hosted()[1] == {7: 1}
    again = PublishedTimes(store, "A")
    assert again.register(7, 0, incarnation=1, created_at=10, flushed_index=2) == 30
    again.applied(7, 0, 1, index=2, time=99)  # a replay of what is on the disk
    again.flushed([again.begin_flush(7, 0, 1)])
    assert again.published(7, 0) == 30


def test_later_life_of_a_partition_ignores_the_earlier_one() -> None:
    store = service_at(ManualClock(1000.0))
    old, new = PublishedTimes(store, "A"), PublishedTimes(store, "A")
    old.register(7, 0, incarnation=1, created_at=10)
    old.publish(7, 0, 1, 50)
    ticket = old.begin_flush(7, 0, 1)
    assert new.register(7, 0, incarnation=2, created_at=10) == 10
    new.publish(7, 0, 2, 20)
    with pytest.raises(StaleIncarnation):
        old.publish(7, 0, 1, 60)
    with pytest.raises(StaleIncarnation):
        old.register(7, 0, incarnation=1, created_at=10)
    with pytest.raises(StaleIncarnation):
        new.applied(7, 0, 1, index=9, time=60)
    assert new.flushed([ticket]) == 0
    old.remove(7, 0, 1)
    assert PublishedTimes(store, "A").register(7, 0, incarnation=2, created_at=10) == 20


# ---------------------------------------------------------------------------------------------------- low watermark


def test_watermark_waits_for_its_readers_and_survives() -> None:
    clock = ManualClock(1000.0)
    service = service_at(clock)
    low = LowWatermark(service, "A", data_availability_seconds=10.0)
    assert low.need(service.history) == Floor.unknown("the low watermark has not been raised yet")
    first = low.advance().time
    assert first is not None
    low.lock("one", first)
    with pytest.raises(InvalidInput):
        low.lock("one", first)
    clock.advance(60.0)
    pending = low.advance().pending
    assert pending is not None
    assert low.value.time == first
    with pytest.raises(BelowLowWatermark):
        low.lock("two", pending - 1)
    with low.reading("three", pending):
        low.unlock("one")
        assert low.value.time == pending
    assert low.advance(first).time == pending
    assert LowWatermark(service, "A").value.time == pending
    for name in ("S", "T"):
        service.execute([PutObject(Schema(name))])
    service.log.cut(service.log.write_snapshot(service.catalog(2)))
    service.poll()
    assert LowWatermark(service, "A").value.time == service.history.activation(2)


def test_watermark_is_in_force_only_after_its_write() -> None:
    """Though its last reader ends before: after a restart others would read below it."""
    clock, seen = ManualClock(1000.0), list[int | None]()

    def step(request: Request, act: Any) -> Any:
        if seen:
            low.unlock("reader")
            seen.append(low.value.time)
            raise StoreFailed(operation=request.kind, path="a store under test", detail="refused")
        return act()

    low = LowWatermark(service_at(clock, store=StoreInFront(MemoryStore(), step)), "A", data_availability_seconds=10.0)
    first = low.advance().time
    assert first is not None
    low.lock("reader", first)
    clock.advance(60.0)
    seen.append(first)
    with pytest.raises(StoreFailed):
        low.advance()
    assert set(seen) == {first}
    assert (low.value.time, low.value.pending) == (first, None)


def test_watermark_rises_again_after_an_interrupt_at_any_place() -> None:
    clock = ManualClock(1000.0)
    low = LowWatermark(service_at(clock), "A", data_availability_seconds=10.0)

    def rise() -> None:
        clock.advance(60.0)
        time = low.advance().time
        low.lock("reader", time or 1)
        clock.advance(60.0)
        low.advance()
        low.unlock("reader")

    with Interrupted() as whole:
        rise()
    for place in range(1, whole.places + 1):
        interrupted = Interrupted(place)
        with contextlib.suppress(KeyboardInterrupt), interrupted:
            rise()
        low.unlock("reader")
        clock.advance(1.0)
        low.advance()
        assert (low.value.time, low.value.pending) == (low.candidate(), None), interrupted.where


# -------------------------------------------------------------------------------------------------------------- pins


def test_pin_holds_until_it_is_released_or_expires_on_every_clock() -> None:
    clock = ManualClock(1000.0)
    service = service_at(clock, delay=0.5)
    for number in range(4):
        service.execute([PutObject(Schema(f"S{number}"))], wait=False)
    pins, history = service.pins, service.history
    first = pins.pin("backup", 2, history, ttl_seconds=10.0)
    assert pins.pin("backup", 2, history, ttl_seconds=20.0).expires > first.expires
    pins.pin("backup", 3, history, ttl_seconds=10.0)
    assert [(pin.owner, pin.version) for pin in pins.active()] == [("backup", 3)]
    clock.advance(10.2)
    assert pins.active()  # another clock may be behind
    clock.advance(0.5)
    assert not pins.active()
    pins.pin("another", 3, history, ttl_seconds=10.0)
    assert list(pins.state().value or {}) == ["another"]  # each change drops the expired pins
    pins.release("another")
    service.log.cut(service.log.write_snapshot(history.catalog(3)))
    with pytest.raises(CatalogVersionNotFound):
        pins.pin("late", 2, history, ttl_seconds=10.0)
    assert not pins.active()
    with pytest.raises(InvalidInput):
        pins.pin("", 3, history, ttl_seconds=1.0)


@pytest.mark.soak
def test_next_pin_after_a_thousand_is_refused() -> None:
    clock = ManualClock(1000.0)
    service = service_at(clock)
    service.execute([PutObject(Schema("S"))], wait=False)
    for number in range(1000):
        service.pins.pin(f"pin {number}", 1, service.history, ttl_seconds=60.0)
    with pytest.raises(InvalidInput, match="1000 pins"):
        service.pins.pin("one more", 1, service.history, ttl_seconds=60.0)
    service.pins.pin("pin 7", 1, service.history, ttl_seconds=90.0)


# ---------------------------------------------------------------------------------------------------------- a report


def test_report_has_all_floors_and_names_what_fails() -> None:
    clock = ManualClock(1000.0)
    service = service_at(clock)
    transactions = ActiveTransactions(service)

    class Source:
        def __init__(self, answer: Floor | Exception | None) -> None:
            self.answer = answer

        def need(self, view: Any) -> Floor | None:
            if isinstance(self.answer, Exception):
                raise self.answer
            return self.answer

    report = local_report(NodeId("A"), service.history, transactions=transactions, sources=[
        Source(Floor(Factor.REBALANCE, 30)), Source(Floor(Factor.REBALANCE, 20)), Source(None),
        Source(TimeBeforeHistory(time=1, earliest=2, earliest_time=3)), Source(ConnectionError("no placement driver"))])
    assert [(floor.factor, floor.time) for floor in report.floors] == [
        (Factor.REBALANCE, 30), (Factor.REBALANCE, 20), (Factor.UNAVAILABLE, 0),
        (Factor.UNAVAILABLE, 0), (Factor.ACTIVE_TRANSACTIONS, report.transactions_from)]
    assert "Source failed" in report.floors[2].culprit.owner
    assert "no placement driver" in report.floors[3].culprit.owner
    assert transactions.begin().began > report.transactions_from


def test_stale_life_is_refused_by_name() -> None:
    times = PublishedTimes(service_at(ManualClock(1000.0)), "A")
    with pytest.raises(StaleIncarnation, match="partition 3 of table 7"):
        times.publish(7, 3, 1, 50)
