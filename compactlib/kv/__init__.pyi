# SPDX-License-Identifier: Apache-2.0
from compactlib.kv.cell import Cell as Cell, Swap as Swap, swap as swap
from compactlib.kv.errors import (
    KeyNotFound as KeyNotFound,
    OutcomeUnknown as OutcomeUnknown,
    PredicateFailed as PredicateFailed,
    SlowDown as SlowDown,
    StoreFailed as StoreFailed,
)
from compactlib.kv.scan import KVEntry as KVEntry, PagedEntries as PagedEntries
from compactlib.kv.store import (
    EXISTS as EXISTS,
    Condition as Condition,
    Delete as Delete,
    KVStore as KVStore,
    Put as Put,
)
from compactlib.kv.stores.dynamodb.store import DynamoStore as DynamoStore
from compactlib.kv.stores.memory import MemoryStore as MemoryStore
from compactlib.kv.stores.metered import MeteredStore as MeteredStore
from compactlib.kv.stores.postgres import PostgresStore as PostgresStore
from compactlib.kv.stores.sqlite.store import SqliteStore as SqliteStore
