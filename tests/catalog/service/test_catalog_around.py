# SPDX-License-Identifier: Apache-2.0
"""What may happen around the catalog: an owner that stands still while others take over, clocks that jump, settings.

An owner is whoever cuts the log, cleans up behind a cut, holds pins or keeps published times: paused after each of its
requests, while another one takes over, acknowledges and goes on, it wakes and may delete nothing that the other made.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any, Literal

import attrs
import pytest

from compactlib.catalog import CatalogService, CreateSchema, HybridClock, LowWatermark, PublishedTimes, UpdateLog
from compactlib.catalog.errors import CatalogMoved, CatalogVersionNotFound
from compactlib.catalog.log.reclaim import reclaim
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.sense.pins import Pins
from compactlib.catalog.service.service import Executed
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, Conflict
from compactlib.kv import KVStore, MemoryStore
from compactlib.outcome import Done, Failed
from tests.catalog.services import cut
from tests.harness.catalog_logs import sound
from tests.harness.faulty_store import FaultyStore, KVOperation
from tests.tools.faults.jumps import Jump, JumpingClock, explore_clock_jumps
from tests.tools.interleave.pauses import explore_pauses
from tests.tools.interleave.stage import Stage
from tests.tools.interleave.stores import SteppedStore
from tests.tools.settings import check_settings

Predicates = Literal["version", "value"]


@attrs.define
class World:
    """A store whose requests are steps, and what was acknowledged in it."""

    store: KVStore
    seeds: int = 0
    schemas: set[str] = attrs.field(factory=set)
    pins: dict[str, int] = attrs.field(factory=dict)
    times: dict[tuple[int, int], Timestamp] = attrs.field(factory=dict)
    former: dict[str, Any] = attrs.field(factory=dict)

    def log(self) -> UpdateLog:
        self.seeds += 1
        return UpdateLog(self.store, chunk_bytes=1024, rng=random.Random(self.seeds), clock=ManualClock(1.0))

    def service(self, now: float = 1000.0) -> CatalogService:
        return CatalogService(self.log(), HybridClock(ManualClock(now)), delay_seconds=0)

    def execute(self, service: CatalogService, name: str) -> None:
        service.execute([CreateSchema(name)], wait=False)
        self.schemas.add(name)

    def check(self) -> None:
        """Opened again, all that was acknowledged is there."""
        service = self.service()
        sound(service)
        latest = service.catalog(service.history.latest)
        assert self.schemas <= {schema.name for schema in latest.schemas.values()}
        held = {pin.owner: pin.version for pin in Pins(service.log, service.clock).all()}
        assert self.pins.items() <= held.items(), f"{self.pins} were acknowledged, {held} are held"
        for version in self.pins.values():
            service.catalog(version)
        times = PublishedTimes(self.store, "A", clock=ManualClock(1.0))
        for (table, partition), time in self.times.items():
            assert times.register(table, partition, incarnation=1, created_at=1) >= time


def made(predicates: Predicates, prepare: Callable[[World], object]) -> Callable[[Stage], World]:
    def make(stage: Stage) -> World:
        world = World(SteppedStore(MemoryStore(predicates=predicates), stage))
        service = world.service()
        for number in range(12):
            world.execute(service, f"a schema with a name that takes some room, number {number}")
        world.former["service"] = service
        prepare(world)
        return world

    return make


def acknowledged_is_there(world: World, results: Mapping[str, Any]) -> None:
    world.check()


def nothing(world: World) -> None:
    pass


@pytest.fixture(params=["version", "value"])
def predicates(request: pytest.FixtureRequest) -> Predicates:
    return request.param  # type: ignore[no-any-return]


# --- the log --------------------------------------------------------------------------------------------------------


def cuts(world: World) -> None:
    """A coordinator of an earlier term: cuts the log in pieces, and cleans up behind it."""
    service: CatalogService = world.former["service"]
    cut(service, 6, term=1)
    reclaim(service.log)
    cut(service, 7)


def cuts_further(world: World) -> None:
    service = world.service()
    world.execute(service, "new")
    while isinstance(outcome := cut(service, 10, term=2), Failed):
        assert isinstance(outcome.error, CatalogMoved)  # the former owner was first, and a plan made now knows that
    assert isinstance(outcome, Done)
    reclaim(service.log)
    world.execute(service, "newer")
    sound(world.service())


def writes(world: World) -> None:
    service: CatalogService = world.former["service"]
    world.execute(service, "from the one that stood still")


@pytest.mark.parametrize("owner", [cuts, writes])
@pytest.mark.parametrize("both", [False, True])
def test_a_former_owner_of_the_log_deletes_nothing_of_a_later_one(predicates: Predicates, both: bool,
                                                                  owner: Callable[[World], None]) -> None:
    report = explore_pauses({"owner": owner, "heir": cuts_further}, made(predicates, nothing), acknowledged_is_there,
                            both=both, max_schedules=60)
    assert report.schedules >= 5


# --- pins -----------------------------------------------------------------------------------------------------------


def with_pins(world: World) -> None:
    service = world.former["service"]
    pins = Pins(service.log, service.clock)
    pins.pin("job", 3, service.history, ttl_seconds=60)
    pins.pin("old", 2, service.history, ttl_seconds=0)
    pins.pin("older", 2, service.history, ttl_seconds=0)


def moves_its_pins_on(world: World) -> None:
    """Another process of the same owners holds later versions, and lets the earlier ones be cut."""
    service = world.service(1010.0)
    pins = Pins(service.log, service.clock)
    for owner in ("job", "old"):
        pins.pin(owner, 8, service.history, ttl_seconds=60)
        world.pins[owner] = 8
    cut(service, 8)  # refused if a pin was changed right now


def renews(world: World) -> object:
    service = world.service(1010.0)
    return Pins(service.log, service.clock).renew("job", ttl_seconds=60)


def forgets(world: World) -> object:
    service = world.service(1010.0)
    return Pins(service.log, service.clock).forget_expired()


def pins_what_may_be_cut(world: World) -> object:
    service: CatalogService = world.former["service"]
    pin = Pins(service.log, service.clock).pin("other", 4, service.history, ttl_seconds=60)
    world.pins["other"] = 4
    return pin


@pytest.mark.parametrize("owner", [renews, forgets])
@pytest.mark.parametrize("both", [False, True])
def test_a_former_owner_of_a_pin_neither_brings_it_back_nor_deletes_a_later_one(
        predicates: Predicates, both: bool, owner: Callable[[World], object]) -> None:
    explore_pauses({"owner": owner, "heir": moves_its_pins_on}, made(predicates, with_pins), acknowledged_is_there,
                   both=both, max_schedules=60)


def test_a_pin_that_was_granted_holds_whoever_cuts_meanwhile(predicates: Predicates) -> None:
    def cuts_below_all_pins(world: World) -> object:
        return cut(world.service(1010.0), 8)

    def check(world: World, results: Mapping[str, Any]) -> None:
        world.check()
        assert "other" in world.pins or isinstance(results["owner"], CatalogVersionNotFound | CompactlibError)

    explore_pauses({"owner": pins_what_may_be_cut, "heir": cuts_below_all_pins}, made(predicates, nothing), check,
                   both=True, max_schedules=100)


def test_a_release_that_stood_still_leaves_the_pin_that_was_taken_since(predicates: Predicates) -> None:
    """What it saw when it began is given up, and nothing else."""
    def releases(world: World) -> None:
        service: CatalogService = world.former["service"]
        world.former["began"] = bool(world.pins)
        Pins(service.log, service.clock).release("job")

    def takes(world: World) -> None:
        service = world.service(1010.0)
        Pins(service.log, service.clock).pin("job", 8, service.history, ttl_seconds=60)
        world.former["taken"] = True

    def check(world: World, results: Mapping[str, Any]) -> None:
        service = world.service(1010.0)
        held = {pin.version for pin in Pins(service.log, service.clock).all() if pin.owner == "job"}
        # Either the release read the pin before it was moved on, and leaves the new one, or it came after all.
        assert held in ({8}, set())

    explore_pauses({"owner": releases, "heir": takes}, made(predicates, with_pins), check)


def overtaken(world: World, meanwhile: Callable[[Pins], object]) -> Pins:
    """Pins whose first change meets another one, which came between what was read and the write."""
    others, is_first = world.service(1010.0), True

    def choose(operation: KVOperation) -> None:
        nonlocal is_first
        if operation.changes and is_first:
            is_first = False
            meanwhile(Pins(others.log, others.clock))

    service = world.service(1010.0)
    return Pins(UpdateLog(FaultyStore(world.store, choose)), service.clock)


def test_a_pin_that_another_caller_has_changed_meanwhile_is_not_replaced(predicates: Predicates) -> None:
    world = made(predicates, with_pins)(Stage([]))
    history = world.service(1010.0).history
    pins = overtaken(world, lambda other: other.pin("job", 8, history, ttl_seconds=60))
    with pytest.raises(Conflict, match="changed by another caller"):
        pins.pin("job", 7, history, ttl_seconds=60)
    assert [pin.version for pin in pins.all() if pin.owner == "job"] == [8]


def test_whoever_has_looked_between_two_pins_at_once_sees_both_of_them_change_the_epoch(
        predicates: Predicates) -> None:
    """A cut that was decided on without the second one fails, also in a store that compares values."""
    world = made(predicates, with_pins)(Stage([]))
    history = world.service(1010.0).history
    seen: list[object] = []

    def pinned(other: Pins) -> None:
        other.pin("first", 8, history, ttl_seconds=60)
        seen.append(other.condition())

    second = overtaken(world, pinned)
    second.pin("second", 7, history, ttl_seconds=60)
    assert len(seen) == 1
    assert second.condition() not in seen


# --- published times ------------------------------------------------------------------------------------------------


def with_times(world: World) -> None:
    times = PublishedTimes(world.store, "A", clock=ManualClock(1.0))
    for table in (7, 9):
        times.register(table, 0, incarnation=1, created_at=1)
        times.publish(table, 0, 1, 50)
    world.former["times"] = times


def keeps_times(world: World) -> None:
    """The former life of the node: its partition of table 9 is gone, and it does not know of table 8."""
    times: PublishedTimes = world.former["times"]
    times.publish(7, 0, 1, 70)
    times.remove(9, 0, 1)
    times.forget_removed()


def takes_the_times_over(world: World) -> None:
    times = PublishedTimes(world.store, "A", clock=ManualClock(1.0))
    for table in (7, 8, 9):
        world.times[table, 0] = times.register(table, 0, incarnation=1, created_at=1)
        times.publish(table, 0, 1, 90 + table)
        world.times[table, 0] = 90 + table
    times.forget_removed()


@pytest.mark.parametrize("both", [False, True])
def test_a_former_life_of_a_node_deletes_no_time_of_a_later_one(predicates: Predicates, both: bool) -> None:
    report = explore_pauses({"owner": keeps_times, "heir": takes_the_times_over}, made(predicates, with_times),
                            acknowledged_is_there, both=both, max_schedules=100)
    assert report.schedules >= 5


def test_a_low_watermark_of_a_former_life_takes_nothing_back(predicates: Predicates) -> None:
    def advances(time: Timestamp) -> Callable[[World], object]:
        return lambda world: LowWatermark(world.store, "A", HybridClock(ManualClock(1000.0))).advance(time)

    def check(world: World, results: Mapping[str, Any]) -> None:
        assert not isinstance(results["heir"], CompactlibError)
        assert (LowWatermark(world.store, "A", HybridClock(ManualClock(1000.0))).value.time or 0) >= 90

    explore_pauses({"owner": advances(50), "heir": advances(90)}, made(predicates, nothing), check, both=True)
    explore_pauses({"owner": advances(99), "heir": advances(90)}, made(predicates, nothing), check, both=True)


# --- clocks that jump -------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_loses_nothing_and_leaves_nobody_waiting() -> None:
    def work(clock: JumpingClock) -> tuple[KVStore, list[str], JumpingClock]:
        store = MemoryStore()
        acknowledged: list[str] = []
        for life in range(2):
            service = CatalogService(UpdateLog(store, rng=random.Random(life), clock=clock), HybridClock(clock))
            for number in range(3):
                try:
                    assert isinstance(service.execute([CreateSchema(f"S{life}-{number}")]), Executed)
                    acknowledged.append(f"S{life}-{number}")
                except CompactlibError:
                    clock.advance(20.0)
        return store, acknowledged, clock

    def check(result: tuple[KVStore, list[str], JumpingClock] | CompactlibError, jump: Jump) -> None:
        assert not isinstance(result, CompactlibError), result
        store, acknowledged, clock = result
        assert clock.monotonic() < 180, "somebody waited for a clock that was wrong"
        service = CatalogService(UpdateLog(store), HybridClock(ManualClock(1_000_100.0)), delay_seconds=0)
        assert set(acknowledged) <= {one.name for one in service.catalog(service.history.latest).schemas.values()}
        if jump.readings == 1:
            # A clock that is wrong for longer when a process begins is believed, and its times are in the log.
            assert len(acknowledged) >= 4, "one wrong reading stopped more than what met it"
            assert service.execute([CreateSchema("after")], wait=False).version == service.history.latest

    report = explore_clock_jumps(work, check)
    assert report.runs > 100


# --- settings ---------------------------------------------------------------------------------------------------------


@attrs.frozen
class Settings:
    """What a life of a node may be opened with."""

    delay_seconds: float
    max_skew_seconds: float
    availability_seconds: float
    chunk_bytes: int
    max_record_bytes: int


@attrs.define
class Kept:
    """A store, the time of day, and what was acknowledged."""

    store: KVStore = attrs.field(factory=MemoryStore)
    now: float = 1_000_000.0
    catalogs: dict[int, Any] = attrs.field(factory=dict)
    earliest: int = 0
    pins: dict[str, int] = attrs.field(factory=dict)
    times: dict[int, Timestamp] = attrs.field(factory=dict)
    watermark: Timestamp = 0

    def opened(self, settings: Settings) -> tuple[CatalogService, Pins, LowWatermark, PublishedTimes]:
        clock = HybridClock(ManualClock(self.now), max_skew_seconds=settings.max_skew_seconds)
        log = UpdateLog(self.store, chunk_bytes=settings.chunk_bytes, max_record_bytes=settings.max_record_bytes,
                        rng=random.Random(1), clock=ManualClock(1.0))
        service = CatalogService(log, clock, delay_seconds=settings.delay_seconds)
        low = LowWatermark(self.store, "A", clock, data_availability_seconds=settings.availability_seconds)
        return service, Pins(log, clock), low, PublishedTimes(self.store, "A", clock=ManualClock(1.0))


ALL_SETTINGS = [Settings(delay, skew, availability, chunk, record) for delay, skew, availability, chunk, record in (
    (0.5, 0.5, 600.0, 256 * 1024, 64 << 20), (0.0, 0.0, 0.0, 1024, 1024), (86_400.0, 0.0, 5.0, 1024, 64 << 20),
    (0.0, 30.0, 86_400.0, 4096, 2048), (0.001, 0.001, 0.001, 1 << 20, 1 << 30))]


def a_life(kept: Kept, settings: Settings, rng: random.Random) -> None:
    service, pins, low, times = kept.opened(settings)
    for _ in range(rng.randint(1, 8)):
        kept.now += rng.choice((0.0, 0.5, 20.0))
        action = rng.choice(("execute", "execute", "execute", "compact", "pin", "release", "publish", "watermark"))
        try:
            if action == "execute":
                number = len(kept.catalogs) + 1
                done = service.execute([CreateSchema(f"S{number} {'x' * rng.choice((1, 200))}")], wait=False)
                kept.catalogs[done.version] = service.catalog(done.version)
            elif action == "compact" and service.history.latest:
                floor = min([*kept.pins.values(), service.history.latest])
                outcome = cut(service, rng.randint(min(service.history.earliest, floor), floor))
                if isinstance(outcome, Done):
                    kept.earliest = outcome.stats.earliest
            elif action == "pin" and service.history.latest:
                version = rng.randint(max(1, service.history.earliest), service.history.latest)
                kept.pins["job"] = pins.pin("job", version, service.history, ttl_seconds=10_000_000).version
            elif action == "release":
                kept.pins.pop("job", None)
                pins.release("job")
            elif action == "publish":
                table = rng.randint(1, 3)
                times.register(table, 0, incarnation=1, created_at=1)
                times.publish(table, 0, 1, 100 * rng.randint(1, 9))
                kept.times[table] = max(kept.times.get(table, 1), times.published(table, 0) or 0)
            elif action == "watermark":
                low.advance()
                kept.watermark = max(kept.watermark, low.value.time or 0)
        except CompactlibError:
            continue  # refused under these settings, by name
    # It ends here as a crash does: nothing is closed.


def is_as_acknowledged(kept: Kept, settings: Settings) -> None:
    service, pins, low, times = kept.opened(settings)
    sound(service)
    assert service.history.earliest == kept.earliest
    assert service.history.latest == max(kept.catalogs, default=0)
    for version, catalog in kept.catalogs.items():
        if version >= kept.earliest:
            assert service.catalog(version) == catalog, f"version {version} is another one now"
    assert {pin.owner: pin.version for pin in pins.active()} == kept.pins
    assert (low.value.time or 0) == kept.watermark
    for table, time in kept.times.items():
        assert times.register(table, 0, incarnation=1, created_at=1) == time


def test_what_was_acknowledged_stays_under_other_settings() -> None:
    report = check_settings(Kept, ALL_SETTINGS, a_life, is_as_acknowledged, histories=16, lives=4)
    assert report.changes > 20


@pytest.mark.soak
def test_what_was_acknowledged_stays_under_other_settings_in_a_thousand_histories() -> None:
    assert check_settings(Kept, ALL_SETTINGS, a_life, is_as_acknowledged, histories=1000, lives=6).lives == 6000


