# SPDX-License-Identifier: Apache-2.0
"""Worlds in which a catalog is compacted: nodes that join, leave, pause and restart, two replicas of one partition and
copies between them, transactions, readers, pins, and concurrent rounds of any number of coordinators.

Invariants: every version that an active transaction, a reader, a replica's replay after a restart or a pin needs can be
read; and the earliest version only rises.

Everything runs in one event loop, without worker threads, so that a seed determines the history. Calls of rounds wait
at gates, which the world opens in any order; and at any request to the store another event may happen.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any

import attrs

from compactlib.catalog import (
    Assignments,
    CatalogNode,
    CatalogTable,
    HybridClock,
    Members,
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
from compactlib.errors import CompactlibError
from compactlib.kv import MemoryStore
from compactlib.testing import Request, StoreInFront

NAMES = ("A", "B", "C", "D")
SKEW = 0.5


class InlineExecutor(ThreadPoolExecutor):
    """An executor that runs on the caller's thread."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **how: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **how))
        except BaseException as error:
            future.set_exception(error)
        return future


class NodeClock:
    """A node's clock, with an error within the skew."""

    def __init__(self, wall: ManualClock, off: float) -> None:
        self._wall, self._off = wall, off

    def now(self) -> float:
        return self._wall.now() + self._off

    def monotonic(self) -> float:
        return self._wall.monotonic()

    def sleep(self, seconds: float) -> None:
        self._wall.sleep(seconds)


@attrs.define
class Replica:
    """The partition on a node's disk.

    Attributes:
        incarnation: the life of this data.
        flushed: the number of log entries on the disk.
    """

    incarnation: int
    flushed: int


@attrs.define
class Copy:
    """A running copy.

    Attributes:
        flushed: of the source when the copy began.
        published: the source's published time when the copy began.
        is_pinned: whether the source's version is pinned during the copy.
    """

    flushed: int
    published: Timestamp
    is_pinned: bool


class World:
    """One history. `play` raises `AssertionError` if a needed version is cut."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.is_quiet = bool(seed % 2)  # nodes stay, and replicas are copied more often
        self.wall = ManualClock(1000.0)
        self.store = MemoryStore(predicates="value")
        self.offs = {name: self.rng.uniform(-SKEW / 2, SKEW / 2) for name in NAMES}
        self.nodes: dict[str, CatalogNode] = {}
        self.disks: dict[str, Replica] = {}
        self.copies: dict[str, Copy] = {}
        self.hosts = {"A", "C"}
        self.log: list[tuple[str, int]] = []  # the partition's, of writes by version and times
        self.transactions: list[tuple[str, Any]] = []
        self.readers: list[tuple[str, str, int]] = []
        self.pinned: dict[str, int] = {}
        self.gates: list[asyncio.Event] = []
        self.rounds: list[asyncio.Task[Any]] = []
        self.terms = 0
        self.lives = 0
        self.made = 0
        self.busy: set[str] = set(NAMES)  # nodes in the middle of a call
        self.earliest = 0
        self.cuts = 0
        self.table: CatalogTable | None = None
        self.failed: AssertionError | None = None
        self.truth = UpdateLog(self.store)
        self.members = Members(self.store)

    async def play(self, events: int) -> None:
        asyncio.get_running_loop().set_default_executor(InlineExecutor())
        first = self.open("A")
        first.service.execute([PutObject(Schema("S")), PutObject(Zone("Z", 1)),
                               PutObject(CatalogTable("T"), schema="S", zone="Z")], wait=False)
        self.table = first.service.catalog(1).find("table", "T", "S")
        for name in ("A", "B", "C"):
            if name in self.hosts:
                self.lives += 1
                self.disks[name] = Replica(self.lives, 0)
            self.start(name)
        self.busy.clear()
        for _ in range(events):
            await self.step()
        for task in self.rounds:
            task.cancel()
        await asyncio.gather(*self.rounds, return_exceptions=True)

    async def step(self) -> None:
        self.wall.advance(self.rng.choice([0.0, 0.001, 0.1, 1.0]))
        kinds = {self.version: 4, self.begin: 3, self.end: 5, self.write: 4, self.flush: 6, self.raise_low: 6,
                 self.round: 12, self.open_gate: 40, self.take_copy: 2, self.install_copy: 2, self.pin: 1,
                 self.release: 3, self.read: 1, self.unread: 3, self.crash: 1, self.restart: 4, self.leave: 1,
                 self.host_elsewhere: 1, self.lose_time: 1}
        if self.is_quiet:
            for rare in (self.crash, self.restart, self.leave, self.pin, self.host_elsewhere, self.read):
                kinds[rare] = 0
            kinds |= {self.take_copy: 5, self.install_copy: 5, self.flush: 9}
        with contextlib.suppress(CompactlibError):  # a named error
            self.rng.choices(list(kinds), list(kinds.values()))[0]()
        for _ in range(self.rng.randrange(12)):
            await asyncio.sleep(0)
        if self.failed is not None:
            raise self.failed
        self.check()

    # -- invariants

    def check(self) -> None:
        earliest = self.truth.state().earliest
        assert earliest >= self.earliest, "the earliest version fell"
        self.cuts += earliest > self.earliest
        self.earliest = earliest
        for name, transaction in self.transactions:
            assert transaction.version >= earliest, f"a transaction on {name} uses version {transaction.version}, " \
                                                    f"history begins with {earliest}"
        for name, _, version in self.readers:
            assert version >= earliest, f"a reader on {name} reads version {version}, history begins with {earliest}"
        for owner, version in self.pinned.items():
            assert version >= earliest, f"{owner} has pinned version {version}, history begins with {earliest}"
        for name in self.disks:
            if name in self.nodes and self.is_registered(name):
                for kind, version in self.log[self.disks[name].flushed:]:
                    assert kind != "write" or version >= earliest, \
                        f"{name} must replay version {version}, history begins with {earliest}"

    def is_registered(self, name: str) -> bool:
        assert self.table is not None
        return self.nodes[name].id is not None and self.nodes[name].published.published(self.table.id, 0) is not None

    # -- nodes

    def open(self, name: str) -> CatalogNode:
        log = UpdateLog(StoreInFront(self.store, partial(self.at_request, name)), rng=self.rng)
        clock = HybridClock(NodeClock(self.wall, self.offs[name]), max_skew_seconds=SKEW)
        return CatalogNode(name, log, clock, Database(self, name), lease_seconds=None, delay_seconds=SKEW,
                           data_availability_seconds=self.rng.choice([0.5, 3.0]))

    def start(self, name: str) -> None:
        """Begin a life of a node: it registers its disk, replays the rest, and joins."""
        assert self.table is not None
        node = self.open(name)
        disk = self.disks.get(name)
        if disk is not None:
            try:
                node.published.register(self.table.id, 0, incarnation=disk.incarnation, flushed_index=disk.flushed,
                                        created_at=self.table.created_at)
            except CompactlibError:
                self.drop(name)  # its replay was cut while it was absent and not needed
            else:
                self.replay(node, disk)
        try:
            node.join()
        except CompactlibError:
            self.drop(name)
            node = self.open(name)
            node.join()
        self.nodes[name] = node

    def replay(self, node: CatalogNode, disk: Replica) -> None:
        assert self.table is not None
        for index, (kind, value) in enumerate(self.log[disk.flushed:], disk.flushed + 1):
            if kind == "time":
                node.published.applied(self.table.id, 0, disk.incarnation, index=index, time=value)

    def drop(self, name: str) -> None:
        self.disks.pop(name, None)

    def alive(self) -> list[str]:
        """Return the running nodes without a call."""
        return sorted(self.nodes.keys() - self.busy)

    def crash(self) -> None:
        if len(self.nodes) > 1:
            name = self.rng.choice(self.alive())
            del self.nodes[name]
            self.copies.pop(name, None)
            self.transactions = [each for each in self.transactions if each[0] != name]
            self.readers = [each for each in self.readers if each[0] != name]

    def restart(self) -> None:
        gone = sorted(set(NAMES) - self.nodes.keys() - self.busy)
        if gone:
            self.start(self.rng.choice(gone))

    def leave(self) -> None:
        """Report a dead node as left."""
        members = {node.name for node in self.members.read()[0].nodes}
        gone = sorted(members - self.nodes.keys())
        if gone:
            self.nodes[self.rng.choice(self.alive())].leave(self.rng.choice(gone))

    def host_elsewhere(self) -> None:
        """Move the partition away from a dead node, if another node hosts it."""
        gone = sorted(self.hosts - self.nodes.keys())
        if gone and self.hosts & self.nodes.keys():
            self.hosts.discard(self.rng.choice(gone))

    # -- the database

    def version(self) -> None:
        self.made += 1
        self.nodes[self.rng.choice(self.alive())].service.execute([PutObject(Schema(f"S{self.made}"))], wait=False)

    def begin(self) -> None:
        name = self.rng.choice(self.alive())
        self.nodes[name].service.poll()
        self.transactions.append((name, self.nodes[name].transactions.begin()))

    def end(self) -> None:
        if self.transactions:
            name, transaction = self.transactions.pop(self.rng.randrange(len(self.transactions)))
            self.nodes[name].transactions.end(transaction)

    def write(self) -> None:
        if self.transactions:
            self.append("write", self.rng.choice(self.transactions)[1].version)

    def append(self, kind: str, value: int) -> None:
        assert self.table is not None
        self.log.append((kind, value))
        for name, disk in self.disks.items():
            if kind == "time" and name in self.nodes and self.is_registered(name):
                self.nodes[name].published.applied(self.table.id, 0, disk.incarnation, index=len(self.log), time=value)

    def flush(self) -> None:
        assert self.table is not None
        names = [name for name in self.alive() if name in self.disks and self.is_registered(name)]
        if not names:
            return
        name = self.rng.choice(names)
        disk, published = self.disks[name], self.nodes[name].published
        ticket = published.begin_flush(self.table.id, 0, disk.incarnation)
        disk.flushed = len(self.log)
        published.flushed([ticket])

    def raise_low(self) -> None:
        for name in self.alive():
            self.nodes[name].watermark.advance()

    def read(self) -> None:
        name = self.rng.choice(self.alive())
        node = self.nodes[name]
        node.service.poll()
        low = node.watermark.value.time
        if low is not None:
            self.made += 1
            reader = f"reader {self.made}"
            node.watermark.lock(reader, low)
            version = node.service.history.version_at(low) if low >= node.service.history.activation(
                node.service.history.earliest) else None
            if version is None:
                node.watermark.unlock(reader)  # further reads would raise a named error
            else:
                self.readers.append((name, reader, version))

    def unread(self) -> None:
        if self.readers:
            name, reader, _ = self.readers.pop(self.rng.randrange(len(self.readers)))
            self.nodes[name].watermark.unlock(reader)

    def pin(self) -> None:
        service = self.nodes[self.rng.choice(self.alive())].service
        self.made += 1
        owner = f"pin {self.made}"
        version = self.rng.randint(max(service.history.earliest, 1), service.history.latest)
        service.pins.pin(owner, version, service.history, ttl_seconds=1e6)
        self.pinned[owner] = version

    def release(self) -> None:
        if self.pinned:
            owner = self.rng.choice(sorted(self.pinned))
            del self.pinned[owner]
            self.nodes[self.rng.choice(self.alive())].service.pins.release(owner)

    # -- copies

    def take_copy(self) -> None:
        """Begin a copy of the partition to a node, whose own replica, if any, was lost or moves."""
        assert self.table is not None
        sources = [name for name in self.alive() if name in self.disks and self.is_registered(name)]
        to = self.rng.choice(self.alive() or [""])
        sources = [name for name in sources if name != to]
        if not sources or not to or to in self.copies:
            return
        source = self.nodes[self.rng.choice(sources)]
        published = source.published.published(self.table.id, 0)
        assert published is not None
        copy = Copy(self.disks[source.name].flushed, published, self.rng.random() < 0.5)
        if copy.is_pinned:
            source.service.pins.pin(f"copy to {to}", source.service.history.version_at(published),
                                    source.service.history, ttl_seconds=1e6)
        self.copies[to] = copy

    def install_copy(self) -> None:
        assert self.table is not None
        ready = [name for name in sorted(self.copies) if name in self.alive()]
        if not ready:
            return
        name = self.rng.choice(ready)
        copy, node = self.copies.pop(name), self.nodes[name]
        old = self.disks.get(name)
        if old is not None:
            node.published.remove(self.table.id, 0, old.incarnation)
            self.drop(name)
        self.lives += 1
        node.service.poll()
        disk = Replica(self.lives, copy.flushed)
        node.published.register(self.table.id, 0, incarnation=disk.incarnation, created_at=self.table.created_at,
                                flushed_index=disk.flushed, inherited=copy.published)
        self.disks[name] = disk
        self.replay(node, disk)
        self.hosts.add(name)
        if copy.is_pinned:
            node.service.pins.release(f"copy to {name}")

    # -- rounds

    def round(self) -> None:
        """Run a round of a coordinator, perhaps in a superseded term or in a term of another node."""
        if len([task for task in self.rounds if not task.done()]) < 3:
            self.terms += self.rng.random() < 0.3
            node = self.nodes[self.rng.choice(self.alive())]
            node.elected(self.terms, node.name)
            self.rounds.append(asyncio.create_task(self._round(node)))

    async def _round(self, node: CatalogNode) -> None:
        with contextlib.suppress(CompactlibError):
            await node.round(self, seconds=1e6)

    async def gate(self) -> None:
        gate = asyncio.Event()
        self.gates.append(gate)
        await gate.wait()

    def open_gate(self) -> None:
        for _ in range(self.rng.choice([1, 2, 20])):
            if self.gates:
                self.gates.pop(self.rng.randrange(len(self.gates))).set()

    async def report(self, node: NodeId) -> NodeReport:
        await self.gate()
        if node.name not in self.nodes or self.rng.random() < 0.01:
            raise CompactlibError("no route")
        report = self.nodes[node.name].report()
        await self.gate()
        return report

    async def publish(self, node: NodeId, time: Timestamp) -> None:
        await self.gate()
        if node.name not in self.nodes:
            raise CompactlibError("no route")
        self.nodes[node.name].publish(time)

    def lose_time(self) -> None:
        """Propose a published time again, or late."""
        times = [value for kind, value in self.log if kind == "time"]
        if times:
            self.append("time", self.rng.choice(times))

    def at_request(self, name: str, request: Request, act: Callable[[], Any]) -> Any:
        """Let an event happen on other nodes before a request of this node."""
        if not self.busy and self.nodes.keys() - {name} and self.rng.random() < 0.02:
            self.busy.add(name)
            try:
                with contextlib.suppress(CompactlibError):
                    self.rng.choice([self.version, self.begin, self.write, self.flush, self.take_copy,
                                     self.install_copy, *([] if self.is_quiet else [self.pin, self.restart, self.read])
                                     ])()
            finally:
                self.busy.discard(name)
            try:
                self.check()
            except AssertionError as error:
                self.failed = error  # the sender of the request may treat it as an error of the host
                raise
        return act()


class Database:
    """The database of one node."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name

    def assignments(self) -> Assignments:
        if self.world.table is None:
            return {}
        return {self.world.table.zone_id: ZoneAssignments(1, dict.fromkeys(sorted(self.world.hosts), 1))}

    def publish(self, zone: int, partitions: int, time: Timestamp) -> int:
        if self.name not in self.world.hosts:
            return 0
        self.world.append("time", time)
        return 1

    def destroy(self, table: int, partition: int) -> None:
        pass


def play(seed: int, events: int = 300) -> World:
    """Play one world; a failed assertion has its seed."""
    world = World(seed)
    try:
        asyncio.run(world.play(events))
    except BaseException as error:
        error.add_note(f"world {seed}")
        raise
    return world
