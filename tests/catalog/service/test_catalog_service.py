# SPDX-License-Identifier: Apache-2.0
"""One node's catalog: cases with known answers, several nodes over one log, restarts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from compactlib.catalog import CatalogService, CreateSchema, CutReport, DropSchema, HybridClock
from compactlib.catalog.errors import (
    CatalogVersionNotFound,
    CommandRefused,
    NotReady,
    RecordMissing,
    RetriesExhausted,
    StaleTerm,
    TimeBeforeHistory,
)
from compactlib.catalog.log.recover import recover_history
from compactlib.catalog.model.timestamp import from_seconds, physical_ms
from compactlib.catalog.schema.catalog import Catalog
from compactlib.clock import ManualClock
from compactlib.errors import Busy, InvalidInput
from compactlib.kv import MemoryStore
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import Observer, RecordingObserver
from tests.catalog.cases import history
from tests.catalog.services import cut, grown, service_in
from tests.harness.catalog_logs import INITIAL, create_table, log_in, sound
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation

# --- looking up ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("time", "version"), [(1, 0), (9, 0), (10, 1), (45, 4), (50, 5), (1000, 8)])
def test_the_version_in_force_is_the_greatest_at_or_below_the_time(time: int, version: int) -> None:
    assert history().version_at(time) == version


@pytest.mark.parametrize("time", [0, -1])
def test_before_history_there_is_none(time: int) -> None:
    with pytest.raises(TimeBeforeHistory) as caught:
        history().at(time)
    assert (caught.value.time, caught.value.earliest, caught.value.earliest_time) == (time, 0, 1)


@pytest.mark.parametrize("version", [-1, 9])
def test_an_unknown_version_is_not_found(version: int) -> None:
    with pytest.raises(CatalogVersionNotFound) as caught:
        history().catalog(version)
    assert (caught.value.version, caught.value.earliest, caught.value.latest) == (version, 0, 8)


# --- executing ----------------------------------------------------------------------------------------------------


def test_the_empty_catalog_is_version_0_and_in_memory_only() -> None:
    service = service_in()
    assert (service.history.earliest, service.history.latest, service.active().version) == (0, 0, 0)
    assert service.log.state() is None


def test_a_batch_is_one_version_however_many_commands_it_holds() -> None:
    service = service_in()
    assert service.execute(INITIAL, delay_seconds=0).version == 1
    done = service.execute([create_table(number) for number in range(10)])
    assert (done.version, done.applied, done.attempts) == (2, (True,) * 10, 1)
    assert len(service.catalog(2).tables) == 10


def test_a_version_is_the_latest_before_it_is_in_force() -> None:
    clock = ManualClock(1000.0)
    service = grown(service_in(clock=clock, delay_seconds=0), 1)
    year = 365 * 24 * 3600.0
    done = service.execute([create_table(1)], delay_seconds=year, wait=False)
    assert (service.history.latest, service.active().version) == (2, 1)
    assert physical_ms(done.activation) == 1_000_000 + 1000 * int(year)
    clock.advance(year + 0.001)
    assert service.active().version == 2
    assert clock.now() * 1000 < physical_ms(done.ensured)


def test_execute_returns_when_every_clock_agrees_that_the_version_is_in_force() -> None:
    clock = ManualClock(1000.0)
    service = service_in(clock=clock, delay_seconds=0.5)
    done = service.execute(INITIAL)
    assert physical_ms(done.ensured) in (1_001_000, 1_001_001)
    assert round(clock.now() * 1000) == physical_ms(done.ensured)
    again = service.execute([CreateSchema("PUBLIC", True)])
    assert (again.version, again.attempts, again.ensured) == (1, 0, done.ensured)


def test_flags_say_which_commands_did_something() -> None:
    service = grown(service_in(), 1)
    noop = CreateSchema("PUBLIC", True)
    done = service.execute([noop, CreateSchema("A"), noop, CreateSchema("B"), noop])
    assert (done.applied, done.version) == ((False, True, False, True, False), 2)
    assert service.execute([noop]).version == 2
    assert service.execute([]).version == 2
    with pytest.raises(CommandRefused) as caught:
        service.execute([CreateSchema("C"), CreateSchema("A")])
    assert caught.value.version == 2
    assert service.history.latest == 2
    assert service.catalog(2).find_schema("C") is None


def test_a_refusal_is_told_when_the_version_it_was_checked_against_is_in_force() -> None:
    clock = ManualClock(1000.0)
    service = service_in(clock=clock)
    with pytest.raises(CommandRefused):
        service.execute([DropSchema("PUBLIC")])
    assert clock.now() == 1000.0
    done = service.execute(INITIAL, wait=False)
    with pytest.raises(CommandRefused):
        service.execute([CreateSchema("PUBLIC")])
    assert clock.now() * 1000 >= physical_ms(done.ensured)


def test_every_attempt_lost() -> None:
    store = FaultyStore(MemoryStore(), lambda one: KVFault.CONFLICT if one.name == "transact" else None)
    with pytest.raises(RetriesExhausted):
        service_in(store).execute(INITIAL)
    assert sum(one.name == "transact" for one in store.operations) == 10


def test_a_writer_that_lost_a_race_decides_anew() -> None:
    store = MemoryStore()
    first = service_in(store, seed=1)
    first_to_write: list[Callable[[], object]] = [lambda: first.execute(INITIAL, wait=False)]
    second = service_in(FaultyStore(store, lambda one: meddle(one, first_to_write)), seed=2)
    done = second.execute([CreateSchema("PUBLIC", True), CreateSchema("MORE")], wait=False)
    assert (done.version, done.applied, done.attempts) == (2, (False, True), 2)
    assert first.poll() == 1
    assert list(first.history) == list(second.history)


def meddle(operation: KVOperation, once: list[Callable[[], object]]) -> None:
    if operation.name == "transact" and once:
        once.pop()()


def test_what_is_refused_or_needless_is_judged_by_the_log_and_not_by_a_view_left_behind() -> None:
    store = MemoryStore()
    first, second = service_in(store, seed=1), service_in(store, seed=2)
    first.execute(INITIAL, wait=False)
    assert second.execute([DropSchema("PUBLIC", True)], wait=False).version == 2
    with pytest.raises(CommandRefused):
        first.execute([DropSchema("PUBLIC")], wait=False)


def test_activation_times_ascend_whatever_the_delays_and_clocks() -> None:
    store = MemoryStore()
    fast = service_in(store, clock=ManualClock(1010.0), seed=1, delay_seconds=60)
    slow = service_in(store, clock=ManualClock(1000.0), seed=2, delay_seconds=0)
    for number in range(6):
        (fast, slow)[number % 2].execute([CreateSchema(f"S{number}")], wait=False)
    slow.poll()
    times = [catalog.activation for catalog in slow.history]
    assert times == sorted(set(times))
    sound(slow)


@pytest.mark.parametrize("delay", [-0.1, float("nan"), float("inf")])
def test_a_delay_that_is_none_is_refused(delay: float) -> None:
    with pytest.raises(InvalidInput):
        service_in(delay_seconds=delay)
    with pytest.raises(InvalidInput, match="delay_seconds"):
        service_in().execute(INITIAL, delay_seconds=delay)


# --- following ----------------------------------------------------------------------------------------------------


def test_a_version_is_ready_when_its_listeners_have_heard_of_it() -> None:
    service = service_in()
    heard: list[tuple[int, int]] = []
    service.listen(lambda catalog: heard.append((catalog.version, service.history.latest)))
    grown(service, 2)
    assert heard == [(1, 0), (2, 1)]
    assert service.wait_ready(2, 0).version == 2
    with pytest.raises(NotReady) as caught:
        service.wait_ready(3, 0)
    assert (caught.value.version, caught.value.latest) == (3, 2)
    with pytest.raises(InvalidInput):
        service.wait_ready(3, -1)


def test_a_listener_that_fails_stops_nobody() -> None:
    service = service_in()
    heard: list[int] = []

    def listener(catalog: Catalog) -> None:
        heard.append(catalog.version)
        raise ConnectionError(catalog.version)

    service.listen(listener)
    assert service.execute(INITIAL, wait=False).version == service.history.latest == 1
    assert service.execute([CreateSchema("A")], wait=False).version == 2
    assert heard == [1, 2]


def test_a_listener_may_look_but_not_execute() -> None:
    service = service_in()
    told: list[object] = []

    def listener(catalog: Catalog) -> None:
        told.append((catalog.version, service.history.latest, service.poll()))
        with pytest.raises(Busy, match="in another thread"):
            service.execute([CreateSchema("B")])
        service.listen(lambda _: None)

    service.listen(listener)
    service.execute(INITIAL, wait=False)
    assert told == [(1, 0, 0)]


def test_an_observer_may_do_what_it_likes() -> None:
    """It is called in no lock, and what it raises breaks nothing."""
    class Likes(Observer):
        def event(self, name: str, fields: Mapping[str, Any]) -> None:
            if name == "catalog_version" and fields["version"] < 3:
                executing = threading.Thread(target=service.execute, args=([CreateSchema(f"S{fields['version']}")],),
                                             kwargs={"wait": False})
                executing.start()
                executing.join(30)
                assert not executing.is_alive()
                raise ZeroDivisionError

    service = service_in(observer=Likes())
    assert service.execute(INITIAL, wait=False).version == 1
    assert service.history.latest == 3


def test_somebody_waits_until_another_thread_has_polled() -> None:
    store = MemoryStore()
    writer, reader = service_in(store, seed=1), service_in(store, seed=2)
    found: list[int] = []
    waiting = threading.Thread(target=lambda: found.append(reader.wait_ready(1, 30).version))
    waiting.start()
    writer.execute(INITIAL, wait=False)
    reader.poll()
    waiting.join()
    assert found == [1]


def test_versions_and_cuts_are_observed() -> None:
    observer = RecordingObserver()
    service = grown(service_in(observer=observer), 4)
    cut(service, 3)
    events = [(name, fields) for name, fields in observer.events if not name.startswith("store_")]
    assert [name for name, _ in events] == ["catalog_version"] * 4 + ["catalog_compacted"]
    assert events[-1][1] == {"earliest": 3, "before": 0}


def test_a_log_that_lost_its_end_is_an_error_to_those_who_knew_it() -> None:
    store = MemoryStore()
    service = grown(service_in(store), 3)
    old = store.get(b"catalog", b"latest").value
    grown(service, 4)
    store.set(b"catalog", b"latest", old)
    with pytest.raises(RecordMissing, match="latest"):
        service.poll()
    assert service.history.latest == 4


# --- cutting ------------------------------------------------------------------------------------------------------


def test_cutting_to_the_first_version_is_nothing_to_do() -> None:
    service = grown(service_in(), 1)
    for version in (0, 1):
        assert isinstance(cut(service, version), Skipped)
    assert service.history.earliest == 0
    assert service.at(1).version == 0


def test_after_a_cut_what_lies_below_is_not_found() -> None:
    service = grown(service_in(), 5)
    times = {catalog.version: catalog.activation for catalog in service.history}
    outcome = cut(service, 3)
    assert isinstance(outcome, Done)
    assert isinstance(outcome.stats, CutReport)
    assert service.history.earliest == 3
    for version in (0, 2):
        with pytest.raises(CatalogVersionNotFound):
            service.catalog(version)
    with pytest.raises(TimeBeforeHistory):
        service.at(times[3] - 1)
    assert service.at(times[3]).version == 3
    assert isinstance(cut(service, 3), Skipped)
    for version in (2, 9):
        with pytest.raises(CatalogVersionNotFound):
            cut(service, version)
    sound(service)


def test_a_cut_of_an_earlier_term_fails_and_says_so() -> None:
    service = grown(service_in(), 5)
    cut(service, 2, term=5)
    outcome = cut(service, 4, term=4)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, StaleTerm)
    assert service.history.earliest == 2


def test_a_log_that_is_a_snapshot_alone_is_ready_after_a_restart() -> None:
    store = MemoryStore()
    cut(grown(service_in(store), 4), 4)
    again = service_in(store)
    assert (again.history.earliest, again.history.latest) == (4, 4)
    assert again.wait_ready(4, 0).version == 4
    assert again.execute([CreateSchema("NEXT")]).version == 5


def test_a_node_that_was_away_while_history_was_cut_catches_up_from_the_snapshot() -> None:
    store = MemoryStore()
    busy, away = service_in(store, seed=1), service_in(store, seed=2)
    grown(busy, 3)
    away.poll()
    grown(busy, 8)
    cut(busy, 7)
    assert away.poll() == 5
    assert list(away.history) == list(busy.history)
    assert away.history.earliest == 7
    sound(away)


def test_a_reader_keeps_its_view_while_history_is_cut() -> None:
    service = grown(service_in(), 6)
    view = service.history
    cut(service, 5)
    assert (view.earliest, view.latest, view.catalog(2).version) == (0, 6, 2)
    assert service.history.earliest == 5


def test_what_an_earlier_cut_left_behind_is_deleted_by_the_next_call() -> None:
    store = MemoryStore()
    service = grown(service_in(store), 6)
    kept = list(store.scan(b"catalog", prefix=b"update/"))
    cut(service, 5)
    store.set(b"catalog", kept[1].key, kept[1].value)
    assert isinstance(cut(service, 5), Skipped)
    assert len([*store.scan(b"catalog", prefix=b"update/")]) == 2


def test_a_cut_stands_although_its_garbage_could_not_be_deleted() -> None:
    store = MemoryStore()
    grown(service_in(store), 6)
    failing = FaultyStore(store, lambda one: KVFault.FAIL if one.name == "scan" and committed(store) else None)
    observer = RecordingObserver()
    outcome = cut(service_in(failing, observer=observer), 5)
    assert isinstance(outcome, Done)
    assert observer.events[-1][0] == "catalog_reclaim_failed"
    assert service_in(store).history.earliest == 5


def committed(store: MemoryStore) -> bool:
    return b'"compacted":true' in store.get(b"catalog", b"earliest").value


# --- a model ------------------------------------------------------------------------------------------------------


class Cluster(RuleBasedStateMachine):
    """Three nodes over one log against a list of (version, activation, names of schemas)."""

    @initialize()
    def begin(self) -> None:
        self.store = MemoryStore()
        self.clocks = [ManualClock(1000.0 + skew) for skew in (0.0, 0.4, 0.2)]
        self.nodes = [self.opened(number) for number in range(3)]
        self.model: list[tuple[int, int, frozenset[str]]] = []
        self.earliest = 0
        self.made = 0

    def opened(self, number: int) -> CatalogService:
        return CatalogService(log_in(self.store, seed=number, chunk_bytes=1024), HybridClock(self.clocks[number]),
                              delay_seconds=0.5)

    node = st.integers(0, 2)

    @rule(number=node, drops=st.booleans())
    def execute(self, number: int, drops: bool) -> None:
        known = self.model[-1][2] if self.model else frozenset()
        self.made += 1
        name = min(known) if drops and known else f"S{self.made}"
        command = DropSchema(name, True) if drops and known else CreateSchema(name)
        done = self.nodes[number].execute([command], wait=False)
        assert done.version == len(self.model) + 1
        assert all(done.activation > activation for _, activation, _ in self.model[-1:])
        self.model.append((done.version, done.activation, known ^ {name}))

    @precondition(lambda self: self.model)
    @rule(number=node, share=st.floats(0, 1))
    def compact(self, number: int, share: float) -> None:
        service = self.nodes[number]
        version = service.history.earliest + int(share * (service.history.latest - service.history.earliest))
        outcome = cut(service, version)
        assert isinstance(outcome, Done if version > max(self.earliest, 1) else Skipped), outcome
        if isinstance(outcome, Done):
            self.earliest = version

    @rule(number=node)
    def poll(self, number: int) -> None:
        service = self.nodes[number]
        before = service.history.earliest
        service.poll()
        assert service.history.latest == len(self.model)
        assert service.history.earliest >= max(before, self.earliest)
        sound(service)

    @rule(number=node)
    def restart(self, number: int) -> None:
        self.nodes[number] = self.opened(number)

    @rule(number=node, seconds=st.floats(0, 2))
    def wait(self, number: int, seconds: float) -> None:
        for clock in self.clocks:
            clock.advance(seconds)

    @invariant()
    def every_view_is_a_part_of_the_history(self) -> None:
        for service in getattr(self, "nodes", ()):
            service.history.audit()
            for catalog in service.history:
                if catalog.version:
                    catalog.audit()
                    assert self.model[catalog.version - 1] == (
                        catalog.version, catalog.activation, frozenset(one.name for one in catalog.schemas.values()))

    @invariant()
    def the_log_replays_to_what_the_model_retains(self) -> None:
        if getattr(self, "nodes", None):
            view = recover_history(self.nodes[0].log)
            first = self.earliest or 1
            assert [catalog.version for catalog in view if catalog.version] == list(range(first, len(self.model) + 1))


TestCluster = Cluster.TestCase
TestCluster.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)


def test_four_threads_execute_compact_and_read_at_once() -> None:
    store = MemoryStore()
    services = [service_in(store, seed=number) for number in range(3)]
    grown(services[0], 1)
    failures: list[BaseException] = []

    def write(number: int) -> None:
        for step in range(15):
            while True:
                try:
                    services[number].execute([CreateSchema(f"S{number}-{step}")], wait=False)
                    break
                except RetriesExhausted:
                    continue

    def cut_again_and_again() -> None:
        for _ in range(30):
            services[2].poll()
            cut(services[2], max(services[2].history.latest - 1, services[2].history.earliest))
            view = services[0].history
            assert view.catalog(view.latest).version == view.latest

    def guarded(work: object, *args: int) -> None:
        try:
            work(*args)  # type: ignore[operator]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=args) for args in ((write, 0), (write, 1), (cut_again_and_again,))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for service in services:
        service.poll()
        sound(service)
    assert len(services[0].catalog(services[0].history.latest).schemas) == 31
    assert services[0].at(from_seconds(5000.0)).version == services[0].history.latest
