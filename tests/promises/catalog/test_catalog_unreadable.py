# SPDX-License-Identifier: Apache-2.0
"""A node learns which of its partitions nobody can read any more, and nothing is published for them until they go."""

from __future__ import annotations

from compactlib.catalog import (
    CatalogService,
    CatalogTable,
    DropObject,
    HybridClock,
    PublishedTimes,
    PutObject,
    Schema,
    UpdateLog,
    Zone,
)
from compactlib.clock import ManualClock
from compactlib.kv import MemoryStore


def test_partition_of_a_dropped_table_is_unreadable_from_the_drop_on() -> None:
    clock = ManualClock(1000.0)
    service = CatalogService(UpdateLog(MemoryStore(), clock=clock), HybridClock(clock))
    service.execute([PutObject(Schema("A")), PutObject(Zone("Z"))], wait=False)
    for name in ("stays", "goes"):
        clock.advance(1.0)
        service.execute([PutObject(CatalogTable(name), schema="A", zone="Z")], wait=False)
    tables = {table.name: table.id for table in service.catalog(service.history.latest).tables.values()}
    times = PublishedTimes(service, "node")
    for table in tables.values():
        times.register(table, 0, incarnation=1, created_at=1)
    assert times.unreadable(0) == []
    clock.advance(1.0)
    service.execute([DropObject("table", "goes", schema="A")], wait=False)
    dropped = service.history.activation(service.history.latest)
    assert times.unreadable(dropped - 1) == []
    assert times.unreadable(dropped) == [(tables["goes"], 0, 1)]
    times.remove(tables["goes"], 0, 1)
    assert times.unreadable(dropped) == []
