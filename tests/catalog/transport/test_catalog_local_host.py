# SPDX-License-Identifier: Apache-2.0
"""The ready host: rounds over three nodes that share a log, and what may change between a decision and its snapshot."""

from __future__ import annotations

import pytest

from compactlib.catalog import (
    ActiveTransactions,
    Assignments,
    CatalogHost,
    CatalogPlan,
    CreateZone,
    LocalHost,
    LocalNeeds,
    LowWatermark,
    NodeId,
    Topology,
    ZoneAssignments,
    ZoneResult,
)
from compactlib.catalog.errors import (
    AssignmentsMissing,
    CatalogMoved,
    StaleTerm,
    TimeBeforeHistory,
    UnsafeCompaction,
)
from compactlib.catalog.log.update_log import term_mark
from compactlib.catalog.model.values import Factor
from compactlib.catalog.schema.commands import AlterZone, DropZone
from compactlib.catalog.sense.rebalance import Placement, RebalanceNeed
from compactlib.catalog.sense.transactions import Transaction
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.kv import Condition, MemoryStore
from compactlib.outcome import Done, Failed, Skipped
from tests.catalog.services import grown, service_in
from tests.harness.catalog_cluster import NAMES, Cluster
from tests.harness.catalog_logs import sound


def with_table() -> Cluster:
    cluster = Cluster()
    cluster.add_table(1)
    cluster.grow(6)
    return cluster


def test_it_is_a_host() -> None:
    host: CatalogHost = Cluster().host
    assert callable(host.report)


def test_a_node_reads_its_low_watermark_before_it_can_be_counted() -> None:
    cluster = Cluster()
    cluster.grow(4)
    decision = cluster.round()
    assert decision.is_empty
    assert decision.explanation.factors[0] is Factor.UNAVAILABLE


def test_history_shrinks_to_the_last_version_once_nobody_needs_more() -> None:
    cluster = with_table()
    cluster.settle()
    decision = cluster.round()
    assert decision.target == 6
    assert cluster.round().is_empty
    sound(cluster.service)


def test_the_margin_keeps_one_version_more() -> None:
    cluster = Cluster(margin=1)
    cluster.grow(5)
    cluster.settle()
    decision = cluster.round()
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
    assert decision.target == version
    assert decision.explanation.factors[0] is Factor.ACTIVE_TRANSACTIONS
    assert decision.explanation.limits[0].culprits[0].node == "B"
    cluster.nodes["B"].transactions.end(transaction)
    assert not cluster.round().is_empty


def test_a_new_table_does_not_stop_compaction() -> None:
    """Its partitions begin at the version that made them, instead of being "not available yet"."""
    cluster = with_table()
    cluster.settle()
    cluster.add_table(2)
    decision = cluster.round()
    assert decision.target == 6


def test_a_restarted_node_counts_at_once() -> None:
    cluster = with_table()
    cluster.settle()
    cluster.grow(8)
    cluster.restart("B")
    decision = cluster.round()
    assert decision.target == 6


# --- between decision and snapshot --------------------------------------------------------------------------------


def planned(cluster: Cluster, term: int = 1) -> CatalogPlan:
    cluster.settle()
    plan = cluster.host.plan(cluster.reports(), cluster.topology, term)
    assert not plan.is_empty
    return plan


def refused(cluster: Cluster, plan: CatalogPlan, kind: type[CompactlibError], match: str) -> None:
    before = list(cluster.store.scan(b"catalog"))
    outcome = cluster.host.compact(plan)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, kind)
    assert outcome.changed == "no"
    assert match in str(outcome.error)
    assert list(cluster.store.scan(b"catalog")) == before


def test_assignments_that_changed_since_are_seen() -> None:
    cluster = with_table()
    plan = planned(cluster)
    for zone in cluster.assigned:
        cluster.assigned = {zone: ZoneAssignments.everywhere((*NAMES, "D"), 25)}
    refused(cluster, plan, UnsafeCompaction, "node D")


def test_a_pin_between_decision_and_snapshot_stops_it() -> None:
    cluster = with_table()
    plan = planned(cluster)
    cluster.nodes["B"].service.poll()
    cluster.nodes["B"].pins.pin("backup", 3, cluster.nodes["B"].service.history, ttl_seconds=9000)
    refused(cluster, plan, CatalogMoved, "pins")
    held = planned(cluster)
    assert held.explanation.factors[0] is Factor.PIN
    assert isinstance(cluster.host.compact(held), Done)
    assert cluster.service.history.earliest == 3


def test_a_pin_that_no_report_knows_holds_by_itself() -> None:
    """It was taken after its node had reported, and by somebody whose node is asked nothing."""
    cluster = with_table()
    cluster.settle()
    reports = cluster.reports()
    cluster.service.pins.pin("stranger", 2, cluster.service.history, ttl_seconds=9000)
    plan = cluster.host.plan(reports, cluster.topology, 1)
    assert plan.target == 2
    assert "pinned by 'stranger'" in plan.explain()


def test_a_guard_that_has_moved_stops_the_snapshot() -> None:
    cluster = with_table()
    cluster.store.set(b"host", b"members", b"1")
    node = cluster.nodes["A"]
    node.host = LocalHost(
        node.service, LocalNeeds(NodeId("A"), lambda: node.service.history, transactions=node.transactions),
        watermark=node.watermark, membership=lambda: cluster.topology,
        assignments=lambda: Assignments(cluster.assigned), publish=lambda zone, partitions, time: ZoneResult(zone),
        guards=lambda: [Condition(b"host", b"members", cluster.store.get(b"host", b"members").predicate)])
    cluster.settle()
    reports = tuple(cluster.nodes[name].host.report() for name in "BC")
    needs = LocalNeeds(NodeId("A"), lambda: node.service.history, transactions=node.transactions,
                       partitions=node.published, sources=[node.watermark])
    plan = node.host.plan((needs.report(), *reports), cluster.topology, 1)
    cluster.store.set(b"host", b"members", b"2")
    refused(cluster, plan, CatalogMoved, "members")


def test_a_deposed_coordinator_is_refused_by_the_log_itself() -> None:
    cluster = with_table()
    cluster.settle()
    late = planned(cluster, term=7)
    cluster.nodes["B"].service.poll()
    newer = planned(cluster, term=8)
    assert isinstance(cluster.nodes["B"].host.compact(newer), Done)
    refused(cluster, late, CatalogMoved, "history begins at version")
    cluster.grow(9)
    cluster.settle()
    refused(cluster, planned(cluster, term=7), StaleTerm, "term 7")
    assert isinstance(cluster.host.compact(planned(cluster, term=9)), Done)


def test_a_plan_without_a_term_holds_until_a_coordinator_s_has_moved() -> None:
    cluster = with_table()
    cluster.settle()
    plan = cluster.service.plan(view=cluster.service.view(reports=cluster.reports()))
    assert not plan.is_empty
    cluster.store.set(b"catalog", b"term", term_mark(3))
    refused(cluster, plan, CatalogMoved, "term")


def test_a_membership_that_changed_since_stops_the_snapshot() -> None:
    cluster = with_table()
    plan = planned(cluster)
    asked = cluster.topology
    assert cluster.host.confirm(asked)
    cluster.topology = Topology.of(*NAMES, epoch=1)
    assert not cluster.host.confirm(asked)
    refused(cluster, plan, CatalogMoved, "membership")


def test_by_itself_a_node_of_many_cuts_nothing_and_names_those_that_are_missing() -> None:
    cluster = with_table()
    cluster.settle()
    outcome = cluster.service.compact()
    assert isinstance(outcome, Skipped)
    assert "node B, did not answer; node C, did not answer" in outcome.reason
    assert "give the reports of these nodes" in outcome.reason
    cluster.topology = Topology.of("A")
    cluster.assigned = {zone: ZoneAssignments.everywhere(["A"], one.partitions)
                        for zone, one in cluster.assigned.items()}
    assert isinstance(cluster.service.compact(), Done)
    assert isinstance(cluster.service.compact(), Skipped)


def test_unknown_assignments_fail_the_decision() -> None:
    cluster = with_table()
    cluster.settle()
    cluster.assigned = {}
    with pytest.raises(AssignmentsMissing):
        cluster.round()


# --- publishing ---------------------------------------------------------------------------------------------------


def test_the_zones_since_a_time_hold_those_that_are_gone() -> None:
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
    with pytest.raises(InvalidInput, match="margin"):
        Cluster(margin=-1)
    assert Cluster().host.publish(3, 25, 100) == ZoneResult(3, published=25)


# --- over the cluster ---------------------------------------------------------------------------------------------


def test_the_cluster_s_transaction_time_is_that_of_its_oldest_version_in_use() -> None:
    cluster = Cluster()
    begun: dict[tuple[int, str], Transaction] = {}
    for version, names in ((1, "A"), (2, "BC"), (3, "AC")):
        cluster.grow(version)
        cluster.wall.advance(1.0)
        for name in names:
            node = cluster.nodes[name]
            node.service.poll()
            begun[version, name] = node.transactions.begin()
            assert begun[version, name].version == version

    def global_minimum() -> int:
        return min(report.transactions_from for report in cluster.reports())

    for version, names in ((1, "A"), (2, "BC"), (3, "AC")):
        for name in names:
            assert global_minimum() == cluster.service.history.activation(version)
            cluster.nodes[name].transactions.end(begun[version, name])
    before = min(node.service.clock.now() for node in cluster.nodes.values())
    assert before < global_minimum() < max(node.service.clock.now() for node in cluster.nodes.values())


def test_invariant_g_a_round_that_holds_leaves_the_log_as_it_is() -> None:
    cluster = with_table()
    cluster.settle()
    cluster.nodes["B"].pins.pin("backup", 0, cluster.service.history, ttl_seconds=60)
    before = list(cluster.store.scan(b"catalog"))
    assert cluster.round().is_empty
    assert list(cluster.store.scan(b"catalog")) == before


def test_invariant_h_a_second_round_with_nothing_new_does_nothing() -> None:
    cluster = with_table()
    cluster.settle()
    assert not cluster.round().is_empty
    before = list(cluster.store.scan(b"catalog"))
    decision = cluster.round()
    assert decision.why == "history is as short as it can be: it begins at version 6, which is in force"
    assert list(cluster.store.scan(b"catalog")) == before


def test_a_version_that_came_while_a_node_was_asked_is_asked_about_as_well() -> None:
    clock, store = ManualClock(1000.0), MemoryStore()
    service, other = service_in(store, clock=clock), service_in(store, clock=clock, seed=2)
    grown(service, 2)
    clock.advance(10.0)
    paused: list[float] = [2.0]

    class Paused:
        """The whole process stands still, and another node alters the zone meanwhile."""

        def placement(self) -> Placement:
            if paused:
                other.execute([AlterZone("Z", node_filter="ssd")], wait=False)
                clock.advance(paused.pop())
            return Placement(safe=service.clock.present())

    transactions = ActiveTransactions(lambda: service.history, service.clock)
    host = LocalHost(
        service, LocalNeeds(NodeId("A"), lambda: service.history, transactions=transactions,
                            sources=[RebalanceNeed(Paused())]),
        watermark=LowWatermark(store, "A", service.clock), membership=lambda: Topology.of("A"),
        assignments=Assignments, publish=lambda zone, partitions, time: ZoneResult(zone))
    floor = host.report().floor(Factor.REBALANCE)
    assert floor is not None
    assert other.history.version_at(floor.time) == 2
