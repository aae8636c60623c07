# SPDX-License-Identifier: Apache-2.0
"""The index file of a segment, byte by byte (`docs/formats/blobstore-index.md`): a sequence of parts.

The index of the active segment grows by one part after a number of records, and by the last part when it is sealed. A
part:

```
0   magic b"CLBLOBIX"       24  generation (u64)    56  length of the ids (u64)
8   version 1 (u16)         32  start (u64)         64  incarnation (16 bytes)
10  header size 80 (u16)    40  end (u64)
12  0 (u32)                 48  entries (u64)
16  position (u64)
```

Then the columns of `index.COLUMNS`, the ends of the ids (u32 each), the hashes (u64 each, ascending) with their rows
(u32 each), the ids, and the CRC of all preceding bytes. All numbers are little-endian.

An index file is not synced while it grows: opening rebuilds from the log the parts that a crash loses.
"""

from __future__ import annotations

import os
import struct
import sys
from array import array
from collections.abc import Sequence

from compactlib.blobstore.index import COLUMNS, IndexPart
from compactlib.blobstore.names import SegmentName
from compactlib.errors import CorruptData, Unsupported
from compactlib.files.disk import Files, StrPath, look_at, read_if_there, write_durably
from compactlib.files.record_frame import RecordFrame

_HEADER_BYTES = 80
_FRAME = RecordFrame("index format", b"CLBLOBIX", 1, "<HH4xQQQQQQ16s")
_COUNTS = struct.Struct("<48xQQ16x")
_CODES = (*COLUMNS.values(), "I", "Q", "I")
_BYTES_PER_ENTRY = sum(array(code).itemsize for code in _CODES)


def index_file_bytes(entries: int, id_bytes: int) -> int:
    """Return the bytes of a part, given its entries and the total length of their ids."""
    return _FRAME.size + entries * _BYTES_PER_ENTRY + id_bytes


def part_bytes(part: IndexPart) -> int:
    """Return the bytes of a part in the file."""
    return index_file_bytes(len(part), len(part.ids))


def encode_part(part: IndexPart, incarnation: bytes) -> bytes:
    """Encode a part."""
    columns = [*part.columns, part.id_ends, part.hashes, part.rows]
    if sys.byteorder == "big":
        columns = [array(each.typecode, each) for each in columns]
        for column in columns:
            column.byteswap()
    return _FRAME.encode(_HEADER_BYTES, *part.segment, part.start, part.end, len(part), len(part.ids), incarnation,
                         body=b"".join([*map(array.tobytes, columns), part.ids]))


def decode_part(data: bytes, path: str, incarnation: bytes) -> IndexPart:
    """Decode a part."""
    size, position, generation, start, end, count, ids_bytes, owner, body = _FRAME.decode(memoryview(data), path)
    if size != _HEADER_BYTES or len(body) != count * _BYTES_PER_ENTRY + ids_bytes or owner != incarnation:
        raise CorruptData(path=path, offset=10, expected=f"{len(data)} bytes of an index of store {incarnation.hex()}",
                          found=f"{count} entries, {ids_bytes} bytes of ids, of store {owner.hex()}")
    at, columns = 0, []
    for code in _CODES:
        column = array(code)
        column.frombytes(body[at:at + count * column.itemsize])
        if sys.byteorder == "big":
            column.byteswap()
        columns.append(column)
        at += count * column.itemsize
    *fields, id_ends, hashes, rows = columns
    return IndexPart(SegmentName(position, generation), start, end, fields, bytes(body[at:]), id_ends, hashes, rows)


def read_parts(folder: StrPath, name: SegmentName, incarnation: bytes, start: int, most: int) -> list[IndexPart]:
    """Load the contiguous parts of a segment's index file, up to the first damaged part.

    Args:
        folder: the store's folder.
        name: the segment's name.
        incarnation: the store's incarnation.
        start: the required start offset of the first part.
        most: the largest end offset of the last part.
    """
    path = os.path.join(folder, name.index_file)
    data = memoryview(read_if_there(path) or b"")
    parts: list[IndexPart] = []
    at = 0
    while at + _FRAME.size <= len(data):
        behind = at + index_file_bytes(*_COUNTS.unpack_from(data, at))
        try:
            part = decode_part(bytes(data[at:behind]), path, incarnation)
        except (CorruptData, Unsupported):
            break
        if part.segment != name or part.start != start or part.end > most:
            break
        parts.append(part)
        at, start = behind, part.end
    return parts


def write_part(files: Files, folder: StrPath, part: IndexPart, incarnation: bytes, offset: int = 0) -> int:
    """Write a part at an offset of its segment's index file, not durably; return the offset after it."""
    path = os.path.join(folder, part.segment.index_file)
    data = encode_part(part, incarnation)
    out = files.open(path) if look_at(path) is not None else files.create(path)
    try:
        out.write_at(offset, [data])
    finally:
        out.close()
    return offset + len(data)


def replace_parts(files: Files, folder: StrPath, parts: Sequence[IndexPart], incarnation: bytes) -> None:
    """Replace the index file, durably and atomically."""
    path = os.path.join(folder, parts[0].segment.index_file)
    write_durably(files, path, [encode_part(part, incarnation) for part in parts])
