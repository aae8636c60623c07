# SPDX-License-Identifier: Apache-2.0
"""The world of `run.py`: what is true, whatever the nodes of the cluster know of it.

A real update log in a store in memory; partitions as logs that replicas apply, flush, and replay after a crash;
transactions, readers, pins, index builds and rebalances, each of which needs a version. `check_cut` says whether
everything that anybody needs is still readable. Nothing here is code of the protocol.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from compactlib.catalog import (
    Assignments,
    CatalogService,
    Column,
    ColumnType,
    CreateIndex,
    CreateSchema,
    CreateTable,
    CreateZone,
    DropTable,
    HybridClock,
    MakeIndexAvailable,
    NodeId,
    StartBuildingIndex,
    Topology,
    UpdateLog,
    ZoneAssignments,
)
from compactlib.catalog.model.timestamp import Timestamp, from_seconds
from compactlib.catalog.round.node import CatalogNode
from compactlib.catalog.schema.catalog import Catalog
from compactlib.catalog.schema.commands import Command
from compactlib.catalog.schema.descriptors import IndexStatus
from compactlib.catalog.schema.table_commands import RenameTable
from compactlib.catalog.schema.versions import RetainedVersions
from compactlib.kv import Condition, MemoryStore

META = b"meta"
EPOCH = b"epoch"
MOVES = b"moves"
ZONES = 2
TIME = -1
"""Marks an entry of a partition's log that is a time; other entries name their table."""
DELAY_SECONDS = 0.3
_COLUMNS = (Column(name="ID", type=ColumnType.INT64, nullable=False),)


class SimulationFailure(AssertionError):
    """An invariant does not hold. The message names the seed and how to replay it."""


class SimulatedTime:
    """A `Clock` that the simulation moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.at = now

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.at

    def monotonic(self) -> float:
        """The same."""
        return self.at

    def sleep(self, seconds: float) -> None:
        """Nobody sleeps here."""
        raise AssertionError(f"somebody sleeps {seconds} s in a simulation")


class Replica:
    """One copy of a partition: entries below `flushed` are on its disk, the rest it must replay after a crash."""

    __slots__ = ("flushed", "published")

    def __init__(self, flushed: int, published: Timestamp) -> None:
        self.flushed: int = flushed
        self.published: Timestamp = published


class Partition:
    """A replicated log. An entry is a write to a table under a catalog version, or a lowest time of transactions."""

    __slots__ = ("log", "number", "primary", "replicas", "zone")

    def __init__(self, zone: int, number: int) -> None:
        self.zone: int = zone
        self.number: int = number
        self.log: list[tuple[int, int]] = []
        self.replicas: dict[str, Replica] = {}
        self.primary: str | None = None


class SimulatedNode:
    """One node: its clock, what survives a restart, and what does not."""

    def __init__(self, name: str, time: SimulatedTime, skew: float) -> None:
        self.name = name
        self.skew = skew
        self.incarnation = 0
        self.alive: bool = False
        self.member = True
        self.machine: CatalogNode | None = None
        self.known = 1
        self.cut = 0
        self.watermark: Timestamp | None = None
        self.wanted_watermark: Timestamp | None = None
        self.transactions: dict[int, int] = {}
        self.readers: dict[int, Timestamp] = {}
        self.pins: dict[int, int] = {}
        self.timers: dict[str, float] = {}
        self.begins_after: float = 0.0
        self._time = time
        self._last = 0

    @property
    def id(self) -> NodeId:
        """The node in this life."""
        return NodeId(self.name, self.incarnation)

    def now(self) -> Timestamp:
        """The node's own time: off by its skew, ascending within one life."""
        physical = from_seconds(self._time.at + self.skew)
        self._last = physical if physical > self._last else self._last + 1
        return self._last

    def start(self, machine: CatalogNode) -> None:
        """A new life."""
        self.alive, self.machine, self._last = True, machine, 0

    def crash(self) -> None:
        """Everything that is not on disk is gone."""
        self.alive, self.machine = False, None
        for lost in (self.transactions, self.readers, self.pins, self.timers):
            lost.clear()
        self.wanted_watermark = None


class World:
    """See the module.

    Args:
        random: decides everything that is left open.
        nodes: how many nodes there can be.
        max_skew_seconds: how far two clocks may differ.
    """

    def __init__(self, random: Random, nodes: int, max_skew_seconds: float) -> None:
        self.random = random
        self.time: SimulatedTime = SimulatedTime()
        self.max_skew_seconds = max_skew_seconds
        self.store: MemoryStore = MemoryStore()
        self.log: UpdateLog = UpdateLog(self.store, rng=random)
        self.service: CatalogService = CatalogService(self.log, HybridClock(self.time), delay_seconds=DELAY_SECONDS)
        self.activations: list[Timestamp] = [1]
        self.catalogs: list[Catalog] = [self.service.catalog(0)]
        self.nodes: dict[str, SimulatedNode] = {
            name: SimulatedNode(name, self.time, self._skew()) for name in "abcdefg"[:nodes]}
        self.partitions: dict[tuple[int, int], Partition] = {}
        self.tables: dict[str, tuple[int, int]] = {}
        self.zones: dict[int, int] = {}
        self.building: dict[int, int] = {}
        self.rebalancing: dict[int, int] = {}
        self.epoch: int = 0
        self.moves: int = 0
        self.cuts: list[int] = []
        self.trace: list[tuple[Any, ...]] = []
        self.drops_tables = True
        self.first_table: dict[int, int] = {}
        self._count = 0
        self._views: dict[tuple[int, int], RetainedVersions] = {}
        self._seen: list[tuple[int, int, int]] = []
        self.store.set(META, EPOCH, b"0")
        self.store.set(META, MOVES, b"0")
        self._create_zones()

    def _skew(self) -> float:
        return self.random.uniform(-0.5, 0.5) * self.max_skew_seconds

    def new_skew(self, node: SimulatedNode) -> None:
        """The node's clock is set, within the limit."""
        node.skew = self._skew()

    def _create_zones(self) -> None:
        names = sorted(self.nodes)
        zones = [CreateZone(name=f"Z{one}", partitions=1 + one) for one in range(ZONES)]
        self.execute([CreateSchema(name="P"), *zones])
        for zone in self.service.catalog(1).zones.values():
            self.zones[zone.id] = zone.partitions
            for number in range(zone.partitions):
                partition = self.partitions[zone.id, number] = Partition(zone.id, number)
                for name in self.random.sample(names[:-1], min(len(names) - 1, self.random.randint(2, 3))):
                    partition.replicas[name] = Replica(0, self.activations[1])
                partition.primary = min(partition.replicas)
        for number in range(2):
            self.create_table(number)
        for partition in self.partitions.values():  # all empty, and nobody has a transaction
            for replica in partition.replicas.values():
                replica.published = self.activations[-1]
        owners = [(name, partition.zone, partition.number)
                  for partition in self.partitions.values() for name in partition.replicas]
        self.trace = [("Init", len(self.activations) - 1, tuple(owners))]

    # ---- the schema

    def execute(self, commands: Sequence[Command]) -> int:
        """Change the schema; the version that it makes, or the latest."""
        version = self.service.execute(commands, wait=False).version
        if version == len(self.activations):
            self.catalogs.append(self.service.catalog(version))
            self.activations.append(self.catalogs[-1].activation)
            self.trace.append(("NewVersion", version))
        return version

    def create_table(self, number: int) -> None:
        """A table in one of the zones."""
        zone = self.random.randrange(ZONES)
        version = self.execute([CreateTable(schema="P", name=f"T{number}", columns=_COLUMNS, primary_key=("ID",),
                                            zone=f"Z{zone}")])
        made = self.service.catalog(version).find_table("P", f"T{number}")
        assert made is not None
        self.tables[f"T{number}"] = made.id, made.zone_id
        self._seen.append((version, made.id, made.zone_id))
        self.first_table.setdefault(made.zone_id, version)

    def change_schema(self) -> int:
        """One step of some schema change."""
        choice = self.random.random()
        name = self.random.choice(sorted(self.tables)) if self.tables else ""
        for index, registered in sorted(self.building.items()):
            if choice < 0.5:
                status = self.service.catalog(self.service.history.latest).index(index).status
                start = status is IndexStatus.REGISTERED
                version = self.execute([StartBuildingIndex(index) if start else MakeIndexAvailable(index)])
                if not start:
                    del self.building[index]
                return max(version, registered)
        if not name or (choice < 0.6 and len(self.tables) < 4):
            self.create_table(self._next())
        elif choice < 0.7 and len(self.tables) > 1 and not self.building and self.drops_tables:
            self.execute([DropTable(schema="P", name=name)])
            del self.tables[name]
        elif choice < 0.85 and not self.building:
            version = self.execute([CreateIndex(schema="P", table=name, name=f"I{self._next()}", columns=("ID",))])
            latest = self.service.catalog(version)
            self.building[max(latest.building)] = version
        else:
            new = f"T{self._next()}"
            self.execute([RenameTable(schema="P", name=name, new_name=new)])
            self.tables[new] = self.tables.pop(name)
        return self.service.history.latest

    def finish_builds(self) -> None:
        """Every index becomes available."""
        for index in sorted(self.building):
            status = self.service.catalog(self.service.history.latest).index(index).status
            if status is IndexStatus.REGISTERED:
                self.execute([StartBuildingIndex(index)])
            self.execute([MakeIndexAvailable(index)])
        self.building.clear()

    def version_at(self, time: Timestamp) -> int:
        """The version in force at `time`, retained or not."""
        return bisect_right(self.activations, time) - 1

    def view_of(self, node: SimulatedNode) -> RetainedVersions:
        """The history as far as the node has heard of it: of new versions, and of cuts."""
        key = node.cut, node.known
        if key not in self._views:
            self._views[key] = RetainedVersions(self.catalogs[node.cut:node.known + 1])
        return self._views[key]

    def learn(self, node: SimulatedNode, *, known: int = 0, cut: int = 0) -> None:
        """The node hears of a version, or of a cut."""
        node.known = max(node.known, known, cut)
        node.cut = max(node.cut, cut)

    def knows_all_until(self, node: SimulatedNode, time: Timestamp) -> bool:
        """Whether the node has heard of every version in force at or before `time`."""
        return node.known >= self.version_at(time)

    # ---- partitions

    def bump_epoch(self) -> None:
        """The membership has changed."""
        self.epoch += 1
        self.store.set(META, EPOCH, str(self.epoch).encode())

    def conditions(self) -> tuple[Condition, ...]:
        """What must still hold when a snapshot is written: the membership and the assignments as they are now."""
        return tuple(Condition(META, key, self.store.get(META, key).predicate) for key in (EPOCH, MOVES))

    def topology(self) -> Topology:
        """The nodes that are up, as everybody would see them without delay."""
        return Topology(frozenset(node.id for node in self.nodes.values() if node.alive and node.member), self.epoch)

    def assignments(self) -> Assignments:
        """Who must host what, now."""
        return Assignments({zone: ZoneAssignments.of([sorted(self.partitions[zone, number].replicas)
                                                      for number in range(count)])
                            for zone, count in self.zones.items()}, self.moves)

    def hosted(self, node: SimulatedNode) -> Iterator[tuple[Partition, Replica]]:
        """The node's replicas."""
        for partition in self.partitions.values():
            replica = partition.replicas.get(node.name)
            if replica is not None:
                yield partition, replica

    def hosted_tables(self, node: SimulatedNode) -> dict[int, int]:
        """Bitmaps by table, of every table that the node has heard of."""
        masks: dict[int, int] = {}
        for partition, _ in self.hosted(node):
            masks[partition.zone] = masks.get(partition.zone, 0) | 1 << partition.number
        return {table: masks[zone] for version, table, zone in self._seen if version <= node.known and zone in masks}

    def append_write(self, partition: Partition, version: int, table: int) -> None:
        """A transaction under `version` writes to a table."""
        partition.log.append((table, version))
        self.trace.append(("Write", partition.zone, partition.number, version))

    def append_time(self, partition: Partition, time: Timestamp) -> None:
        """The lowest time of active transactions is replicated."""
        partition.log.append((TIME, time))
        self.trace.append(("AppendTime", partition.zone, partition.number, self.version_at(time)))

    def flush(self, node: SimulatedNode, partition: Partition, upto: int) -> None:
        """The replica's first `upto` entries reach its disk, and the times in them count from now on."""
        replica = partition.replicas[node.name]
        for kind, value in partition.log[replica.flushed:upto]:
            if kind == TIME:
                replica.published = max(replica.published, value)
        replica.flushed = max(replica.flushed, upto)
        self.trace.append(("Flush", node.name, partition.zone, partition.number, replica.flushed))

    def move_replica(self, partition: Partition, source: str, target: str) -> None:
        """A rebalance ends: `target` has a copy of what `source` had on disk, which goes."""
        old = partition.replicas.pop(source)
        partition.replicas[target] = Replica(old.flushed, old.published)
        if partition.primary == source:
            partition.primary = target
        self.moves += 1
        self.store.set(META, MOVES, str(self.moves).encode())
        self.trace.append(("MoveReplica", source, target, partition.zone, partition.number))

    # ---- what must hold

    def needs(self) -> Iterator[tuple[str, int]]:
        """Everything that needs a version, and which."""
        tables = {table for table, _ in self.tables.values()}
        for node in self.nodes.values():
            for version in node.transactions.values():
                yield f"a transaction on {node.name}", version
            for time in node.readers.values():
                yield f"a reader on {node.name}", self.version_at(time)
            for version in node.pins.values():
                yield f"a pin on {node.name}", version
        for partition in self.partitions.values():
            for name, replica in partition.replicas.items():
                for kind, value in partition.log[replica.flushed:]:
                    if kind in tables:  # nobody replays what was written to a table that is gone
                        yield f"the replay of partition {partition.zone}.{partition.number} on {name}", value
        for index, version in self.building.items():
            yield f"the build of index {index}", version
        for zone, version in self.rebalancing.items():
            yield f"the rebalance of zone {zone}", version

    def check_cut(self, target: int) -> None:
        """Raise if somebody needs a version below `target`, which was cut away, or `target` is below an earlier one.

        Raises:
            SimulationFailure: invariants (a), (b) or (c): a version that is needed, or the order of cuts.
        """
        if self.cuts and target < max(self.cuts):
            raise SimulationFailure(f"the earliest version went back from {max(self.cuts)} to {target}")
        self.cuts.append(target)
        for who, version in self.needs():
            if version < target:
                raise SimulationFailure(f"{who} needs version {version}, but history was cut to {target}")

    def content(self) -> tuple[tuple[bytes, bytes], ...]:
        """Every key and value of the log."""
        with self.store.scan(self.log.partition) as entries:
            return tuple((entry.key, entry.value) for entry in entries)

    def _next(self) -> int:
        self._count += 1
        return 10 + self._count
