# SPDX-License-Identifier: Apache-2.0
"""A catalog over a store in memory, and batches that change something, for the tests of the log and of the service."""

from __future__ import annotations

from typing import Any

from compactlib.catalog import (
    Assignments,
    CatalogPlan,
    CatalogService,
    CutReport,
    HybridClock,
    NodeId,
    NodeReport,
    Topology,
    ZoneAssignments,
)
from compactlib.catalog.log.records import Update
from compactlib.catalog.model.partitions import HostedPartitions
from compactlib.catalog.model.timestamp import physical_ms
from compactlib.catalog.model.values import Factor, Floor
from compactlib.catalog.schema.catalog import Change, PutObject
from compactlib.catalog.schema.descriptors import Schema
from compactlib.clock import ManualClock
from compactlib.kv import KVStore
from compactlib.outcome import Done, Failed, Skipped
from tests.harness.catalog_logs import INITIAL, create_table, log_in


def update(version: int, *changes: Change) -> Update:
    """v1@10, v2@20, ..."""
    return Update(version=version, commit=10 * version, delay_ms=0, activation=10 * version, next_id=1000 + version,
                  changes=changes or (PutObject(Schema(version, f"S{version}")),))


def service_in(store: KVStore | None = None, *, clock: ManualClock | None = None, seed: int = 1,
               **options: Any) -> CatalogService:
    hybrid = HybridClock(ManualClock(1000.0) if clock is None else clock)
    return CatalogService(log_in(store, seed=seed, clock=ManualClock(1000.0)), hybrid, **options)


def plan_to(service: CatalogService, version: int, *, term: int | None = None) -> CatalogPlan:
    """What comes of a cluster of one node that needs this version, and nothing below it. Waits until it is in force."""
    time = service.history.activation(version)
    host = service.clock.steady.host_clock
    host.sleep(max(0.0, (physical_ms(time) + 1) / 1000 - host.now()))
    zones = {zone.id: zone.partitions for catalog in service.history for zone in catalog.zones.values()}
    tables = {table.id: range(zones[table.zone_id]) for catalog in service.history
              for table in catalog.tables.values()}
    report = NodeReport(node=NodeId("A"), floors=(Floor(Factor.ACTIVE_TRANSACTIONS, time),), transactions_from=time,
                        hosted=HostedPartitions.of(tables))
    spread = Assignments({zone: ZoneAssignments.everywhere(["A"], count) for zone, count in zones.items()})
    return service.plan(view=service.view(reports=[report], topology=Topology.of("A"), assignments=spread,
                                          low_watermark=time, term=term))


def cut(service: CatalogService, version: int, *, term: int | None = None) -> Done[CutReport] | Skipped | Failed:
    """Cut history to a version, as `plan_to` says."""
    return service.compact(plan_to(service, version, term=term))


def grown(service: CatalogService, latest: int) -> CatalogService:
    """The service with versions up to `latest`: the schema and the zone, then a table each."""
    while service.history.latest < latest:
        latest_now = service.history.latest
        service.execute([create_table(latest_now + 1)] if latest_now else INITIAL, wait=False)
    return service
