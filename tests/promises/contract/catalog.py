# SPDX-License-Identifier: Apache-2.0
"""A catalog over a store in memory, whose cluster is one node that needs nothing below a few versions."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from compactlib.catalog import (
    CatalogService,
    CutToBound,
    Factor,
    Floor,
    HybridClock,
    KeepSeconds,
    KeepVersions,
    NodeId,
    NodeReport,
    PutObject,
    Schema,
    Topology,
    UpdateLog,
)
from compactlib.catalog.policy import CatalogView
from compactlib.clock import ManualClock
from compactlib.contract import Policy
from compactlib.kv import MemoryStore
from compactlib.testing import Driver, Journal, World, WorldClock

VERSIONS = 6
PARTITION = b"catalog"


class TimedCatalog(CatalogService):
    """A catalog that knows the clock behind its own, and whose cluster is one node that needs the latest version."""

    world_clock: WorldClock

    def view(self, **given: Any) -> CatalogView:
        self.poll()
        time = self.history.activation(self.history.latest)
        report = NodeReport(node=NodeId("A"), floors=(Floor(Factor.ACTIVE_TRANSACTIONS, time),), transactions_from=time)
        return super().view(**{"topology": Topology.of("A"), "reports": [report], "low_watermark": time, **given})


class Catalogs(Driver[TimedCatalog]):
    has_peers = True
    uses_executor = False
    chunk_bytes = 256 * 1024

    def __init__(self) -> None:
        self._begun = 0

    def open(self, world: World, settings: None) -> TimedCatalog:
        if not world.kept:
            # No two catalogs have a history of the same times.
            self._begun += 1
            world.clock.sleep(7 * self._begun)
        service = TimedCatalog(UpdateLog(world.keyed("catalog", MemoryStore), chunk_bytes=self.chunk_bytes),
                               HybridClock(world.clock, max_skew_seconds=0.0), delay_seconds=0)
        service.world_clock = world.clock
        return service

    def act(self, store: TimedCatalog, rng: Random, journal: Journal) -> None:
        names = [f"a schema with a name of some length {len(journal.changes)}-{each}" for each in range(VERSIONS)]
        with journal.trying(names):
            for name in names:
                store.execute([PutObject(Schema(name), if_exists="keep")], wait=False)
            # All of them are in force.
            store.world_clock.sleep(1.0)

    def check(self, store: CatalogService, journal: Journal, *, damage: str) -> None:
        latest = store.catalog(store.history.latest)
        missing = [name for change in journal.changes for name in change.what if latest.find("schema", name) is None]
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


def view_of(earliest: int, needs: int, names: str) -> CatalogView:
    """Of eight versions, a second apart, and three nodes, of which some have reported."""
    clock = ManualClock(1000.0)
    service = CatalogService(UpdateLog(MemoryStore(), rng=Random(1)), HybridClock(clock, max_skew_seconds=0.0),
                             delay_seconds=0)
    for number in range(1, 9):
        clock.advance(1.0)
        service.execute([PutObject(Schema(f"S{number}"))], wait=False)
    clock.advance(1000.0)
    history = service.history
    if earliest:
        now = history.activation(earliest)
        service.compact(service.plan(view=service.view(reports=[NodeReport(node=NodeId("A"), transactions_from=now)],
                                                       topology=Topology.of("A"), low_watermark=now)))
        history = service.history
    time = history.activation(needs)
    reports = [NodeReport(node=NodeId(name), floors=(Floor(Factor.RAFT_RECOVERY, time),),
                          transactions_from=service.clock.now()) for name in names]
    return service.view(reports=reports, topology=Topology.of("A", "B", "C"), low_watermark=service.clock.now())


SITUATIONS = [(0, 6, "ABC"), (0, 6, "AB"), (6, 6, "ABC"), (0, 0, "ABC"), (0, 8, "ABC"), (2, 8, "ABC")]
VIEWS = [view_of(*situation) for situation in SITUATIONS]
POLICIES = [(policy, VIEWS) for policy in (CutToBound(), KeepVersions(), KeepVersions(margin=100), KeepSeconds(),
                                           KeepSeconds(seconds=0.0))]
