# SPDX-License-Identifier: Apache-2.0
"""A blob store as a dictionary: the expected result of each operation."""

from __future__ import annotations

from typing import TypeAlias

import attrs

from compactlib.blobstore import Blob, Deleted, Expired, GetOptions, Missing
from compactlib.blobstore.errors import (
    AlreadyUndeleted,
    BlobDeleted,
    BlobExists,
    BlobExpired,
    BlobMissing,
    DeletedForGood,
    NotDeleted,
    TtlAlreadyUpdated,
    TtlUpdateTooLate,
)
from compactlib.errors import CompactlibError

Answer: TypeAlias = Blob | Deleted | Expired | Missing


@attrs.define
class PlainBlob:
    """One blob. Times are milliseconds."""

    content: bytes
    put_ms: int
    expires_ms: int | None
    deleted_ms: int | None = None
    life: int = 0
    permanent: bool = False
    content_gone: bool = False

    def is_expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms > self.expires_ms


@attrs.define
class PlainStore:
    """Blobs by id; operations return the class of the expected error, or `None`."""

    retention_ms: int
    buffer_ms: int
    blobs: dict[bytes, PlainBlob] = attrs.field(factory=dict)

    def put(self, key: bytes, content: bytes, now_ms: int, ttl_ms: int | None, *,
            replace: bool = False) -> type[CompactlibError] | None:
        blob = self.blobs.get(key)
        if blob is not None and not replace and not blob.is_expired(now_ms):
            return BlobExists
        self.blobs[key] = PlainBlob(content, now_ms, None if ttl_ms is None else now_ms + ttl_ms)
        if blob is not None:
            self.blobs[key].life = blob.life + (blob.deleted_ms is not None)
        return None

    def delete(self, key: bytes, now_ms: int) -> type[CompactlibError] | None:
        blob = self.blobs.get(key)
        if blob is None or blob.deleted_ms is not None:
            return BlobMissing if blob is None else BlobDeleted
        blob.deleted_ms = now_ms
        return None

    def undelete(self, key: bytes, now_ms: int) -> type[CompactlibError] | None:
        blob = self.blobs.get(key)
        if blob is None:
            return BlobMissing
        if blob.deleted_ms is None:
            return AlreadyUndeleted if blob.life else NotDeleted
        if blob.content_gone or blob.deleted_ms + self.retention_ms < now_ms:
            return DeletedForGood
        if blob.is_expired(now_ms):
            return BlobExpired
        blob.deleted_ms = None
        blob.life += 1
        return None

    def ttl_update(self, key: bytes, now_ms: int) -> type[CompactlibError] | None:
        blob = self.blobs.get(key)
        if blob is None:
            return BlobMissing
        if blob.deleted_ms is not None:
            return BlobDeleted
        if blob.permanent:
            return TtlAlreadyUpdated
        if blob.is_expired(now_ms):
            return BlobExpired
        if blob.expires_ms is not None and blob.expires_ms < now_ms + self.buffer_ms:
            return TtlUpdateTooLate
        blob.permanent, blob.expires_ms = True, None
        return None

    def expect(self, key: bytes, now_ms: int, options: GetOptions) -> Answer | bytes:
        """Return the expected result of a get; for a blob, its content alone."""
        blob = self.blobs.get(key)
        if blob is None:
            return Missing(key)
        if blob.deleted_ms is not None and (blob.content_gone or not options.include_deleted):
            return Deleted(key, blob.deleted_ms / 1000, blob.life, blob.content_gone)
        if blob.is_expired(now_ms) and not options.include_expired:
            assert blob.expires_ms is not None
            return Expired(key, blob.expires_ms / 1000)
        return blob.content


    def compacted(self, key: bytes, found: Answer, reference_ms: int, now_ms: int) -> None:
        """Apply the possible changes of a compaction, from the result of a get without options."""
        blob = self.blobs.get(key)
        if blob is None:
            return
        if blob.deleted_ms is None and blob.is_expired(now_ms) and isinstance(found, Missing):
            del self.blobs[key]
        elif blob.deleted_ms is not None and isinstance(found, Deleted) and found.content_gone:
            assert blob.deleted_ms < reference_ms or blob.is_expired(now_ms)
            blob.content_gone = True


def told(answer: Answer) -> Answer | bytes:
    """Convert a result to the form of `PlainStore.expect`."""
    return answer.content if isinstance(answer, Blob) else answer
