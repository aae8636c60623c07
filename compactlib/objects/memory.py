# SPDX-License-Identifier: Apache-2.0
"""Objects in memory: the reference for the others, and for tests of hosts."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from compactlib._closing import Closing
from compactlib._sorted import SortedMap
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Closed
from compactlib.objects.digest import size_and_digest
from compactlib.objects.errors import ObjectExists, ObjectNotFound
from compactlib.objects.keys import check_key, check_prefix, check_range, checked_keys
from compactlib.objects.store import ObjectInfo, ObjectRef


class MemoryObjects(Closing):
    """An `ObjectStore` that keeps everything in memory, with an age by the given clock."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        self._objects: SortedMap[str, tuple[bytes, float]] = SortedMap()
        self._lock = threading.Lock()
        self._closed = False

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        self._check(key)
        size_bytes, digest = size_and_digest(data)
        kept = bytes(memoryview(data))  # a number of NumPy is a buffer, and also says how many zeros
        with self._lock:
            if key in self._objects:
                raise ObjectExists(key=key)
            self._objects[key] = kept, self._clock.now()
        return ObjectRef(key, size_bytes, digest)

    def get(self, key: str) -> bytes:
        return self._found(key)[0]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        return self._found(key)[0][start:start + length]

    def info(self, key: str) -> ObjectInfo:
        data, modified_at = self._found(key)
        return ObjectInfo(key, len(data), modified_at)

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`. What is there when it is called."""
        self._require_open()
        check_prefix(prefix, after)
        with self._lock:
            # After its keys sorts whatever begins with the prefix and one more of the highest character.
            keys = self._objects.irange(max(prefix, after), prefix + "\U0010ffff")
            found = [ObjectInfo(key, len(self._objects[key][0]), self._objects[key][1])
                     for key in keys if key > after]
        return iter(found)

    def delete(self, keys: Iterable[str]) -> None:
        self._require_open()
        doomed = checked_keys(keys)
        with self._lock:
            for key in doomed:
                if key in self._objects:
                    del self._objects[key]

    def _found(self, key: str) -> tuple[bytes, float]:
        self._check(key)
        found = self._objects.get(key)
        if found is None:
            raise ObjectNotFound(key=key)
        return found

    def _check(self, key: str) -> None:
        self._require_open()
        check_key(key)

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("this store in memory was closed; what it held is gone")

    def available_bytes(self) -> int | None:
        """See `ObjectStore.available_bytes`: it is unknown."""
        self._require_open()
        return None

    def close(self) -> None:
        """See `ObjectStore.close`; forgets everything."""
        self._closed = True
        self._objects.clear()

    def __repr__(self) -> str:
        return f"<MemoryObjects: {len(self._objects):,} objects>"
