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
import struct

from compactlib.blobstore.index.entry_columns import EntryColumns, PackedIds, from_little_endian, little_endian
from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.blobstore.model.names import MAX_NUMBER, SegmentName
from compactlib.errors import CorruptData, StorageError, Unsupported
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, StrPath, read_exactly, write_durably

MAGIC = b"CLBLOBIX"
VERSION = 1
HEADER_BYTES = 80

_HEADER = struct.Struct("<8sHHIQQQQQQ16s")
_CRC = struct.Struct("<I")
_FIXED_BYTES = 8 * 5 + 4 * 2 + 2 + 1 + 1
_BYTES_PER_ENTRY = _FIXED_BYTES + 4 + 8 + 4


def index_file_bytes(entries: int, id_bytes: int, *, files: int = 1) -> int:
    """What so many entries, whose ids have so many bytes together, take in so many files."""
    return files * (HEADER_BYTES + _CRC.size) + entries * _BYTES_PER_ENTRY + id_bytes


def encode_index(index: IndexSegment, incarnation: bytes) -> bytes:
    """The whole file."""
    ids = index.columns.ids
    assert isinstance(ids, PackedIds)
    name = index.segment
    header = _HEADER.pack(MAGIC, VERSION, HEADER_BYTES, 0, name.position, name.generation, index.start, index.end,
                          len(index), len(ids.blob), incarnation)
    body = b"".join([header, *index.columns.to_bytes(), little_endian(ids.ends), little_endian(index.hashes),
                     little_endian(index.rows), ids.blob])
    return body + _CRC.pack(crc32(body, 0))


def decode_index(data: bytes, path: str, incarnation: bytes) -> IndexSegment:
    """The index segment in the bytes of a file.

    Raises:
        CorruptData: the bytes are not a whole index file of this store.
        Unsupported: the format version is newer than this release.
    """
    if len(data) < HEADER_BYTES + 4 or data[:8] != MAGIC:
        raise CorruptData(path=path, offset=0, expected=f"magic {MAGIC!r}", found=f"{data[:8]!r} in {len(data)} bytes")
    wanted, found = _CRC.unpack_from(data, len(data) - 4)[0], crc32(memoryview(data)[:-4], 0)
    if wanted != found:
        raise CorruptData(path=path, offset=len(data) - 4, expected=f"CRC {wanted:#010x}", found=f"{found:#010x}")
    (_, version, size, _, position, generation, start, end, count, ids_bytes, owner) = _HEADER.unpack_from(data)
    if version > VERSION:
        raise Unsupported(f"{path} has format version {version}, and this release knows up to {VERSION}")
    if (version < 1 or size != HEADER_BYTES or max(position, generation, start, end) > MAX_NUMBER
            or len(data) != HEADER_BYTES + count * _BYTES_PER_ENTRY + ids_bytes + 4):
        raise CorruptData(path=path, offset=8, expected=f"{len(data)} bytes of an index",
                          found=f"version {version}, {count} entries, {ids_bytes} bytes of ids")
    if owner != incarnation:
        raise CorruptData(path=path, offset=64, expected=f"an index of store {incarnation.hex()}", found=owner.hex())
    view, at = memoryview(data), HEADER_BYTES + count * _FIXED_BYTES
    places = [at, at + 4 * count, at + 12 * count, at + 16 * count]
    ids = PackedIds(bytes(view[places[3]:-4]), from_little_endian("I", view[places[0]:places[1]]))
    columns = EntryColumns.from_bytes(SegmentName(position, generation), count, view[HEADER_BYTES:at], ids)
    return IndexSegment(columns, start, end, from_little_endian("Q", view[places[1]:places[2]]),
                        from_little_endian("I", view[places[2]:places[3]]))


def write_index(files: Files, folder: StrPath, index: IndexSegment, incarnation: bytes, *,
                file_name: str | None = None) -> str:
    """Put the file of an index segment in place, durably; returns its path.

    Args:
        files: the disk.
        folder: the store's folder.
        index: what to write.
        incarnation: the store's.
        file_name: what to call it, if not by its final name: a compaction builds it under another.

    Raises:
        StorageError: the disk refused; what was there before still is.
    """
    path = os.path.join(folder, file_name or index.segment.index_file(index.start))
    write_durably(files, path, [encode_index(index, incarnation)])
    return path


def read_index(path: StrPath, incarnation: bytes) -> IndexSegment:
    """Load the file of an index segment.

    Raises:
        CorruptData: it is damaged, or belongs to another store.
        Unsupported: its format version is newer than this release.
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
