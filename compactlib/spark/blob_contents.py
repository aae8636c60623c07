"""Reads the contents of neighbouring records: straight into one buffer, one behind the other, and checked.

The system call itself takes headers and contents apart (`preadv` into many pieces), so that no content is copied again
before it leaves the process.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any, Final

import attrs
import pyarrow as pa

from compactlib.blobstore.entry_columns import EntryColumns
from compactlib.blobstore.model import RecordKind
from compactlib.blobstore.records import HEADER_BYTES, OVERHEAD_BYTES, TRAILER_BYTES, check_head
from compactlib.blobstore.segment import SegmentFile
from compactlib.checksum import crc32
from compactlib.errors import CorruptData, StorageError, Unsupported

_PUT: Final = int(RecordKind.PUT)
_LARGEST_BINARY: Final = (1 << 31) - 1
_PIECES: Final = 1000
"""The most pieces of one read; POSIX systems take 1024."""


@attrs.frozen
class Contents:
    """The contents of some neighbouring records.

    Attributes:
        lengths: of each, in bytes.
        values: all of them, one behind the other.
        are_there: for each record 1, or 0 if it is no put, or damaged.
        damage: what is wrong with the damaged ones, by their rows.
    """

    lengths: Sequence[int]
    values: Any
    are_there: bytes
    damage: Mapping[int, CorruptData]


def read_contents(file: SegmentFile, columns: EntryColumns, rows: range) -> Contents:
    """Read and check the records of some rows, which ascend by offset. Memory is that of the records.

    Raises:
        StorageError: the disk refused.
        Unsupported: a content of 2 GiB or more, which Spark's types cannot hold.
    """
    part = slice(rows.start, rows.stop)
    offsets, sizes = columns.offsets[part], columns.sizes[part]
    heads = [HEADER_BYTES + len(columns.ids[row]) for row in rows]
    lengths = [size - head - TRAILER_BYTES for size, head in zip(sizes, heads, strict=True)]
    if max(lengths) > _LARGEST_BINARY:
        raise Unsupported(f"{file.path}: a content of {max(lengths)} bytes is more than Spark holds "
                          f"({_LARGEST_BINARY}); read it with compactlib.blobstore, or the others with payload=false")
    values = pa.allocate_buffer(sum(lengths))
    wanted = _Wanted(memoryview(values), memoryview(bytearray(sum(heads) + TRAILER_BYTES * len(rows))))
    for offset, head, length in zip(offsets, heads, lengths, strict=True):
        wanted.add(offset, (head, length, TRAILER_BYTES))
    end = wanted.read(file)
    salt = file.header.salt
    there = bytearray(kind == _PUT for kind in columns.kinds[part])
    damage: dict[int, CorruptData] = {}
    at = 0
    for place, (start, length, size, head, sequence) in enumerate(zip(
            accumulate(lengths, initial=0), lengths, sizes, heads, columns.sequences[part], strict=False)):
        edges = wanted.edges[at:at + head + TRAILER_BYTES]
        found = _problem(edges, head, wanted.contents[start:start + length], salt, sequence, size)
        if offsets[place] + size > end:
            found = f"{max(end - offsets[place], 0)} bytes of it"
        if found is not None:
            there[place] = 0
            damage[rows[place]] = CorruptData(path=file.path, offset=offsets[place], index=sequence, found=found,
                                              expected=f"record {sequence} of {size} bytes")
        at += head + TRAILER_BYTES
    return Contents(lengths, values, bytes(there), damage)


def _problem(edges: memoryview, head: int, content: memoryview, salt: int, sequence: int, size: int) -> str | None:
    """What is wrong with a record; `edges` are its header, id and, right behind, checksum."""
    if size < OVERHEAD_BYTES:
        return "fewer bytes than any record has"
    _, crc, found = check_head(edges[:head], size, salt, sequence)
    if found is not None:
        return found
    crc = crc32(content, crc)
    stored = int.from_bytes(edges[head:], "little")
    return None if crc == stored else f"record CRC {crc:#010x} instead of {stored:#010x}"


class _Wanted:
    """Pieces of a file, ascending, and where each is to go: contents here, everything else there."""

    def __init__(self, contents: memoryview, edges: memoryview) -> None:
        self.contents = contents
        self.edges = edges
        self._content_at = 0
        self._edge_at = 0
        # Runs of pieces without a gap between them.
        self._runs: list[tuple[int, list[memoryview]]] = []
        self._end = -1

    def add(self, offset: int, lengths: tuple[int, int, int]) -> None:
        """A record: where it begins, and the lengths of what is before its content, of that, and of what is behind."""
        head, content, trailer = lengths
        if offset != self._end or len(self._runs[-1][1]) + 3 > _PIECES:
            self._runs.append((offset, []))
        pieces = self._runs[-1][1]
        edge, start = self._edge_at, self._content_at
        pieces.append(self.edges[edge:edge + head])
        if content:
            pieces.append(self.contents[start:start + content])
        pieces.append(self.edges[edge + head:edge + head + trailer])
        self._edge_at += head + trailer
        self._content_at += content
        self._end = offset + head + content + trailer

    def read(self, file: SegmentFile) -> int:
        """Read everything; gives where the file ended, or where the last piece does."""
        end = 0
        for offset, pieces in self._runs:
            wanted = sum(map(len, pieces))
            try:
                got = os.preadv(file.fileno(), pieces, offset)
            except OSError as error:
                raise StorageError.from_os(error, "read", file.path) from error
            if got < wanted:
                # A signal, the end of the file, or more than one call takes.
                got = self._read_singly(file, offset, pieces)
            end = offset + got
            if got < wanted:
                break
        return end

    def _read_singly(self, file: SegmentFile, offset: int, pieces: Sequence[memoryview]) -> int:
        got = 0
        for piece in pieces:
            data = file.read(offset + got, len(piece))
            piece[:len(data)] = data
            got += len(data)
            if len(data) < len(piece):
                break
        return got
