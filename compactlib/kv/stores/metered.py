# SPDX-License-Identifier: Apache-2.0
"""`MeteredStore`: a key-value store that notifies an observer of its requests (metrics).

>>> from compactlib.kv import MemoryStore
>>> from compactlib.observer import EventRecorder
>>> seen = EventRecorder()
>>> store = MeteredStore(MemoryStore(), seen, name="accounts")
>>> store.set(b"p", b"k", b"1234")
>>> seen.named("kv_written_bytes")
[{'add': 4, 'store': 'accounts', 'operation': 'set'}]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Self

from compactlib._closing import Closing
from compactlib.clock import Clock, SystemClock
from compactlib.kv.store import (
    Address,
    Condition,
    Delete,
    Entries,
    KVEntry,
    KVLimits,
    KVStore,
    Predicate,
    Put,
    Versioned,
)
from compactlib.meter import Meter
from compactlib.observer import Observer

if TYPE_CHECKING:
    from typing_extensions import Buffer


class MeteredStore(KVStore):
    """A `KVStore` in front of another one; put it where the other one was. Raises what the other one raises.

    Reported with each request: `kv_requests` with its outcome, `kv_request_seconds`, and the bytes of values read or
    written (`kv_read_bytes`, `kv_written_bytes`; a write that failed counts none). Each page of a scan is a request.
    It costs a few microseconds a request, and for each entry of a scan less than one.

    Args:
        store: carries everything out; closed with this one.
        observer: is notified.
        name: the label `store`; give each store of a process its own.
        clock: times the requests.
    """

    def __init__(self, store: KVStore, observer: Observer, *, name: str, clock: Clock | None = None) -> None:
        self._store = store
        self._meter = Meter(observer, "kv", name, SystemClock() if clock is None else clock)

    @property
    def limits(self) -> KVLimits:
        return self._store.limits

    def place(self) -> str | None:
        return self._store.place()

    def get(self, partition: bytes, key: bytes) -> Versioned:
        with self._meter.request("get"):
            found = self._store.get(partition, key)
        self._meter.read("get", len(found.value))
        return found

    def get_many(self, cells: Iterable[Address]) -> Sequence[Versioned | None]:
        with self._meter.request("get_many"):
            found = self._store.get_many(cells)
        self._meter.read("get_many", sum(len(one.value) for one in found if one is not None))
        return found

    def set(self, partition: bytes, key: bytes, value: Buffer) -> None:
        with self._meter.request("set"):
            self._store.set(partition, key, value)
        self._meter.written("set", memoryview(value).nbytes)

    def set_if(self, partition: bytes, key: bytes, value: Buffer, predicate: Predicate | None) -> None:
        with self._meter.request("set_if"):
            self._store.set_if(partition, key, value, predicate)
        self._meter.written("set_if", memoryview(value).nbytes)

    def delete(self, partition: bytes, key: bytes) -> None:
        with self._meter.request("delete"):
            self._store.delete(partition, key)

    def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        with self._meter.request("delete_if"):
            self._store.delete_if(partition, key, predicate)

    def scan(self, partition: bytes, start: bytes = b"", *, prefix: bytes = b"", after: bytes | None = None,
             page_size: int | None = None, keys_only: bool = False) -> Entries:
        return _MeteredEntries(self._store.scan(partition, start, prefix=prefix, after=after, page_size=page_size,
                                                keys_only=keys_only), self._meter)

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        listed = tuple(puts)
        with self._meter.request("transact"):
            self._store.transact(conditions, listed, deletes)
        self._meter.written("transact", sum(memoryview(put.value).nbytes for put in listed))

    def close(self) -> None:
        self._store.close()

    def audit(self) -> None:
        self._store.audit()

    def __repr__(self) -> str:
        return f"MeteredStore({self._store!r})"


class _MeteredEntries(Closing):
    """A scan that reports each page it loads."""

    def __init__(self, entries: Entries, meter: Meter) -> None:
        self._entries = entries
        self._meter = meter
        self._loads = entries.page_loads
        self._bytes = 0

    @property
    def page_loads(self) -> int:
        return self._entries.page_loads

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> KVEntry:
        began = self._meter.began()
        try:
            entry = next(self._entries)
        except StopIteration:
            self._looked(began)
            self._tell_bytes()
            raise
        except BaseException as error:
            self._looked(began, error)
            raise
        self._looked(began)
        self._bytes += len(entry.value)
        return entry

    def _looked(self, began: float, error: BaseException | None = None) -> None:
        """Report a page if one was loaded, or could not be."""
        loads = self._entries.page_loads
        if loads != self._loads or error is not None:
            self._loads = loads
            self._meter.ended("scan", began, error)
            self._tell_bytes()

    def _tell_bytes(self) -> None:
        """Bytes are reported with the next page, not with each entry."""
        if self._bytes:
            self._meter.read("scan", self._bytes)
            self._bytes = 0

    def seek(self, key: bytes) -> None:
        self._entries.seek(key)

    def close(self) -> None:
        self._tell_bytes()
        self._entries.close()
