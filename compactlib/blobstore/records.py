# SPDX-License-Identifier: Apache-2.0
"""The records of a blob store, and their bytes (`docs/formats/blobstore-log.md`). Pure functions.

The CRC at the end covers the whole record, because it continues the header's CRC. That CRC starts from a salt of the
store, so that a piece of another store's log, stored as a blob, is never taken for a record when a damaged log is
scanned.

Times are whole milliseconds since the epoch wherever a name ends in `_ms`, and seconds as `float` in the API of the
store. The order of records is that of `sequence`: a unique number that the store assigns when it writes a record, and
that a compaction keeps. The place of a record does not depend on its age.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple, TypeAlias

from compactlib.blobstore.names import SegmentName
from compactlib.errors import InvalidInput
from compactlib.files.checksum import crc32

MAX_ID_BYTES = 1024
"""The longest blob id."""
MAX_LIFE_VERSION = (1 << 16) - 1
MAX_TAG = (1 << 32) - 1
"""The largest account or container number."""
MAX_TIME_MS = (1 << 62) - 1
"""The latest time that a record can hold."""
NO_EXPIRY = -1
"""The `expires_ms` of a blob that lives until it is deleted."""
MAGIC = b"CLBR"
HEADER_BYTES = 56
TRAILER_BYTES = 4
OVERHEAD_BYTES = HEADER_BYTES + TRAILER_BYTES
"""The bytes of a record without its id and its content."""

_VERSION = 1
_MAX_SEQUENCE = (1 << 63) - 1
_MAX_CONTENT_BYTES = (1 << 62) - 1
_HEADER = struct.Struct("<4sBBBBHHIIQqqQ")
_FULL = struct.Struct("<4sBBBBHHIIQqqQI")
_CRC = struct.Struct("<I")
_WHICH = struct.Struct("<8xH10xQ16xQI")
"""Of a header: the length of the id, the sequence, the length of the content, and the CRC."""

BlobId: TypeAlias = str | bytes
"""The id of a blob: 1 to `MAX_ID_BYTES` bytes; text is encoded as UTF-8."""


def id_bytes(blob_id: BlobId) -> bytes:
    """Return the bytes of an id."""
    if isinstance(blob_id, str):
        blob_id = blob_id.encode("utf-8", "surrogatepass")
    if not 0 < len(blob_id) <= MAX_ID_BYTES:
        raise InvalidInput(f"a blob id has 1 to {MAX_ID_BYTES} bytes, and this one has {len(blob_id)}")
    return blob_id


def milliseconds(seconds: float) -> int:
    """Return a time or a span in whole milliseconds, rounded."""
    # In this order: a whole number may be larger than any float. As a float, since an integer of NumPy may overflow.
    if not abs(seconds) <= MAX_TIME_MS / 1000 or abs(found := round(float(seconds) * 1000)) > MAX_TIME_MS:
        raise InvalidInput(f"{seconds} seconds is no time that a record can hold; give a finite number of seconds")
    return found


class RecordKind(enum.IntEnum):
    """The operation of a record."""

    PUT = 1
    DELETE = 2
    TTL_UPDATE = 3
    UNDELETE = 4


class RecordFlag(enum.IntFlag):
    """Flags of a record.

    `TTL_UPDATED`: the blob had been made permanent when the record was written.
    `ERASED`: a hard delete has overwritten the content with zeros.
    `SYNCED_BEFORE`: everything before the record in its segment was durable when the record was written.
    """

    NONE = 0
    TTL_UPDATED = 1
    ERASED = 2
    SYNCED_BEFORE = 4


_KINDS = frozenset(map(int, RecordKind))
_FLAGS = int(RecordFlag.TTL_UPDATED | RecordFlag.ERASED | RecordFlag.SYNCED_BEFORE)
_TTL_UPDATED = int(RecordFlag.TTL_UPDATED)
_ERASED = int(RecordFlag.ERASED)


class IndexEntry(NamedTuple):
    """The index entry of a record: all its fields but the content.

    Attributes:
        id: the blob's id.
        kind: a `RecordKind`.
        flags: `RecordFlag` bits.
        life_version: 0 for a PUT, increased by each undelete; a delete has that of the life that it ends.
        sequence: the record's number: ascends with time, unique in the store, kept by compactions.
        op_time_ms: the time of the operation.
        expires_ms: when the blob expires, or `NO_EXPIRY`; every record has that of its blob at the time.
        account, container: the blob's numbers, as put.
        segment: the log segment that holds the record.
        offset: the record's offset in it.
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
    def end(self) -> int:
        """The offset after the record."""
        return self.offset + self.size

    @property
    def content_bytes(self) -> int:
        """The length of the content; 0 for everything but a PUT."""
        return self.size - OVERHEAD_BYTES - len(self.id)

    def is_expired(self, now_ms: int) -> bool:
        """Whether the blob has expired: strictly after `expires_ms`."""
        return 0 <= self.expires_ms < now_ms

    @property
    def is_permanent(self) -> bool:
        """Whether the blob had been made permanent when the record was written."""
        return bool(self.flags & _TTL_UPDATED)

    @property
    def is_erased(self) -> bool:
        """Whether a hard delete has overwritten the content."""
        return bool(self.flags & _ERASED)

    def is_plausible(self) -> bool:
        """Whether each field is in its range."""
        return (0 < len(self.id) <= MAX_ID_BYTES and 0 <= self.life_version <= MAX_LIFE_VERSION
                and 0 <= self.account <= MAX_TAG and 0 <= self.container <= MAX_TAG
                and 0 <= self.sequence <= _MAX_SEQUENCE
                and abs(self.op_time_ms) <= MAX_TIME_MS and NO_EXPIRY <= self.expires_ms <= 2 * MAX_TIME_MS
                and 0 <= self.content_bytes <= _MAX_CONTENT_BYTES)


def record_size(id_length: int, content_bytes: int) -> int:
    """Return the bytes of a whole record."""
    return OVERHEAD_BYTES + id_length + content_bytes


def encode_head(entry: IndexEntry, salt: int) -> tuple[bytes, int]:
    """Return header and id of the record of an entry, and the header's CRC.

    The content follows, then `encode_trailer(crc32(content, crc))`.
    """
    if not entry.is_plausible():
        raise InvalidInput(f"a field of the record is out of range: {entry}")
    body = _HEADER.pack(MAGIC, _VERSION, entry.kind, entry.flags, 0, len(entry.id), entry.life_version, entry.account,
                        entry.container, entry.sequence, entry.op_time_ms, entry.expires_ms, entry.content_bytes)
    crc = crc32(entry.id, crc32(body, salt))
    return body + _CRC.pack(crc) + entry.id, crc


def encode_trailer(crc: int) -> bytes:
    """Return the last four bytes of a record."""
    return _CRC.pack(crc)


def decode_head(data: bytes, at: int, salt: int, segment: SegmentName, offset: int) -> IndexEntry | str:
    """Return the entry of the record at a place in some bytes; or its damage, as text."""
    if at + HEADER_BYTES > len(data):
        return f"{max(len(data) - at, 0)} bytes, fewer than a header"
    (magic, version, kind, flags, reserved, id_length, life_version, account, container, sequence, op_time_ms,
     expires_ms, content, crc) = _FULL.unpack_from(data, at)
    if magic != MAGIC:
        return f"magic {magic!r}"
    start = at + HEADER_BYTES
    blob_id = data[start:start + id_length]
    found = crc32(blob_id, crc32(data[at:start - _CRC.size], salt))
    if found != crc or len(blob_id) != id_length:
        return f"header CRC {found:#010x} instead of {crc:#010x}"
    if version != _VERSION or kind not in _KINDS or flags & ~_FLAGS or reserved:
        return f"version {version}, kind {kind}, flags {flags:#x}, which this release does not know"
    entry = IndexEntry(blob_id, kind, flags, life_version, sequence, op_time_ms, expires_ms, account, container,
                       segment, offset, record_size(id_length, content))
    return entry if entry.is_plausible() else "fields out of range under a valid CRC"


def check_record(record: bytes | memoryview, size: int, salt: int, sequence: int, flags: int = _ERASED) -> str | None:
    """Return the damage of a record, as text; `None` if it is whole.

    Size and number are compared with the index; the CRC covers all other fields. An erased content is damage unless the
    index marks it as erased, by `flags`.
    """
    view = memoryview(record)
    if len(view) != size:
        return f"{len(view)} bytes, where the file ends"
    id_length, number, content, stored = _WHICH.unpack_from(view)
    start = HEADER_BYTES + id_length
    crc = crc32(view[HEADER_BYTES:start], crc32(view[:HEADER_BYTES - _CRC.size], salt))
    if crc != stored:
        return f"header CRC {crc:#010x} instead of {stored:#010x}"
    if number != sequence or OVERHEAD_BYTES + id_length + content != size:
        return f"record {number} of {record_size(id_length, content)} bytes"
    if view[6] & _ERASED and not flags & _ERASED:
        return "a content that was overwritten"
    crc = crc32(view[start:-TRAILER_BYTES], crc)
    stored = _CRC.unpack_from(view, size - TRAILER_BYTES)[0]
    return None if crc == stored else f"record CRC {crc:#010x} instead of {stored:#010x}"
