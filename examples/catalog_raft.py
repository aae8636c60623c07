# SPDX-License-Identifier: Apache-2.0
"""Three nodes whose partition is a replicated log: a round's lowest time goes through it, and the schema's log shrinks.

    python -m examples.catalog_raft [--first-port 47410]

Each node has a member of one Raft group (`RaftCommandLog`), which is the log of the only partition, and that of the
group whose leader coordinates. The nodes run in one process here, each in threads of its own, and talk TCP.
"""

from __future__ import annotations

import argparse
import asyncio
import pickle
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

from compactlib.catalog import (
    ActiveTransactions,
    Assignments,
    CatalogService,
    CatalogUpkeep,
    Column,
    ColumnType,
    CompactionService,
    CreateSchema,
    CreateTable,
    CreateZone,
    HybridClock,
    LocalHost,
    LocalNeeds,
    LowWatermark,
    NodeId,
    NodeOptions,
    PublishedTimes,
    TcpTransport,
    TimePublisher,
    Topology,
    UpdateLog,
    ZoneAssignments,
    lowest_time_in,
)
from compactlib.clock import SystemClock
from compactlib.commandlog import Command
from compactlib.hosting import LogElection
from compactlib.kv import KVStore, MemoryStore
from examples.raft_command_log import RaftCommandLog

QUICK: dict[str, Any] = {"raftMinTimeout": 0.4, "raftMaxTimeout": 0.9, "appendEntriesPeriod": 0.05,
                         "connectionRetryTime": 0.2}
ID = Column(name="ID", type=ColumnType.INT64, nullable=False)
TABLE = CreateTable(schema="PUBLIC", name="T", columns=(ID,), primary_key=("ID",), zone="Z")


class Partition:
    """A replica's state machine: rows would be here too. A time that is applied counts once the rows are on disk.

    Args:
        node: whose replica it is.
    """

    def __init__(self, node: Node) -> None:
        self.applied_index = 0
        self.times: list[int] = []
        self._node = node

    def apply(self, command: Command, payload: bytes) -> None:
        """Take in a command: a claim to coordinate, or a lowest time."""
        self.applied_index = command.index
        time = None if self._node.election.applied(command, payload) else lowest_time_in(payload)
        if time is not None:
            self.times.append(time)
            self._node.published.applied(self._node.table, 0, 1, index=command.index, time=time)

    def dump(self) -> bytes:
        """The whole state."""
        return pickle.dumps((self.applied_index, self.times, self._node.election.elected))

    def load(self, data: bytes) -> None:
        """Become the state that gave these bytes."""
        self.applied_index, self.times, elected = pickle.loads(data)
        self._node.election.restored(elected)
        if self.times:
            self._node.published.applied(self._node.table, 0, 1, index=self.applied_index, time=max(self.times))


class Node:
    """A node of the cluster.

    Args:
        name: its name.
        addresses: of the members of the Raft group, by node.
        store: shared by all nodes: the log of the schema lies there.
    """

    def __init__(self, name: str, addresses: dict[str, str], store: KVStore) -> None:
        me, self.name = NodeId(name), name
        self.members = Topology.of(*addresses)
        self.catalog = CatalogService(UpdateLog(store), HybridClock(SystemClock(), max_skew_seconds=0.02),
                                      delay_seconds=0.02)
        self.watermark = LowWatermark(store, name, self.catalog.clock, data_availability_seconds=0.1)
        self.published = PublishedTimes(store, name)
        self.table = self._host_the_table()
        needs = LocalNeeds(me, lambda: self.catalog.history, partitions=self.published, sources=[self.watermark],
                           transactions=ActiveTransactions(lambda: self.catalog.history, self.catalog.clock))
        host = LocalHost(self.catalog, needs, watermark=self.watermark, membership=lambda: self.members,
                         assignments=self._assignments, publish=TimePublisher(self._primary))
        self.transport = TcpTransport(me, cluster="example", listen=("127.0.0.1", 0))
        self.compaction = CompactionService(me, host, self.transport, options=NodeOptions(interval_seconds=None))
        self.watermark.listen(self.compaction.watermark_moved)
        self.upkeep = CatalogUpkeep(self.catalog, self.watermark, published=self.published, interval_seconds=0.1)
        peers = [address for other, address in addresses.items() if other != name]
        self.raft = RaftCommandLog(addresses[name], peers, **QUICK)
        self.election = LogElection(self.raft, name, self.compaction.elected, every_seconds=0.1)
        self.partition = Partition(self)

    def _host_the_table(self) -> int:
        table = self.catalog.catalog(2).find_table("PUBLIC", "T")
        assert table is not None
        self.published.register(table.id, 0, incarnation=1, created_at=table.created_at, history=self.catalog.history)
        return table.id

    def _assignments(self) -> Assignments:
        names = [member.name for member in self.members.nodes]
        latest = self.catalog.catalog(self.catalog.history.latest)
        return Assignments({zone: ZoneAssignments.everywhere(names, 1) for zone in latest.zones})

    def _primary(self, zone: int, partition: int) -> Callable[[bytes], object] | None:
        return self.raft.propose if self.raft.is_leader else None

    def flush(self) -> None:
        """What storage does now and then: what was applied before it began is on disk when it ends."""
        ticket = self.published.begin_flush(self.table, 0, 1)
        self.published.flushed([ticket])


async def run(addresses: dict[str, str]) -> list[Node]:
    """The whole story; the nodes, when history begins with its latest version."""
    store = MemoryStore()
    first = CatalogService(UpdateLog(store), HybridClock(SystemClock(), max_skew_seconds=0.02), delay_seconds=0.02)
    first.execute([CreateSchema("PUBLIC"), CreateZone("Z", partitions=1)])
    first.execute([TABLE])
    nodes = [Node(name, addresses, store) for name in addresses]
    async with AsyncExitStack() as running:
        for node in nodes:
            running.callback(node.raft.close)
            await running.enter_async_context(node.compaction)
            node.compaction.topology_is(node.members)
        ports = {node.name: node.transport.address for node in nodes}
        for node in nodes:
            node.transport.set_peers({name: port for name, port in ports.items() if name != node.name})
            node.raft.start(node.partition)
            running.enter_context(node.election)
            running.enter_context(node.upkeep)
        for number in range(5):
            await asyncio.to_thread(first.execute, [CreateSchema(f"S{number}")])
        history = nodes[0].catalog
        while history.history.earliest < history.history.latest or history.history.latest < 7:
            await asyncio.sleep(0.05)
            await asyncio.to_thread(history.poll)
            for node in nodes:
                await asyncio.to_thread(node.flush)
    return nodes


def main(arguments: list[str]) -> int:
    """Run it, and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first-port", type=int, default=47_410)
    port = parser.parse_args(arguments).first_port
    nodes = asyncio.run(run({name: f"127.0.0.1:{port + at}" for at, name in enumerate("abc")}))
    for node in nodes:
        report = node.compaction.last_round
        sys.stdout.write(f"{node.name}: {node.catalog.history}, term and coordinator {node.election.elected}, "
                         f"{len(node.partition.times)} times replicated{'' if report is None else f'; {report!r}'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
