# SPDX-License-Identifier: Apache-2.0
"""Index entries of one log segment kept as packed columns: about 60 bytes an entry beside the id.

A Python object per entry would take five times as much; entries are made when they are asked for.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain, pairwise, repeat
from typing import cast

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.values import IndexEntry

_BIG_ENDIAN = sys.byteorder == "big"
_ENTRY = cast("Callable[[tuple[object, ...]], IndexEntry]", partial(tuple.__new__, IndexEntry))
"""`IndexEntry._make` without its check."""

TYPECODES = {
    "offsets": "Q", "sizes": "Q", "sequences": "Q", "op_times": "q", "expiries": "q", "accounts": "I",
    "containers": "I", "life_versions": "H", "kinds": "B", "flags": "B",
}
"""The columns in the order of the file format, with their types."""


def hash_id(blob_id: bytes, key: bytes) -> int:
    """A 64-bit number for an id, different in each store, so that colliding ids cannot be chosen on purpose."""
    return int.from_bytes(hashlib.blake2b(blob_id, digest_size=8, key=key).digest(), "little")


class PackedIds:
    """Ids back to back in one bytes object; indexed like a list."""

    __slots__ = ("_blob", "_ends")

    def __init__(self, blob: bytes, ends: array[int]) -> None:
        self._blob = blob
        self._ends = ends

    @classmethod
    def of(cls, ids: Sequence[bytes]) -> PackedIds:
        """Pack these."""
        return cls(b"".join(ids), array("I", accumulate(map(len, ids))))

    @property
    def blob(self) -> bytes:
        """All ids, back to back."""
        return self._blob

    @property
    def ends(self) -> array[int]:
        """Where each ends."""
        return self._ends

    def length(self, row: int) -> int:
        """How long the id of a row is."""
        return self._ends[row] - (self._ends[row - 1] if row else 0)

    def __getitem__(self, row: int) -> bytes:
        return self._blob[self._ends[row - 1] if row else 0:self._ends[row]]

    def __iter__(self) -> Iterator[bytes]:
        return self.between(0, len(self._ends))

    def between(self, start: int, stop: int) -> Iterator[bytes]:
        """Those of the rows from `start` to before `stop`."""
        begin = self._ends[start - 1] if start else 0
        return (self._blob[begin:end] for begin, end in pairwise(chain([begin], self._ends[start:stop])))

    def __len__(self) -> int:
        return len(self._ends)


class EntryColumns:
    """The entries of one log segment, or of a part of it, ascending by offset. Rows are numbered from 0.

    One thread may append while others read rows that they know of.
    """

    __slots__ = ("_arrays", "accounts", "containers", "expiries", "flags", "ids", "kinds", "life_versions", "offsets",
                 "op_times", "segment", "sequences", "sizes")

    offsets: array[int]
    sizes: array[int]
    sequences: array[int]
    op_times: array[int]
    expiries: array[int]
    accounts: array[int]
    containers: array[int]
    life_versions: array[int]
    kinds: array[int]
    flags: array[int]

    def __init__(self, segment: SegmentName, arrays: Sequence[array[int]], ids: list[bytes] | PackedIds) -> None:
        self.segment: SegmentName = segment
        self.ids: list[bytes] | PackedIds = ids
        self._arrays = tuple(arrays)
        (self.offsets, self.sizes, self.sequences, self.op_times, self.expiries, self.accounts, self.containers,
         self.life_versions, self.kinds, self.flags) = self._arrays

    @classmethod
    def empty(cls, segment: SegmentName) -> EntryColumns:
        """Columns to append to."""
        return cls(segment, [array(code) for code in TYPECODES.values()], [])

    @classmethod
    def of(cls, segment: SegmentName, entries: Sequence[IndexEntry]) -> EntryColumns:
        """Packed columns of these entries, which ascend by offset."""
        columns = cls.empty(segment)
        for entry in entries:
            columns.append(entry)
        return columns.packed()

    @classmethod
    def from_bytes(cls, segment: SegmentName, count: int, data: memoryview, ids: PackedIds) -> EntryColumns:
        """Columns from their stored form, see `to_bytes`."""
        ends = accumulate(count * array(code).itemsize for code in TYPECODES.values())
        places = pairwise(chain([0], ends))
        return cls(segment, [from_little_endian(code, data[start:end]) for code, (start, end) in zip(
            TYPECODES.values(), places, strict=True)], ids)

    def append(self, entry: IndexEntry) -> int:
        """Add an entry behind the last; returns its row."""
        assert isinstance(self.ids, list)
        row = len(self.ids)
        self.offsets.append(entry.offset)
        self.sizes.append(entry.size)
        self.sequences.append(entry.sequence)
        self.op_times.append(entry.op_time_ms)
        self.expiries.append(entry.expires_ms)
        self.accounts.append(entry.account)
        self.containers.append(entry.container)
        self.life_versions.append(entry.life_version)
        self.kinds.append(entry.kind)
        self.flags.append(entry.flags)
        self.ids.append(entry.id)
        return row

    def take(self, other: EntryColumns, rows: Sequence[int], offset: int) -> int:
        """Add rows of other columns, as if the records lay one behind the other from `offset` on; returns their end."""
        assert isinstance(self.ids, list)
        places = list(accumulate(map(other.sizes.__getitem__, rows), initial=offset))
        self.offsets.extend(places[:-1])
        for mine, theirs in zip(self._arrays[1:], other._arrays[1:], strict=True):
            mine.extend(map(theirs.__getitem__, rows))
        self.ids.extend(map(other.ids.__getitem__, rows))
        return places[-1]

    def packed(self) -> EntryColumns:
        """The same entries with their ids packed and no room to spare, not to be appended to."""
        ids = self.ids if isinstance(self.ids, PackedIds) else PackedIds.of(self.ids)
        return EntryColumns(self.segment, [array(column.typecode, column) for column in self._arrays], ids)

    def to_bytes(self) -> list[bytes]:
        """The columns as little-endian bytes, in the order of `TYPECODES`."""
        return list(map(little_endian, self._arrays))

    @property
    def id_bytes(self) -> int:
        """How long all ids are together."""
        return len(self.ids.blob) if isinstance(self.ids, PackedIds) else sum(map(len, self.ids))

    def entry(self, row: int) -> IndexEntry:
        """The entry of a row."""
        return _ENTRY((self.ids[row], self.kinds[row], self.flags[row], self.life_versions[row], self.sequences[row],
                       self.op_times[row], self.expiries[row], self.accounts[row], self.containers[row], self.segment,
                       self.offsets[row], self.sizes[row]))

    def entries(self, start: int = 0, stop: int | None = None) -> Iterator[IndexEntry]:
        """The entries of the rows from `start` to before `stop`, as they are now."""
        rows = slice(start, len(self.ids) if stop is None else stop)
        (offsets, sizes, sequences, op_times, expiries, accounts, containers, life_versions, kinds,
         flags) = (column[rows] for column in self._arrays)
        ids = self.ids.between(rows.start, rows.stop) if isinstance(self.ids, PackedIds) else self.ids[rows]
        # Column by column: a row at a time takes four times as long.
        return map(_ENTRY, zip(ids, kinds, flags, life_versions, sequences, op_times, expiries, accounts, containers,
                               repeat(self.segment), offsets, sizes))

    def __len__(self) -> int:
        return len(self.ids)


def little_endian(column: array[int]) -> bytes:
    """The bytes of a column as the file formats have them."""
    if _BIG_ENDIAN:
        column = array(column.typecode, column)
        column.byteswap()
    return column.tobytes()


def from_little_endian(typecode: str, data: memoryview) -> array[int]:
    """The inverse of `little_endian`."""
    column = array(typecode)
    column.frombytes(data)
    if _BIG_ENDIAN:
        column.byteswap()
    return column
