"""A bounded cache of what was read and checked: ranges and metaranges, which never change."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

import attrs

from compactlib._arguments import require_type
from compactlib.errors import AuditFailed, InvalidInput

_V = TypeVar("_V")


@attrs.frozen
class CacheStats:
    """How well a cache did.

    Attributes:
        entries: values held.
        size_bytes: what they count for.
        hits: questions it answered.
        misses: questions it could not answer.
    """

    entries: int
    size_bytes: int
    hits: int
    misses: int


class SizedCache(Generic[_V]):
    """The values used last, as many as fit. Threads may share one. O(1).

    Args:
        max_bytes: what the values may count for together; one that is larger alone is not kept. 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        require_type("cache_bytes", max_bytes, int)
        if max_bytes < 0:
            raise InvalidInput(f"max_bytes is {max_bytes}; a cache cannot hold less than nothing")
        self._max_bytes = max_bytes
        self._held: OrderedDict[str, tuple[_V, int]] = OrderedDict()
        self._size_bytes = 0
        self._hits = 0
        self._misses = 0
        self._lock = threading.Lock()

    def get(self, name: str) -> _V | None:
        """The value, which now counts as used last; `None` if it is not held."""
        with self._lock:
            found = self._held.get(name)
            if found is None:
                self._misses += 1
                return None
            self._hits += 1
            self._held.move_to_end(name)
            return found[0]

    def put(self, name: str, value: _V, size_bytes: int) -> None:
        """Hold a value, and let go of those that were not used for longest."""
        with self._lock:
            self._drop(name)
            if size_bytes > self._max_bytes:
                return
            self._held[name] = value, size_bytes
            self._size_bytes += size_bytes
            while self._size_bytes > self._max_bytes:
                self._drop(next(iter(self._held)))

    def drop(self, name: str) -> None:
        """Let go of a value; nothing happens if it is not held."""
        with self._lock:
            self._drop(name)

    def _drop(self, name: str) -> None:
        _, size_bytes = self._held.pop(name, (None, 0))
        self._size_bytes -= size_bytes

    def stats(self) -> CacheStats:
        """Counts since it was made."""
        with self._lock:
            return CacheStats(len(self._held), self._size_bytes, self._hits, self._misses)

    def audit(self) -> None:
        """Check that it holds what it says and no more than it may.

        Raises:
            AuditFailed: it does not; the message has the numbers.
        """
        with self._lock:
            total = sum(size for _, size in self._held.values())
            if total != self._size_bytes or total > self._max_bytes:
                raise AuditFailed(f"the cache counts {self._size_bytes} bytes, holds {total}, may hold "
                                  f"{self._max_bytes}")
