# SPDX-License-Identifier: Apache-2.0
"""The record format to the byte (`docs/formats/blobstore-log.md`): header, id, content, checksum. Pure functions.

```
0   magic b"CLBR"          20  sequence        52  CRC of bytes 0..51 and the id, started from the store's salt
4   version 1              28  op_time_ms      56  id
5   kind                   36  expires_ms      ..  content
6   flags                  44  content length  -4  CRC of the content, started from the header's CRC
7   0                      (u64)
8   id length (u16), 10 life version (u16), 12 account (u32), 16 container (u32)
```

All numbers are little-endian. The CRC at the end covers the whole record, because it goes on from the header's. It
starts from a salt that is the store's own, so that a piece of another store's log, kept as a blob in this one, is
never taken for a record when a damaged log is searched for the next one.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.values import (
    MAX_ID_BYTES,
    MAX_LIFE_VERSION,
    MAX_TAG,
    MAX_TIME_MS,
    NO_EXPIRY,
    IndexEntry,
    RecordFlag,
    RecordKind,
)
from compactlib.errors import InvalidInput
from compactlib.files.checksum import crc32

MAGIC = b"CLBR"
VERSION = 1
HEADER_BYTES = 56
TRAILER_BYTES = 4
OVERHEAD_BYTES = HEADER_BYTES + TRAILER_BYTES
"""What a record takes beside its id and its content."""
MAX_SEQUENCE = (1 << 63) - 1
MAX_CONTENT_BYTES = (1 << 62) - 1

_HEADER = struct.Struct("<4sBBBxHHIIQqqQ")
_CRC = struct.Struct("<I")
_FULL = struct.Struct("<4sBBBBHHIIQqqQI")
_WHICH = struct.Struct("<8xH10xQ16xQI")
"""Of a header: the length of the id, the sequence, the length of the content, and the CRC."""
_KINDS = frozenset(map(int, RecordKind))
_FLAGS = 7


class RecordHeader(NamedTuple):
    """What a record says of itself before its content.

    Attributes:
        id: the blob's id.
        kind: a `RecordKind`.
        flags: `RecordFlag` bits.
        life_version: see `IndexEntry`.
        sequence: the record's number in the store.
        op_time_ms: when the operation was made.
        expires_ms: when the blob expires, or `NO_EXPIRY`.
        account: account number.
        container: container number.
        content_bytes: length of the content; 0 for everything but a PUT.
        crc: CRC of header and id; the record's own CRC goes on from it.
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
    content_bytes: int
    crc: int

    @property
    def size(self) -> int:
        """Bytes of the whole record."""
        return OVERHEAD_BYTES + len(self.id) + self.content_bytes

    def entry(self, segment: SegmentName, offset: int) -> IndexEntry:
        """The index entry of this record, written at that place."""
        return IndexEntry(self.id, self.kind, self.flags, self.life_version, self.sequence, self.op_time_ms,
                          self.expires_ms, self.account, self.container, segment, offset, self.size)


def record_size(id_length: int, content_bytes: int) -> int:
    """Bytes of a whole record."""
    return OVERHEAD_BYTES + id_length + content_bytes


def content_range(entry: IndexEntry) -> tuple[int, int]:
    """Where the content of an indexed record begins in its segment, and how long it is."""
    skipped = HEADER_BYTES + len(entry.id)
    return entry.offset + skipped, entry.size - skipped - TRAILER_BYTES


def encode_head(entry: IndexEntry, salt: int) -> tuple[bytes, int]:
    """Header and id of the record that `entry` describes (where it lies does not matter), and the header's CRC.

    The content follows, then `encode_trailer(crc32(content, crc))`.

    Raises:
        InvalidInput: a field is out of its range.
    """
    content = entry.size - OVERHEAD_BYTES - len(entry.id)
    if content < 0 or not 0 < len(entry.id) <= MAX_ID_BYTES:
        raise InvalidInput(f"a record of {entry.size} bytes cannot have an id of {len(entry.id)} bytes")
    try:
        body = _HEADER.pack(MAGIC, VERSION, entry.kind, entry.flags, len(entry.id), entry.life_version, entry.account,
                            entry.container, entry.sequence, entry.op_time_ms, entry.expires_ms, content)
    except struct.error as error:
        raise InvalidInput(f"a field of the record is out of range ({error}): {entry}") from None
    if not _plausible(len(entry.id), entry.life_version, entry.account, entry.container, entry.sequence,
                      entry.op_time_ms, entry.expires_ms, content):
        raise InvalidInput(f"a field of the record is out of range: {entry}")
    crc = crc32(entry.id, crc32(body, salt))
    return body + _CRC.pack(crc) + entry.id, crc


def encode_trailer(crc: int) -> bytes:
    """The last four bytes of a record."""
    return _CRC.pack(crc)


def encode_record(entry: IndexEntry, content: bytes, salt: int) -> bytes:
    """A whole record.

    Raises:
        InvalidInput: a field is out of its range, or the content's length does not fit the entry's size.
    """
    head, crc = encode_head(entry, salt)
    if len(head) + len(content) + TRAILER_BYTES != entry.size:
        raise InvalidInput(f"a record of {entry.size} bytes cannot hold {len(content)} bytes of content")
    return b"".join((head, content, _CRC.pack(crc32(content, crc))))


def decode_head(data: bytes, offset: int, salt: int) -> RecordHeader | str:
    """The header at `offset` of `data`, which has to reach to the end of the id; or what is wrong with it, as text."""
    if offset + HEADER_BYTES > len(data):
        return f"{max(len(data) - offset, 0)} bytes, fewer than a header"
    (magic, version, kind, flags, reserved, id_length, life_version, account, container, sequence, op_time_ms,
     expires_ms, content, crc) = _FULL.unpack_from(data, offset)
    if magic != MAGIC:
        return f"magic {magic!r}"
    start = offset + HEADER_BYTES
    blob_id = bytes(data[start:start + id_length])
    found = crc32(blob_id, crc32(data[offset:offset + HEADER_BYTES - 4], salt))
    if found != crc or len(blob_id) != id_length:
        return f"header CRC {found:#010x} instead of {crc:#010x}"
    if version != VERSION or kind not in _KINDS or flags & ~_FLAGS or reserved:
        return f"version {version}, kind {kind}, flags {flags:#x}, which this release does not know"
    if not _plausible(id_length, life_version, account, container, sequence, op_time_ms, expires_ms, content):
        return "fields out of range under a valid CRC"
    return RecordHeader(blob_id, kind, flags, life_version, sequence, op_time_ms, expires_ms, account, container,
                        content, crc)


def _plausible(id_length: int, life_version: int, account: int, container: int, sequence: int, op_time_ms: int,
               expires_ms: int, content: int) -> bool:
    return (0 < id_length <= MAX_ID_BYTES and life_version <= MAX_LIFE_VERSION and account <= MAX_TAG
            and container <= MAX_TAG and sequence <= MAX_SEQUENCE and abs(op_time_ms) <= MAX_TIME_MS
            and NO_EXPIRY <= expires_ms <= 2 * MAX_TIME_MS and content <= MAX_CONTENT_BYTES)


def check_record(entry: IndexEntry, record: bytes, salt: int) -> str | None:
    """Whether the bytes read for an indexed record are that record, whole; `None` if so, else what was found."""
    header = decode_head(record, 0, salt)
    if isinstance(header, str):
        return header
    if len(record) != entry.size or header.size != entry.size:
        return f"{len(record)} bytes of a record of {header.size}"
    if header.sequence != entry.sequence or header.id != entry.id or header.kind != entry.kind:
        return f"record {header.sequence} of {header.id!r} instead of {entry.sequence} of {entry.id!r}"
    if header.flags & RecordFlag.ERASED and not entry.flags & RecordFlag.ERASED:
        # By a hard delete, since the index was looked at.
        return "a content that was overwritten"
    crc = crc32(memoryview(record)[HEADER_BYTES + len(header.id):-TRAILER_BYTES], header.crc)
    stored: int = _CRC.unpack_from(record, len(record) - TRAILER_BYTES)[0]
    return None if crc == stored else f"record CRC {crc:#010x} instead of {stored:#010x}"


def check_head(record: memoryview, size: int, salt: int, sequence: int) -> tuple[int, int, str | None]:
    """Whether a record of `size` bytes begins as the one with this number, header and id; reads no further.

    Returns:
        Where its content begins, the CRC of header and id, from which that of the content goes on, and what was found
        instead; `None` if it is that record.
    """
    if len(record) < HEADER_BYTES:
        return 0, 0, f"{len(record)} bytes, fewer than a header"
    id_length, number, content, stored = _WHICH.unpack_from(record)
    start = HEADER_BYTES + id_length
    crc = crc32(record[HEADER_BYTES:start], crc32(record[:HEADER_BYTES - 4], salt))
    if crc != stored:
        return start, crc, f"header CRC {crc:#010x} instead of {stored:#010x}"
    if number != sequence or OVERHEAD_BYTES + id_length + content != size:
        return start, crc, f"record {number} of {OVERHEAD_BYTES + id_length + content} bytes"
    return start, crc, None


def check_whole(record: memoryview, salt: int, sequence: int) -> str | None:
    """Whether these bytes are the whole record with this number; `None` if so, else what was found.

    Cheaper than `check_record`, and enough where size and number come from the index: the CRC covers all the rest.
    """
    start, crc, found = check_head(record, len(record), salt, sequence)
    if found is not None:
        return found
    crc = crc32(record[start:-TRAILER_BYTES], crc)
    stored: int = _CRC.unpack_from(record, len(record) - TRAILER_BYTES)[0]
    return None if crc == stored else f"record CRC {crc:#010x} instead of {stored:#010x}"
