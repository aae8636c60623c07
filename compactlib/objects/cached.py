# SPDX-License-Identifier: Apache-2.0
"""`CachedObjects`: a durable cache in front of a remote object store.

Objects never change, so a copy cannot be outdated; a deleted object can be read until its copy is evicted or `forget`
is called. Copies are objects of another store, for example a folder, under `cached/`, each with its digest. They may be
lost: a copy that cannot be written or read is fetched again, and a damaged copy is deleted and fetched again.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from compactlib._closing import Closing
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.objects.errors import ObjectExists
from compactlib.objects.store import (
    DIGEST_BYTES,
    Digest,
    ObjectInfo,
    ObjectRef,
    ObjectStore,
    check_range,
    checked_keys,
)

_LOGGER = logging.getLogger("compactlib.objects")
_CACHED = "cached/"


class CachedObjects(Closing):
    """An `ObjectStore` that caches reads of whole objects, and passes all other calls on. Threads may share it.

    Args:
        store: of the objects; closed with this one.
        near: of the copies, usually `LocalObjects`; listed once. It stays open.
        max_bytes: of all copies; the least recently used ones are deleted.

    Attributes:
        failures: the number of errors of `near`, and of damaged copies.
        last_error: the last of them.

    Raises:
        InvalidInput: `max_bytes` is below 0.
        StorageError, ObjectStoreFailed: `near` cannot be listed.
    """

    def __init__(self, store: ObjectStore, near: ObjectStore, *, max_bytes: int = 10 << 30) -> None:
        if max_bytes < 0:
            raise InvalidInput(f"max_bytes is {max_bytes}; give 0 or more")
        self.failures: int = 0
        self.last_error: CompactlibError | None = None
        self._store = store
        self._near = near
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._sizes: OrderedDict[str, int] = OrderedDict(
            (info.key.removeprefix(_CACHED), info.size_bytes)
            for info in sorted(near.list(_CACHED), key=lambda info: info.modified_at))
        self._total = sum(self._sizes.values())
        self._evict()

    def get(self, key: str) -> bytes:
        kept = self._kept(key)
        if kept is not None:
            return kept
        data = self._store.get(key)
        if DIGEST_BYTES + len(data) <= self._max_bytes:
            self._keep(key, data)
        return data

    def forget(self, key: str) -> None:
        """Delete the copy of an object."""
        with self._lock:
            size_bytes = self._sizes.pop(key, None)
            self._total -= size_bytes or 0
        if size_bytes is not None:
            try:
                self._near.delete([_CACHED + key])
            except CompactlibError as error:
                self._note(error)

    def _kept(self, key: str) -> bytes | None:
        with self._lock:
            if key not in self._sizes:
                return None
            self._sizes.move_to_end(key)
        try:
            stored = self._near.get(_CACHED + key)
        except CompactlibError as error:  # for example evicted by another process
            self._note(error)
        else:
            data = stored[DIGEST_BYTES:]
            if Digest.of(data).value == stored[:DIGEST_BYTES]:
                return data
            self._note(InvalidInput(f"the copy of {key!r} in {self._near!r} is damaged; it is fetched"))
        self.forget(key)
        return None

    def _keep(self, key: str, data: bytes) -> None:
        try:
            self._near.create(_CACHED + key, Digest.of(data).value + data)
        except ObjectExists:
            pass
        except CompactlibError as error:
            self._note(error)
            return
        with self._lock:
            self._total += DIGEST_BYTES + len(data) - self._sizes.pop(key, 0)
            self._sizes[key] = DIGEST_BYTES + len(data)
        self._evict()

    def _evict(self) -> None:
        while True:
            with self._lock:
                if self._total <= self._max_bytes:
                    return
                oldest = next(iter(self._sizes))
            self.forget(oldest)

    def _note(self, error: CompactlibError) -> None:
        self.failures += 1
        self.last_error = error
        if self.failures & (self.failures - 1) == 0:
            _LOGGER.warning("copies of objects in %r: %r (failure %d); they are fetched", self._near, error,
                            self.failures)

    # --- passed on

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        return self._store.create(key, data)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        check_range(start, length)
        kept = self._kept(key)
        return self._store.get_range(key, start, length) if kept is None else kept[start:start + length]

    def info(self, key: str) -> ObjectInfo:
        return self._store.info(key)

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix, after=after)

    def delete(self, keys: Iterable[str]) -> None:
        checked = checked_keys(keys)
        try:
            self._store.delete(checked)
        finally:
            for key in checked:
                self.forget(key)

    def available_bytes(self) -> int | None:
        return self._store.available_bytes()

    def close(self) -> None:
        self._store.close()

    def __repr__(self) -> str:
        return f"CachedObjects({self._store!r}, {len(self._sizes)} copies of {self._total:,} bytes)"
