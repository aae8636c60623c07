# SPDX-License-Identifier: Apache-2.0
"""A catalog's log in memory, its first changes and tables, and whether a service is sound."""

from __future__ import annotations

import random
from typing import Any

from compactlib.catalog import CatalogService, Column, ColumnType, CreateSchema, CreateTable, CreateZone, UpdateLog
from compactlib.kv import KVStore, MemoryStore

ID = Column(name="ID", type=ColumnType.INT64, nullable=False)
INITIAL = (CreateSchema("PUBLIC"), CreateZone("Z", partitions=25))


def log_in(store: KVStore | None = None, *, seed: int = 1, **options: Any) -> UpdateLog:
    log = UpdateLog(MemoryStore() if store is None else store, rng=random.Random(seed), **options)
    log.prepare()
    return log


def create_table(number: int) -> CreateTable:
    return CreateTable(schema="PUBLIC", name=f"T{number}", columns=(ID,), primary_key=("ID",), zone="Z")


def sound(service: CatalogService) -> None:
    """Its versions keep their own rules, and are what its log replays to, of which nothing is damaged or missing."""
    service.audit()
    service.poll()
    report = service.verify()
    assert report.is_sound, str(report)
