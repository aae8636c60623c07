"""A catalog over a store in memory, and batches that change something, for the tests of the log and of the service."""

from __future__ import annotations

import random
from typing import Any

from compactlib.catalog.catalog import Change, PutObject
from compactlib.catalog.commands import CreateSchema, CreateZone
from compactlib.catalog.descriptors import Column, ColumnType, Schema
from compactlib.catalog.records import Update
from compactlib.catalog.service import CatalogService
from compactlib.catalog.table_commands import CreateTable
from compactlib.catalog.timestamp import HybridClock
from compactlib.catalog.update_log import UpdateLog
from compactlib.clock import ManualClock
from compactlib.kv import KVStore, MemoryStore

ID = Column(name="ID", type=ColumnType.INT64, nullable=False)
INITIAL = (CreateSchema("PUBLIC"), CreateZone("Z", partitions=25))


def log_in(store: KVStore | None = None, *, seed: int = 1, **options: Any) -> UpdateLog:
    log = UpdateLog(MemoryStore() if store is None else store, randomness=random.Random(seed), **options)
    log.prepare()
    return log


def update(version: int, *changes: Change) -> Update:
    """v1@10, v2@20, ..."""
    return Update(version=version, commit=10 * version, delay_ms=0, activation=10 * version, next_id=1000 + version,
                  changes=changes or (PutObject(Schema(version, f"S{version}")),))


def service_in(store: KVStore | None = None, *, clock: ManualClock | None = None, seed: int = 1,
               **options: Any) -> CatalogService:
    hybrid = HybridClock(ManualClock(1000.0) if clock is None else clock)
    return CatalogService(log_in(store, seed=seed), hybrid, **options)


def create_table(number: int) -> CreateTable:
    return CreateTable(schema="PUBLIC", name=f"T{number}", columns=(ID,), primary_key=("ID",), zone="Z")


def grown(service: CatalogService, latest: int) -> CatalogService:
    """The service with versions up to `latest`: the schema and the zone, then a table each."""
    while service.view.latest < latest:
        service.execute(INITIAL if not service.view.latest else [create_table(service.view.latest + 1)], wait=False)
    return service
