# SPDX-License-Identifier: Apache-2.0
"""Three nodes in one process over one log, with every partition on every node, and a clock that is moved by hand."""

from __future__ import annotations

from typing import Any

from compactlib.catalog import (
    ActiveTransactions,
    Assignments,
    CatalogPlan,
    CatalogService,
    CreateSchema,
    HybridClock,
    KeepVersions,
    LocalHost,
    LocalNeeds,
    LowWatermark,
    NodeId,
    NodeReport,
    PublishedTimes,
    Topology,
    ZoneAssignments,
    ZoneResult,
)
from compactlib.clock import ManualClock
from compactlib.kv import MemoryStore
from compactlib.outcome import Done
from tests.harness.catalog_logs import INITIAL, create_table, log_in

NAMES = ("A", "B", "C")
PARTITIONS = 25


class Cluster:
    """See the module. Rounds are made by hand, on node A."""

    def __init__(self, *, margin: int = 0) -> None:
        self.store = MemoryStore()
        self.wall = ManualClock(1000.0)
        self.policy = KeepVersions(margin)
        self.topology = Topology.of(*NAMES)
        self.assigned: dict[int, ZoneAssignments] = {}
        self.nodes = {name: Node(self, name) for name in NAMES}
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
        """More versions, a second apart."""
        while self.service.history.latest < latest:
            self.service.execute([CreateSchema(f"S{self.service.history.latest}")], wait=False)
            self.wall.advance(1.0)

    def is_shortest(self) -> bool:
        """Whether history begins with its latest version."""
        return self.service.history.earliest == self.service.history.latest

    def add_table(self, number: int) -> Any:
        """A table, whose partitions every node hosts."""
        version = self.service.execute([create_table(number)], wait=False).version
        table = self.service.catalog(version).find_table("PUBLIC", f"T{number}")
        assert table is not None
        for node in self.nodes.values():
            for partition in range(PARTITIONS):
                node.published.register(table.id, partition, incarnation=1, created_at=table.created_at)
        self.wall.advance(1.0)
        return table

    def settle(self) -> None:
        """All watermarks and published times reach the present."""
        self.wall.advance(2000.0)
        for node in self.nodes.values():
            node.watermark.advance()
            now = node.service.clock.now()
            for table, mask in node.hosted().items():
                for partition in range(mask.bit_length()):
                    if mask >> partition & 1:
                        node.published.publish(table, partition, 1, now)

    def restart(self, name: str) -> None:
        """The node begins anew with what it had kept."""
        hosted = self.nodes[name].hosted()
        created = {table.id: table.created_at for catalog in self.service.history for table in catalog.tables.values()}
        self.nodes[name] = Node(self, name)
        for table, mask in hosted.items():
            for partition in range(mask.bit_length()):
                if mask >> partition & 1:
                    self.nodes[name].published.register(table, partition, incarnation=1,
                                                        created_at=created.get(table, 1))

    def reports(self) -> tuple[NodeReport, ...]:
        return tuple(node.host.report() for name, node in self.nodes.items()
                     if name in {member.name for member in self.topology.nodes})

    def round(self, term: int = 1) -> CatalogPlan:
        """A round, as a coordinator would make it."""
        reports = self.reports()
        plan = self.host.plan(reports, self.topology, term)
        if not plan.is_empty:
            assert isinstance(self.host.compact(plan), Done)
            for node in self.nodes.values():
                node.service.poll()
                assert node.service.history.earliest == plan.target
        return plan


class Node:
    """One node and all its sources."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.service = CatalogService(log_in(cluster.store, seed=ord(name)), HybridClock(cluster.wall),
                                      policy=cluster.policy)
        self.transactions = ActiveTransactions(lambda: self.service.history, self.service.clock)
        self.published = PublishedTimes(cluster.store, name)
        self.watermark = LowWatermark(cluster.store, name, self.service.clock)
        self.pins = self.service.pins
        needs = LocalNeeds(NodeId(name), lambda: self.service.history, transactions=self.transactions,
                           partitions=self.published, sources=[self.watermark, self.pins])
        self.host = LocalHost(
            self.service, needs, watermark=self.watermark,
            membership=lambda: cluster.topology,
            assignments=lambda: Assignments(cluster.assigned),
            publish=lambda zone, partitions, time: ZoneResult(zone, published=partitions))

    def hosted(self) -> dict[int, int]:
        return self.published.needs_and_hosted()[1].masks()
