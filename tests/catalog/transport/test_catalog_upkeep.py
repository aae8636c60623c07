# SPDX-License-Identifier: Apache-2.0
"""The low watermark joined up: a service raises it, its listeners start rounds, and nothing else has to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from compactlib.catalog import (
    Assignments,
    CatalogUpkeep,
    CompactionService,
    DropTable,
    LeaseElection,
    LowWatermark,
    NodeId,
    NodeOptions,
    PublishedTimes,
    Topology,
    ZoneAssignments,
)
from compactlib.catalog.log import keys
from compactlib.catalog.model.values import Factor
from compactlib.catalog.transport.memory import MemoryHub
from compactlib.clock import ManualClock
from compactlib.errors import Closed, InvalidInput, StorageError
from compactlib.kv import MemoryStore
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import RecordingObserver
from tests.catalog.services import cut, grown, service_in
from tests.harness.catalog_cluster import NAMES, PARTITIONS, Cluster
from tests.harness.catalog_logs import create_table, sound
from tests.harness.faulty_store import FaultyStore, KVFault

OPTIONS = NodeOptions(interval_seconds=None, retry_seconds=0.05)


def run(story: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(story(), 60))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


def test_three_nodes_cut_their_history_when_their_low_watermarks_rise(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing starts a round after the first one but the low watermark of the coordinator."""
    cluster, hub = Cluster(), MemoryHub()
    compactions = {name: CompactionService(NodeId(name), node.host, hub.transport(name), options=OPTIONS)
                   for name, node in cluster.nodes.items()}
    upkeep = {name: CatalogUpkeep(node.service, node.watermark, published=node.published, clock=cluster.wall)
              for name, node in cluster.nodes.items()}
    for name, node in cluster.nodes.items():
        node.watermark.listen(compactions[name].watermark_moved)
    coordinator = compactions["A"]

    def passes(seconds: float) -> None:
        cluster.wall.advance(seconds)
        for name in ("C", "B", "A"):  # the coordinator's last, whose rise starts the round
            assert isinstance(upkeep[name].run_pending()[0], Done)

    async def story() -> None:
        cluster.grow(5)
        passes(2000.0)  # no service runs yet
        for name in NAMES:
            await compactions[name].start()
            compactions[name].topology_is(cluster.topology)
            compactions[name].elected(1, "A")
        await until(cluster.is_shortest)
        for latest in (8, 11):
            cluster.grow(latest)
            passes(2000.0)
            await until(cluster.is_shortest)
        assert coordinator.last_round is not None
        assert coordinator.last_round.triggers == ("low watermark moved",)
        for name in ("C", "A"):
            await compactions[name].stop()
        passes(2000.0)  # whether or not the service that listens runs
        assert [upkeep[name].failures for name in NAMES] == [0, 0, 0]
        await compactions["B"].stop()

    run(story)
    assert caplog.messages == []


def test_another_node_goes_on_when_the_coordinator_gives_no_sign() -> None:
    """Elected by a lease in the store that all share; the former coordinator has left the topology by then."""
    cluster, hub = Cluster(), MemoryHub()
    compactions = {name: CompactionService(NodeId(name), node.host, hub.transport(name), options=OPTIONS)
                   for name, node in cluster.nodes.items()}
    upkeep = {name: CatalogUpkeep(node.service, node.watermark, clock=cluster.wall)
              for name, node in cluster.nodes.items()}
    elections = {name: LeaseElection(cluster.store, name, compactions[name].elected, lease_seconds=9.0,
                                     clock=cluster.wall) for name in NAMES}
    for name, node in cluster.nodes.items():
        node.watermark.listen(compactions[name].watermark_moved)

    def passes(names: str, seconds: float) -> None:
        for _ in range(4):
            cluster.wall.advance(seconds / 4)
            for name in names:
                elections[name].run_pending()
        for name in reversed(names):
            upkeep[name].run_pending()

    async def story() -> None:
        for name in NAMES:
            await compactions[name].start()
            compactions[name].topology_is(cluster.topology)
        cluster.grow(5)
        passes("ABC", 2000.0)
        await until(cluster.is_shortest)
        await compactions["A"].stop()
        cluster.topology = Topology.of("B", "C", epoch=1)
        for name in "BC":
            compactions[name].topology_is(cluster.topology)
        cluster.grow(8)
        passes("BC", 2000.0)
        cluster.nodes["B"].service.poll()
        await until(lambda: cluster.nodes["B"].service.history.earliest == 8)
        assert elections["B"].elected == elections["C"].elected
        assert (compactions["B"].node.term, compactions["C"].node.coordinator) == (2, "B")
        for name in "BC":
            await compactions[name].stop()

    run(story)


def test_a_listener_that_fails_is_logged_and_keeps_nobody_from_hearing(caplog: pytest.LogCaptureFixture) -> None:
    service = service_in()
    watermark = LowWatermark(service.log.store, "A", service.clock)
    told: list[int] = []

    def failing(time: int) -> None:
        raise ZeroDivisionError(time)

    def closed(time: int) -> None:
        raise Closed("it was stopped")

    for listener in (failing, closed, told.append):
        watermark.listen(listener)
    assert isinstance(CatalogUpkeep(service, watermark).run_pending()[0], Done)
    assert told == [watermark.value.time]
    assert ["ZeroDivisionError" in message for message in caplog.messages] == [True]


def test_expired_pins_and_the_times_of_dropped_tables_are_forgotten() -> None:
    cluster = Cluster()
    node = cluster.nodes["A"]
    for number in (1, 2):
        cluster.add_table(number)
    cluster.settle()
    gone, kept = (cluster.service.catalog(3).find_table("PUBLIC", f"T{number}") for number in (1, 2))
    assert gone is not None
    assert kept is not None
    node.service.pins.pin("backup", 3, node.service.history, ttl_seconds=60)
    node.service.execute([DropTable(schema="PUBLIC", name="T1")], wait=False)

    def tables() -> set[int]:
        with cluster.store.scan(b"catalog", prefix=keys.published_prefix("A")) as entries:
            return {keys.published_place(entry.key)[0] for entry in entries}

    restarted = PublishedTimes(cluster.store, "A")  # what it hosts is registered only later
    upkeep = CatalogUpkeep(node.service, node.watermark, published=restarted, clock=cluster.wall)
    assert len(upkeep.run_pending()) == 2
    assert tables() == {gone.id, kept.id}
    assert [pin.owner for pin in node.service.pins.all()] == ["backup"]
    other = service_in(cluster.store, clock=cluster.wall, seed=9)
    cluster.wall.advance(2000.0)
    assert isinstance(cut(other, 4), Done)
    restarted.register(kept.id, 0, incarnation=1, created_at=kept.created_at)
    outcomes = upkeep.run_pending()
    assert outcomes[1] == Done(1 + PARTITIONS)
    assert tables() == {kept.id}
    assert node.service.pins.all() == []
    cluster.wall.advance(2000.0)
    assert isinstance(upkeep.run_pending()[1], Skipped)


def test_times_of_partitions_that_moved_while_the_node_was_down_are_forgotten() -> None:
    cluster = Cluster()
    node = cluster.nodes["A"]
    table = cluster.add_table(1)
    cluster.settle()
    # Partition 0 is registered again, 1 is to come, 2 has moved to B, and nothing is known of 3.
    cluster.assigned = {table.zone_id: ZoneAssignments.of(
        [["A", "B"], ["A"], ["B"], None, *[["A"]] * (PARTITIONS - 4)])}
    restarted = PublishedTimes(cluster.store, "A")
    restarted.register(table.id, 0, incarnation=1, created_at=table.created_at)
    upkeep = CatalogUpkeep(node.service, node.watermark, published=restarted, clock=cluster.wall,
                           assignments=lambda: Assignments(cluster.assigned))
    assert upkeep.run_pending()[1] == Done(1)
    with cluster.store.scan(b"catalog", prefix=keys.published_prefix("A")) as entries:
        assert {keys.published_place(entry.key) for entry in entries} == {
            (table.id, partition) for partition in range(PARTITIONS) if partition != 2}
    # Without what is registered, an earlier life takes nothing away; and what is registered stays.
    sleeping = CatalogUpkeep(node.service, node.watermark, published=PublishedTimes(cluster.store, "A"),
                             assignments=lambda: Assignments({table.zone_id: ZoneAssignments.of([["B"]] * PARTITIONS)}))
    assert isinstance(sleeping.run_pending()[1], Skipped)
    assert restarted.published(table.id, 0) is not None


def test_partitions_of_a_dropped_table_are_destroyed_once_nobody_can_read_it_and_hold_no_history() -> None:
    cluster = Cluster()
    tables = {number: cluster.add_table(number).id for number in (1, 2)}
    destroyed: dict[str, list[tuple[int, int]]] = {name: [] for name in NAMES}
    failing = [True]

    def destroy_on(name: str) -> Callable[[int, int], None]:
        def destroy(table: int, partition: int) -> None:
            if failing[0]:
                raise StorageError(operation="remove", path="a partition", errno=5)
            destroyed[name].append((table, partition))
        return destroy

    upkeep = {name: CatalogUpkeep(node.service, node.watermark, published=node.published, clock=cluster.wall,
                                  destroy=destroy_on(name)) for name, node in cluster.nodes.items()}

    def passes(seconds: float) -> None:
        cluster.wall.advance(seconds)
        for name, node in cluster.nodes.items():
            upkeep[name].run_pending()
            for partition in range(PARTITIONS):
                node.published.publish(tables[2], partition, 1, node.service.clock.now())

    cluster.settle()
    cluster.service.execute([DropTable(schema="PUBLIC", name="T1")], wait=False)
    cluster.grow(cluster.service.history.latest + 3)
    passes(60.0)
    assert destroyed == {name: [] for name in NAMES}  # it can be read still
    passes(2000.0)
    held = cluster.round()
    assert held.explanation.limits[0].factor is Factor.RAFT_RECOVERY
    failing[0] = False
    passes(2000.0)
    assert destroyed == {name: [(tables[1], partition) for partition in range(PARTITIONS)] for name in NAMES}
    cluster.round()
    assert cluster.is_shortest()
    passes(2000.0)
    assert all(len(found) == PARTITIONS for found in destroyed.values())


@pytest.mark.parametrize("error", [StorageError(operation="remove", path="a partition", errno=5), ValueError("odd")],
                         ids=["expected", "unexpected"])
def test_a_partition_that_cannot_be_destroyed_keeps_nothing_else_from_being_forgotten(error: Exception) -> None:
    cluster = Cluster()
    node, table = cluster.nodes["A"], cluster.add_table(1).id
    cluster.settle()
    destroyed: list[int] = []
    failing = {0, 1}

    def destroy(table: int, partition: int) -> None:
        if partition in failing:
            raise error
        destroyed.append(partition)

    observer = RecordingObserver()
    upkeep = CatalogUpkeep(node.service, node.watermark, published=node.published, clock=cluster.wall,
                           destroy=destroy, observer=observer)
    node.service.pins.pin("backup", node.service.history.latest, node.service.history, ttl_seconds=60)
    cluster.service.execute([DropTable(schema="PUBLIC", name="T1")], wait=False)
    cluster.grow(cluster.service.history.latest + 3)
    cluster.wall.advance(2000.0)
    forgotten = upkeep.run_pending()[1]
    assert isinstance(forgotten, Failed)
    assert destroyed == list(range(2, PARTITIONS))
    assert node.service.pins.all() == []
    assert [node.published.published(table, partition) is None for partition in range(3)] == [False, False, True]
    assert upkeep.last_error is error
    assert [name for name, _ in observer.events] == ["catalog_upkeep_failed"]
    failing.clear()
    cluster.wall.advance(60.0)
    assert Done(2) in upkeep.run_pending()
    assert destroyed == [*range(2, PARTITIONS), 0, 1]


def test_an_earlier_life_that_hosts_nothing_takes_no_times_away_from_a_later_one() -> None:
    """It wakes up and tidies, which must not make it the owner of what the later life keeps."""
    cluster = Cluster()
    node = cluster.nodes["A"]
    table = cluster.add_table(1)
    sleeper = CatalogUpkeep(node.service, node.watermark, published=PublishedTimes(cluster.store, "A"))
    other = service_in(cluster.store, clock=cluster.wall, seed=9)
    other.execute([DropTable(schema="PUBLIC", name="T1")], wait=False)
    other.execute([create_table(2)], wait=False)
    cluster.settle()
    assert isinstance(cut(other, 4), Done)
    assert isinstance(sleeper.run_pending()[1], Skipped)
    node.published.publish(table.id, 0, 1, node.service.clock.now())


def test_what_a_cut_has_left_behind_is_removed_though_no_other_cut_follows() -> None:
    """A round that has nothing to cut removes nothing."""
    store = MemoryStore()
    service = grown(service_in(store), 6)
    kept = list(store.scan(b"catalog", prefix=keys.UPDATES))
    assert isinstance(cut(service, 5), Done)
    for left in kept[:3]:
        store.set(b"catalog", left.key, left.value)
    upkeep = CatalogUpkeep(service, LowWatermark(store, "A", service.clock))
    assert upkeep.run_pending()[1] == Done(3)
    assert len([*store.scan(b"catalog", prefix=keys.UPDATES)]) == 2
    sound(service)


def test_a_store_that_is_away_for_a_while_ends_nothing() -> None:
    failing = [True]
    store = FaultyStore(MemoryStore(), lambda one: KVFault.FAIL if one.changes and failing[0] else None)
    failing[0] = False
    clock = ManualClock(5000.0)
    service = grown(service_in(store, clock=clock), 2)
    watermark = LowWatermark(store, "A", service.clock)
    observer = RecordingObserver()
    upkeep = CatalogUpkeep(service, watermark, interval_seconds=60.0, observer=observer, clock=clock)
    failing[0] = True
    assert isinstance(upkeep.run_pending()[0], Failed)
    assert watermark.value.time is None
    assert "catalog_upkeep_failed" in [name for name, _ in observer.events]
    failing[0] = False
    clock.advance(1.0)
    assert isinstance(upkeep.run_pending()[0], Done)
    service.close()
    clock.advance(60.0)
    assert all(isinstance(outcome, Failed) and isinstance(outcome.error, Closed) for outcome in upkeep.run_pending())
    clock.advance(60.0)
    assert upkeep.run_pending() == []


def test_it_raises_the_low_watermark_from_a_thread() -> None:
    service = service_in()
    watermark = LowWatermark(service.log.store, "A", service.clock)
    with CatalogUpkeep(service, watermark) as upkeep:
        upkeep.nudge()
    for wrong in (0, -1, float("nan"), "often"):
        with pytest.raises(InvalidInput):
            CatalogUpkeep(service, watermark, interval_seconds=wrong)  # type: ignore[arg-type]
