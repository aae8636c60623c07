# SPDX-License-Identifier: Apache-2.0
"""`MemoryObjects`: objects in memory, the reference of all stores, and for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator

from compactlib._arguments import own_bytes
from compactlib._closing import Closing
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Closed
from compactlib.objects.errors import ObjectExists, ObjectNotFound
from compactlib.objects.store import (
    Digest,
    ObjectInfo,
    ObjectRef,
    check_key,
    check_prefix,
    check_range,
    checked_keys,
)


class MemoryObjects(Closing):
    """An `ObjectStore` in memory, with ages by the given clock; closing it drops all objects."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        self._clock: Clock = SystemClock() if clock is None else clock
        # A plain dictionary: an interrupt leaves a key in it or out of it.
        self._objects: dict[str, tuple[bytes, float]] = {}
        self._lock = threading.Lock()
        self._closed = False

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        self._require_open()
        check_key(key)
        kept = own_bytes(data)
        with self._lock:
            if key in self._objects:
                raise ObjectExists(key=key)
            self._objects[key] = kept, self._clock.now()
        return ObjectRef(key, len(kept), Digest.of(kept))

    def get(self, key: str) -> bytes:
        return self._found(key)[0]

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        return self._found(key)[0][start:start + length]

    def info(self, key: str) -> ObjectInfo:
        data, modified_at = self._found(key)
        return ObjectInfo(key, len(data), modified_at)

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`. Lists the objects at the call."""
        self._require_open()
        check_prefix(prefix)
        with self._lock:
            found = [ObjectInfo(key, len(data), modified_at) for key, (data, modified_at) in self._objects.items()
                     if key.startswith(prefix) and key > after]
        return iter(sorted(found, key=lambda info: info.key))

    def delete(self, keys: Iterable[str]) -> None:
        self._require_open()
        checked = checked_keys(keys)
        with self._lock:
            for key in checked:
                self._objects.pop(key, None)

    def _found(self, key: str) -> tuple[bytes, float]:
        self._require_open()
        check_key(key)
        found = self._objects.get(key)
        if found is None:
            raise ObjectNotFound(key=key)
        return found

    def _require_open(self) -> None:
        if self._closed:
            raise Closed("this store in memory was closed; what it held is gone")

    def available_bytes(self) -> int | None:
        self._require_open()
        return None

    def close(self) -> None:
        self._closed = True
        self._objects.clear()

    def __repr__(self) -> str:
        return f"<MemoryObjects: {len(self._objects):,} objects>"
