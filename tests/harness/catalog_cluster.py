# SPDX-License-Identifier: Apache-2.0
"""Three nodes in one process over one log, with every partition on every node, and a manual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from compactlib.catalog import (
    Assignments,
    CatalogNode,
    CatalogPlan,
    CatalogService,
    CatalogTable,
    HybridClock,
    KeepVersions,
    NodeId,
    NodeReport,
    PutObject,
    RoundReport,
    Schema,
    Timestamp,
    ZoneAssignments,
)
from compactlib.clock import ManualClock
from compactlib.errors import CompactionFailed
from compactlib.kv import MemoryStore
from tests.harness.catalog_logs import INITIAL, create_table, log_in

NAMES = ("A", "B", "C")
PARTITIONS = 25


class Database:
    """The database of one node."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.cluster = cluster
        self.name = name
        self.published: dict[int, Timestamp] = {}

    def assignments(self) -> Assignments:
        self.cluster.happens("assignments")
        return self.cluster.assigned

    def publish(self, zone: int, partitions: int, time: Timestamp) -> int:
        if zone in self.cluster.failing_zones:
            raise ValueError(f"zone {zone} has no leader")
        self.published[zone] = max(time, self.published.get(zone, 0))
        return partitions

    def destroy(self, table: int, partition: int) -> None:
        pass


class Cluster:
    """Nodes with manual rounds; each node responds in the coordinator's event loop."""

    def __init__(self, *, margin: int = 0) -> None:
        self.store = MemoryStore()
        self.wall = ManualClock(1000.0)
        self.policy = KeepVersions(margin)
        self.assigned: dict[int, ZoneAssignments] = {}
        self.nodes: dict[str, CatalogNode] = {}
        self.databases = {name: Database(self, name) for name in NAMES}
        self.silent: set[tuple[str, str]] = set()
        self.failing_zones: set[int] = set()
        self.calls = 1  # the number of times that a node gets each call
        self.seconds = 60.0
        self.on: dict[str, Callable[[], object]] = {}
        for name in NAMES:
            self.start(name)
        self.service.execute(INITIAL, wait=False)
        self.assigned = {zone.id: ZoneAssignments.everywhere(NAMES, zone.partitions) for zone in
                         self.service.catalog(1).zones.values()}

    def start(self, name: str) -> CatalogNode:
        """Begin a life of a node, which joins."""
        database = self.databases.setdefault(name, Database(self, name))
        self.nodes[name] = node = CatalogNode(name, log_in(self.store, seed=ord(name)), HybridClock(self.wall),
                                              database, lease_seconds=None, policy=self.policy)
        node.join()
        return node

    @property
    def service(self) -> CatalogService:
        return self.nodes["A"].service

    def happens(self, what: str) -> None:
        """Call the function that a test has set for this moment, once."""
        self.on.pop(what, lambda: None)()

    def grow(self, latest: int) -> None:
        """Append versions, a second apart."""
        while self.service.history.latest < latest:
            self.service.execute([PutObject(Schema(f"S{self.service.history.latest}"))], wait=False)
            self.wall.advance(1.0)

    def is_shortest(self) -> bool:
        """Return whether history begins with its latest version."""
        return self.service.history.earliest == self.service.history.latest

    def add_table(self, number: int) -> CatalogTable:
        """Add a table, whose partitions every node hosts."""
        version = self.service.execute([create_table(number)], wait=False).version
        table: CatalogTable | None = self.service.catalog(version).find("table", f"T{number}", "PUBLIC")
        assert table is not None
        for node in self.nodes.values():
            for partition in range(PARTITIONS):
                node.published.register(table.id, partition, incarnation=1, created_at=table.created_at)
        self.wall.advance(1.0)
        return table

    def settle(self) -> None:
        """Move all watermarks and published times to the present."""
        self.wall.advance(2000.0)
        for node in self.nodes.values():
            node.watermark.advance()
            now = node.service.clock.now()
            for table, partition in hosted(node):
                node.published.publish(table, partition, 1, now)

    def restart(self, name: str) -> None:
        """Begin a new life of a node with its stored state."""
        places = hosted(self.nodes[name])
        created = {table.id: table.created_at for catalog in self.service.history for table in catalog.tables.values()}
        node = self.start(name)
        for table, partition in places:
            node.published.register(table, partition, incarnation=1, created_at=created.get(table, 1))

    # -- the host's two calls

    async def report(self, node: NodeId) -> NodeReport:
        self.happens("report")
        if (node.name, "report") in self.silent:
            await asyncio.Event().wait()
        for _ in range(self.calls - 1):
            self.nodes[node.name].report()
        return self.nodes[node.name].report()

    async def publish(self, node: NodeId, time: Timestamp) -> None:
        self.happens("publish")
        if (node.name, "publish") in self.silent:
            await asyncio.Event().wait()
        for _ in range(self.calls - 1):
            self.nodes[node.name].publish(time)
        self.nodes[node.name].publish(time)

    def round(self, coordinator: str = "A", *, term: int = 1) -> tuple[RoundReport, Mapping[str, Exception]]:
        """Run a round; return its report, and the errors of its two processes."""
        node = self.nodes[coordinator]
        node.elected(term, coordinator)
        try:
            # In another thread: this thread may be running another coordinator's round.
            with ThreadPoolExecutor(1) as thread:
                report = thread.submit(asyncio.run, node.round(self, seconds=self.seconds)).result()
            failures = dict[str, Exception]()
        except CompactionFailed as failed:
            report, failures = failed.report, dict(failed.failures)
        for each in self.nodes.values():
            each.service.poll()
        return report, failures

    def plan(self) -> CatalogPlan:
        """Run a round without failures; return its plan."""
        report, failures = self.round()
        assert not failures, failures
        assert report.plan is not None
        for node in self.nodes.values():
            assert report.plan.is_empty or node.service.history.earliest == report.plan.target
        return report.plan


def hosted(node: CatalogNode) -> list[tuple[int, int]]:
    """Return the tables and partitions that a node hosts."""
    masks: Mapping[int, Any] = node.published.needs_and_hosted()[1]
    return [(table, partition) for table, mask in masks.items() for partition in range(mask.bit_length())
            if mask >> partition & 1]
