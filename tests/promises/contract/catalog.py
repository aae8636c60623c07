# SPDX-License-Identifier: Apache-2.0
"""A catalog over a store in memory, whose cluster is one node that needs nothing below a few versions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compactlib.catalog import (
    Assignments,
    CatalogPlan,
    CatalogService,
    CatalogUpkeep,
    CompactionService,
    CreateSchema,
    CutReport,
    CutToBound,
    HybridClock,
    KeepSeconds,
    KeepVersions,
    LeaseElection,
    LogFollower,
    LowWatermark,
    NodeId,
    NodeOptions,
    NodeReport,
    Topology,
    UpdateLog,
    ZoneResult,
)
from compactlib.catalog.log.update_log import DEFAULT_CHUNK_BYTES
from compactlib.catalog.model.timestamp import Timestamp
from compactlib.catalog.model.values import Factor, Floor, Watermark
from compactlib.catalog.round.messages import Message
from compactlib.catalog.transport.interface import Receive
from compactlib.catalog.transport.memory import MemoryHub, MemoryTransport
from compactlib.clock import ManualClock
from compactlib.contract import Policy
from compactlib.errors import Closed
from compactlib.files import Files
from compactlib.kv import Condition, Delete, MemoryStore, Put
from compactlib.kv.store import Versioned
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime import Observer
from compactlib.testing import AsyncServiceFactory, CompactionFactory, ServiceFactory, ServiceHooks
from tests.catalog.cases import given, history, report
from tests.catalog.round.protocol import HOLD
from tests.catalog.services import service_in

VERSIONS = 6
PARTITION = b"catalog"


class CountingStore(MemoryStore):
    """A store that counts what is put."""

    put_bytes = 0

    def set(self, partition: bytes, key: bytes, value: Any) -> None:
        super().set(partition, key, value)
        self.put_bytes += len(key) + len(value)

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        written = tuple(puts)
        super().transact(conditions, written, deletes)
        self.put_bytes += sum(len(put.key) + len(memoryview(put.value)) for put in written)


class OneNode:
    """Needs the latest version, and knows nobody else."""

    def __init__(self, service: CatalogService) -> None:
        self.service = service

    def conditions(self) -> Sequence[Condition]:
        return ()

    def topology(self) -> Topology:
        return Topology.of("A")

    def reports(self) -> Sequence[NodeReport]:
        time = self.low_watermark()
        return [NodeReport(node=NodeId("A"), floors=(Floor(Factor.ACTIVE_TRANSACTIONS, time),), transactions_from=time)]

    def assignments(self) -> Assignments:
        return Assignments()

    def low_watermark(self) -> Timestamp:
        view = self.service.history
        return view.activation(view.latest)


class Catalogs(CompactionFactory):
    has_owner = False
    uses_executor = False
    chunk_bytes = DEFAULT_CHUNK_BYTES

    def __init__(self) -> None:
        self.stores: dict[Path, tuple[CountingStore, ManualClock]] = {}

    def open(self, folder: Path, *, files: Files) -> CatalogService:
        # No two catalogs have a history of the same times.
        store, clock = self.stores.setdefault(folder, (CountingStore(), ManualClock(1000.0 + 7 * len(self.stores))))
        service = CatalogService(UpdateLog(store, chunk_bytes=self.chunk_bytes), HybridClock(clock), delay_seconds=0)
        service.connect(OneNode(service))
        return service

    def fill(self, store: CatalogService, number: int) -> Sequence[str]:
        names = [f"a schema with a name of some length {number}-{each}" for each in range(VERSIONS)]
        for name in names:
            store.execute([CreateSchema(name, if_not_exists=True)], wait=False)
        return names

    def check(self, store: CatalogService, acknowledged: Sequence[Sequence[str]]) -> None:
        latest = store.catalog(store.history.latest)
        missing = [name for names in acknowledged for name in names if latest.find_schema(name) is None]
        assert not missing, f"{missing} are gone"
        report = store.verify()
        assert report.is_sound, str(report)

    def policy(self) -> Policy[Any, Any]:
        return CutToBound()

    def state(self, store: CatalogService) -> object:
        store.poll()
        return store.history.earliest

    def contents(self, folder: Path, store: CatalogService) -> object:
        return [(entry.key, entry.value) for entry in self.stores[folder][0].scan(PARTITION)]

    def stored_bytes(self, folder: Path, store: CatalogService) -> int:
        return sum(len(entry.key) + len(entry.value) for entry in self.stores[folder][0].scan(PARTITION))

    def watch_copies(self, folder: Path, store: CatalogService) -> Callable[[], int]:
        kept = self.stores[folder][0]
        before = kept.put_bytes
        return lambda: kept.put_bytes - before

    def damage(self, folder: Path) -> bool:
        store = self.stores[folder][0]
        key = next(entry.key for entry in store.scan(PARTITION, prefix=b"update/"))
        value = bytearray(store.get(PARTITION, key).value)
        value[-9] ^= 4
        store.set(PARTITION, key, bytes(value))
        return True


class SplitCatalogs(Catalogs):
    """Their snapshots are written in several pieces."""

    chunk_bytes = 1024


COMPACTIONS = [Catalogs(), SplitCatalogs()]

class TwoNodes(MemoryTransport):
    """Elects its node the coordinator of two, of which the other one never answers."""

    def __init__(self, hooks: ServiceHooks) -> None:
        super().__init__(MemoryHub(), "a")
        self.hooks = hooks
        self.service: CompactionService | None = None

    async def start(self, receive: Receive) -> None:
        await super().start(receive)
        if self.service is not None:
            self.service.topology_is(Topology.of("a", "b"))
            self.service.elected(1, "a")

    def send(self, to: str, message: Message) -> None:
        self.hooks.decides()


class Host:
    """A host of whom nothing is cut."""

    def report(self) -> NodeReport:
        return report("a")

    def zones(self, since: Timestamp) -> Mapping[int, int]:
        return {}

    def publish(self, zone: int, partitions: int, time: Timestamp) -> ZoneResult:
        return ZoneResult(zone)

    def confirm(self, topology: Topology) -> bool:
        return True

    def plan(self, reports: tuple[NodeReport, ...], topology: Topology, term: int) -> CatalogPlan:
        return HOLD

    def compact(self, plan: CatalogPlan) -> Done[CutReport] | Skipped | Failed:
        return Skipped("nothing is cut")


class Nodes(AsyncServiceFactory):
    """Nodes of the coordinated round. What a host does it does in threads, which nobody can cancel."""

    has_wait = False

    async def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> CompactionService:
        transport = TwoNodes(hooks)
        options = NodeOptions(collect_seconds=0.05, retry_seconds=0.02, interval_seconds=0.05)
        service = CompactionService(NodeId("a"), Host(), transport, options=options, observer=observer)
        transport.service = service
        return service

    async def wake(self, service: CompactionService) -> None:
        with contextlib.suppress(Closed):
            service.watermark_moved()


ASYNC_SERVICES = [Nodes()]


class LookedAt(MemoryStore):
    """A store that tells its hooks of each look at a key: the log's end."""

    key = b"earliest"
    hooks: ServiceHooks | None = None

    def get(self, partition: bytes, key: bytes) -> Versioned:
        if self.hooks is not None and key == self.key:
            self.hooks.decides()
        return super().get(partition, key)


class Followers(ServiceFactory):
    """Followers of a log to which nothing is appended."""

    has_budget = False

    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> LogFollower:
        store = LookedAt()
        follower = LogFollower(service_in(store), interval_seconds=0.05, observer=observer)
        store.hooks = hooks
        return follower

    def wake(self, service: LogFollower) -> None:
        service.nudge()


class Asked(LowWatermark):
    """A low watermark that tells its hooks of each attempt to raise it."""

    hooks: ServiceHooks | None = None

    def advance(self, to: Timestamp | None = None) -> Outcome[Watermark]:
        if self.hooks is not None:
            self.hooks.decides()
        return super().advance(to)


class Upkeeps(ServiceFactory):
    """Upkeeps of a catalog without pins, whose low watermark rises once."""

    has_budget = False

    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> CatalogUpkeep:
        service = service_in()
        watermark = Asked(service.log.store, "A", service.clock)
        watermark.hooks = hooks
        return CatalogUpkeep(service, watermark, interval_seconds=0.05, observer=observer)

    def wake(self, service: CatalogUpkeep) -> None:
        service.nudge()


class Elections(ServiceFactory):
    """Elections in which nobody else takes part."""

    has_budget = False

    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> LeaseElection:
        store = LookedAt()
        store.key, store.hooks = b"coordinator", hooks
        return LeaseElection(store, "a", lambda term, node: None, lease_seconds=0.15, observer=observer)

    def wake(self, service: LeaseElection) -> None:
        service.nudge()


SERVICES = [Followers(), Upkeeps(), Elections()]

SITUATIONS = [(8, 0, 60, "ABC"), (8, 0, 60, "AB"), (8, 6, 60, "ABC"), (8, 0, 1, "ABC"), (0, 0, 1000, "ABC"),
              (8, 2, 1000, "ABC")]
VIEWS = [given(history(latest=latest, earliest=earliest), [report(name, needs) for name in names])
         for latest, earliest, needs, names in SITUATIONS]
POLICIES = [(policy, VIEWS) for policy in (CutToBound(), KeepVersions(), KeepVersions(margin=100), KeepSeconds(),
                                           KeepSeconds(seconds=0.0))]
