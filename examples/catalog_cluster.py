# SPDX-License-Identifier: Apache-2.0
"""Five real processes on loopback change a schema under load; the coordinator is killed; the log shrinks.

    python examples/catalog_cluster.py FOLDER [--nodes 5] [--seconds 6] [--certificates FOLDER]

The second folder has authority.pem, and NAME.pem with NAME.key for each node n1, n2, ...; without it they talk in plain
text, which is for loopback. Each node is a process with its own low watermark, transactions and published times,
talking TCP to the others. What a database has anyway is played by one SQLite file in FOLDER: the update log lies there,
the membership, the leader of the metastore group, and the times that a real cluster would replicate through the Raft
groups of its partitions.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import ssl
import subprocess
import sys
from pathlib import Path
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
    RenameTable,
    RoundReport,
    TcpTransport,
    Topology,
    UpdateLog,
    ZoneAssignments,
    ZoneResult,
)
from compactlib.clock import SystemClock
from compactlib.errors import CompactlibError
from compactlib.kv import Condition, KeyNotFound, KVStore, SqliteStore

SKEW_SECONDS = 0.05
PARTITIONS = 2
NAME = "example"
CLUSTER = b"cluster"
STATE = b"state"
TURN_SECONDS = 0.05
OPTIONS = NodeOptions(collect_seconds=2.0, retry_seconds=0.2, publish_seconds=3.0, interval_seconds=None)
ID = Column(name="ID", type=ColumnType.INT64, nullable=False)


def tell(text: str) -> None:
    """A line for whoever watches."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def open_service(store: KVStore) -> CatalogService:
    """The catalog of one process."""
    return CatalogService(UpdateLog(store), HybridClock(SystemClock(), max_skew_seconds=SKEW_SECONDS),
                          delay_seconds=0.05)


def context(certificates: Path, name: str, *, server: bool) -> ssl.SSLContext:
    """What a node listens with, or connects with: both sides show a certificate."""
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    made.verify_mode = ssl.CERT_REQUIRED
    made.load_verify_locations(certificates / "authority.pem")
    made.load_cert_chain(certificates / f"{name}.pem", certificates / f"{name}.key")
    return made


# --- a node ---------------------------------------------------------------------------------------------------------


class Node:
    """One process of the cluster.

    Args:
        name: which.
        life: its incarnation.
        store: what all of them share.
        ports: where each node listens.
        certificates: the folder of them; plain text without one.
    """

    def __init__(self, name: str, life: int, store: KVStore, ports: dict[str, int],
                 certificates: Path | None = None) -> None:
        self.me = NodeId(name, life)
        self.store = store
        self.names = sorted(ports)
        self.service = open_service(store)
        self.transactions = ActiveTransactions(lambda: self.service.history, self.service.clock)
        self.watermark = LowWatermark(store, name, self.service.clock, data_availability_seconds=0.2)
        self.published = PublishedTimes(store, name)
        self.tables = self._register()
        needs = LocalNeeds(self.me, lambda: self.service.history, transactions=self.transactions,
                           partitions=self.published, sources=[self.watermark])
        host = LocalHost(self.service, needs, watermark=self.watermark, membership=self.topology,
                         assignments=self.assignments, publish=self.publish, guards=self.guards)
        peers = {other: ("127.0.0.1", port) for other, port in ports.items() if other != name}
        server, client = (None if certificates is None else context(certificates, name, server=is_server)
                          for is_server in (True, False))
        transport = TcpTransport(self.me, cluster=NAME, listen=("127.0.0.1", ports[name]), peers=peers,
                                 server_tls=server, client_tls=client)
        self.compaction = CompactionService(self.me, host, transport, options=OPTIONS)
        # Each rise of the coordinator's low watermark starts a round.
        self.watermark.listen(self.compaction.watermark_moved)
        self.upkeep = CatalogUpkeep(self.service, self.watermark, published=self.published,
                                    assignments=self.assignments, interval_seconds=0.2)
        self.told: RoundReport | None = None
        self.renamed = 0

    def _register(self) -> list[int]:
        first = next(catalog for catalog in self.service.history if catalog.tables)
        tables = sorted(first.tables)
        for table in tables:
            for partition in range(PARTITIONS):
                self.published.register(table, partition, incarnation=1, created_at=first.activation)
        return tables

    def state(self) -> dict[str, Any]:
        """What the cluster agrees on."""
        found: dict[str, Any] = json.loads(self.store.get(CLUSTER, STATE).value)
        return found

    def topology(self) -> Topology:
        """The membership, from where it is decided."""
        state = self.state()
        return Topology(frozenset(NodeId(name, life) for name, life in state["members"].items()), state["epoch"])

    def assignments(self) -> Assignments:
        """Everybody hosts everything."""
        latest = self.service.history.catalog(self.service.history.latest)
        return Assignments({zone: ZoneAssignments.everywhere(self.names, PARTITIONS) for zone in sorted(latest.zones)})

    def guards(self) -> list[Condition]:
        """The snapshot is written only while the membership stays as it is."""
        return [Condition(CLUSTER, STATE, self.store.get(CLUSTER, STATE).predicate)]

    def publish(self, zone: int, partitions: int, lowest: int) -> ZoneResult:
        """Replicate a time to the partitions whose primary is here, the others' to others."""
        members = sorted(self.state()["members"])
        mine = [number for number in range(partitions) if members[number % len(members)] == self.me.name]
        for number in mine:
            self.store.set(b"times", b"%d" % number, str(lowest).encode())
        return ZoneResult(zone, published=len(mine), skipped=partitions - len(mine))

    def apply_times(self) -> None:
        """What a replica does: apply the time, flush, and only then publish it."""
        for number in range(PARTITIONS):
            with contextlib.suppress(KeyNotFound):
                lowest = int(self.store.get(b"times", b"%d" % number).value)
                for table in self.tables:
                    self.published.applied(table, number, 1, index=lowest, time=lowest)
        self.published.flushed([self.published.begin_flush(table, number, 1)
                                for table in self.tables for number in range(PARTITIONS)])

    def change_schema(self) -> None:
        """Rename this node's own table, under a transaction that uses the version before."""
        transaction = self.transactions.begin()
        self.renamed += 1
        latest = self.service.history.catalog(self.service.history.latest)
        own = next(table.name for table in latest.tables.values() if table.name.startswith(f"T_{self.me.name}_"))
        with contextlib.suppress(CompactlibError):  # another node was faster ten times, or SQLite was busy
            new = f"T_{self.me.name}_{self.me.incarnation}_{self.renamed}"
            self.service.execute([RenameTable(schema="PUBLIC", name=own, new_name=new)], wait=False)
        self.transactions.end(transaction)

    def turn(self) -> dict[str, Any]:
        """Everything that does not belong to the protocol, every few milliseconds."""
        self.service.poll()
        self.apply_times()
        state = self.state()
        if state["load"]:
            self.change_schema()
        return state

    async def run(self) -> None:
        """Take part until killed."""
        async with self.compaction:
            # Nothing begins before every clock has passed what an earlier life may have given out.
            await asyncio.sleep(2 * SKEW_SECONDS)
            tell(f"{self.me} is up")
            with self.upkeep:
                while True:
                    await self.take_part()
                    await asyncio.sleep(TURN_SECONDS)

    async def take_part(self) -> None:
        """One turn, and what the cluster has agreed on meanwhile."""
        state = await asyncio.to_thread(self.turn)
        self.compaction.topology_is(await asyncio.to_thread(self.topology))
        self.compaction.elected(state["term"], state["leader"])
        report = self.compaction.last_round
        if report is not None and report != self.told:
            self.told = report
            tell(repr(report))


# --- what starts, kills and watches them ----------------------------------------------------------------------------


class Cluster:
    """The processes, and what they agree on.

    Args:
        folder: where the shared file lies; must exist.
        nodes: how many.
        ports: where they listen; free ones.
        certificates: the folder of them; plain text without one.
    """

    def __init__(self, folder: Path, nodes: int, ports: list[int], certificates: Path | None = None) -> None:
        self.path = folder / "cluster.sqlite"
        self.store = SqliteStore(self.path, synchronous="normal")
        self.names = [f"n{number}" for number in range(1, nodes + 1)]
        self.ports = dict(zip(self.names, ports, strict=True))
        self.certificates = [] if certificates is None else [str(certificates)]
        self.output = {name: folder / f"{name}.log" for name in self.names}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.state: dict[str, Any] = {"epoch": 1, "members": dict.fromkeys(self.names, 1), "term": 1,
                                      "leader": self.names[0], "load": True}
        self.log = UpdateLog(self.store)
        service = open_service(self.store)
        zone: list[CreateSchema | CreateZone] = [CreateSchema("PUBLIC"), CreateZone("Z", partitions=PARTITIONS)]
        tables = [CreateTable(schema="PUBLIC", name=f"T_{name}_0", columns=(ID,), primary_key=("ID",), zone="Z")
                  for name in self.names]
        service.execute([*zone, *tables])
        self.agree()

    def agree(self, **changes: Any) -> None:
        """Change what the cluster agrees on, in one step."""
        self.state.update(changes)
        self.store.set(CLUSTER, STATE, json.dumps(self.state).encode())

    def start(self, name: str) -> None:
        """Start a node's process."""
        with self.output[name].open("ab") as output:
            self.processes[name] = subprocess.Popen(
                [sys.executable, __file__, "--node", name, str(self.state["members"][name]), str(self.path),
                 json.dumps(self.ports), *self.certificates], stdout=output, stderr=subprocess.STDOUT)

    def kill_leader(self) -> str:
        """Kill the coordinator without a word; another node is elected, and the membership shrinks."""
        name = str(self.state["leader"])
        self.processes[name].kill()
        self.processes[name].wait()
        members = {other: life for other, life in self.state["members"].items() if other != name}
        self.agree(epoch=self.state["epoch"] + 1, members=members, term=self.state["term"] + 1, leader=min(members))
        return name

    def restart(self, name: str) -> None:
        """A killed node comes back, in its next life."""
        self.agree(epoch=self.state["epoch"] + 1, members={**self.state["members"], name: 2})
        self.start(name)

    def size(self) -> tuple[int, int]:
        """The earliest and the latest version of the log."""
        state = self.log.state()
        assert state is not None
        return state.earliest, state.latest

    def close(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        self.store.close()


def run(folder: Path, ports: list[int], seconds: float,
        certificates: Path | None = None) -> dict[str, tuple[int, int]]:
    """The whole story; the log's earliest and latest version at its stations.

    Raises:
        TimeoutError: the log did not shrink.
    """
    cluster, clock = Cluster(folder, len(ports), ports, certificates), SystemClock()
    stations: dict[str, tuple[int, int]] = {}

    def station(name: str) -> None:
        stations[name] = cluster.size()
        tell(f"{name}: versions {stations[name][0]} to {stations[name][1]}")

    try:
        for name in cluster.names:
            cluster.start(name)
        wait_until(lambda: cluster.size()[0] > 1, "the log to shrink under load")
        station("shrunk under load")
        clock.sleep(seconds / 2)
        killed = cluster.kill_leader()
        station(f"coordinator {killed} killed, {cluster.state['leader']} elected")
        clock.sleep(seconds / 2)
        station("without it the log cannot shrink: it hosts partitions")
        before = cluster.size()[0]
        cluster.restart(killed)
        wait_until(lambda: cluster.size()[0] > before, "the log to shrink again")
        station(f"{killed} is back")
        cluster.agree(load=False)
        wait_until(lambda: cluster.size()[0] == cluster.size()[1], "the log to shrink to its latest version")
        station("the load is over")
    finally:
        cluster.close()
    return stations


def wait_until(condition: Any, what: str, seconds: float = 60.0) -> None:
    """Wait for something that must come.

    Raises:
        TimeoutError: it did not.
    """
    clock = SystemClock()
    end = clock.monotonic() + seconds
    while not condition():
        if clock.monotonic() > end:
            raise TimeoutError(f"waited {seconds} s for {what}")
        clock.sleep(0.05)


def main(arguments: list[str]) -> int:
    """Run the cluster, or one node of it."""
    if arguments[:1] == ["--node"]:
        name, life, path, ports, *certificates = arguments[1:]
        store = SqliteStore(path, synchronous="normal")
        asyncio.run(Node(name, int(life), store, json.loads(ports), *map(Path, certificates)).run())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--first-port", type=int, default=47_310)
    parser.add_argument("--certificates", type=Path)
    given = parser.parse_args(arguments)
    given.folder.mkdir(parents=True, exist_ok=True)
    run(given.folder, list(range(given.first_port, given.first_port + given.nodes)), given.seconds, given.certificates)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
