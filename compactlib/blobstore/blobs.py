# SPDX-License-Identifier: Apache-2.0
"""The state of a blob, folded from its records, and the result of a get. Pure, except for `content_of`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import attrs

from compactlib.blobstore.records import HEADER_BYTES, TRAILER_BYTES, IndexEntry, RecordFlag, RecordKind, check_record
from compactlib.blobstore.segment import SegmentFile
from compactlib.errors import CorruptData

_TTL_UPDATED = int(RecordFlag.TTL_UPDATED)


@attrs.frozen
class BlobInfo:
    """The current properties of a blob.

    Attributes:
        id: its id as bytes.
        size_bytes: length of its content.
        put_at: when it was put, seconds since the epoch, to the millisecond.
        expires_at: the time strictly after which it has expired; `None` if it never expires.
        life_version: how often it was undeleted.
        account, container: the numbers given when it was put.
        changed_at: when its newest record was written.
    """

    id: bytes
    size_bytes: int
    put_at: float
    expires_at: float | None
    life_version: int
    account: int
    container: int
    changed_at: float


@attrs.frozen
class Blob:
    """A live blob, or a deleted or expired one if the options include it: its content, checked against its CRC."""

    info: BlobInfo
    content: bytes


class _Nothing:
    """A result without content is false."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


@attrs.frozen
class Missing(_Nothing):
    """The store does not know the id: it was never put, or a compaction has removed all its records."""

    id: bytes


@attrs.frozen
class Deleted(_Nothing):
    """The blob was deleted.

    Attributes:
        id: its id.
        deleted_at: when, seconds since the epoch.
        life_version: the life that the delete ended.
        content_gone: whether a compaction or a hard delete has removed the content, so that `include_deleted` cannot
            return it.
    """

    id: bytes
    deleted_at: float
    life_version: int
    content_gone: bool = False


@attrs.frozen
class Expired(_Nothing):
    """The blob's time to live is over.

    Attributes:
        id: its id.
        expired_at: the time strictly after which it has expired.
    """

    id: bytes
    expired_at: float


Answer: TypeAlias = Blob | Missing | Deleted | Expired
"""The result of a get; true only if there is content. Damage raises `CorruptData`."""


@attrs.frozen(kw_only=True)
class GetOptions:
    """Options of a get.

    Attributes:
        include_deleted: return a deleted blob, too, while its content is in the log.
        include_expired: return an expired blob, too, while its content is in the log.
    """

    include_deleted: bool = False
    include_expired: bool = False


FOREVER = (1 << 63) - 1
"""The time of an event that never happens."""


def expiry(expires_ms: int, flags: int) -> int:
    """Return the last time at which a blob has not expired, given expiry and flags of its newest record."""
    return FOREVER if expires_ms < 0 or flags & _TTL_UPDATED else expires_ms


class BlobState(NamedTuple):
    """The state of one id."""

    newest: IndexEntry  # its newest record, which has the current expiry, life version and flag of a TTL update
    deciding: IndexEntry | None  # its newest PUT, DELETE or UNDELETE; `None` if only TTL updates are left
    put: IndexEntry | None  # its PUT, `None` if a compaction removed it

    @property
    def is_deleted(self) -> bool:
        """Whether it is deleted."""
        return self.deciding is not None and self.deciding.kind == RecordKind.DELETE

    @property
    def deleted_ms(self) -> int:
        """The time of its delete, `FOREVER` if it is not deleted."""
        return self.deciding.op_time_ms if self.deciding is not None and self.is_deleted else FOREVER

    @property
    def has_content(self) -> bool:
        """Whether neither a compaction nor a hard delete has removed the content of its PUT."""
        return self.put is not None and not self.put.is_erased

    def permanent_ms(self, history: Sequence[IndexEntry]) -> int:
        """Return when the blob was made permanent; if that is unknown, when it was put."""
        since = self.newest.op_time_ms if self.put is None else self.put.op_time_ms
        return max((entry.op_time_ms for entry in history
                    if entry.kind == RecordKind.TTL_UPDATE and (self.put is None or entry.op_time_ms >= since)),
                   default=since)

    def info(self, put: IndexEntry) -> BlobInfo:
        """Return its properties, given its PUT."""
        newest = self.newest
        expires = newest.expires_ms
        return BlobInfo(put.id, put.content_bytes, put.op_time_ms / 1000, expires / 1000 if expires >= 0 else None,
                        newest.life_version, put.account, put.container, newest.op_time_ms / 1000)


def blob_state(history: Sequence[IndexEntry]) -> BlobState | None:
    """Return the state after these records of one id, ascending by sequence; `None` without records."""
    if not history:
        return None
    deciding = put = None
    for entry in reversed(history):
        if entry.kind != RecordKind.TTL_UPDATE and deciding is None:
            deciding = entry
        if entry.kind == RecordKind.PUT:
            put = entry
            break
    return BlobState(history[-1], deciding, put)


def info_after(history: Sequence[IndexEntry], entry: IndexEntry) -> BlobInfo:
    """Return the properties of a blob after one more record; the PUT is in `history` or is that record."""
    state = blob_state((*history, entry))
    assert state is not None
    assert state.put is not None
    return state.info(state.put)


def answer_for(key: bytes, history: Sequence[IndexEntry], options: GetOptions, now_ms: Callable[[], int],
               ) -> tuple[BlobInfo, IndexEntry] | Missing | Deleted | Expired:
    """Return the properties of a blob and the PUT with its content; or the reason that there is no content.

    `now_ms` is called only for blobs with an expiry.
    """
    state = blob_state(history)
    if state is None or state.deciding is None:
        return Missing(key)
    put, deciding = state.put, state.deciding
    gone = not state.has_content
    if state.is_deleted and (gone or not options.include_deleted):
        return Deleted(key, deciding.op_time_ms / 1000, deciding.life_version, gone)
    if state.newest.expires_ms >= 0 and not options.include_expired and state.newest.is_expired(now_ms()):
        return Expired(key, state.newest.expires_ms / 1000)
    return Missing(key) if put is None or gone else (state.info(put), put)


def content_of(file: SegmentFile, put: IndexEntry, salt: int, flags: int) -> bytes:
    """Return the content of a record. One `pread`. A content that was erased is damage unless `flags` have `ERASED`."""
    record = file.read(put.offset, put.size)
    problem = check_record(record, put.size, salt, put.sequence, flags)
    if problem is not None:
        raise CorruptData(path=file.path, offset=put.offset, index=put.sequence, found=problem,
                          expected=f"the record of blob {put.id!r}, {put.size} bytes")
    return record[HEADER_BYTES + len(put.id):-TRAILER_BYTES]
