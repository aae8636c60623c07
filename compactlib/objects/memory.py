# SPDX-License-Identifier: Apache-2.0
"""`MemoryObjects`: an object store in memory, for tests, and with the behaviour that every other store must have."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

from compactlib._arguments import own_bytes
from compactlib.clock import Clock, SystemClock
from compactlib.objects.errors import ObjectExists, ObjectNotFound
from compactlib.objects.store import ObjectInfo, ObjectStore


class MemoryObjects(ObjectStore):
    """An `ObjectStore` in memory, with ages by the given clock; closing it drops all objects."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__("the store in memory")
        self._clock: Clock = SystemClock() if clock is None else clock
        # One assignment changes it, so that after an interrupt an object is there or not.
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._lock = threading.Lock()

    def _create(self, key: str, data: bytes | memoryview) -> None:
        kept = own_bytes(data)
        with self._lock:
            if key in self._objects:
                raise ObjectExists(key=key)
            self._objects[key] = kept, self._clock.now()

    def _read(self, key: str, start: int, stop: int | None) -> bytes:
        data, _ = self._found(key)
        return data[start:stop]

    def _info(self, key: str) -> ObjectInfo:
        data, modified_at = self._found(key)
        return ObjectInfo(key, len(data), modified_at)

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        # A copy: the caller iterates while other threads create and delete.
        with self._lock:
            found = [ObjectInfo(key, len(data), modified_at) for key, (data, modified_at) in self._objects.items()
                     if key.startswith(prefix)]
        return iter(sorted(found, key=lambda info: info.key))

    def _delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def _found(self, key: str) -> tuple[bytes, float]:
        found = self._objects.get(key)
        if found is None:
            raise ObjectNotFound(key=key)
        return found

    def _close(self) -> None:
        self._objects.clear()
