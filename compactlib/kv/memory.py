# SPDX-License-Identifier: Apache-2.0
"""`MemoryStore`: a key-value store in this process's memory, for tests.

It is also the shortest complete example of a back-end.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Sequence
from itertools import islice
from typing import Literal, cast

from sortedcontainers import SortedDict

from compactlib.kv.errors import PredicateFailed
from compactlib.kv.scan import KVEntry
from compactlib.kv.store import Address, KVLimits, KVStore, Transaction, Versioned, holds

_LIMITS = KVLimits(max_partition_bytes=1 << 16, max_key_bytes=1 << 16, max_value_bytes=1 << 30, max_transact=100_000,
                   max_get_many=100_000)


class MemoryStore(KVStore):
    """A `KVStore` in memory: sorted maps under one lock. A get and a set take a few microseconds.

    Args:
        page_size: the most entries of a page of a scan.
        predicates: `"version"`: every write changes the state of the key. `"value"`: the state is the value, as in
            stores that compare only values; a predicate holds again when the same bytes are written again (ABA). Code
            that works with both works with every store.
        limits: the store's limits.
    """

    def __init__(self, *, page_size: int = 1000, predicates: Literal["version", "value"] = "version",
                 limits: KVLimits = _LIMITS) -> None:
        super().__init__("the store in memory", limits, page_size=page_size)
        self._by_value = predicates == "value"
        self._partitions: dict[bytes, SortedDict[bytes, Versioned]] = {}
        self._version = 0
        self._name = uuid.uuid4().hex
        self._lock = threading.Lock()

    def _get_many(self, cells: Sequence[Address]) -> list[Versioned | None]:
        with self._lock:
            return [self._find(*cell) for cell in cells]

    def _page(self, partition: bytes, start: bytes, limit: int, keys_only: bool) -> tuple[list[KVEntry], bool]:
        with self._lock:
            cells = self._partitions.get(partition)
            if cells is None:
                return [], True
            found = ((key, cells[key]) for key in islice(cells.irange(start), limit))
            page = [KVEntry(key, b"" if keys_only else cell.value, cell.predicate) for key, cell in found]
            return page, len(page) < limit

    def _transact(self, transaction: Transaction) -> None:
        with self._lock:
            for partition, key, predicate in transaction.conditions:
                found = self._find(partition, key)
                if not holds(predicate, None if found is None else found.predicate):
                    raise PredicateFailed(partition=partition, key=key)
            before = [(partition, key, self._find(partition, key)) for partition, key, _ in transaction.changes]
            try:
                for partition, key, value in transaction.changes:
                    if partition not in self._partitions:
                        self._partitions[partition] = SortedDict()
                    if value is None:
                        self._partitions[partition].pop(key, None)
                    else:
                        self._version += 1
                        self._partitions[partition][key] = Versioned(value, value if self._by_value else self._version)
            except BaseException:
                self._restore(before)
                raise

    def _restore(self, before: Sequence[tuple[bytes, bytes, Versioned | None]]) -> None:
        """Undo an interrupted transaction: each key has its former cell, and each partition is sorted again."""
        for partition in {partition for partition, _, _ in before}.intersection(self._partitions):
            # An interrupt inside a `SortedDict` leaves a key in the dictionary and not in its order, or the reverse.
            held = cast("dict[bytes, Versioned]", self._partitions[partition])
            cells = dict(dict.items(held))
            for changed, key, cell in before:
                if changed == partition:
                    cells.pop(key, None)
                    if cell is not None:
                        cells[key] = cell
            self._partitions[partition] = SortedDict(cells)

    def _close(self) -> None:
        with self._lock:
            self._partitions = {}

    def place(self) -> str:
        """Return a name for this object, in this process."""
        self._state.require()
        return f"memory {self._name} of process {os.getpid()}"

    def _find(self, partition: bytes, key: bytes) -> Versioned | None:
        cells = self._partitions.get(partition)
        return None if cells is None else cells.get(key)

    def __repr__(self) -> str:
        cells = sum(map(len, self._partitions.values()))
        return f"MemoryStore({cells} keys in {len(self._partitions)} partitions)"
