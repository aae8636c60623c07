# SPDX-License-Identifier: Apache-2.0
"""The frozen values of a blob store: records, what the index knows of them, blob properties and answers.

Times are whole milliseconds since the epoch wherever a name ends in `_ms`, and seconds as `float` at the API of the
store. Order is that of `sequence`: a number that the store gives each record when it is written, that never repeats,
and that a compaction keeps. Where a record lies says nothing about its age.
"""

from __future__ import annotations

import enum
from typing import NamedTuple, TypeAlias

import attrs

from compactlib.blobstore.names import LogPosition, SegmentName
from compactlib.errors import InvalidInput

MAX_ID_BYTES = 1024
"""The longest blob id."""
MAX_LIFE_VERSION = (1 << 16) - 1
MAX_TAG = (1 << 32) - 1
"""The largest account or container number."""
MAX_TIME_MS = (1 << 62) - 1
"""The latest time that a record can hold."""
NO_EXPIRY = -1
"""The `expires_ms` of a blob that lives until it is deleted."""

BlobId: TypeAlias = str | bytes
"""What names a blob: 1 to `MAX_ID_BYTES` bytes; text stands for its UTF-8."""


def id_bytes(blob_id: BlobId) -> bytes:
    """The bytes of an id.

    Raises:
        InvalidInput: the id is empty, too long, or neither text nor bytes.
    """
    if isinstance(blob_id, str):
        blob_id = blob_id.encode("utf-8", "surrogatepass")
    elif not isinstance(blob_id, bytes):
        raise InvalidInput(f"a blob id is str or bytes, not {type(blob_id).__name__}")
    if not 0 < len(blob_id) <= MAX_ID_BYTES:
        raise InvalidInput(f"a blob id has 1 to {MAX_ID_BYTES} bytes, and this one has {len(blob_id)}")
    return blob_id


def milliseconds(seconds: float) -> int:
    """A time or a span in whole milliseconds, the nearest one.

    Raises:
        InvalidInput: it is no number, not finite, or beyond `MAX_TIME_MS`.
    """
    if not isinstance(seconds, int | float):
        raise InvalidInput(f"a time is a number of seconds, not {type(seconds).__name__}")
    # In this order: a whole number may be larger than any float.
    if not abs(seconds) <= MAX_TIME_MS / 1000 or abs(round(seconds * 1000)) > MAX_TIME_MS:
        raise InvalidInput(f"{seconds} seconds is no time that a record can hold; give a finite number of seconds")
    return round(seconds * 1000)


class RecordKind(enum.IntEnum):
    """What a record does to its blob."""

    PUT = 1
    DELETE = 2
    TTL_UPDATE = 3
    UNDELETE = 4


class RecordFlag(enum.IntFlag):
    """What else a record says.

    `TTL_UPDATED`: the blob had been made permanent when the record was written.
    `ERASED`: a hard delete has overwritten the content with zeros.
    `SYNCED_BEFORE`: everything before the record in its segment was durable when the record was written.
    """

    NONE = 0
    TTL_UPDATED = 1
    ERASED = 2
    SYNCED_BEFORE = 4


class IndexEntry(NamedTuple):
    """What the index knows of one record: everything but its content.

    Attributes:
        id: the blob's id.
        kind: a `RecordKind`.
        flags: `RecordFlag` bits.
        life_version: 0 when put, one more with each undelete; a delete has that of the state it ended.
        sequence: the record's number: ascends with time, unique in the store, kept by compactions.
        op_time_ms: when the operation was made.
        expires_ms: when the blob expires, or `NO_EXPIRY`; every record carries that of its blob at the time.
        account: account number of the blob.
        container: container number of the blob.
        segment: the log segment that holds the record.
        offset: where the record begins in it.
        size: bytes of the whole record: header, id, content and checksum.
    """

    id: bytes
    kind: int
    flags: int
    life_version: int
    sequence: int
    op_time_ms: int
    expires_ms: int
    account: int
    container: int
    segment: SegmentName
    offset: int
    size: int

    @property
    def position(self) -> LogPosition:
        """Where the record begins."""
        return LogPosition(self.segment, self.offset)

    @property
    def end(self) -> int:
        """The offset behind the record."""
        return self.offset + self.size

    def is_expired(self, now_ms: int) -> bool:
        """Whether the blob's time is over: strictly after `expires_ms`."""
        return 0 <= self.expires_ms < now_ms


@attrs.frozen
class BlobInfo:
    """The properties of a blob as they are now.

    Attributes:
        id: its id as bytes.
        size_bytes: length of its content.
        put_at: when it was put, seconds since the epoch, to the millisecond.
        expires_at: when it expires (strictly after), or `None` if it lives until it is deleted.
        life_version: how often it was undeleted.
        account: account number given when it was put.
        container: container number given when it was put.
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
    """A blob that is there (or was, if the options asked for it): its content, checked against its CRC.

    Attributes:
        info: its properties.
        content: its bytes.
    """

    info: BlobInfo
    content: bytes


class _Nothing:
    """An answer without content is false."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False


@attrs.frozen
class Missing(_Nothing):
    """The store does not know the id: it was never put, or a compaction has removed all trace of it."""

    id: bytes


@attrs.frozen
class Deleted(_Nothing):
    """The blob was deleted.

    Attributes:
        id: its id.
        deleted_at: when, seconds since the epoch.
        life_version: the life that the delete ended.
        content_gone: whether a compaction or a hard delete has removed the content, so that not even
            `include_deleted` can answer it.
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
        expired_at: the time after which it counts as expired.
    """

    id: bytes
    expired_at: float


Answer: TypeAlias = Blob | Missing | Deleted | Expired
"""What a get can answer; never one for the other, and true only if there is content. Damage is none of them: it raises
`CorruptData`."""


@attrs.frozen(kw_only=True)
class GetOptions:
    """What else a get may answer with its content.

    Attributes:
        include_deleted: answer a deleted blob too, as long as its content is still in the log.
        include_expired: answer an expired blob too, as long as its content is still in the log.
    """

    include_deleted: bool = False
    include_expired: bool = False
