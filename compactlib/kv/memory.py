# SPDX-License-Identifier: Apache-2.0
"""`MemoryStore`: a key-value store in this process's memory, for tests.

It is also the shortest complete example of a back-end.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Literal, cast

from sortedcontainers import SortedDict

from compactlib.kv.errors import PredicateFailed
from compactlib.kv.scan import KVEntry
from compactlib.kv.store import Address, Changes, Conditions, KVLimits, KVStore, holds

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
        self._partitions: dict[bytes, SortedDict[bytes, KVEntry]] = {}
        self._version = 0
        self._name = uuid.uuid4().hex
        self._lock = threading.Lock()

    def _get_many(self, cells: Sequence[Address]) -> list[KVEntry | None]:
        with self._lock:
            return [self._find(cell) for cell in cells]

    def _page(self, partition: bytes, start: bytes, limit: int) -> tuple[list[KVEntry], bool]:
        with self._lock:
            held = self._partitions.get(partition) or SortedDict()
            page = [held[key] for key in islice(held.irange(start), limit)]
        return page, len(page) < limit

    def _transact(self, conditions: Conditions, changes: Changes) -> None:
        with self._lock:
            for cell, predicate in conditions.items():
                found = self._find(cell)
                if not holds(predicate, None if found is None else found.predicate):
                    raise PredicateFailed(partition=cell[0], key=cell[1])
            before = {cell: self._find(cell) for cell in changes}
            try:
                for (partition, key), value in changes.items():
                    if partition not in self._partitions:
                        self._partitions[partition] = SortedDict()
                    held = self._partitions[partition]
                    if value is None:
                        held.pop(key, None)
                    else:
                        self._version += 1
                        held[key] = KVEntry(key, value, value if self._by_value else self._version)
            except BaseException:
                self._restore(before)
                raise

    def _restore(self, before: Mapping[Address, KVEntry | None]) -> None:
        """Undo an interrupted transaction: each key has its former entry, and each partition is sorted again."""
        for partition in {partition for partition, _ in before}.intersection(self._partitions):
            # An interrupt inside a `SortedDict` leaves a key in the dictionary and not in its order, or the reverse.
            held = cast("dict[bytes, KVEntry]", self._partitions[partition])
            entries = dict(dict.items(held))
            for (changed, key), entry in before.items():
                if changed == partition:
                    entries.pop(key, None)
                    if entry is not None:
                        entries[key] = entry
            self._partitions[partition] = SortedDict(entries)

    def _close(self) -> None:
        with self._lock:
            self._partitions = {}

    def place(self) -> str:
        self._require_open()
        return f"memory {self._name} of process {os.getpid()}"

    def _find(self, cell: Address) -> KVEntry | None:
        partition, key = cell
        return self._partitions[partition].get(key) if partition in self._partitions else None

    def __repr__(self) -> str:
        cells = sum(map(len, self._partitions.values()))
        return f"MemoryStore({cells} keys in {len(self._partitions)} partitions)"
