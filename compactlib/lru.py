# SPDX-License-Identifier: Apache-2.0
"""`Lru`: a cache that drops the least recently used values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

_K = TypeVar("_K")
_V = TypeVar("_V")


class Lru(Generic[_K, _V]):
    """A cache that drops the least recently used values when it is full. Threads may share one. O(1).

    Args:
        limit: the maximum of the sum of the values' sizes; with the default size 1, the maximum number of values.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held: OrderedDict[_K, tuple[_V, int]] = OrderedDict()
        self._size = 0
        self._lock = threading.Lock()

    def get(self, key: _K) -> _V | None:
        """Return a value, and mark it as used; `None` if it is not cached."""
        with self._lock:
            found = self._held.get(key)
            if found is None:
                return None
            self._held.move_to_end(key)
            return found[0]

    def put(self, key: _K, value: _V, size: int = 1) -> list[_K]:
        """Add a value, and drop the least recently used values until all fit.

        Returns:
            The keys of the dropped values; `key` itself if its value is larger than the cache.
        """
        with self._lock:
            self._drop(key)
            if size > self._limit:
                return [key]
            self._held[key] = value, size
            self._size += size
            dropped = []
            while self._size > self._limit:
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
            self._size = 0

    def _drop(self, key: _K) -> bool:
        if key not in self._held:
            return False
        _, size = self._held.pop(key)
        self._size -= size
        return True

    def items(self) -> list[tuple[_K, _V]]:
        """Return all keys and values, the least recently used first; marks none as used. O(n)."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._held.items()]

    def __len__(self) -> int:
        return len(self._held)
