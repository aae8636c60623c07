# SPDX-License-Identifier: Apache-2.0
"""A catalog over a store in memory, whose cluster is one node that needs nothing below a few versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from compactlib.catalog import (
    Assignments,
    CatalogService,
    CatalogUpkeep,
    CreateSchema,
    CutToBound,
    Factor,
    Floor,
    HybridClock,
    KeepSeconds,
    KeepVersions,
    LeaseElection,
    LogFollower,
    LowWatermark,
    NodeId,
    NodeReport,
    Timestamp,
    Topology,
    UpdateLog,
    Watermark,
)
from compactlib.catalog.log.update_log import DEFAULT_CHUNK_BYTES
from compactlib.contract import Policy
from compactlib.kv import Condition, MemoryStore, Versioned
from compactlib.outcome import Outcome
from compactlib.runtime import Observer
from compactlib.testing import Journal, ServiceFactory, ServiceHooks, World, WorldClock
from tests.catalog.cases import given, history, report
from tests.catalog.services import service_in

VERSIONS = 6
PARTITION = b"catalog"


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


class TimedCatalog(CatalogService):
    """A catalog that knows the clock behind its own."""

    world_clock: WorldClock


class Catalogs:
    has_peers = True
    uses_executor = False
    chunk_bytes = DEFAULT_CHUNK_BYTES

    def __init__(self) -> None:
        self._begun = 0

    def settings(self) -> Sequence[None]:
        return [None]

    def open(self, world: World, settings: None) -> TimedCatalog:
        if not world.kept:
            # No two catalogs have a history of the same times.
            self._begun += 1
            world.clock.sleep(7 * self._begun)
        service = TimedCatalog(UpdateLog(world.keyed("catalog", MemoryStore), chunk_bytes=self.chunk_bytes),
                               HybridClock(world.clock), delay_seconds=0)
        service.world_clock = world.clock
        service.connect(OneNode(service))
        return service

    def act(self, store: TimedCatalog, rng: Random, journal: Journal) -> None:
        names = [f"a schema with a name of some length {len(journal.changes)}-{each}" for each in range(VERSIONS)]
        with journal.trying(names):
            for name in names:
                store.execute([CreateSchema(name, if_not_exists=True)], wait=False)
            # All of them are in force.
            store.world_clock.sleep(1.0)

    def check(self, store: CatalogService, journal: Journal, *, damage: str) -> None:
        latest = store.catalog(store.history.latest)
        missing = [name for change in journal.changes for name in change.what if latest.find_schema(name) is None]
        assert not missing, f"{missing} are gone"
        report = store.verify()
        assert report.is_sound, str(report)

    def policy(self) -> Policy[Any, Any]:
        return CutToBound()

    def state(self, store: CatalogService) -> object:
        store.poll()
        return store.history.earliest

    def contents(self, world: World, store: CatalogService) -> Mapping[str, bytes]:
        return {repr(entry.key): entry.key + entry.value
                for entry in world.keyed("catalog", MemoryStore).scan(PARTITION)}


class SplitCatalogs(Catalogs):
    """Their snapshots are written in several pieces."""

    chunk_bytes = 1024


COMPACTIONS = [Catalogs(), SplitCatalogs()]


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

    has_long_work = False

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

    has_long_work = False

    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> CatalogUpkeep:
        service = service_in()
        watermark = Asked(service.log.store, "A", service.clock)
        watermark.hooks = hooks
        return CatalogUpkeep(service, watermark, interval_seconds=0.05, observer=observer)

    def wake(self, service: CatalogUpkeep) -> None:
        service.nudge()


class Elections(ServiceFactory):
    """Elections in which nobody else takes part."""

    has_long_work = False

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
