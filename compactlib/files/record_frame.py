"""The frame of small stored records: magic, version, tag, length, body, CRC-32. Little-endian.

| offset | size | what |
| --- | --- | --- |
| 0 | 8 | magic |
| 8 | 2 | version |
| 10 | 2 | tag: what the record is, in the words of its format |
| 12 | 4 | length of the body |
| 16 | that | body |
| behind it | 4 | CRC-32 of everything before |
"""

from __future__ import annotations

import struct

import attrs

from compactlib.errors import CorruptData
from compactlib.files.checksum import crc32

_HEAD = struct.Struct("<8sHHI")
_CRC = struct.Struct("<I")
BODY_OFFSET = _HEAD.size
"""Where the body begins."""


@attrs.frozen
class Frame:
    """A record whose magic and checksum are right; the rest is for its format to judge.

    Attributes:
        version: of the format.
        tag: what the record is.
        stated_bytes: how long the head says the body is.
        body: what lies between head and checksum.
    """

    version: int
    tag: int
    stated_bytes: int
    body: bytes


def framed(magic: bytes, version: int, tag: int, body: bytes) -> bytes:
    """The record of a body. O(size)."""
    data = _HEAD.pack(magic, version, tag, len(body)) + body
    return data + _CRC.pack(crc32(data))


def unframed(data: bytes, magic: bytes, place: str) -> Frame:
    """The parts of a record. O(size).

    Args:
        data: the record.
        magic: what it must begin with.
        place: where it was read, for the errors.

    Raises:
        CorruptData: it is too short, has another magic, or its checksum fails.
    """
    if len(data) < _HEAD.size + _CRC.size:
        raise CorruptData(path=place, offset=len(data), expected=f"at least {_HEAD.size + _CRC.size} bytes",
                          found=f"{len(data)} bytes")
    found, version, tag, size = _HEAD.unpack_from(data)
    if found != magic:
        raise CorruptData(path=place, offset=0, expected=f"magic {magic!r}", found=repr(found))
    end = len(data) - _CRC.size
    (stored,) = _CRC.unpack_from(data, end)
    actual = crc32(memoryview(data)[:end])
    if stored != actual:
        raise CorruptData(path=place, offset=end, expected=f"CRC {actual:#010x}", found=f"{stored:#010x}")
    return Frame(version, tag, size, data[_HEAD.size:end])
