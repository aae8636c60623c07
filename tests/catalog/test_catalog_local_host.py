"""The ready host: rounds over three nodes that share a log, and what may change between a decision and its snapshot."""

from __future__ import annotations

import attrs
import pytest

from compactlib.catalog.commands import AlterZone, CreateSchema, CreateZone, DropZone
from compactlib.catalog.errors import AssignmentsMissing, StaleTerm, TimeBeforeHistory, UnsafeCompaction
from compactlib.catalog.host import CatalogHost
from compactlib.catalog.local_host import LocalHost
from compactlib.catalog.messages import ZoneResult
from compactlib.catalog.model import Assignments, Factor, NodeId, NodeReport, Topology, ZoneAssignments
from compactlib.catalog.needs import LocalNeeds
from compactlib.catalog.pins import Pins
from compactlib.catalog.published import PublishedTimes
from compactlib.catalog.service import CatalogService
from compactlib.catalog.timestamp import HybridClock
from compactlib.catalog.transactions import ActiveTransactions
from compactlib.catalog.verdict import Compact, Decision, Hold
from compactlib.catalog.watermark import LowWatermark
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.kv import Condition, MemoryStore
from tests.catalog.services import INITIAL, create_table, log_in

NAMES = ("A", "B", "C")
TOPOLOGY = Topology.of(*NAMES)


class Cluster:
    """Three nodes in one process, with every partition on every node, and a clock that is moved by hand."""

    def __init__(self, *, margin: int = 0) -> None:
        self.store = MemoryStore()
        self.wall = ManualClock(1000.0)
        self.epoch = 0
        self.assigned: dict[int, ZoneAssignments] = {}
        self.nodes = {name: Node(self, name, margin) for name in NAMES}
        self.service.execute(INITIAL, wait=False)
        self.assigned = {zone.id: ZoneAssignments.everywhere(NAMES, zone.partitions) for zone in
                         self.service.catalog(1).zones.values()}

    @property
    def service(self) -> CatalogService:
        return self.nodes["A"].service

    @property
    def host(self) -> LocalHost:
        return self.nodes["A"].host

    def grow(self, latest: int) -> None:
        while self.service.view.latest < latest:
            self.service.execute([CreateSchema(f"S{self.service.view.latest}")], wait=False)
            self.wall.advance(1.0)

    def settle(self) -> None:
        """All watermarks and published times reach the present."""
        self.wall.advance(2000.0)
        for node in self.nodes.values():
            node.watermark.advance()
            for table, mask in node.hosted().items():
                for partition in range(mask.bit_length()):
                    node.published.publish(table, partition, 1, node.service.clock.now())

    def reports(self) -> tuple[NodeReport, ...]:
        return tuple(node.host.report() for node in self.nodes.values())

    def round(self, term: int = 1) -> Decision:
        """A round on A, as a coordinator would make it."""
        reports = self.reports()
        decision = self.host.decide(reports, TOPOLOGY)
        if isinstance(decision, Compact):
            assert self.host.write(decision, reports, TOPOLOGY, term)
            for node in self.nodes.values():
                node.service.poll()
                assert node.service.view.earliest == decision.target
        return decision


class Node:
    def __init__(self, cluster: Cluster, name: str, margin: int) -> None:
        self.service = CatalogService(log_in(cluster.store, seed=ord(name)), HybridClock(cluster.wall))
        self.transactions = ActiveTransactions(lambda: self.service.view, self.service.clock)
        self.published = PublishedTimes(cluster.store, name)
        self.watermark = LowWatermark(cluster.store, name, self.service.clock)
        self.pins = Pins(self.service.log, self.service.clock)
        needs = LocalNeeds(NodeId(name), lambda: self.service.view, transactions=self.transactions,
                           partitions=self.published, sources=[self.watermark, self.pins])
        self.host = LocalHost(
            self.service, needs, watermark=self.watermark, pins=self.pins, retention_margin=margin,
            assignments=lambda: Assignments(cluster.assigned, cluster.epoch),
            publish=lambda zone, partitions, time: ZoneResult(zone, published=partitions))

    def hosted(self) -> dict[int, int]:
        return self.published.needs_and_hosted()[1].masks()


def with_table() -> Cluster:
    cluster = Cluster()
    cluster.service.execute([create_table(1)], wait=False)
    table = cluster.service.catalog(2).find_table("PUBLIC", "T1")
    assert table is not None
    for node in cluster.nodes.values():
        for partition in range(25):
            node.published.register(table.id, partition, incarnation=1, created_at=table.created_at)
    cluster.grow(6)
    return cluster


def test_it_is_a_host() -> None:
    host: CatalogHost = Cluster().host
    assert callable(host.report)


def test_a_node_reads_its_low_watermark_before_it_can_be_counted() -> None:
    cluster = Cluster()
    cluster.grow(4)
    decision = cluster.round()
    assert isinstance(decision, Hold)
    assert decision.factor is Factor.UNAVAILABLE


def test_history_shrinks_to_the_last_version_once_nobody_needs_more() -> None:
    cluster = with_table()
    cluster.settle()
    decision = cluster.round()
    assert isinstance(decision, Compact)
    assert decision.target == 6
    assert isinstance(cluster.round(), Hold)
    cluster.service.audit()


def test_the_margin_keeps_one_version_more() -> None:
    cluster = Cluster(margin=1)
    cluster.grow(5)
    cluster.settle()
    decision = cluster.round()
    assert isinstance(decision, Compact)
    assert decision.target == 4


def test_a_transaction_holds_its_version_through_published_times_and_directly() -> None:
    cluster = with_table()
    version = cluster.service.active().version
    cluster.nodes["B"].service.poll()
    transaction = cluster.nodes["B"].transactions.begin()
    assert transaction.version == version
    cluster.grow(9)
    cluster.settle()
    decision = cluster.round()
    assert isinstance(decision, Compact)
    assert decision.target == version
    assert decision.why.factors[0] is Factor.ACTIVE_TRANSACTIONS
    assert decision.why.limits[0].culprits[0].node == "B"
    cluster.nodes["B"].transactions.end(transaction)
    assert isinstance(cluster.round(), Compact)


def test_weakness_4_a_new_table_does_not_stop_compaction() -> None:
    """Its partitions begin at the version that made them, instead of being "not available yet"."""
    cluster = with_table()
    cluster.settle()
    cluster.service.execute([create_table(2)], wait=False)
    table = cluster.service.catalog(7).find_table("PUBLIC", "T2")
    assert table is not None
    for node in cluster.nodes.values():
        for partition in range(25):
            node.published.register(table.id, partition, incarnation=1, created_at=table.created_at)
    decision = cluster.round()
    assert isinstance(decision, Compact)
    assert decision.target == 6


def test_weakness_20_a_restarted_node_counts_at_once() -> None:
    cluster = with_table()
    cluster.settle()
    cluster.grow(8)
    again = Node(cluster, "B", 0)
    for table, mask in cluster.nodes["B"].hosted().items():
        for partition in range(mask.bit_length()):
            again.published.register(table, partition, incarnation=1, created_at=1)
    cluster.nodes["B"] = again
    decision = cluster.round()
    assert isinstance(decision, Compact)
    assert decision.target == 6


# --- between decision and snapshot --------------------------------------------------------------------------------


def decided(cluster: Cluster) -> tuple[tuple[NodeReport, ...], Compact]:
    cluster.settle()
    reports = cluster.reports()
    decision = cluster.host.decide(reports, TOPOLOGY)
    assert isinstance(decision, Compact)
    return reports, decision


def test_weakness_15_assignments_that_changed_since_are_seen() -> None:
    cluster = with_table()
    reports, decision = decided(cluster)
    for zone in cluster.assigned:
        cluster.assigned = {zone: ZoneAssignments.everywhere((*NAMES, "D"), 25)}
    with pytest.raises(UnsafeCompaction, match="node D"):
        cluster.host.write(decision, reports, TOPOLOGY, 1)
    assert cluster.service.view.earliest == 0


def test_a_pin_between_decision_and_snapshot_stops_it() -> None:
    cluster = with_table()
    reports, decision = decided(cluster)
    cluster.nodes["B"].service.poll()
    cluster.nodes["B"].pins.pin("backup", 3, cluster.nodes["B"].service.view, ttl_seconds=9000)
    with pytest.raises(UnsafeCompaction, match="pinned by 'backup'"):
        cluster.host.write(decision, reports, TOPOLOGY, 1)
    report, held = decided(cluster)
    assert held.why.factors[0] is Factor.PIN
    assert cluster.host.write(held, report, TOPOLOGY, 1)
    assert cluster.service.view.earliest == 3


def test_a_guard_that_has_moved_stops_the_snapshot() -> None:
    cluster = with_table()
    cluster.store.set(b"host", b"members", b"1")
    node = cluster.nodes["A"]
    seen = Condition(b"host", b"members", cluster.store.get(b"host", b"members").predicate)
    host = LocalHost(node.service, LocalNeeds(NodeId("A"), lambda: node.service.view, transactions=node.transactions),
                     watermark=node.watermark, assignments=lambda: Assignments(cluster.assigned),
                     publish=lambda zone, partitions, time: ZoneResult(zone), guards=lambda: [seen])
    reports, decision = decided(cluster)
    cluster.store.set(b"host", b"members", b"2")
    with pytest.raises(UnsafeCompaction, match="members"):
        host.write(decision, reports, TOPOLOGY, 1)


def test_weakness_14_a_deposed_coordinator_is_refused_by_the_log_itself() -> None:
    cluster = with_table()
    reports, decision = decided(cluster)
    lower = attrs.evolve(decision, target=3)
    assert cluster.nodes["B"].host.write(lower, reports, TOPOLOGY, 8)
    with pytest.raises(StaleTerm):
        cluster.host.write(decision, reports, TOPOLOGY, 7)
    assert not cluster.host.write(lower, reports, TOPOLOGY, 9)


def test_unknown_assignments_fail_the_decision() -> None:
    cluster = with_table()
    cluster.settle()
    cluster.assigned = {}
    with pytest.raises(AssignmentsMissing):
        cluster.round()


# --- publishing ---------------------------------------------------------------------------------------------------


def test_vector_42_the_zones_since_a_time_hold_those_that_are_gone() -> None:
    cluster = Cluster()
    starts = []
    for number in range(3):
        starts.append(cluster.service.clock.now())
        cluster.service.execute([CreateZone(f"z{number}", partitions=number + 1)])
        cluster.service.execute([DropZone(f"z{number}")])
    found = [sorted(cluster.host.zones(start).values()) for start in (*starts, cluster.service.clock.now())]
    assert found == [[1, 2, 3, 25], [2, 3, 25], [3, 25], [25]]
    cluster.service.execute([AlterZone("Z", partitions=30)])
    assert sorted(cluster.host.zones(starts[2]).values()) == [3, 30]
    with pytest.raises(TimeBeforeHistory):
        cluster.host.zones(0)


def test_bad_input() -> None:
    with pytest.raises(InvalidInput, match="retention_margin"):
        Cluster(margin=-1)
    assert Cluster().host.publish(3, 25, 100) == ZoneResult(3, published=25)
