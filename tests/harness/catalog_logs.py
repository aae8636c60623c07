# SPDX-License-Identifier: Apache-2.0
"""A catalog's log in memory, its first changes and tables, and whether a service is sound."""

from __future__ import annotations

import random
from typing import Any

from compactlib.catalog import CatalogService, CatalogTable, PutObject, Schema, UpdateLog, Zone
from compactlib.kv import KVStore, MemoryStore

INITIAL = (PutObject(Schema("PUBLIC")), PutObject(Zone("Z", partitions=25)))


def log_in(store: KVStore | None = None, *, seed: int = 1, **options: Any) -> UpdateLog:
    return UpdateLog(MemoryStore() if store is None else store, rng=random.Random(seed), **options)


def create_table(number: int) -> PutObject:
    return PutObject(CatalogTable(f"T{number}"), schema="PUBLIC", zone="Z")


def sound(service: CatalogService) -> None:
    """Its versions keep their own rules, and are what its log replays to, of which nothing is damaged or missing."""
    service.audit()
    service.poll()
    report = service.verify()
    assert report.is_sound, str(report)
