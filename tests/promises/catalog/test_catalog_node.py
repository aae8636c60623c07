# SPDX-License-Identifier: Apache-2.0
"""A catalog's node: joining and leaving, following the log, upkeep, and when it runs rounds."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from random import Random
from typing import Any

import pytest

from compactlib.catalog import (
    Assignments,
    CatalogNode,
    CatalogTable,
    DropObject,
    HybridClock,
    Members,
    NodeId,
    NodeReport,
    PutObject,
    RoundReport,
    Schema,
    Topology,
    UpdateLog,
    Zone,
    ZoneAssignments,
)
from compactlib.catalog.errors import CatalogMoved, ClockSkewExceeded, NotReady, StaleTerm, TimeBeforeHistory
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput, Stale
from compactlib.kv import KVStore, MemoryStore, StoreFailed
from compactlib.testing import Request, StoreInFront
from tests.harness.catalog_cluster import Cluster


class Database:
    """The database around a node that is alone."""

    def __init__(self) -> None:
        self.destroyed: list[tuple[int, int]] = []

    def assignments(self) -> Assignments:
        return {1: ZoneAssignments.everywhere(["A"], 2)}

    def publish(self, zone: int, partitions: int, time: int) -> int:
        return partitions

    def destroy(self, table: int, partition: int) -> None:
        self.destroyed.append((table, partition))


def node_on(store: KVStore, clock: ManualClock, name: str = "A", **options: Any) -> CatalogNode:
    log = UpdateLog(store, rng=Random(name), clock=clock)
    options.setdefault("lease_seconds", None)
    return CatalogNode(name, log, HybridClock(clock), options.pop("database", Database()), **options)


class Refusing:
    """A step that refuses each request while it is to, and notes that it did."""

    def __init__(self) -> None:
        self.refuses, self.has_refused = threading.Event(), threading.Event()

    def __call__(self, request: Request, act: Any) -> Any:
        if self.refuses.is_set():
            self.has_refused.set()
            raise StoreFailed(operation=request.kind, path="a store under test", detail="refused")
        return act()


class Arrived:
    """An observer that keeps the versions that a node has read."""

    def __init__(self) -> None:
        self.versions = queue.Queue[int]()

    def event(self, name: str, **fields: Any) -> None:
        if name == "catalog_version":
            self.versions.put(fields["version"])


# ------------------------------------------------------------------------------------------------ joining and leaving


def test_node_begins_nothing_before_it_has_joined() -> None:
    node = node_on(MemoryStore(), ManualClock(1000.0))
    for refused in (lambda: node.transactions, lambda: node.watermark, node.report):
        with pytest.raises(NotReady):
            refused()
    assert node.join() == NodeId("A", 1)
    assert node.transactions.begin().version == 0
    assert node.report().node == NodeId("A", 1)
    node.close()


def test_node_joins_after_the_greatest_skew_of_the_clocks() -> None:
    """An earlier time is not above any transaction of the node."""
    store, clock = MemoryStore(), ManualClock(1000.0)
    node, before = node_on(store, clock), clock.monotonic()
    node.join()
    assert clock.monotonic() - before >= 0.5
    node.close()


def test_node_without_a_name_is_refused_before_it_joins() -> None:
    store, clock = MemoryStore(), ManualClock(1000.0)
    with pytest.raises(InvalidInput, match="name"):
        node_on(store, clock, "").join()
    assert Members(store).join("A") == NodeId("A", 1)
    assert Members(store).read()[0].nodes == {NodeId("A", 1)}
    with pytest.raises(InvalidInput, match="incarnation"):
        NodeId("A", 0)


def test_each_life_has_its_own_incarnation() -> None:
    store = MemoryStore()
    members = Members(store)
    assert [members.join("A"), members.join("B"), members.join("A")] == [NodeId("A", 1), NodeId("B", 2), NodeId("A", 3)]
    members.leave("A")
    assert members.join("A") == NodeId("A", 5)
    assert members.read()[0].nodes == {NodeId("A", 5), NodeId("B", 2)}


def test_node_that_joins_while_its_earlier_life_leaves_stays() -> None:
    store, again = MemoryStore(), list[NodeId]()
    members = Members(store)
    members.join("A")

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "set_if" and not again:
            again.append(members.join("A"))
        return act()

    Members(StoreInFront(store, step)).leave("A")
    assert members.read()[0].nodes == set(again)


def test_node_whose_clock_is_behind_the_log_is_not_admitted() -> None:
    store = MemoryStore()
    ahead = node_on(store, ManualClock(5000.0))
    ahead.service.execute([PutObject(Schema("S"))], wait=False)
    behind = node_on(store, ManualClock(4000.0), "B")
    with pytest.raises(ClockSkewExceeded, match="B is not admitted"):
        behind.join()
    assert not Members(store).read()[0].nodes


def test_node_that_was_taken_out_begins_nothing_more() -> None:
    store, clock = MemoryStore(), ManualClock(1000.0)
    stopped, other = node_on(store, clock), node_on(store, clock, "B")
    stopped.join()
    other.join()
    other.leave("A")
    clock.advance(60.0)
    stopped.run_pending()
    for refused in (lambda: stopped.transactions, lambda: stopped.watermark, stopped.report):
        with pytest.raises(NotReady):
            refused()
    assert stopped.join() == NodeId("A", 4)


def test_node_that_needs_a_version_cut_in_its_absence_cannot_join() -> None:
    """Though that was there when the partition was registered."""
    store, clock = MemoryStore(), ManualClock(1000.0)
    stays, back = node_on(store, clock), node_on(store, clock, "B")
    stays.join()
    for number in range(6):
        stays.service.execute([PutObject(Schema(f"S{number}"))], wait=False)
    back.service.poll()
    back.published.register(7, 0, incarnation=1, created_at=back.service.history.activation(2))
    clock.advance(60.0)
    time = stays.service.history.activation(5)
    topology, unchanged = Members(store).read()
    view = stays.service.view(reports=[NodeReport(node=NodeId("A"), transactions_from=time)], topology=topology,
                              low_watermark=time, conditions=unchanged)
    assert stays.service.compact(stays.service.plan(view=view)).earliest == 5
    with pytest.raises(TimeBeforeHistory):
        back.join()
    assert Members(store).read()[0].nodes == {NodeId("A", 1)}
    with pytest.raises(NotReady):
        back.report()
    back.published.remove(7, 0, 1)
    assert back.join() == NodeId("B", 4)


def test_node_refuses_a_time_above_its_own_report() -> None:
    clock = ManualClock(1000.0)
    node = node_on(MemoryStore(), clock)
    node.join()
    with pytest.raises(Stale):
        node.publish(1)
    reported = node.report().transactions_from
    node.publish(reported)
    with pytest.raises(Stale):
        node.publish(reported + 1)


# ------------------------------------------------------------------------------------------------------- its thread


@pytest.mark.parametrize("is_refused", [False, True])
def test_node_applies_the_updates_of_other_nodes(is_refused: bool) -> None:
    """Also once a store that was away for a while is there again."""
    store, clock, refusing = MemoryStore(), ManualClock(1_000.0), Refusing()
    writer = node_on(store, clock, "B")
    arrived = Arrived()
    with node_on(StoreInFront(store, refusing), clock, follow_seconds=0.001, observer=arrived) as reader:
        for number in range(1, 4):
            if is_refused:
                refusing.has_refused.clear()
                refusing.refuses.set()
            writer.service.execute([PutObject(Schema(f"S{number}"))], wait=False)
            if is_refused:
                reader.wake()
                assert refusing.has_refused.wait(30)
                assert reader.service.history.latest == number - 1
                refusing.refuses.clear()
            clock.advance(20.0)
            reader.wake()
            assert arrived.versions.get(timeout=30) == number
    writer.close()


def test_node_raises_the_watermark_up_to_its_readers() -> None:
    store, clock = MemoryStore(), ManualClock(1_000_000.0)
    node = node_on(store, clock)
    node.service.execute([PutObject(Schema("S"))], wait=False)
    node.join()
    pins, history, low = node.service.pins, node.service.history, node.watermark
    pins.pin("short", 1, history, ttl_seconds=100.0)
    pins.pin("long", 1, history, ttl_seconds=10_000.0)
    seen = list[int]()
    for _ in range(20):
        node.run_pending()
        assert low.value.time is not None
        seen.append(low.value.time)
        clock.advance(60.0)
    assert node.failures == 0
    assert seen == sorted(set(seen))
    assert {pin.owner for pin in pins.active()} == {"long"}
    # The watermark does not pass a reader's time, and rises after the reader has ended.
    low.lock("reader", seen[-1])
    clock.advance(60.0)
    node.run_pending()
    assert low.value.time == seen[-1]
    low.unlock("reader")
    assert (low.value.time or 0) > seen[-1]
    again = node_on(store, clock)
    again.join()
    assert again.watermark.value == low.value


def test_node_destroys_partitions_without_readers() -> None:
    clock, database = ManualClock(1_000_000.0), Database()
    node = node_on(MemoryStore(), clock, database=database, data_availability_seconds=10.0)
    node.service.execute([PutObject(Schema("S")), PutObject(Zone("Z", 2)),
                          PutObject(CatalogTable("T"), schema="S", zone="Z")], wait=False)
    table = node.service.catalog(1).find("table", "T", "S")
    assert table is not None
    node.published.register(table.id, 1, incarnation=1, created_at=table.created_at)
    node.join()
    clock.advance(60.0)
    node.run_pending()
    assert database.destroyed == []
    node.service.execute([DropObject("table", "T", schema="S")], wait=False)
    clock.advance(5.0)
    for _ in range(2):
        node.run_pending()
        clock.advance(60.0)
    assert database.destroyed == [(table.id, 1)]
    assert node.published.needs_and_hosted() == (None, {})


def test_nodes_elect_a_coordinator_and_replace_it() -> None:
    store, clock = MemoryStore(), ManualClock(1000.0)
    nodes = [node_on(store, clock, name, lease_seconds=9.0) for name in "ABC"]

    def look(among: list[CatalogNode]) -> None:
        for node in among:
            node.run_pending()
        clock.advance(3.0)

    look(nodes)
    look(nodes)
    assert {node.coordinator and (node.coordinator.term, node.coordinator.node) for node in nodes} == {(1, "A")}
    for _ in range(6):
        look(nodes[1:])
    assert {node.coordinator and (node.coordinator.term, node.coordinator.node) for node in nodes[1:]} == {(2, "B")}
    look(nodes)
    assert nodes[0].coordinator == nodes[1].coordinator


def test_election_raises_the_term_of_the_log() -> None:
    """So a cut of a coordinator that was replaced is refused before its successor has cut anything."""
    store, clock = MemoryStore(), ManualClock(1000.0)
    first, second = (node_on(store, clock, name, lease_seconds=9.0) for name in "AB")
    first.run_pending()
    for number in range(4):
        first.service.execute([PutObject(Schema(f"S{number}"))], wait=False)
    clock.advance(60.0)
    time = first.service.history.activation(3)
    elected = first.coordinator
    assert elected is not None
    plan = first.service.plan(view=first.service.view(
        reports=[NodeReport(node=NodeId("A"), transactions_from=time)], topology=Topology.of("A"), low_watermark=time,
        term=elected.term))
    for _ in range(5):
        second.run_pending()
        clock.advance(3.0)
    assert second.coordinator is not None
    assert second.coordinator.node == "B"
    with pytest.raises(StaleTerm):
        first.service.compact(plan)
    assert first.service.history.earliest == 0


@pytest.mark.parametrize("term", [None, 5])
def test_state_that_a_host_read_before_the_reports_is_demanded_as_it_was_then(term: int | None) -> None:
    """A coordinator raises the term between that read and the view, which reads the term again."""
    store, clock = MemoryStore(), ManualClock(1000.0)
    node = node_on(store, clock)
    node.join()
    for number in range(6):
        node.service.execute([PutObject(Schema(f"S{number}"))], wait=False)
    topology, _ = Members(store).read()
    before = node.service.log.state().term_condition
    node_on(store, clock, "B", lease_seconds=9.0).run_pending()
    clock.advance(60.0)
    time = node.service.history.activation(5)
    view = node.service.view(reports=[NodeReport(node=NodeId("A"), transactions_from=time)], topology=topology,
                             low_watermark=time, term=term, conditions=before)
    with pytest.raises((StaleTerm, CatalogMoved)):
        node.service.compact(node.service.plan(view=view))
    assert node.service.history.earliest < 5


# ------------------------------------------------------------------------------------------------- when rounds are run


async def turns_of_the_loop() -> None:
    """Let the event loop run all pending work."""
    for _ in range(200):
        await asyncio.sleep(0)


class Watched(Cluster):
    """Lets a test wait for calls of the host."""

    def __init__(self) -> None:
        super().__init__()
        self.reports = 0
        self.may_report = asyncio.Event()
        self.may_report.set()

    async def report(self, node: NodeId) -> NodeReport:
        self.reports += 1
        await self.may_report.wait()
        return await super().report(node)

    def coordinating(self, story: Callable[[], Awaitable[None]], **how: Any) -> None:
        """Run a story with a node that coordinates when it is elected."""
        async def run() -> None:
            self.may_report = asyncio.Event()
            self.may_report.set()
            task = asyncio.create_task(self.nodes["A"].coordinate(self, **how))
            try:
                async with asyncio.timeout(60):
                    await story()
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

        asyncio.run(run())

    async def until(self, is_true: Callable[[], bool]) -> None:
        while not is_true():
            await asyncio.sleep(0)

    @property
    def last(self) -> RoundReport | None:
        return self.nodes["A"].last_round


def test_round_runs_at_an_election_and_at_a_watermark_move() -> None:
    cluster = Watched()

    async def story() -> None:
        node = cluster.nodes["A"]
        cluster.grow(4)
        cluster.settle()  # moves the watermark before anybody is elected
        node.run_pending()
        await turns_of_the_loop()
        assert cluster.reports == 0
        node.elected(1, "A")
        await cluster.until(lambda: cluster.last is not None)
        assert cluster.is_shortest()
        cluster.grow(6)
        cluster.settle()
        node.run_pending()
        await cluster.until(lambda: cluster.service.history.earliest == 6)
        node.elected(2, "B")
        reports = cluster.reports
        cluster.settle()
        node.run_pending()
        await turns_of_the_loop()
        assert cluster.reports == reports

    cluster.coordinating(story)


def test_a_request_during_a_round_starts_one_more() -> None:
    cluster = Watched()

    async def story() -> None:
        cluster.grow(4)
        cluster.may_report.clear()
        cluster.nodes["A"].elected(1, "A")
        await cluster.until(lambda: cluster.reports == 3)
        for _ in range(3):
            cluster.wall.advance(60.0)
            cluster.nodes["A"].run_pending()
        cluster.may_report.set()
        await cluster.until(lambda: cluster.reports == 6)
        await turns_of_the_loop()
        assert cluster.reports == 6

    cluster.coordinating(story)


@pytest.mark.parametrize("kind", [ValueError, CancelledError])
def test_round_that_failed_is_repeated_after_a_while(kind: type[Exception]) -> None:
    """A host that waits for a coroutine in the thread of the call may raise the latter."""
    cluster = Watched()

    async def story() -> None:
        cluster.grow(4)
        cluster.settle()

        def fail() -> None:
            raise kind("no assignments today")

        cluster.on["assignments"] = fail
        cluster.nodes["A"].elected(1, "A")
        await cluster.until(lambda: cluster.last is not None)
        assert f"the host raised {kind.__name__}: " in str(cluster.nodes["A"].last_error)
        assert cluster.is_shortest()

    cluster.coordinating(story, retry_seconds=0.01)


@pytest.mark.parametrize("call", ["report", "publish"])
def test_node_whose_call_the_host_cancels_ends_no_rounds(call: str) -> None:
    """A host whose connection to a node ends may cancel the calls that wait for its answers."""
    cluster = Watched()

    async def story() -> None:
        cluster.grow(4)
        cluster.settle()

        def cut_off() -> None:
            raise asyncio.CancelledError

        cluster.on[call] = cut_off
        cluster.nodes["A"].elected(1, "A")
        await cluster.until(lambda: cluster.last is not None)
        assert cluster.last is not None
        assert list(cluster.last.missing if call == "report" else cluster.last.unpublished) == ["A"]
        await cluster.until(lambda: cluster.last is not None and not cluster.last.is_partial)
        assert cluster.is_shortest()

    cluster.coordinating(story, retry_seconds=0.01)


def test_only_the_coordinator_runs_rounds() -> None:
    cluster = Cluster()
    with pytest.raises(NotReady):
        asyncio.run(cluster.nodes["B"].round(cluster))
    cluster.nodes["B"].elected(1, "A")
    with pytest.raises(NotReady):
        asyncio.run(cluster.nodes["B"].round(cluster))
