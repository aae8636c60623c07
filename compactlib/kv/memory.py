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
from compactlib.kv.store import Address, Changes, Conditions, KVLimits, KVStore, holds

_LIMITS = KVLimits(max_partition_bytes=1 << 16, max_key_bytes=1 << 16, max_value_bytes=1 << 30, max_transact=100_000)


class MemoryStore(KVStore):
    """A `KVStore` in memory: a sorted map under a lock. A get and a set take a few microseconds.

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
        self._cells: SortedDict[Address, KVEntry] = SortedDict()
        self._version = 0
        self._name = uuid.uuid4().hex
        self._lock = threading.Lock()

    def _get_many(self, cells: Sequence[Address]) -> list[KVEntry | None]:
        with self._lock:
            return [self._cells.get(cell) for cell in cells]

    def _page(self, partition: bytes, start: bytes, limit: int) -> tuple[list[KVEntry], bool]:
        next_partition = partition + b"\0", b""
        with self._lock:
            cells = self._cells.irange((partition, start), next_partition, inclusive=(True, False))
            page = [self._cells[cell] for cell in islice(cells, limit)]
        return page, len(page) < limit

    def _transact(self, conditions: Conditions, changes: Changes) -> None:
        with self._lock:
            for cell, predicate in conditions.items():
                found = self._cells.get(cell)
                if not holds(predicate, None if found is None else found.predicate):
                    raise PredicateFailed(partition=cell[0], key=cell[1])
            before = {cell: self._cells.get(cell) for cell in changes}
            try:
                for cell, value in changes.items():
                    if value is None:
                        self._cells.pop(cell, None)
                    else:
                        self._version += 1
                        self._cells[cell] = KVEntry(cell[1], value, value if self._by_value else self._version)
            except BaseException:
                # Undo it, and sort again: an interrupt inside a `SortedDict` leaves a key in the dictionary and not in
                # its order, or the reverse.
                held = cast("dict[Address, KVEntry | None]", self._cells)
                entries = {**dict(dict.items(held)), **before}
                self._cells = SortedDict((cell, entry) for cell, entry in entries.items() if entry is not None)
                raise

    def _close(self) -> None:
        with self._lock:
            self._cells = SortedDict()

    def place(self) -> str:
        self._require_open()
        return f"memory {self._name} of process {os.getpid()}"
