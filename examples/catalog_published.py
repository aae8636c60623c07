# SPDX-License-Identifier: Apache-2.0
"""How a round's lowest time reaches the partitions, and why history waits for a flush: two nodes, one partition.

    python examples/catalog_published.py

The partition's Raft log is a list here, and its leader is `n1`. A round has each node publish the lowest time of all
transactions: the leader proposes it in the log, every replica that applies it notes it, and it counts after a flush
that began later. So a replica never needs a removed version to replay its log.
"""

from __future__ import annotations

import asyncio
import sys

from compactlib.catalog import (
    Assignments,
    CatalogNode,
    CatalogTable,
    HybridClock,
    NodeId,
    NodeReport,
    PutObject,
    Schema,
    Timestamp,
    UpdateLog,
    Zone,
    ZoneAssignments,
)
from compactlib.clock import ManualClock
from compactlib.kv import MemoryStore

LEADER, NAMES = "n1", ("n1", "n2")


class Partition:
    """Partition 0 of the table: a replicated log, and a replica on each node. It is the host's two calls as well."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0)
        store = MemoryStore()
        self.log: list[Timestamp] = []
        self.nodes = {name: CatalogNode(name, UpdateLog(store), HybridClock(self.clock), Replica(self, name),
                                        lease_seconds=None, data_availability_seconds=1.0) for name in NAMES}
        first = self.nodes[LEADER]
        first.service.execute([PutObject(Schema("S")), PutObject(Zone("Z", 1)),
                               PutObject(CatalogTable("T"), schema="S", zone="Z")])
        table = first.service.catalog(1).find("table", "T", "S")
        assert table is not None
        self.table = table
        for node in self.nodes.values():
            node.published.register(table.id, 0, incarnation=1, created_at=table.created_at)
            node.join()

    def flush(self, name: str) -> None:
        """Write the applied entries of a replica to its disk: its memory table, say."""
        published = self.nodes[name].published
        ticket = published.begin_flush(self.table.id, 0, 1)
        published.flushed([ticket])

    def round(self) -> int:
        """Coordinate a round on the leader; returns the earliest version after it."""
        for node in self.nodes.values():
            node.run_pending()
        self.nodes[LEADER].elected(1, LEADER)
        asyncio.run(self.nodes[LEADER].round(self))
        return self.nodes[LEADER].service.history.earliest

    async def report(self, node: NodeId) -> NodeReport:
        return self.nodes[node.name].report()

    async def publish(self, node: NodeId, time: Timestamp) -> None:
        self.nodes[node.name].publish(time)


class Replica:
    """The database around one node."""

    def __init__(self, partition: Partition, name: str) -> None:
        self._partition, self._name = partition, name

    def assignments(self) -> Assignments:
        return {self._partition.table.zone_id: ZoneAssignments.everywhere(NAMES, 1)}

    def publish(self, zone: int, partitions: int, time: Timestamp) -> int:
        if self._name != LEADER:
            return 0
        self._partition.log.append(time)  # replicated, and applied on every node:
        for node in self._partition.nodes.values():
            node.published.applied(self._partition.table.id, 0, 1, index=len(self._partition.log), time=time)
        return 1

    def destroy(self, table: int, partition: int) -> None:
        pass


def main() -> list[int]:
    """Return the earliest version after each round."""
    partition = Partition()
    for number in range(4):
        partition.nodes["n2"].service.execute([PutObject(Schema(f"S{number}"))])
    partition.clock.advance(3600.0)
    earliest = [partition.round()]      # publishes a time, and cuts nothing: no replica has one on its disk
    partition.flush("n1")
    earliest.append(partition.round())  # n2 would still have to replay its log from version 1 on
    partition.flush("n2")
    earliest.append(partition.round())
    return earliest


if __name__ == "__main__":
    sys.stdout.write(f"history begins with version {', then '.join(map(str, main()))}\n")
