"""`Staged`: what a staging token holds for one key, and its stored form (docs/formats/staging-records.md)."""

from __future__ import annotations

import struct

import attrs

from compactlib.errors import CorruptData, Unsupported
from compactlib.files.checksum import crc32
from compactlib.staging.model.values import Change, Record

VERSION = 1
WRITE_ID_BYTES = 8

_HEAD = struct.Struct("<BB8sI")
_CRC = struct.Struct("<I")
_VALUE = 0
_TOMBSTONE = 1


@attrs.frozen
class Staged:
    """One staged entry.

    Attributes:
        record: the record put; `None` for a tombstone.
        write_id: drawn by the operation that wrote it, so that a conditional put knows its own write again; zeros if
            nobody will ask.
    """

    record: Change
    write_id: bytes = bytes(WRITE_ID_BYTES)

    @property
    def is_tombstone(self) -> bool:
        """Whether it hides the key."""
        return self.record is None


def encode_staged(staged: Staged) -> bytes:
    """The stored form of a staged entry. O(size)."""
    record = staged.record
    if record is None:
        data = _HEAD.pack(VERSION, _TOMBSTONE, staged.write_id, 0)
    else:
        data = b"".join((_HEAD.pack(VERSION, _VALUE, staged.write_id, len(record.identity)), record.identity,
                         record.data))
    return data + _CRC.pack(crc32(data))


def decode_staged(data: bytes, place: str) -> Staged:
    """The entry of a stored form. O(size).

    Raises:
        CorruptData: the bytes are not those of a staged entry.
        Unsupported: they were written by a newer release.
    """
    end = len(data) - _CRC.size
    if end < _HEAD.size:
        raise CorruptData(path=place, offset=len(data), expected=f"at least {_HEAD.size + _CRC.size} bytes",
                          found=f"{len(data)} bytes")
    (stored,) = _CRC.unpack_from(data, end)
    actual = crc32(memoryview(data)[:end])
    if stored != actual:
        raise CorruptData(path=place, offset=end, expected=f"CRC {actual:#010x}", found=f"{stored:#010x}")
    version, kind, write_id, identity_bytes = _HEAD.unpack_from(data)
    if version > VERSION:
        raise Unsupported(f"{place}: version {version} of staged entries; this release reads up to {VERSION}: upgrade")
    identity_end = _HEAD.size + identity_bytes
    if version == VERSION and kind == _TOMBSTONE and identity_end == end:
        return Staged(None, write_id)
    if version != VERSION or kind != _VALUE or identity_end > end:
        raise CorruptData(path=place, offset=0, expected="version 1, a value or a tombstone that fills its bytes",
                          found=f"version {version}, kind {kind}, identity of {identity_bytes} bytes")
    return Staged(Record(data[_HEAD.size:identity_end], data[identity_end:end]), write_id)
