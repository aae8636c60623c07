# SPDX-License-Identifier: Apache-2.0
"""Executing commands, reading versions, and how both go with other writers and with clocks that are wrong."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from types import FrameType
from typing import Any

import attrs
import pytest

from compactlib.budget import Budget
from compactlib.catalog import (
    Catalog,
    CatalogService,
    CatalogTable,
    DropObject,
    HybridClock,
    Index,
    IndexStatus,
    NodeId,
    NodeReport,
    PutObject,
    RenameObject,
    Schema,
    SetIndexStatus,
    Topology,
    UpdateLog,
    Zone,
)
from compactlib.catalog.errors import (
    CatalogMoved,
    CatalogVersionNotFound,
    ClockSkewExceeded,
    CommandRefused,
    TimeBeforeHistory,
)
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, Busy, Closed, InvalidInput
from compactlib.kv import KVStore, MemoryStore
from compactlib.testing import Request, StoreInFront
from tests.harness.steps import calls_of

TABLE = [PutObject(Schema("S")), PutObject(Zone("Z", 4)), PutObject(CatalogTable("T"), schema="S", zone="Z"),
         PutObject(Index("I"), schema="S", table="T")]


def service_on(store: KVStore | None = None, clock: ManualClock | None = None, *, seed: int = 1,
               **options: Any) -> CatalogService:
    wall = clock or ManualClock(1000.0)
    log = UpdateLog(MemoryStore() if store is None else store, rng=Random(seed), clock=wall)
    return CatalogService(log, HybridClock(wall), **options)


def schemas(catalog: Catalog) -> set[str]:
    return {schema.name for schema in catalog.schemas.values()}


def test_batch_is_one_version_or_changes_nothing() -> None:
    service = service_on()
    made = service.execute([*TABLE, PutObject(Schema("S"), if_exists="keep")])
    assert (made.version, made.applied) == (1, (True, True, True, True, False))
    with pytest.raises(CommandRefused) as refused:
        service.execute([PutObject(Schema("X")), PutObject(Schema("S"))])
    assert refused.value.version == 1
    assert schemas(service.catalog(service.history.latest)) == {"S"}
    assert service.execute([PutObject(Schema("S"), if_exists="keep")]).version == 1
    assert service.execute([PutObject(Schema("Y")), DropObject("schema", "Y")]).version == 1
    service.audit()


@pytest.mark.parametrize("command", [
    PutObject(Schema("")), PutObject(Schema("a\nb")), PutObject(Schema("x" * 256)), PutObject(Zone("Y", 0)),
    PutObject(Zone("Y", 10_001)), PutObject(CatalogTable("U"), schema="S", zone="none"),
    PutObject(CatalogTable("U"), schema="none", zone="Z"), PutObject(CatalogTable("I"), schema="S", zone="Z"),
    PutObject(Index("T"), schema="S", table="T"), PutObject(Index("J"), schema="S", table="none"),
    DropObject("schema", "S"), DropObject("zone", "Z"), DropObject("table", "none", schema="S"),
    RenameObject("table", "T", "I", schema="S"), RenameObject("table", "none", "U", schema="S"),
    SetIndexStatus("none", IndexStatus.BUILDING, schema="S")], ids=repr)
def test_command_that_does_not_fit_is_refused(command: Any) -> None:
    service = service_on()
    service.execute(TABLE)
    with pytest.raises(CommandRefused):
        service.execute([command])
    assert service.history.latest == 1


def test_objects_keep_their_ids_and_give_their_names_free() -> None:
    service = service_on()
    service.execute(TABLE)
    table = service.catalog(1).find("table", "T", "S")
    assert table is not None
    service.execute([RenameObject("table", "T", "U", schema="S"),
                     PutObject(CatalogTable("T", {"new": True}), schema="S", zone="Z"),
                     SetIndexStatus("I", IndexStatus.AVAILABLE, schema="S")])
    service.execute([PutObject(CatalogTable("U", {"columns": 2}), schema="S", zone="Z", if_exists="replace")])
    latest = service.catalog(3)
    renamed, other = latest.find("table", "U", "S"), latest.find("table", "T", "S")
    assert renamed is not None
    assert other is not None
    assert (renamed.id, renamed.created_at, renamed.properties) == (table.id, table.created_at, {"columns": 2})
    assert other.id != table.id
    assert not latest.building
    service.execute([DropObject("table", "U", schema="S")])
    assert not service.catalog(4).indexes
    assert service.catalog(1).find("table", "T", "S") == table
    service.audit()


@pytest.mark.parametrize("schema", ["S", "S2"])
def test_an_index_may_move_from_a_table_that_the_same_batch_drops(schema: str) -> None:
    store = MemoryStore()
    service = service_on(store)
    service.execute([*TABLE, PutObject(Schema("S2")), PutObject(CatalogTable("T2"), schema=schema, zone="Z")])
    old = service.active().find("index", "I", "S")
    service.execute([RenameObject("index", "I", "J", schema="S"), PutObject(Index("J"), schema=schema, table="T2"),
                     DropObject("table", "T", schema="S")] if schema != "S" else [
                         PutObject(Index("I"), schema="S", table="T2", if_exists="replace"),
                         DropObject("table", "T", schema="S"), PutObject(CatalogTable("T"), schema="S", zone="Z")])
    name = "I" if schema == "S" else "J"
    for each in (service, service_on(store, seed=2)):
        found = each.catalog(2).find("index", name, schema)
        assert found.table_id == each.catalog(2).find("table", "T2", schema).id
        assert (found.id == old.id) is (schema == "S")
        assert each.catalog(2).find("index", "I" if schema != "S" else "J", "S") is None
        each.audit()
        assert each.verify().is_sound


def test_a_command_that_cannot_be_stored_changes_nothing() -> None:
    service = service_on(MemoryStore(limits=attrs.evolve(MemoryStore().limits, max_value_bytes=1500)))
    for bad in (PutObject(Schema("S", {"a": object()})), PutObject(Schema("S", {"a": float("nan")}))):  # type: ignore[dict-item]
        with pytest.raises(InvalidInput):
            service.execute([bad])
    with pytest.raises(InvalidInput):
        service.execute([PutObject(Schema("S", {"a": "x" * 2000}))])
    with pytest.raises(InvalidInput):
        service.execute([PutObject(Schema(f"S{number}")) for number in range(10_001)])
    assert service.history.latest == 0
    assert service.verify().is_sound


def test_execute_returns_when_the_version_is_in_force_everywhere() -> None:
    clock = ManualClock(1000.0)
    service = service_on(clock=clock, delay_seconds=2.0)
    made = service.execute([PutObject(Schema("A"))])
    assert clock.now() >= 1002.5
    assert service.active().version == 1
    assert made.activation < made.ensured
    before = clock.now()
    service.execute([PutObject(Schema("B"))], wait=False)
    assert clock.now() == before
    assert service.active().version == 1
    with pytest.raises(CommandRefused):
        service.execute([PutObject(Schema("B"))])
    assert service.active().version == 2


def test_delay_below_the_skew_of_the_clocks_is_refused() -> None:
    for delay in (0.0, 0.4):
        with pytest.raises(InvalidInput, match=r"max_skew_seconds, 0\.5; give a delay of at least that"):
            service_on(delay_seconds=delay)
    service_on(delay_seconds=0.5)


def test_versions_are_read_by_number_and_by_time() -> None:
    service = service_on()
    for name in "ABC":
        service.execute([PutObject(Schema(name))])
    history = service.history
    assert [schemas(catalog) for catalog in history] == [set(), {"A"}, {"A", "B"}, {"A", "B", "C"}]
    second = history.activation(2)
    assert (history.at(second).version, history.at(second - 1).version) == (2, 1)
    for missing in (-1, 4):
        with pytest.raises(CatalogVersionNotFound):
            service.catalog(missing)
    with pytest.raises(TimeBeforeHistory):
        history.at(0)


def test_writers_side_by_side_lose_nothing() -> None:
    store = MemoryStore()
    services = [service_on(store, ManualClock(1000.0), seed=seed) for seed in range(3)]

    def write(number: int) -> None:
        for each in range(8):
            while True:
                try:
                    services[number].execute([PutObject(Schema(f"S{number}-{each}"))], wait=False)
                    break
                except Busy:
                    pass  # it may be called again

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for service in services:
        service.poll()
        assert service.history == services[0].history
        assert len(schemas(service.catalog(24))) == 24
        service.audit()
    assert service_on(store).history == services[0].history


def test_a_verification_leaves_the_history_alone() -> None:
    """While it extends its copy, another thread reads the same new version; each pair of lines meets once."""
    reached = 0
    for first, second in itertools.product(range(1, 5), repeat=2):
        store = MemoryStore()
        writer, node = service_on(store), service_on(store, seed=2)
        writer.execute([PutObject(Schema("S1"))])
        is_paused, may_go_on, lines = threading.Event(), threading.Event(), itertools.count(1)

        def traced(frame: FrameType, event: str, _: object, pause: Callable[[], object]) -> Any:
            if frame.f_code.co_name != "followed_by":
                return None
            if event == "line":
                pause()
            return partial(traced, pause=pause)

        def poll(second: int = second, node: CatalogService = node, is_paused: threading.Event = is_paused,
                 may_go_on: threading.Event = may_go_on) -> None:
            passed = itertools.count(1)

            def pause() -> None:
                if next(passed) == second:
                    is_paused.set()
                    may_go_on.wait(0.2)

            sys.settrace(partial(traced, pause=pause))
            node.poll()
            is_paused.set()

        thread = threading.Thread(target=poll)

        def step(first: int = first, lines: Iterator[int] = lines, thread: threading.Thread = thread,
                 is_paused: threading.Event = is_paused, may_go_on: threading.Event = may_go_on) -> None:
            at = next(lines)
            if at == first:
                thread.start()
                is_paused.wait(5)
            elif at > first:
                may_go_on.set()

        before = sys.gettrace()
        sys.settrace(partial(traced, pause=step))
        try:
            node.verify()
        finally:
            sys.settrace(before)
            may_go_on.set()
        if thread.ident is None:
            continue
        thread.join()
        reached += 1
        writer.execute([PutObject(Schema("S2"))])
        node.poll()
        assert [node.history.update(version).version for version in range(3)] == [0, 1, 2], (first, second)
        assert len(node.history) == 3
    assert reached


def test_observer_is_notified_of_each_version_once_and_in_order() -> None:
    store, seen = MemoryStore(), list[int]()

    class Observer:
        def event(self, name: str, **fields: Any) -> None:
            if name == "catalog_version":
                seen.append(fields["version"])
                assert reader.history.has(fields["version"])

    writer, reader = service_on(store), service_on(store, seed=2, observer=Observer())
    for name in "ABC":
        writer.execute([PutObject(Schema(name))], wait=False)
    assert reader.poll() == 3
    assert reader.poll() == 0
    reader.execute([PutObject(Schema("D"))], wait=False)
    assert seen == [1, 2, 3, 4]


def test_version_of_a_clock_far_ahead_is_not_waited_for() -> None:
    store = MemoryStore()
    service_on(store, ManualClock(100_000.0)).execute([PutObject(Schema("A"))], wait=False)
    clock = ManualClock(1000.0)
    behind = service_on(store, clock)
    with pytest.raises(ClockSkewExceeded):
        behind.execute([PutObject(Schema("B"))])
    assert behind.execute([PutObject(Schema("B"))], wait=False).version == 2
    assert behind.history.activation(2) > behind.history.activation(1)
    assert clock.now() == 1000.0


def test_timestamps_ascend_when_the_clock_jumps_back() -> None:
    wall = ManualClock(1000.0)
    clock = HybridClock(wall, max_skew_seconds=0.5)
    first = clock.now()
    wall.set_now(10.0)
    assert first < clock.now() < clock.now()
    assert clock.present() >= first
    with pytest.raises(ClockSkewExceeded):
        clock.observe((20_000 << 16) + 1)
    seen = clock.now() + 5
    wall.set_now(1000.0)
    assert clock.observe(seen) > seen


def cut_to(service: CatalogService, version: int, **how: Any) -> Any:
    time = service.history.activation(version)
    return service.compact(service.plan(view=service.view(
        reports=[NodeReport(node=NodeId("A"), transactions_from=time)], topology=Topology.of("A"),
        low_watermark=time)), **how)


def grown(store: KVStore, names: Sequence[str]) -> CatalogService:
    clock = ManualClock(1000.0)
    service = service_on(store, clock)
    for name in names:
        service.execute([PutObject(Schema(name))])
    return service


def test_cut_deletes_earlier_versions_on_every_node() -> None:
    store = MemoryStore()
    service, other = grown(store, "ABCDEF"), service_on(store)
    before = {version: schemas(service.catalog(version)) for version in range(1, 7)}
    report = cut_to(service, 4)
    assert (report.earliest, report.before, report.is_empty, report.is_partial) == (4, 0, False, False)
    other.poll()
    for each in (service, other, service_on(store)):
        assert (each.history.earliest, each.history.latest) == (4, 6)
        assert {version: schemas(each.catalog(version)) for version in (4, 5, 6)} == {
            version: before[version] for version in (4, 5, 6)}
        assert each.verify().is_sound
    assert service.reclaim().is_empty
    assert cut_to(service, 4).is_empty
    other.execute([PutObject(Schema("G"))])
    assert cut_to(other, 7).earliest == 7
    assert len([entry for entry in store.scan(b"catalog") if entry.key.startswith((b"update", b"piece"))]) == 2


def test_cut_that_another_one_has_overtaken_is_outdated() -> None:
    """Also if that one has reclaimed the pieces of the snapshot before they were read back."""
    store = MemoryStore()
    other, overtakes = grown(store, "ABCDEF"), [False]

    def step(request: Request, act: Any) -> Any:
        answer = act()
        if overtakes[0] and request.key.startswith(b"piece"):
            overtakes[0] = False
            assert cut_to(other, 5).earliest == 5
        return answer

    service = service_on(StoreInFront(store, step), ManualClock(2000.0))
    overtakes[0] = True
    with pytest.raises(CatalogMoved):
        cut_to(service, 4)
    assert service.history.earliest == 5
    assert service.verify().is_sound


def test_verify_lists_each_leftover_of_a_cut() -> None:
    service = service_on(MemoryStore(), ManualClock(1000.0))
    for name in "ABC":
        service.execute([PutObject(Schema(name))], wait=False)
    service.log.cut(service.log.write_snapshot(service.catalog(3)))
    found = service.verify()
    assert found.is_sound
    assert [each.place for each in found.findings] == [f"update/{each:019d}" for each in (1, 2)]


def test_verify_overtaken_by_a_cut_finds_no_damage() -> None:
    store = MemoryStore()
    other, overtakes = grown(store, "ABCDEF"), [False]

    def step(request: Request, act: Any) -> Any:
        if overtakes[0] and request.kind == "scan":
            overtakes[0] = False
            assert cut_to(other, 5).earliest == 5
        return act()

    service = service_on(StoreInFront(store, step), ManualClock(2000.0))
    overtakes[0] = True
    assert service.verify().is_sound
    assert not overtakes[0]


def test_reclaim_keeps_the_pieces_of_a_snapshot_that_is_being_written() -> None:
    store = MemoryStore()
    service = grown(store, "ABCDEF")
    cut_to(service, 2)
    snapshot = service_on(store).log.write_snapshot(service.catalog(4))
    assert service.reclaim().is_empty
    service.log.cut(snapshot)
    assert service_on(store).history.earliest == 4


def test_budget_that_is_spent_before_the_cut_changes_nothing() -> None:
    service = grown(MemoryStore(), "ABCDEF")
    with pytest.raises(BudgetSpent):
        cut_to(service, 4, budget=Budget(total_bytes=10))
    assert service.history.earliest == 0
    assert cut_to(service, 4, budget=Budget(total_bytes=10_000)).earliest == 4


def test_closed_service_raises_closed() -> None:
    service = grown(MemoryStore(), "AB")
    service.close()
    service.close()
    for call in (service.poll, service.view, service.compact, service.reclaim, service.verify, service.status,
                 lambda: service.execute([PutObject(Schema("C"))])):
        with pytest.raises(Closed):
            call()


def test_a_batch_costs_as_much_in_a_large_catalog() -> None:
    service, counted = service_on(), []
    for number in range(401):
        calls = calls_of(partial(service.execute, [PutObject(Schema(f"S{number}"))], wait=False))
        counted.append(calls.total())
    assert counted[400] < counted[100] * 1.2


@pytest.mark.parametrize("answer", ["ignore", True, "Keep"])
def test_an_unknown_answer_to_a_name_that_exists_is_refused(answer: Any) -> None:
    with pytest.raises(InvalidInput, match=r"if_exists is .*; give one of refuse, keep, replace"):
        PutObject(Schema("S", {"new": True}), if_exists=answer)
