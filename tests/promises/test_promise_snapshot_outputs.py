# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a catalog and of a scheduler take the place of a log only when their pieces have been read back."""

from __future__ import annotations

import pytest

from compactlib.catalog import (
    CatalogPlan,
    CatalogService,
    HybridClock,
    NodeId,
    NodeReport,
    PutObject,
    Schema,
    Topology,
    UpdateLog,
)
from compactlib.clock import ManualClock
from compactlib.commandlog import KVLog
from compactlib.errors import CorruptData
from compactlib.kv import Changes, Conditions, MemoryStore, SnapshotStore
from compactlib.scheduler import BlockMeta, Scheduler
from tests.harness.scheduler_audit import audit
from tests.promises.damage import Damage, every_damage


class DamagingStore(MemoryStore):
    """Damages chosen pieces of snapshots."""

    def __init__(self, damage: Damage) -> None:
        super().__init__()
        self.is_damaging = False
        self.damaged = 0
        self._damage = damage

    def _transact(self, conditions: Conditions, changes: Changes) -> None:
        super()._transact(conditions, {cell: value if value is None else self._kept(cell[1], value)
                                       for cell, value in changes.items()})

    def _kept(self, key: bytes, value: bytes) -> bytes:
        if not self.is_damaging or not (b"chunk" in key or b"piece" in key):
            return value
        self.damaged += 1
        return self._damage(value)


def plan_of(catalog: CatalogService, version: int) -> CatalogPlan:
    """A plan that cuts the log to this version."""
    time = catalog.catalog(version).activation
    report = NodeReport(node=NodeId("n1"), transactions_from=time)
    return catalog.plan(view=catalog.view(reports=[report], topology=Topology.of("n1"), low_watermark=time))


@every_damage
def test_catalog_compaction_fails_by_name_when_its_snapshot_is_damaged(damage: Damage) -> None:
    store = DamagingStore(damage)
    log = UpdateLog(store, chunk_bytes=1024)
    with CatalogService(log, HybridClock(ManualClock(1000.0))) as catalog:
        for number in range(60):
            catalog.execute([PutObject(Schema(f"SCHEMA_{number:03}_" + "X" * 50))])
        store.is_damaging = True
        with pytest.raises(CorruptData):
            catalog.compact(plan_of(catalog, 50))
        assert store.damaged
        assert catalog.verify().is_sound
    store.is_damaging = False
    with CatalogService(UpdateLog(store, chunk_bytes=1024), HybridClock(ManualClock(2000.0))) as catalog:
        assert (catalog.history.earliest, catalog.history.latest) == (0, 60)
        assert catalog.compact(plan_of(catalog, 50)).earliest == 50
    with CatalogService(UpdateLog(store, chunk_bytes=1024), HybridClock(ManualClock(2000.0))) as catalog:
        assert (catalog.history.earliest, catalog.history.latest) == (50, 60)
        assert catalog.verify().is_sound


@every_damage
def test_scheduler_keeps_its_log_when_a_snapshot_is_damaged(damage: Damage) -> None:
    store = DamagingStore(damage)
    scheduler = Scheduler(KVLog(store), SnapshotStore(store))
    scheduler.add_blocks(BlockMeta(id=f"{number}", tenant="acme", shard=7, level=0) for number in range(50))
    store.is_damaging = True
    with pytest.raises(CorruptData):
        scheduler.snapshot()
    assert store.damaged
    store.is_damaging = False
    again = Scheduler(KVLog(store), SnapshotStore(store))
    assert again.add_blocks([BlockMeta(id="7", tenant="acme", shard=7, level=0)]).duplicate == ("7",)
    again.snapshot()
    again = Scheduler(KVLog(store), SnapshotStore(store))
    again.read(audit)
    assert again.add_blocks([BlockMeta(id="8", tenant="acme", shard=7, level=0)]).duplicate == ("8",)
