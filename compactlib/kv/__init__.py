"""Key-value stores with ordered scans and compare-and-set: one protocol, and the stores that fulfil it.

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

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.kv.errors import (
        BatchSizeTooBig,
        ClosedEntries,
        ConnectFailed,
        DamagedStore,
        KeyNotFound,
        MissingKey,
        MissingPartitionKey,
        MissingValue,
        NotAStore,
        OutcomeUnknown,
        PredicateFailed,
        SlowDown,
        StoreFailed,
        TooLarge,
    )
    from compactlib.kv.store import (
        EXISTS,
        Condition,
        Delete,
        Entries,
        KVEntry,
        Exists,
        KVLimits,
        KVStore,
        Predicate,
        Put,
        Versioned,
    )
    from compactlib.kv.stores.dynamodb.store import DynamoStore
    from compactlib.kv.stores.etcd.store import EtcdStore
    from compactlib.kv.stores.memory import MemoryStore
    from compactlib.kv.stores.metered import MeteredStore
    from compactlib.kv.stores.postgres import PostgresStore
    from compactlib.kv.stores.sqlite.store import SqliteStore, Synchronous

__all__ = [
    "EXISTS",
    "BatchSizeTooBig",
    "ClosedEntries",
    "Condition",
    "ConnectFailed",
    "DamagedStore",
    "Delete",
    "DynamoStore",
    "Entries",
    "KVEntry",
    "EtcdStore",
    "Exists",
    "KVLimits",
    "KVStore",
    "KeyNotFound",
    "MemoryStore",
    "MeteredStore",
    "MissingKey",
    "MissingPartitionKey",
    "MissingValue",
    "NotAStore",
    "OutcomeUnknown",
    "Predicate",
    "PostgresStore",
    "PredicateFailed",
    "Put",
    "SlowDown",
    "SqliteStore",
    "StoreFailed",
    "Synchronous",
    "TooLarge",
    "Versioned",
]

load_lazily(__name__, {
    ".errors": ("BatchSizeTooBig", "ClosedEntries", "ConnectFailed", "DamagedStore", "KeyNotFound", "MissingKey",
                "MissingPartitionKey", "MissingValue", "NotAStore", "OutcomeUnknown", "PredicateFailed", "SlowDown",
                "StoreFailed", "TooLarge"),
    ".store": ("EXISTS", "Condition", "Delete", "Entries", "KVEntry", "Exists", "KVLimits", "KVStore", "Predicate",
               "Put", "Versioned"),
    ".stores.dynamodb.store": ("DynamoStore",),
    ".stores.etcd.store": ("EtcdStore",),
    ".stores.memory": ("MemoryStore",),
    ".stores.metered": ("MeteredStore",),
    ".stores.postgres": ("PostgresStore",),
    ".stores.sqlite.store": ("SqliteStore", "Synchronous"),
})
