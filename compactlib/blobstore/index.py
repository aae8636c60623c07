# SPDX-License-Identifier: Apache-2.0
"""The index of a segment: every field of its records but the contents.

The index of a sealed segment has parts. Each part covers a stretch of the segment, is immutable, and holds its entries
as packed columns: about 80 bytes an entry plus the id, a fifth of a Python object. Entries are created on demand. A
search for an id is a binary search in C over a sorted column of 64-bit hashes; one of 2**64 / n searches collides.

The newest records are in an `OpenIndex`, found by a dictionary, until they are enough for a part.

The file is a sequence of parts (`docs/formats/blobstore-index.md`). The index of the active segment grows by one part
after a number of records, and by the last part when it is sealed. It is not synced while it grows: opening rebuilds
from the log the parts that a crash loses.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import accumulate, chain, pairwise, repeat
from operator import attrgetter, itemgetter, lt
from typing import cast

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.records import IndexEntry, RecordFlag, RecordKind
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES
from compactlib.budget import Budget
from compactlib.errors import CorruptData, Unsupported
from compactlib.files.disk import Files, StrPath, look_at, read_if_there, write_durably
from compactlib.files.record_frame import RecordFrame

COLUMNS = {"offset": "Q", "size": "Q", "sequence": "Q", "op_time_ms": "q", "expires_ms": "q", "account": "I",
           "container": "I", "life_version": "H", "kind": "B", "flags": "B"}
"""The columns in the order of the file format: a field of `IndexEntry`, and its type in an `array`."""
ENDS_OR_REVIVES = frozenset((int(RecordKind.DELETE), int(RecordKind.UNDELETE)))
"""Kinds of records of which only the newest decides the state of a blob."""

_ENTRY = cast("Callable[[tuple[object, ...]], IndexEntry]", partial(tuple.__new__, IndexEntry))
"""`IndexEntry._make` without its check of the length."""
_AT_ONCE = 256
"""How many entries are moved before other threads may run."""


def hash_id(blob_id: bytes, key: bytes) -> int:
    """Return a 64-bit hash of an id, keyed by the store, so that colliding ids cannot be chosen."""
    return int.from_bytes(hashlib.blake2b(blob_id, digest_size=8, key=key).digest(), "little")


def since_put(newest_first: Iterable[IndexEntry]) -> list[IndexEntry]:
    """Return the entries of one id that decide its state, newest first, back to its newest PUT.

    Of consecutive DELETEs and UNDELETEs only the last is returned.
    """
    found: list[IndexEntry] = []
    for entry in newest_first:
        if not (found and entry.kind in ENDS_OR_REVIVES and found[-1].kind in ENDS_OR_REVIVES):
            found.append(entry)
        if entry.kind == RecordKind.PUT:
            break
    return found


class IndexPart:
    """The entries of the records from offset `start` to `end` of a segment, ascending by offset. Immutable.

    `columns` are those of `COLUMNS`, `ids` all ids with their `id_ends`, `hashes` ascending with the `rows` of each.
    """

    def __init__(self, segment: SegmentName, start: int, end: int, columns: Sequence[array[int]], ids: bytes,
                 id_ends: array[int], hashes: array[int], rows: array[int]) -> None:
        self.segment: SegmentName = segment
        self.start: int = start
        self.end: int = end
        self.columns: tuple[array[int], ...] = tuple(columns)
        self.ids: bytes = ids
        self.id_ends: array[int] = id_ends
        self.hashes: array[int] = hashes
        self.rows: array[int] = rows
        self.offsets: array[int] = columns[0]
        self.sizes: array[int] = columns[1]
        self.sequences: array[int] = columns[2]
        self.op_times: array[int] = columns[3]
        self.expiries: array[int] = columns[4]
        self.kinds: array[int] = columns[8]
        self.flags: array[int] = columns[9]
        self.first_sequence: int = min(self.sequences, default=0)
        self.last_sequence: int = max(self.sequences, default=0)
        self.last_modified_ms: int = max(self.op_times, default=0)

    @classmethod
    def of(cls, segment: SegmentName, start: int, end: int, entries: Sequence[IndexEntry], key: bytes) -> IndexPart:
        """Pack entries; `key` is the store's incarnation. O(n log n)."""
        columns = [array(code, map(attrgetter(name), entries)) for name, code in COLUMNS.items()]
        return cls._packed(segment, start, end, columns, [entry.id for entry in entries], key)

    @classmethod
    def moved(cls, segment: SegmentName, taken: Iterable[tuple[IndexPart, Sequence[int]]], key: bytes,
              budget: Budget) -> IndexPart:
        """Return the index of a new segment with some rows of other parts, without gaps."""
        columns, ids = [array(code) for code in COLUMNS.values()], list[bytes]()
        for part, rows in taken:
            for start in range(0, len(rows), _AT_ONCE):
                piece = rows[start:start + _AT_ONCE]
                for mine, theirs in zip(columns, part.columns, strict=True):
                    mine.extend(map(theirs.__getitem__, piece))
                ids.extend(map(part.id_of, piece))
                budget.check()
        *offsets, end = accumulate(columns[1], initial=SEGMENT_HEADER_BYTES)
        return cls._packed(segment, SEGMENT_HEADER_BYTES, end, [array("Q", offsets), *columns[1:]], ids, key)

    @classmethod
    def _packed(cls, segment: SegmentName, start: int, end: int, columns: Sequence[array[int]], ids: Sequence[bytes],
                key: bytes) -> IndexPart:
        hashed = list(map(hash_id, ids, repeat(key)))
        order = sorted(range(len(hashed)), key=hashed.__getitem__)
        # A copy has no spare room, unlike an array that was appended to.
        return cls(segment, start, end, [array(each.typecode, each) for each in columns], b"".join(ids),
                   array("I", accumulate(map(len, ids))), array("Q", map(hashed.__getitem__, order)),
                   array("I", order))

    def id_of(self, row: int) -> bytes:
        """Return the id of a row."""
        return self.ids[self.id_ends[row - 1] if row else 0:self.id_ends[row]]

    def entry(self, row: int) -> IndexEntry:
        """Return the entry of a row."""
        (offset, size, sequence, op_time, expires, account, container, life_version, kind,
         flags) = map(itemgetter(row), self.columns)
        return _ENTRY((self.id_of(row), kind, flags, life_version, sequence, op_time, expires, account, container,
                       self.segment, offset, size))

    def entries(self, start: int = 0, stop: int | None = None) -> Iterator[IndexEntry]:
        """Yield the entries of the rows from `start` to before `stop`."""
        rows = slice(start, len(self) if stop is None else stop)
        (offsets, sizes, sequences, op_times, expiries, accounts, containers, life_versions, kinds,
         flags) = (column[rows] for column in self.columns)
        begin = self.id_ends[start - 1] if start else 0
        ids = (self.ids[first:last] for first, last in pairwise(chain([begin], self.id_ends[rows])))
        # Column by column: a row at a time takes four times as long.
        return map(_ENTRY, zip(ids, kinds, flags, life_versions, sequences, op_times, expiries, accounts, containers,
                               repeat(self.segment), offsets, sizes))

    def newest_first(self, blob_id: bytes, hashed: int) -> Iterator[IndexEntry]:
        """Yield the entries of an id, descending by sequence. O(log n)."""
        first = bisect_left(self.hashes, hashed)
        rows: Sequence[int] = self.rows[first:bisect_right(self.hashes, hashed, first)]
        if len(rows) > 1 and not self.ascends:
            rows = sorted(rows, key=self.sequences.__getitem__)
        return (self.entry(row) for row in reversed(rows) if self.id_of(row) == blob_id)

    @cached_property
    def ascends(self) -> bool:
        """Whether its sequences ascend; a compaction may copy records in another order."""
        return all(map(lt, self.sequences, self.sequences[1:]))

    def rows_at(self, offsets: Sequence[int]) -> list[int]:
        """Return the rows of the records at these ascending offsets; offsets outside of its stretch are skipped."""
        mine = offsets[bisect_left(offsets, self.start):bisect_left(offsets, self.end)]
        row_of = dict(zip(self.offsets, range(len(self)), strict=True)) if mine else {}
        return list(map(row_of.__getitem__, mine))

    def erased(self, offsets: Collection[int]) -> IndexPart:
        """Return the part with the records at these offsets marked as erased; itself if it has no such record.

        An offset without an entry is skipped: a part that was rebuilt from the log has none of a torn record.
        """
        places = ((bisect_left(self.offsets, offset), offset) for offset in offsets)
        mine = [row for row, offset in places if row < len(self) and self.offsets[row] == offset]
        if not mine:
            return self
        flags = self.flags[:]
        for row in mine:
            flags[row] |= RecordFlag.ERASED
        return IndexPart(self.segment, self.start, self.end, (*self.columns[:-1], flags), self.ids, self.id_ends,
                         self.hashes, self.rows)

    @property
    def file_bytes(self) -> int:
        """Bytes of the part in the file."""
        return index_file_bytes(len(self), len(self.ids))

    def __len__(self) -> int:
        return len(self.rows)

    def __repr__(self) -> str:
        return f"IndexPart({self.segment}:{self.start}..{self.end}, {len(self)} entries)"


class OpenIndex:
    """The entries of the records of the active segment from offset `start`, ascending by offset and sequence.

    One thread appends while others read. A reader sees only complete entries. `end` is beyond the last entry if a
    damaged stretch follows it.
    """

    def __init__(self, segment: SegmentName, start: int, entries: Iterable[IndexEntry] = (), end: int = 0) -> None:
        self.segment: SegmentName = segment
        self.start: int = start
        self.end: int = start
        self.entries: list[IndexEntry] = []
        self._of_id: dict[bytes, list[IndexEntry]] = {}
        for entry in entries:
            self.append(entry)
        self.end = max(self.end, end)

    def append(self, entry: IndexEntry) -> None:
        """Add the entry of a written record; readers find it from then on. O(1)."""
        self.entries.append(entry)
        self.end = entry.end
        known = self._of_id.get(entry.id)
        if known is None:
            self._of_id[entry.id] = [entry]
        else:
            known.append(entry)

    def frozen(self) -> OpenIndex:
        """Return the index without later appends. Copies a reference for each entry."""
        found = OpenIndex(self.segment, self.start)
        found.end, found.entries, found._of_id = self.end, self.entries.copy(), self._of_id
        return found

    @property
    def last_sequence(self) -> int:
        """The number of the last record, 0 without records."""
        return self.entries[-1].sequence if self.entries else 0

    def newest_first(self, blob_id: bytes) -> Iterator[IndexEntry]:
        """Yield the entries of an id, descending by sequence; nothing is copied."""
        last = self.last_sequence
        return (entry for entry in reversed(self._of_id.get(blob_id, ())) if entry.sequence <= last)

    def sealed(self, key: bytes) -> IndexPart:
        """Return the same entries as a part."""
        return IndexPart.of(self.segment, self.start, self.end, self.entries, key)


_HEADER_BYTES = 80
_FRAME = RecordFrame("index format", b"CLBLOBIX", 1, "<HH4xQQQQQQ16s")
_COUNTS = struct.Struct("<48xQQ16x")
_CODES = (*COLUMNS.values(), "I", "Q", "I")
_BYTES_PER_ENTRY = sum(array(code).itemsize for code in _CODES)


def index_file_bytes(entries: int, id_bytes: int) -> int:
    """Return the bytes of a part, given its entries and the total length of their ids."""
    return _FRAME.size + entries * _BYTES_PER_ENTRY + id_bytes


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
    """Load the contiguous parts of a segment's index file from `start` on, before the first that is damaged or ends
    after `most`.
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
