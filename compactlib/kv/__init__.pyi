# SPDX-License-Identifier: Apache-2.0
from compactlib.kv.batches import change_many as change_many, get_many as get_many
from compactlib.kv.errors import (
    KeyNotFound as KeyNotFound,
    OutcomeUnknown as OutcomeUnknown,
    PredicateFailed as PredicateFailed,
    SlowDown as SlowDown,
    StoreFailed as StoreFailed,
)
from compactlib.kv.parts.entries import PagedEntries as PagedEntries
from compactlib.kv.store import (
    EXISTS as EXISTS,
    Condition as Condition,
    Delete as Delete,
    Entries as Entries,
    KVEntry as KVEntry,
    KVLimits as KVLimits,
    KVStore as KVStore,
    Predicate as Predicate,
    Put as Put,
    Versioned as Versioned,
)
from compactlib.kv.stores.dynamodb.store import DynamoStore as DynamoStore
from compactlib.kv.stores.memory import MemoryStore as MemoryStore
from compactlib.kv.stores.metered import MeteredStore as MeteredStore
from compactlib.kv.stores.postgres import PostgresStore as PostgresStore
from compactlib.kv.stores.sqlite.store import SqliteStore as SqliteStore
