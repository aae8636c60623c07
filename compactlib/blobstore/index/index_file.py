# SPDX-License-Identifier: Apache-2.0
"""The file of a sealed index segment, to the byte (`docs/formats/blobstore-index.md`).

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
from itertools import accumulate, pairwise

from compactlib.blobstore.index.entry_columns import EntryColumns, PackedIds, from_little_endian, little_endian
from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.blobstore.model.names import MAX_NUMBER, SegmentName
from compactlib.errors import CorruptData, StorageError
from compactlib.files.disk import Files, StrPath, read_exactly, write_durably
from compactlib.files.record_frame import RecordFrame

HEADER_BYTES = 80

_FRAME = RecordFrame("index format", b"CLBLOBIX", 1, "<HH4xQQQQQQ16s")
_FIXED_BYTES = 8 * 5 + 4 * 2 + 2 + 1 + 1
_BYTES_PER_ENTRY = _FIXED_BYTES + 4 + 8 + 4


def index_file_bytes(entries: int, id_bytes: int, *, files: int = 1) -> int:
    """What so many entries, whose ids have so many bytes together, take in so many files."""
    return files * _FRAME.size + entries * _BYTES_PER_ENTRY + id_bytes


def encode_index(index: IndexSegment, incarnation: bytes) -> bytes:
    """The whole file."""
    ids = index.columns.ids
    assert isinstance(ids, PackedIds)
    name = index.segment
    body = b"".join([*index.columns.to_bytes(), little_endian(ids.ends), little_endian(index.hashes),
                     little_endian(index.rows), ids.blob])
    return _FRAME.encode(HEADER_BYTES, name.position, name.generation, index.start, index.end, len(index),
                         len(ids.blob), incarnation, body=body)


def decode_index(data: bytes, path: str, incarnation: bytes) -> IndexSegment:
    """The index segment in the bytes of a file.

    Raises:
        CorruptData: the bytes are not a whole index file of this store.
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


def write_index(files: Files, folder: StrPath, index: IndexSegment, incarnation: bytes) -> str:
    """Put the file of an index segment in place, durably; returns its path.

    Args:
        files: the disk.
        folder: the store's folder.
        index: what to write.
        incarnation: the store's.

    Raises:
        StorageError: the disk refused; what was there before still is.
    """
    path = os.path.join(folder, index.segment.index_file(index.start))
    write_durably(files, path, [encode_index(index, incarnation)])
    return path


def read_index(path: StrPath, incarnation: bytes) -> IndexSegment:
    """Load the file of an index segment.

    Raises:
        CorruptData: it is damaged, or belongs to another store.
        Unsupported: another release wrote it.
        StorageError: it cannot be read.
    """
    name = os.fspath(path)
    try:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            data = read_exactly(descriptor, os.fstat(descriptor).st_size, 0)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError.from_os(error, "read", name) from error
    return decode_index(data, name, incarnation)
