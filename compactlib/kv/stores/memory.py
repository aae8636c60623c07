# SPDX-License-Identifier: Apache-2.0
"""`MemoryStore`: a key-value store in this process's memory, for tests and for hosts that keep nothing."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Literal

from compactlib._sorted import SortedMap
from compactlib.errors import AuditFailed, Closed
from compactlib.kv.errors import KeyNotFound, PredicateFailed
from compactlib.kv.parts.arguments import (
    checked_cell,
    checked_cells,
    checked_largest_page,
    checked_partition,
    checked_present,
    checked_put,
    checked_transaction,
)
from compactlib.kv.parts.entries import PagedEntries
from compactlib.kv.store import EXISTS, Cell, Condition, Delete, KVEntry, KVLimits, Predicate, Put, Versioned

if TYPE_CHECKING:
    from typing_extensions import Buffer

_LIMITS = KVLimits(max_partition_bytes=1 << 16, max_key_bytes=1 << 16, max_value_bytes=1 << 30, max_transact=100_000,
                   max_get_many=100_000)


class MemoryStore:
    """A `KVStore` in memory: sorted maps under one lock. A get takes about a microsecond, a set two.

    Args:
        page_size: how many entries one page of a scan holds, at most.
        predicates: `"version"`: every write gives the key a state that it never had before. `"value"`: its state is
            its value, as in stores that can compare nothing else; a predicate then holds again when the same bytes
            come back (ABA). Code that works with both works with every store.
        limits: how much it takes.
    """

    def __init__(self, *, page_size: int = 1000, predicates: Literal["version", "value"] = "version",
                 limits: KVLimits = _LIMITS) -> None:
        self._page_size = checked_largest_page(page_size)
        self._by_value = predicates == "value"
        self._limits = limits
        self._partitions: dict[bytes, SortedMap[bytes, Versioned]] = {}
        self._version = 0
        self._name = uuid.uuid4().hex
        self._closed = False
        self._lock = threading.Lock()

    @property
    def limits(self) -> KVLimits:
        """See `KVStore.limits`."""
        return self._limits

    def get(self, partition: bytes, key: bytes) -> Versioned:
        """See `KVStore.get`."""
        partition, key = checked_cell(partition, key, self._limits)
        with self._lock:
            self._require_open()
            found = self._find(partition, key)
        if found is None:
            raise KeyNotFound(partition=partition, key=key)
        return found

    def get_many(self, cells: Sequence[Cell]) -> list[Versioned | None]:
        """See `MultiGet.get_many`."""
        checked = checked_cells(cells, self._limits)
        with self._lock:
            self._require_open()
            return [self._find(*cell) for cell in checked]

    def set(self, partition: bytes, key: bytes, value: Buffer) -> None:
        """See `KVStore.set`."""
        partition, key, data = checked_put(partition, key, value, self._limits)
        with self._lock:
            self._require_open()
            self._put(partition, key, data)

    def set_if(self, partition: bytes, key: bytes, value: Buffer, predicate: Predicate | None) -> None:
        """See `KVStore.set_if`."""
        partition, key, data = checked_put(partition, key, value, self._limits)
        with self._lock:
            self._require_open()
            self._demand(partition, key, predicate)
            self._put(partition, key, data)

    def delete(self, partition: bytes, key: bytes) -> None:
        """See `KVStore.delete`."""
        partition, key = checked_cell(partition, key, self._limits)
        with self._lock:
            self._require_open()
            self._remove(partition, key)

    def delete_if(self, partition: bytes, key: bytes, predicate: Predicate) -> None:
        """See `KVStore.delete_if`."""
        partition, key = checked_cell(partition, key, self._limits)
        predicate = checked_present(predicate)
        with self._lock:
            self._require_open()
            self._demand(partition, key, predicate)
            self._remove(partition, key)

    def scan(self, partition: bytes, start: bytes = b"", *, prefix: bytes = b"", after: bytes | None = None,
             page_size: int | None = None, keys_only: bool = False) -> PagedEntries:
        """See `KVStore.scan`."""
        partition = checked_partition(partition, self._limits)
        with self._lock:
            self._require_open()

        def load(position: bytes, limit: int) -> tuple[list[KVEntry], bool]:
            with self._lock:
                self._require_open()
                cells = self._partitions.get(partition)
                if cells is None:
                    return [], True
                found = ((key, cells[key]) for key in islice(cells.irange(position), limit))
                page = [KVEntry(key, b"" if keys_only else cell.value, cell.predicate) for key, cell in found]
                return page, len(page) < limit

        return PagedEntries(load, start, prefix=prefix, after=after, page_size=page_size,
                            largest_page=self._page_size)

    def transact(self, conditions: Iterable[Condition] = (), puts: Iterable[Put] = (),
                 deletes: Iterable[Delete] = ()) -> None:
        """See `KVStore.transact`."""
        transaction = checked_transaction(conditions, puts, deletes, self._limits)
        with self._lock:
            self._require_open()
            for partition, key, predicate in transaction.conditions:
                self._demand(partition, key, predicate)
            before = [(partition, key, self._find(partition, key)) for partition, key, _ in transaction.changes]
            try:
                for partition, key, value in transaction.changes:
                    if value is None:
                        self._remove(partition, key)
                    else:
                        self._put(partition, key, value)
            except BaseException:
                # An interrupt: all of it, or nothing.
                for partition, key, found in before:
                    if found is None:
                        self._remove(partition, key)
                    else:
                        self._place(partition, key, found)
                raise

    def place(self) -> str:
        """See `Placed.place`: this object, in this process; a fork has a copy."""
        with self._lock:
            self._require_open()
        return f"memory {self._name} of process {os.getpid()}"

    def close(self) -> None:
        """See `KVStore.close`. The contents are gone."""
        with self._lock:
            self._closed = True
            self._partitions = {}

    def audit(self) -> None:
        """See `KVStore.audit`."""
        with self._lock:
            versions: list[Predicate] = []
            for partition, cells in self._partitions.items():
                if not cells:
                    raise AuditFailed(f"partition {partition!r} is kept although it is empty")
                keys = list(cells)
                if keys != sorted(set(keys)):
                    raise AuditFailed(f"the keys of partition {partition!r} do not ascend")
                versions += (cell.predicate for cell in cells.values())
            if not self._by_value and len(versions) != len(set(versions)):
                raise AuditFailed("two keys share one version")

    def __repr__(self) -> str:
        cells = sum(map(len, self._partitions.values()))
        return f"MemoryStore({cells} keys in {len(self._partitions)} partitions)"

    def _find(self, partition: bytes, key: bytes) -> Versioned | None:
        cells = self._partitions.get(partition)
        return None if cells is None else cells.get(key)

    def _demand(self, partition: bytes, key: bytes, predicate: Predicate | None) -> None:
        found = self._find(partition, key)
        if found is None:
            holds = predicate is None
        else:
            # By type too: True and 1.0 equal the version 1, and are no predicates.
            holds = predicate is EXISTS or (type(predicate) is type(found.predicate)
                                            and predicate == found.predicate)
        if not holds:
            raise PredicateFailed(partition=partition, key=key)

    def _put(self, partition: bytes, key: bytes, value: bytes) -> None:
        self._version += 1
        self._place(partition, key, Versioned(value, value if self._by_value else self._version))

    def _place(self, partition: bytes, key: bytes, cell: Versioned) -> None:
        cells = self._partitions.get(partition)
        if cells is None:
            self._partitions[partition] = SortedMap({key: cell})
        else:
            cells[key] = cell

    def _remove(self, partition: bytes, key: bytes) -> None:
        cells = self._partitions.get(partition)
        if cells is not None and key in cells:
            try:
                del cells[key]
            finally:
                if not cells:
                    del self._partitions[partition]

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("the store was closed; make a new one")
