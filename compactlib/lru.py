# SPDX-License-Identifier: Apache-2.0
"""`Lru`: a cache that drops the least recently used values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

from compactlib.errors import InvalidInput

_K = TypeVar("_K")
_V = TypeVar("_V")


class Lru(Generic[_K, _V]):
    """A cache that drops the least recently used values when it is full. Threads may share one. O(1).

    Args:
        max_entries: how many values it holds at most; `None` is no limit.
        max_bytes: the most that their sizes add up to; a larger value is not kept. `None` is no limit.

    Raises:
        InvalidInput: a bound is below 0.
    """

    def __init__(self, *, max_entries: int | None = None, max_bytes: int | None = None) -> None:
        if min(max_entries or 0, max_bytes or 0) < 0:
            raise InvalidInput(f"max_entries is {max_entries} and max_bytes {max_bytes}; a cache cannot hold less than "
                               f"nothing")
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._held: OrderedDict[_K, tuple[_V, int]] = OrderedDict()
        self._size_bytes = 0
        self._lock = threading.Lock()

    def get(self, key: _K) -> _V | None:
        """Return a value, and mark it as used; `None` if it is not cached."""
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def put(self, key: _K, value: _V, size_bytes: int = 0) -> list[_K]:
        """Add a value, and drop the least recently used values until all fit.

        Returns:
            The keys of the dropped values; `key` itself if its value is larger than the cache.
        """
        with self._lock:
            self._drop(key)
            if self._max_bytes is not None and size_bytes > self._max_bytes:
                return [key]
            self._held[key] = value, size_bytes
            self._size_bytes += size_bytes
            dropped = []
            while self._is_over():
                dropped.append(next(iter(self._held)))
                self._drop(dropped[-1])
            return dropped

    def drop(self, key: _K) -> bool:
        """Remove a value; return whether it was cached."""
        with self._lock:
            return self._drop(key)

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._held.clear()
            self._size_bytes = 0

    def _drop(self, key: _K) -> bool:
        if key not in self._held:
            return False
        _, size_bytes = self._held.pop(key)
        self._size_bytes -= size_bytes
        return True

    def _is_over(self) -> bool:
        return ((self._max_entries is not None and len(self._held) > self._max_entries)
                or (self._max_bytes is not None and self._size_bytes > self._max_bytes))

    def items(self) -> list[tuple[_K, _V]]:
        """Return all keys and values, the least recently used first; marks none as used. O(n)."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._held.items()]

    def __len__(self) -> int:
        return len(self._held)

    def __repr__(self) -> str:
        most = " and ".join(f"at most {bound:,} {unit}" for bound, unit in (
            (self._max_entries, "values"), (self._max_bytes, "bytes")) if bound is not None)
        return f"Lru({len(self):,} values, {self._size_bytes:,} bytes; {most or 'no bound'})"
