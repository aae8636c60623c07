# SPDX-License-Identifier: Apache-2.0
"""The index file of a segment, to the byte (`docs/formats/blobstore-index.md`): one part behind the other.

The index of the active segment grows by a part now and then, the last one when the segment is full. A part:

```
0   magic b"CLBLOBIX"       24  generation (u64)    56  length of the ids (u64)
8   version 1 (u16)         32  start (u64)         64  incarnation (16 bytes)
10  header size 80 (u16)    40  end (u64)
12  0 (u32)                 48  entries (u64)
16  position (u64)
```

Then the columns of `EntryColumns.TYPECODES`, the ends of the ids (u32 each), the hashes (u64 each, ascending) with
their rows (u32 each), the ids, and the CRC of everything before. All numbers are little-endian.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise

from compactlib.blobstore.columns import EntryColumns, PackedIds, from_little_endian, little_endian
from compactlib.blobstore.index_segment import IndexSegment
from compactlib.blobstore.names import MAX_NUMBER, SegmentName
from compactlib.errors import CorruptData, Unsupported
from compactlib.files.disk import Files, StrPath, look_at, read_if_there, write_durably
from compactlib.files.record_frame import RecordFrame

HEADER_BYTES = 80

_FRAME = RecordFrame("index format", b"CLBLOBIX", 1, "<HH4xQQQQQQ16s")
_COUNTS = struct.Struct("<48xQQ16x")
_FIXED_BYTES = 8 * 5 + 4 * 2 + 2 + 1 + 1
_BYTES_PER_ENTRY = _FIXED_BYTES + 4 + 8 + 4


def index_file_bytes(entries: int, id_bytes: int) -> int:
    """Return what a part of so many entries takes, whose ids have so many bytes together."""
    return _FRAME.size + entries * _BYTES_PER_ENTRY + id_bytes


def encode_index(index: IndexSegment, incarnation: bytes) -> bytes:
    """The bytes of a part."""
    ids = index.columns.ids
    assert isinstance(ids, PackedIds)
    name = index.segment
    body = b"".join([*index.columns.to_bytes(), little_endian(ids.ends), little_endian(index.hashes),
                     little_endian(index.rows), ids.blob])
    return _FRAME.encode(HEADER_BYTES, name.position, name.generation, index.start, index.end, len(index),
                         len(ids.blob), incarnation, body=body)


def decode_index(data: bytes, path: str, incarnation: bytes) -> IndexSegment:
    """The part in these bytes.

    Raises:
        CorruptData: the bytes are not a whole part of an index of this store.
        Unsupported: another release wrote it.
    """
    size, position, generation, start, end, count, ids_bytes, owner, view = _FRAME.decode(memoryview(data), path)
    if (size != HEADER_BYTES or max(position, generation, start, end) > MAX_NUMBER
            or len(view) != count * _BYTES_PER_ENTRY + ids_bytes):
        raise CorruptData(path=path, offset=10, expected=f"{len(data)} bytes of an index",
                          found=f"{count} entries, {ids_bytes} bytes of ids")
    if owner != incarnation:
        raise CorruptData(path=path, offset=64, expected=f"an index of store {incarnation.hex()}", found=owner.hex())
    ends = accumulate(count * each for each in (_FIXED_BYTES, 4, 8, 4))
    fixed, id_ends, hashes, rows, ids = (view[first:last] for first, last in pairwise([0, *ends, len(view)]))
    packed = PackedIds(bytes(ids), from_little_endian("I", id_ends))
    columns = EntryColumns.from_bytes(SegmentName(position, generation), count, fixed, packed)
    return IndexSegment(columns, start, end, from_little_endian("Q", hashes), from_little_endian("I", rows))


def part_bytes(index: IndexSegment) -> int:
    """Return how long a part is in the file."""
    return index_file_bytes(len(index), index.columns.id_bytes)


def read_parts(path: StrPath, incarnation: bytes, name: SegmentName) -> list[IndexSegment]:
    """Load the parts of a segment's index file, up to the first that is not whole; none if there is no file.

    Raises:
        StorageError: it cannot be read.
    """
    data = memoryview(read_if_there(path) or b"")
    parts: list[IndexSegment] = []
    start = 0
    while start + _FRAME.size <= len(data):
        count, ids_bytes = _COUNTS.unpack_from(data, start)
        end = start + index_file_bytes(count, ids_bytes)
        try:
            part = decode_index(bytes(data[start:end]), os.fspath(path), incarnation)
        except (CorruptData, Unsupported):
            break
        if part.segment != name or (parts and part.start != parts[-1].end):
            break
        parts.append(part)
        start = end
    return parts


def write_part(files: Files, folder: StrPath, index: IndexSegment, incarnation: bytes, offset: int = 0) -> int:
    """Write a part at an offset of the segment's index file, which is made if need be; returns the offset behind it.

    Nothing is synced: what a crash takes of an index is made again from the log.

    Raises:
        StorageError: the disk refused.
    """
    path = os.path.join(folder, index.segment.index_file)
    data = encode_index(index, incarnation)
    out = files.open(path) if look_at(path) is not None else files.create(path)
    try:
        out.write_at(offset, [data])
    finally:
        out.close()
    return offset + len(data)


def replace_parts(files: Files, folder: StrPath, parts: Sequence[IndexSegment], incarnation: bytes) -> None:
    """Put a whole index file in place, durably.

    Raises:
        StorageError: the disk refused; what was there before still is.
    """
    path = os.path.join(folder, parts[0].segment.index_file)
    write_durably(files, path, [encode_index(part, incarnation) for part in parts])
