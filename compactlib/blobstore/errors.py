# SPDX-License-Identifier: Apache-2.0
"""The errors of the blob store: leaves of the library's tree.

Each says which blob, segment or file it is about and what to do. Damage is `compactlib.errors.CorruptData`.
"""

from __future__ import annotations

from compactlib.errors import Conflict, DiskFull, InvalidInput, NotFound, Stale

HOW_TO_COMPACT = ("compact the store by store.compact(), or in the background by a CompactionManager and its "
                  "add(store.name, store)")


class NotAStore(InvalidInput):
    """The folder does not hold a blob store. Check the path, or create one in an empty folder."""


class BlobTooLarge(InvalidInput):
    """The record does not fit into an empty segment. Split the blob, or create the store with larger segments."""

    def __init__(self, message: str, *, record_bytes: int, limit_bytes: int) -> None:
        super().__init__(message)
        self.record_bytes = record_bytes
        self.limit_bytes = limit_bytes


class BlobMissing(NotFound):
    """The store does not know this id: it was never put, or a compaction has removed all its records."""


class BlobConflict(Conflict):
    """The blob is not in the state that the operation needs; nothing was changed. The leaves say which."""


class BlobExists(BlobConflict):
    """A blob of this id was put before and has not expired. Choose another id, or put it with `replace=True`."""


class BlobDeleted(BlobConflict):
    """The blob is deleted. Undelete it first."""


class BlobExpired(BlobConflict):
    """The blob's time to live is over."""


class NotDeleted(BlobConflict):
    """The blob is live, so that there is nothing to undelete."""


class AlreadyUndeleted(NotDeleted):
    """The blob is live because it was undeleted before."""


class DeletedForGood(BlobConflict):
    """The delete is older than the retention, so that compaction may already have removed the content."""


class TtlAlreadyUpdated(BlobConflict):
    """The blob was made permanent before."""


class TtlUpdateTooLate(BlobConflict):
    """The blob expires too soon for its time to live to be updated safely on all replicas."""


class PlanDoesNotFit(Stale):
    """A plan or a switch names segments that the store does not have (any more) in that state. Plan again."""


class StoreFull(DiskFull):
    """Every segment of the log is in use. Compact the store, or create a larger one.

    `BlobStore.plan().why` says what keeps segments from being compacted.
    """

    _advice = f"{HOW_TO_COMPACT}; see plan().why for what holds that back, or create a larger one"
