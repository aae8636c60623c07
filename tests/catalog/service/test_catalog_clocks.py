# SPDX-License-Identifier: Apache-2.0
"""Clocks that jump: refused by name, nothing frozen, nothing revived, and a log from the future bricks nobody."""

from __future__ import annotations

import threading

import pytest

from compactlib.catalog import ActiveTransactions, CatalogService, CreateSchema, HybridClock, LowWatermark
from compactlib.catalog.errors import BelowLowWatermark, ClockSkewExceeded, CommandRefused
from compactlib.catalog.model.timestamp import add_ms, from_seconds, physical_ms
from compactlib.catalog.sense.pins import Pins
from compactlib.clock import Clock, ManualClock
from compactlib.errors import ClockJumped
from compactlib.kv import KVStore, MemoryStore
from compactlib.runtime import RecordingObserver, SteadyClock
from tests.catalog.services import grown, service_in
from tests.harness.catalog_logs import INITIAL, log_in

DAY = 86_400.0
HOUR = 3_600.0


class Leaping(ManualClock):
    """A clock whose monotonic time leaps as well, as in a machine whose hypervisor sets both."""

    def __init__(self, now: float) -> None:
        super().__init__(now)
        self.slept = 0.0
        self.leap = 0.0

    def now(self) -> float:
        return super().now() + self.leap

    def monotonic(self) -> float:
        return super().monotonic() + self.leap

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        super().sleep(seconds)


def slept(service: CatalogService, clock: ManualClock, name: str) -> float:
    before = clock.monotonic()
    service.execute([CreateSchema(name)])
    return clock.monotonic() - before


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_one_wrong_reading_is_refused_by_name_and_leaves_nothing_behind(jump: float) -> None:
    clock = ManualClock(1_000_000.0)
    service = service_in(clock=clock)
    assert slept(service, clock, "A") <= 1.1
    clock.set_now(clock.now() + jump)
    with pytest.raises(ClockJumped) as caught:
        service.execute([CreateSchema("B")])
    assert caught.value.seconds == jump
    assert service.active().version == 1
    clock.set_now(clock.now() - jump)
    assert slept(service, clock, "B") <= 1.1
    assert service.history.latest == 2


def test_a_time_that_was_given_out_while_the_clock_was_ahead_is_not_waited_for() -> None:
    """Even where the monotonic clock leaps too, so that nobody can tell when it happens."""
    clock = Leaping(1_000_000.0)
    service = service_in(clock=clock)
    service.execute(INITIAL)
    clock.leap = DAY
    service.clock.now()
    clock.leap = 0.0
    clock.slept = 0.0
    for wait in (True, False):
        with pytest.raises(ClockSkewExceeded, match="make a new HybridClock"):
            service.execute([CreateSchema("B")], wait=wait)
    assert clock.slept == 0.0
    assert service.history.latest == 1
    again = service_in(service.log.store, clock=clock)
    assert again.execute([CreateSchema("B")]).version == 2


def test_a_clock_that_was_set_is_believed_when_it_stays_so() -> None:
    clock = ManualClock(1_000_000.0)
    service = service_in(clock=clock, observer=RecordingObserver())
    service.execute(INITIAL)
    clock.set_now(clock.now() + DAY)
    with pytest.raises(ClockJumped):
        service.execute([CreateSchema("A")])
    clock.advance(30.0)
    done = service.execute([CreateSchema("A")])
    assert physical_ms(done.activation) >= 1000 * (1_000_000 + DAY)


def test_an_operator_may_accept_a_jump_at_once() -> None:
    clock = ManualClock(1_000_000.0)
    service = service_in(clock=clock)
    service.execute(INITIAL)
    clock.set_now(clock.now() + DAY)
    with pytest.raises(ClockJumped):
        service.execute([CreateSchema("A")])
    service.clock.accept()
    assert service.execute([CreateSchema("A")]).version == 2


@pytest.mark.parametrize("hours", [1.0, 24.0, 24 * 365.0])
def test_a_long_stop_is_no_jump(hours: float) -> None:
    store, clock = MemoryStore(), ManualClock(1_000_000.0)
    grown(service_in(store, clock=clock), 3)
    clock.advance(hours * HOUR)
    service = service_in(store, clock=ManualClock(clock.now()), seed=2)
    assert service.active().version == 3
    assert service.execute([CreateSchema("A")]).version == 4


def test_a_log_from_the_future_is_named_and_may_be_written_to_without_waiting_for_it() -> None:
    store = MemoryStore()
    ahead = service_in(store, clock=ManualClock(1_000_000.0 + DAY))
    ahead.execute(INITIAL, wait=False)
    seen = RecordingObserver()
    clock = ManualClock(1_000_000.0)
    service = service_in(store, clock=clock, seed=2, observer=seen)
    assert ("catalog_clock_ahead", {"version": 1, "ahead_seconds": DAY}) in seen.events
    with pytest.raises(ClockJumped):
        service.execute([CreateSchema("A")])
    clock.advance(30.0)
    with pytest.raises(ClockSkewExceeded, match="wait=False"):
        service.execute([CreateSchema("A")])
    assert clock.monotonic() == 30.0
    assert service.history.latest == 1
    done = service.execute([CreateSchema("A")], wait=False)
    assert physical_ms(done.activation) >= 1000 * (1_000_000 + DAY)


def test_a_step_at_opening_expires_no_pin_and_no_data_until_it_is_confirmed() -> None:
    store = MemoryStore()
    clock = ManualClock(1_000_000.0)
    first = grown(service_in(store, clock=clock, delay_seconds=0), 3)
    Pins(first.log, first.clock).pin("job", 2, first.history, ttl_seconds=60)
    wrong = ManualClock(clock.now() + DAY)
    service = service_in(store, clock=wrong, seed=2)
    pins = Pins(service.log, service.clock)
    low = LowWatermark(store, "A", service.clock, data_availability_seconds=600)
    transactions = ActiveTransactions(lambda: service.history, service.clock)
    for _ in range(3):
        wrong.advance(5.0)
        assert [pin.owner for pin in pins.active()] == ["job"]
        assert pins.forget_expired() == 0
        assert physical_ms(low.candidate() or 0) <= 1_000_000_000 + 3
        assert transactions.minimum() <= from_seconds(1_000_001.0)
    wrong.advance(30.0)
    assert pins.active() == []
    assert pins.forget_expired() == 1
    low.lock("reader", from_seconds(1_000_000.0 + DAY))
    low.advance()
    with pytest.raises(BelowLowWatermark):
        low.lock("late", from_seconds(1_000_000.0))


def test_a_jump_in_doubt_moves_no_floor_above_what_a_later_transaction_begins_at() -> None:
    clock = ManualClock(1_000_000.0)
    hybrid = HybridClock(clock)
    last = hybrid.now()
    for jump in (DAY, -DAY, 30.0, -30.0, HOUR, -HOUR):
        clock.set_now(clock.now() + jump)
        for _ in range(8):
            floor = hybrid.expiry()
            try:
                last = hybrid.now()
            except ClockJumped:
                pass
            else:
                assert last > floor
            clock.advance(7.0)


def test_waiting_ends_at_the_time_and_not_a_millisecond_before() -> None:
    clock = ManualClock(1000 * DAY)
    hybrid = HybridClock(clock)
    for number in range(200):
        time = add_ms(hybrid.now(), 1 + 7 * number)
        hybrid.wait_until(time)
        assert hybrid.ahead_ms(time) <= 0


def test_a_clock_that_a_host_has_made_steady_is_taken_as_it_is() -> None:
    clock = ManualClock(1_000_000.0)
    steady = SteadyClock(clock, max_jump_seconds=1000.0)
    hybrid = HybridClock(steady)
    hybrid.known(from_seconds(5.0))
    assert hybrid.steady is steady
    clock.set_now(clock.now() + 900)
    assert physical_ms(hybrid.now()) == 1_000_900_000


# --- nobody waits for another one's version -------------------------------------------------------------------------


class Sleepers(Clock):
    """A clock on which nobody wakes up before the test says so."""

    def __init__(self) -> None:
        self.sleeping = threading.Semaphore(0)
        self.woken = threading.Event()
        self.at = 1_000_000.0

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.sleeping.release()
        assert self.woken.wait(60)
        self.at += seconds


def test_who_waits_until_a_version_is_in_force_keeps_nobody_from_writing() -> None:
    clock = Sleepers()
    store: KVStore = MemoryStore()
    service = CatalogService(log_in(store), HybridClock(clock))
    waiting = [threading.Thread(target=service.execute, args=([CreateSchema(f"S{number}")],)) for number in range(6)]
    for thread in waiting:
        thread.start()
    for _ in waiting:
        assert clock.sleeping.acquire(timeout=60)
    assert service.execute([CreateSchema("NOW")], wait=False).version == 7
    refused: list[BaseException] = []

    def refuse() -> None:
        try:
            service.execute([CreateSchema("NOW")])
        except CommandRefused as error:
            refused.append(error)

    waiting.append(threading.Thread(target=refuse))
    waiting[-1].start()
    assert clock.sleeping.acquire(timeout=60)
    assert service.execute([CreateSchema("AFTER")], wait=False).version == 8
    clock.woken.set()
    for thread in waiting:
        thread.join(60)
    assert len(refused) == 1
