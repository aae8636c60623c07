# SPDX-License-Identifier: Apache-2.0
"""Durable key-value stores with ordered scans and compare-and-set: one base class, and its stores.

>>> from compactlib.kv import MemoryStore
>>> store = MemoryStore()
>>> store.set(b"accounts", b"ann", b"10")
>>> found = store.get(b"accounts", b"ann")
>>> store.set_if(b"accounts", b"ann", b"11", found.predicate)
>>> store.set_if(b"accounts", b"ann", b"12", found.predicate)
Traceback (most recent call last):
compactlib.kv.errors.PredicateFailed: key b'ann' in partition b'accounts' is not in the state that the predicate ...
>>> with store.scan(b"accounts", prefix=b"a") as entries:
...     [(entry.key, entry.value) for entry in entries]
[(b'ann', b'11')]
"""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.kv.batches import change_many as change_many
    from compactlib.kv.cell import Cell as Cell, Retries as Retries, Swap as Swap, swap as swap
    from compactlib.kv.dynamodb import DynamoStore as DynamoStore
    from compactlib.kv.errors import (
        KeyNotFound as KeyNotFound,
        OutcomeUnknown as OutcomeUnknown,
        PredicateFailed as PredicateFailed,
        SlowDown as SlowDown,
        StoreFailed as StoreFailed,
    )
    from compactlib.kv.memory import MemoryStore as MemoryStore
    from compactlib.kv.postgres import PostgresStore as PostgresStore
    from compactlib.kv.scan import Entries as Entries, KVEntry as KVEntry
    from compactlib.kv.snapshots import Snapshot as Snapshot, SnapshotStore as SnapshotStore
    from compactlib.kv.sqlite import SqliteStore as SqliteStore
    from compactlib.kv.store import (
        EXISTS as EXISTS,
        Address as Address,
        Changes as Changes,
        Conditions as Conditions,
        KVLimits as KVLimits,
        KVStore as KVStore,
        Predicate as Predicate,
    )
else:
    offer(__name__, {
        "compactlib.kv.batches": "change_many",
        "compactlib.kv.cell": "Cell Retries Swap swap",
        "compactlib.kv.errors": "KeyNotFound OutcomeUnknown PredicateFailed SlowDown StoreFailed",
        "compactlib.kv.scan": "Entries KVEntry",
        "compactlib.kv.snapshots": "Snapshot SnapshotStore",
        "compactlib.kv.store": "EXISTS Address Changes Conditions KVLimits KVStore Predicate",
        "compactlib.kv.dynamodb": "DynamoStore",
        "compactlib.kv.memory": "MemoryStore",
        "compactlib.kv.postgres": "PostgresStore",
        "compactlib.kv.sqlite": "SqliteStore",
    })
