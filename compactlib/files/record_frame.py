# SPDX-License-Identifier: Apache-2.0
"""The frame of stored records and of the headers of files: magic, version, fields, body, CRC-32.

| order | content |
| --- | --- |
| first | magic |
| | version |
| | the fields of the format |
| | the body; empty in a header of a file |
| last, 4 bytes | CRC-32 of all bytes before |

All versions of a format have magic, version and CRC at the same place, so that damage is never taken for another
version.
"""

from __future__ import annotations

import struct
from typing import Any

from compactlib.errors import CorruptData, Unsupported
from compactlib.files.checksum import crc32


class RecordFrame:
    """Writes and checks the records of one format.

    Args:
        name: the format's name, for errors.
        magic: the first bytes of a record; may be empty.
        version: the only version that is written and read; at least 1.
        layout: the version and the fields as a `struct` format with its byte order. Padding (`x`) has to be zeros.

    Attributes:
        header_bytes: the offset of the body.
        size: the size of a record without a body.
    """

    def __init__(self, name: str, magic: bytes, version: int, layout: str) -> None:
        self._name = name
        self._magic = magic
        self._version = version
        self._start = struct.Struct(f"{layout[0]}{len(magic)}s{layout[1]}")
        self._header = struct.Struct(f"{layout[0]}{len(magic)}s{layout[1:]}")
        self._crc = struct.Struct(f"{layout[0]}I")
        self._has_zeros = "x" in layout
        self.header_bytes: int = self._header.size
        self.size: int = self._header.size + self._crc.size

    def encode(self, *fields: Any, body: bytes = b"", salt: int = 0) -> bytes:
        """Return a record. O(size).

        Args:
            fields: the values of the layout's fields, without the version.
            body: the bytes after the fields.
            salt: the start value of the CRC.
        """
        head = self._header.pack(self._magic, self._version, *fields)
        return b"".join((head, body, self._crc.pack(crc32(body, crc32(head, salt)))))

    def decode(self, data: bytes | memoryview, place: str, *, salt: int = 0, offset: int = 0) -> tuple[Any, ...]:
        """Return the fields of a record, followed by its body. O(size).

        Args:
            data: the record.
            place: the source of the record, for errors.
            salt: the start value of the CRC.
            offset: the offset of the record in the source, for errors.

        Raises:
            CorruptData: the record is too short, has another magic or version 0, its checksum fails, or its padding is
                not zeros.
            Unsupported: another release wrote it.
        """
        end = len(data) - self._crc.size
        if end < self._start.size:
            raise self._cut(data, place, offset)
        is_whole = end >= self.header_bytes
        magic, version, *fields = (self._header if is_whole else self._start).unpack_from(data)
        if magic != self._magic:
            raise CorruptData(path=place, offset=offset, expected=f"magic {self._magic!r}", found=repr(magic))
        (stored,) = self._crc.unpack_from(data, end)
        actual = crc32(memoryview(data)[:end], salt)
        if stored != actual:
            raise CorruptData(path=place, offset=offset + end, expected=f"CRC {actual:#010x}", found=f"{stored:#010x}")
        if version != self._version and version:
            raise Unsupported(f"{place}: {self._name} version {version}; this release reads {self._version}: "
                              f"{'upgrade' if version > self._version else 'use the release that wrote it'}")
        if not is_whole:
            raise self._cut(data, place, offset)
        if not version or (self._has_zeros
                           and self._header.pack(magic, version, *fields) != data[:self.header_bytes]):
            raise CorruptData(path=place, offset=offset + len(magic), expected=f"version {self._version} and zeros",
                              found=bytes(data[len(magic):self.header_bytes]).hex())
        return (*fields, data[self.header_bytes:end])

    def decode_header(self, data: bytes | memoryview, place: str, *, offset: int = 0) -> tuple[Any, ...]:
        """Return the fields of a record without a body at the beginning of `data`; see `decode`. O(1)."""
        if len(data) < self.size:
            raise self._cut(data, place, offset)
        return self.decode(data[:self.size], place, offset=offset)[:-1]

    def _cut(self, data: bytes | memoryview, place: str, offset: int) -> CorruptData:
        return CorruptData(path=place, offset=offset + len(data), expected=f"at least {self.size} bytes",
                           found=f"{len(data)} bytes")
