# SPDX-License-Identifier: Apache-2.0
"""`CachedObjects`: a durable cache in front of a remote object store.

Objects never change, so a copy cannot be outdated; a deleted object can be read until its copy is evicted or `forget`
is called. Copies are objects of another store, for example a folder, under `cached/`, each with its digest. They may be
lost: a copy that cannot be written or read is fetched again, and a damaged copy is deleted and fetched again. Each is
a warning of the logger `compactlib.objects`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from compactlib._arguments import require_whole
from compactlib.errors import CompactlibError
from compactlib.lru import Lru
from compactlib.objects.errors import ObjectExists
from compactlib.objects.store import DIGEST_BYTES, Digest, ObjectInfo, ObjectRef, ObjectStore

_LOGGER = logging.getLogger("compactlib.objects")
_CACHED = "cached/"


class CachedObjects(ObjectStore):
    """An `ObjectStore` that caches reads of whole objects, and passes all other calls on. Threads may share it.

    Args:
        store: the objects' store; closed with this object.
        near: the store of the copies, usually `LocalObjects`; listed once. It stays open.
        max_bytes: the most bytes of all copies; the least recently used copies are deleted.

    Raises:
        InvalidInput: `max_bytes` is below 0.
        StorageError, ObjectStoreFailed: `near` cannot be listed.
    """

    def __init__(self, store: ObjectStore, near: ObjectStore, *, max_bytes: int = 10 << 30) -> None:
        super().__init__(f"the cached {store!r}")
        self._store = store
        self._near = near
        self._max_bytes: int = require_whole("max_bytes", max_bytes)
        self._copies: Lru[str, bool] = Lru(max_bytes)
        for info in sorted(near.list(_CACHED), key=lambda info: info.modified_at):
            self._note_copy(info.key.removeprefix(_CACHED), info.size_bytes)

    def _read(self, key: str, start: int, stop: int | None) -> bytes:
        data = self._kept(key)
        if data is None:
            if stop is not None:
                return self._store.get_range(key, start, stop - start)
            data = self._store.get(key)
            self._keep(key, data)
        return data[start:stop]

    def forget(self, key: str) -> None:
        """Delete the copy of an object."""
        if self._copies.drop(key):
            self._remove(key)

    def _kept(self, key: str) -> bytes | None:
        if not self._copies.get(key):
            return None
        try:
            stored = self._near.get(_CACHED + key)
            data = stored[DIGEST_BYTES:]
            if Digest.of(data).value == stored[:DIGEST_BYTES]:
                return data
            _LOGGER.warning("the copy of %r in %r is damaged; it is fetched", key, self._near)
        except CompactlibError as error:  # for example evicted by another process
            self._note(error)
        self.forget(key)
        return None

    def _keep(self, key: str, data: bytes) -> None:
        if DIGEST_BYTES + len(data) > self._max_bytes:
            return
        try:
            self._near.create(_CACHED + key, Digest.of(data).value + data)
        except ObjectExists:
            pass
        except CompactlibError as error:
            self._note(error)
            return
        self._note_copy(key, DIGEST_BYTES + len(data))

    def _note_copy(self, key: str, size_bytes: int) -> None:
        for evicted in self._copies.put(key, True, size_bytes):
            self._remove(evicted)

    def _remove(self, key: str) -> None:
        try:
            self._near.delete([_CACHED + key])
        except CompactlibError as error:
            self._note(error)

    def _note(self, error: CompactlibError) -> None:
        _LOGGER.warning("copies of objects in %r: %s; they are fetched", self._near, error)

    # --- passed on

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        return self._store.create(key, data)

    def info(self, key: str) -> ObjectInfo:
        return self._store.info(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def _delete(self, keys: Sequence[str]) -> None:
        try:
            self._store.delete(keys)
        finally:
            for key in keys:
                self.forget(key)

    def available_bytes(self) -> int | None:
        return self._store.available_bytes()

    def _close(self) -> None:
        self._store.close()
