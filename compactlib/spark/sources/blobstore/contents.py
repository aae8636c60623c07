# SPDX-License-Identifier: Apache-2.0
"""Reads the contents of neighbouring records: straight into one buffer, one behind the other, and checked.

The system call itself takes headers and contents apart (`preadv` into many pieces), so that no content is copied again
before it leaves the process.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain, pairwise, repeat
from operator import add, eq
from typing import Any, Final

import attrs
import pyarrow as pa

from compactlib.blobstore.index.entry_columns import EntryColumns
from compactlib.blobstore.model.values import RecordKind
from compactlib.blobstore.segment.reader import SegmentFile
from compactlib.blobstore.segment.records import HEADER_BYTES, TRAILER_BYTES, check_head, head_crcs
from compactlib.errors import CorruptData, StorageError, Unsupported
from compactlib.files.checksum import crc32

_PUT: Final = int(RecordKind.PUT)
_LARGEST_BINARY: Final = (1 << 31) - 1
_RECORDS_AT_ONCE: Final = 341
"""Records of one system call; each is three pieces, of which Linux takes 1024."""


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
    offsets, sizes, sequences = columns.offsets[part], columns.sizes[part], columns.sequences[part]
    heads = [HEADER_BYTES + len(columns.ids[row]) for row in rows]
    lengths = [size - head - TRAILER_BYTES for size, head in zip(sizes, heads, strict=True)]
    if max(lengths) > _LARGEST_BINARY:
        raise Unsupported(f"{file.path}: a content of {max(lengths)} bytes is more than Spark holds "
                          f"({_LARGEST_BINARY}); read it with compactlib.blobstore, or the others with payload=false")
    values = pa.allocate_buffer(sum(lengths))
    edges = memoryview(bytearray(sum(heads) + TRAILER_BYTES * len(rows)))
    pieces = _Pieces(_cut(edges, [length for head in heads for length in (head, TRAILER_BYTES)]),
                     _cut(memoryview(values), lengths))
    end = pieces.read(file, offsets, sizes)
    there = bytearray(map(eq, columns.kinds[part], repeat(_PUT)))
    damage: dict[int, CorruptData] = {}
    if end < offsets[-1] + sizes[-1] or not pieces.are_sound(file.header.salt, sequences):
        for place, (offset, size, sequence) in enumerate(zip(offsets, sizes, sequences, strict=True)):
            found = pieces.problem(place, file.header.salt, sequence, size)
            if offset + size > end:
                found = f"{max(end - offset, 0)} bytes of it"
            if found is not None:
                there[place] = 0
                damage[rows[place]] = CorruptData(path=file.path, offset=offset, index=sequence, found=found,
                                                  expected=f"record {sequence} of {size} bytes")
    return Contents(lengths, values, bytes(there), damage)


def _cut(memory: memoryview, lengths: Sequence[int]) -> list[memoryview]:
    """Consecutive pieces of these lengths."""
    ends = list(accumulate(lengths, initial=0))
    return list(map(memory.__getitem__, map(slice, ends, ends[1:])))


class _Pieces:
    """Where the parts of some records go: headers with ids and checksums into the one memory, contents into another.

    Args:
        edges: for each record its header with id, and its checksum.
        contents: for each record its content.
    """

    def __init__(self, edges: Sequence[memoryview], contents: Sequence[memoryview]) -> None:
        self._heads = edges[::2]
        self._trailers = edges[1::2]
        self._contents = contents

    def read(self, file: SegmentFile, offsets: Sequence[int], sizes: Sequence[int]) -> int:
        """Fill all of them; gives where the file ended, or where the last one does."""
        pieces = list(chain.from_iterable(zip(self._heads, self._contents, self._trailers, strict=True)))
        ends = list(map(add, offsets, sizes))
        gaps = [place for place in range(1, len(ends)) if offsets[place] != ends[place - 1]]
        end = 0
        for first, stop in pairwise([0, *gaps, len(ends)]):
            for start in range(first, stop, _RECORDS_AT_ONCE):
                behind = min(start + _RECORDS_AT_ONCE, stop)
                end = offsets[start] + _fill(file, offsets[start], pieces[3 * start:3 * behind])
                if end < ends[behind - 1]:
                    return end
        return end

    def are_sound(self, salt: int, sequences: Sequence[int]) -> bool:
        """Whether all are the records with these numbers."""
        crcs = head_crcs(self._heads, salt, sequences, list(map(len, self._contents)))
        stored = struct.unpack(f"<{len(self._trailers)}I", b"".join(self._trailers))
        return crcs is not None and tuple(map(crc32, self._contents, crcs)) == stored

    def problem(self, place: int, salt: int, sequence: int, size: int) -> str | None:
        """What is wrong with one of them."""
        _, crc, found = check_head(self._heads[place], size, salt, sequence)
        if found is not None:
            return found
        crc = crc32(self._contents[place], crc)
        stored = int.from_bytes(self._trailers[place], "little")
        return None if crc == stored else f"record CRC {crc:#010x} instead of {stored:#010x}"


def _fill(file: SegmentFile, offset: int, pieces: Sequence[memoryview]) -> int:
    """Fill pieces with consecutive bytes of a file; gives how many bytes there were, fewer only where it ends."""
    try:
        got = os.preadv(file.fileno(), pieces, offset)
    except OSError as error:
        raise StorageError.from_os(error, "read", file.path) from error
    if got == sum(map(len, pieces)):
        return got
    # A signal, the end of the file, or more than one call gives.
    got = 0
    for piece in pieces:
        data = memoryview(file.read(offset + got, len(piece)))
        # Arrow's memory is one of signed bytes.
        piece[:len(data)] = data.cast("b" if piece.format == "b" else "B")
        got += len(data)
        if len(data) < len(piece):
            break
    return got
