# SPDX-License-Identifier: Apache-2.0
"""The leader of a Raft group coordinates the catalog: `CatalogNode.elected` instead of a lease in the store.

    python examples/catalog_leader.py

Three nodes in one process, with a pysyncobj member each. On every tick a member says who leads, and in which term, to
its node. The leader runs a round; then it is stopped, the next one runs a round in a higher term, and a cut that the
former leader had planned is refused where the data lies.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from typing import Any

from pysyncobj import SyncObj, SyncObjConf

from compactlib.catalog import (
    Assignments,
    CatalogNode,
    HybridClock,
    NodeId,
    NodeReport,
    PutObject,
    Schema,
    Timestamp,
    UpdateLog,
)
from compactlib.catalog.errors import StaleTerm
from compactlib.clock import SystemClock
from compactlib.kv import KVStore, MemoryStore

QUICK: dict[str, Any] = {"raftMinTimeout": 0.4, "raftMaxTimeout": 0.9, "appendEntriesPeriod": 0.05,
                         "connectionRetryTime": 0.2}


class Database:
    """Nobody hosts a partition here."""

    def assignments(self) -> Assignments:
        return {}

    def publish(self, zone: int, partitions: int, time: Timestamp) -> int:
        return 0

    def destroy(self, table: int, partition: int) -> None:
        pass


class Member:
    """A node of the catalog, whose coordinator is the leader of its Raft group."""

    def __init__(self, address: str, others: list[str], store: KVStore) -> None:
        self.node = CatalogNode(address, UpdateLog(store), HybridClock(SystemClock(), max_skew_seconds=0.0), Database(),
                                lease_seconds=None, data_availability_seconds=0.0, follow_seconds=0.0,
                                upkeep_seconds=0.0)
        self.raft = SyncObj(address, others, conf=SyncObjConf(**QUICK))
        self.raft.addOnTickCallback(self.note_leader)

    def note_leader(self) -> None:
        """In the thread of pysyncobj, where leader and term belong together."""
        leader = self.raft._getLeader()
        if leader is not None:
            self.node.elected(self.raft.raftCurrentTerm, leader.id)

    @property
    def is_coordinator(self) -> bool:
        return self.node.coordinator is not None and self.node.coordinator.node == self.node.name


class Group:
    """The members, and the host's two calls between them."""

    def __init__(self) -> None:
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        names = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
        for each in sockets:
            each.close()
        store = MemoryStore()
        self.members = {name: Member(name, [other for other in names if other != name], store) for name in names}
        for member in self.members.values():
            member.node.join()

    async def report(self, node: NodeId) -> NodeReport:
        return self.members[node.name].node.report()

    async def publish(self, node: NodeId, time: Timestamp) -> None:
        self.members[node.name].node.publish(time)

    def leader(self, *, but: Member | None = None) -> Member:
        """Wait for one that the others follow."""
        end = time.monotonic() + 60.0
        while time.monotonic() < end:
            rest = [member for member in self.members.values() if member is not but]
            found = [member for member in rest if member.is_coordinator]
            if len(found) == 1 and len({member.node.coordinator for member in rest}) == 1:
                return found[0]
            time.sleep(0.02)
        raise TimeoutError("the group has elected nobody")

    def round(self, leader: Member) -> tuple[int, int]:
        """Make three versions, and have the leader cut what nobody needs; returns its term and the earliest version."""
        for _ in range(3):
            latest = leader.node.service.history.latest
            leader.node.service.execute([PutObject(Schema(f"S{latest}"))])
        for member in self.members.values():
            member.node.run_pending()
        report = asyncio.run(leader.node.round(self))
        return report.term, leader.node.service.history.earliest

    def close(self) -> None:
        for member in self.members.values():
            member.raft.destroy()
            member.node.close()


def main() -> tuple[list[tuple[int, int]], str]:
    """Return the term and the earliest version after each round, and what became of the former leader's cut."""
    group = Group()
    try:
        first = group.leader()
        rounds = [group.round(first)]
        late = first.node.service.view(term=rounds[0][0])  # of its term, and carried out too late
        first.raft.destroy()
        second = group.leader(but=first)
        rounds.append(group.round(second))
        try:
            first.node.service.log.cut(first.node.service.log.write_snapshot(second.node.service.active()),
                                       term=late.term, conditions=late.conditions)
        except StaleTerm as error:
            return rounds, str(error)
        return rounds, "it was not refused"
    finally:
        group.close()


if __name__ == "__main__":
    for what in main():
        sys.stdout.write(f"{what}\n")
