# SPDX-License-Identifier: Apache-2.0
"""The native segment format to the byte (`docs/formats/raftlog-segment.md`), and the index of a segment in memory.

```
0        header, 40 bytes: magic, version, record size, max_entries, max_bytes, number, flags, CRC
40       two seals of 32 bytes, written in turn: how much of the file is known to be durable, and the CRC of that part
         of the index; the valid one of the higher sequence number counts
104      index region: max_entries records of 40 bytes; an all-zero record ends it
data     payloads back to back, from 104 + 40 * max_entries
```

A seal overwrites the seal before the last, after the last is durable: a crash leaves one of them whole, and two damaged
seals are damage. The first seal that is written after the creation is at the place away from the records, so that no
contiguous damage hits both that seal and the first record, and leaves the older seal whole.

Records ascend by index. A sealed segment is truncated by one more seal with fewer entries: bytes behind these entries
are ignored, and freed when the segment is rewritten.

All numbers are little-endian, as this machine has to be. An entry's CRC-32 covers index, term, length and payload, in
that order; the record also keeps the CRC-32 of the first three, so that one call over the payload finishes the check.
Pure functions.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import compress, repeat
from operator import itemgetter, sub

import attrs

from compactlib.errors import CorruptData, Unsupported
from compactlib.files.checksum import crc32
from compactlib.files.record_frame import RecordFrame
from compactlib.indexset import IndexSet
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.snapshot_meta import SnapshotMeta
from compactlib.raftlog.values import HEAD_BYTES, INDEX_RECORD_BYTES, MAX_ENTRIES, SegmentLimits, SegmentRef

if sys.byteorder != "little":
    raise Unsupported("segments are columns of memory, which this machine keeps big-endian; use a little-endian one")

HEADER_BYTES = 40
SEAL_BYTES = 32
SEALS = 2
INDEX_START = HEAD_BYTES
RECORD_BYTES = INDEX_RECORD_BYTES

_HEADER = RecordFrame("segment format", b"CLRAFSEG", 1, "<HHIQQ4x")
_SEAL = struct.Struct("<IIQIQ")
_ENTRY_HEAD = struct.Struct("<QQI")
_RECORD = struct.Struct("<QQIIQII")
_CRC = struct.Struct("<I")

_OPEN, _SEALED, _ALONE = 5, 6, 7
_WORDS = RECORD_BYTES // 8
_HALVES = RECORD_BYTES // 4


@attrs.frozen
class Header:
    """The header of a segment, which never changes.

    Attributes:
        number: the segment's number, as in its file name.
        limits: the limits of the segment; `limits.max_entries` determines the offset of the payloads.
    """

    number: int
    limits: SegmentLimits

    @property
    def data_start(self) -> int:
        """Offset of the first payload."""
        return INDEX_START + RECORD_BYTES * self.limits.max_entries


@attrs.frozen
class Seal:
    """The durable part of a segment when the seal was written, after an fsync.

    Attributes:
        entries: count of the durable index records.
        data_end: end of their payloads, an offset in the file.
        index_crc: CRC-32 of the bytes of these records.
        sealed: whether the segment is complete, with exactly these entries.
        sequence: number of the seal in its segment; the highest counts. It determines the seal's place.
        is_alone: whether a sealed segment may be the newest: a full disk may have no room for the next one. Else the
            next segment is there, or was lost.
    """

    entries: int
    data_end: int
    index_crc: int
    sealed: bool
    sequence: int = 0
    is_alone: bool = False

    @property
    def place(self) -> int:
        """The offset at which this seal is written."""
        return HEADER_BYTES + SEAL_BYTES * ((self.sequence + 1) % SEALS)


# -- the index in memory


@attrs.define
class SegmentIndex:
    """The index records of a segment, column by column, in arrays of equal length. About 44 bytes an entry.

    Records ascend by index and by offset. The index only grows: a reader in another thread needs no lock.

    Attributes:
        data_bytes: payload bytes in the file, those behind a cut included; default from the first to the last record.
    """

    indexes: array[int]
    terms: array[int]
    offsets: array[int]
    lengths: array[int]
    heads: array[int]
    crcs: array[int]
    data_bytes: int = attrs.field(
        default=attrs.Factory(lambda self: self.end - self.offsets[0] if self.offsets else 0, takes_self=True),
        kw_only=True)

    @property
    def end(self) -> int:
        """The end of the last payload in the file; the segment must not be empty."""
        return self.offsets[-1] + self.lengths[-1]

    @property
    def columns(self) -> tuple[array[int], ...]:
        """The six columns."""
        return self.indexes, self.terms, self.offsets, self.lengths, self.heads, self.crcs

    def head(self, count: int) -> SegmentIndex:
        """A copy of the first `count` records."""
        return SegmentIndex(*(column[:count] for column in self.columns))

    def append(self, index: int, term: int, offset: int, length: int, head: int, crc: int) -> None:
        """Take one more record, above all those before. O(1)."""
        self.terms.append(term)
        self.offsets.append(offset)
        self.lengths.append(length)
        self.heads.append(head)
        self.crcs.append(crc)
        # Last: a reader that finds an index finds the rest.
        self.indexes.append(index)
        self.data_bytes += length

    def extend(self, records: SegmentIndex) -> None:
        """Take ascending records, at least one, as `append` does each. Copies memory."""
        # The indexes last, as in `append`.
        for column, more in zip(reversed(self.columns), reversed(records.columns), strict=True):
            column.extend(more)
        self.data_bytes += records.data_bytes

    def __len__(self) -> int:
        return len(self.indexes)

    @property
    def first(self) -> int:
        """Lowest index; the segment must not be empty."""
        return self.indexes[0]

    @property
    def last(self) -> int:
        """Highest index; the segment must not be empty."""
        return self.indexes[-1]

    @property
    def is_dense(self) -> bool:
        """Whether it holds every index from the first to the last; the segment must not be empty."""
        return self.last - self.first + 1 == len(self)

    def find(self, index: int) -> int:
        """Position of `index`, or -1. O(1) where the segment is dense, O(log entries) elsewhere."""
        indexes = self.indexes
        count = len(indexes)
        if not count:
            return -1
        guess = index - indexes[0]
        if 0 <= guess < count and indexes[guess] == index:
            return guess
        position = bisect_left(indexes, index)
        return position if position < count and indexes[position] == index else -1

    def positions_between(self, first: int, last: int) -> range:
        """Positions of the entries whose index lies in `first..last`."""
        indexes = self.indexes
        start = bisect_left(indexes, first)
        return range(start, bisect_left(indexes, last + 1, start))

    def index_set(self) -> IndexSet:
        """The indexes that count, as a set."""
        if len(self) and self.is_dense:
            return IndexSet.range(self.first, self.last)
        return IndexSet.from_sorted(self.indexes)


def picked(column: array[int], positions: Sequence[int]) -> Sequence[int]:
    """The values of a column at these positions, at C speed."""
    if isinstance(positions, range) and positions.step == 1:
        return column[positions.start:positions.stop]
    if len(positions) < 2:
        return [column[position] for position in positions]
    values: tuple[int, ...] = itemgetter(*positions)(column)
    return values


# -- which entries are live


def live_positions(index: SegmentIndex, live: IndexSet, ref: SegmentRef) -> Sequence[int]:
    """Positions in `index` of the live entries within the segment's range, ascending.

    Raises:
        LiveIndexMissing: a live index within the range is not in the segment.
    """
    here = live.between(ref.first, ref.last)
    if not here:
        return range(0)
    between = index.positions_between(here.first, here.last)
    if here.run_count == 1 and len(between) == len(here):
        return between
    if len(index) and index.is_dense and index.first <= here.first and here.last <= index.last:
        return list(map(sub, here.members(), repeat(index.first)))
    is_live = set(here.members()).__contains__
    positions = list(compress(between, map(is_live, picked(index.indexes, between))))
    if len(positions) < len(here):
        held = index.index_set()
        missing = here - held
        raise LiveIndexMissing(
            f"segment {ref.number} holds {len(held.between(ref.first, ref.last))} entries from {ref.first} to "
            f"{ref.last}, but not {len(missing)} that are live, the first of them {missing.first}; restore the segment "
            f"from a copy", missing=len(missing), first=missing.first)
    return positions


def kept_positions(index: SegmentIndex, ref: SegmentRef, state: SnapshotMeta | None) -> Sequence[int]:
    """Positions of the entries that a read may return: live ones, and everything above the snapshot. Raises as
    `live_positions`.
    """
    if state is None or ref.first > state.index:
        return index.positions_between(ref.first, ref.last)
    live = live_positions(index, state.live, SegmentRef(ref.number, ref.first, min(ref.last, state.index)))
    above = index.positions_between(state.index + 1, ref.last)
    return [*live, *above] if len(above) else live


# -- to bytes and back


def encode_header(header: Header) -> bytes:
    """The 40 header bytes."""
    return _HEADER.encode(RECORD_BYTES, header.limits.max_entries, header.limits.max_bytes, header.number)


def encode_seal(seal: Seal) -> bytes:
    """The 32 seal bytes."""
    state = _ALONE if seal.is_alone else _SEALED if seal.sealed else _OPEN
    body = _SEAL.pack(seal.entries, state, seal.data_end, seal.index_crc, seal.sequence)
    return body + _CRC.pack(crc32(body, 0))


def encode_start(header: Header, *seals: Seal) -> bytes:
    """The header and the places of the seals, with zeros where `seals` has no seal."""
    start = bytearray(INDEX_START)
    start[:HEADER_BYTES] = encode_header(header)
    for seal in seals:
        start[seal.place:seal.place + SEAL_BYTES] = encode_seal(seal)
    return bytes(start)


def decode_header(data: bytes, path: str) -> Header:
    """Check and read the header at the start of `data`."""
    record_bytes, max_entries, max_bytes, number = _HEADER.decode_header(data, path)
    if record_bytes != RECORD_BYTES or not 1 <= max_entries <= MAX_ENTRIES or not 1 <= max_bytes < 1 << 63:
        raise CorruptData(path=path, offset=10, expected="fields in range",
                          found=f"records of {record_bytes} bytes, {max_entries} entries, {max_bytes} bytes")
    return Header(number, SegmentLimits(max_entries=max_entries, max_bytes=max_bytes))


def decode_seal(data: bytes) -> Seal | None:
    """The whole seal of the highest sequence in `data`; `None` if both are damaged.

    A seal is overwritten in place, so that a crash may tear it; then the other seal counts.
    """
    found = [seal for place in range(HEADER_BYTES, INDEX_START, SEAL_BYTES)
             if (seal := _seal_at(data, place)) is not None]
    return max(found, key=lambda seal: seal.sequence, default=None)


def _seal_at(data: bytes, place: int) -> Seal | None:
    body = data[place:place + SEAL_BYTES]
    if len(body) < SEAL_BYTES:
        return None
    entries, state, data_end, index_crc, sequence = _SEAL.unpack_from(body)
    (stored,) = _CRC.unpack_from(body, SEAL_BYTES - 4)
    if stored != crc32(body[:SEAL_BYTES - 4], 0) or state not in (_OPEN, _SEALED, _ALONE):
        return None
    seal = Seal(entries, data_end, index_crc, state != _OPEN, sequence, state == _ALONE)
    return seal if seal.place == place else None


def head_crc(index: int, term: int, length: int) -> int:
    """CRC-32 of an entry's index, term and length: the start value of its payload's CRC."""
    return crc32(_ENTRY_HEAD.pack(index, term, length), 0)


def encode_record(index: int, term: int, length: int, head: int, offset: int, crc: int) -> bytes:
    """One index record of 40 bytes; `offset` is absolute, `crc` covers head and payload."""
    return _RECORD.pack(index, term, length, head, offset, crc, 0)


def head_crcs(first: int, term: int, lengths: Sequence[int]) -> Iterator[int]:
    """`head_crc` of entries with consecutive indexes and one term, without interpreter steps for each."""
    return map(crc32, map(_ENTRY_HEAD.pack, range(first, first + len(lengths)), repeat(term), lengths), repeat(0))


def decode_records(region: bytes | memoryview) -> SegmentIndex:
    """Split index records into columns, a few array slices for the whole region; checks nothing."""
    words, halves = array("Q"), array("I")
    words.frombytes(region)
    halves.frombytes(region)
    return SegmentIndex(indexes=words[0::_WORDS], terms=words[1::_WORDS], offsets=words[3::_WORDS],
                        lengths=halves[4::_HALVES], heads=halves[5::_HALVES], crcs=halves[8::_HALVES])


def encode_records(columns: SegmentIndex) -> bytes:
    """Join columns into index records: the inverse of `decode_records`."""
    halves = array("I", bytes(RECORD_BYTES * len(columns)))
    halves[4::_HALVES], halves[5::_HALVES], halves[8::_HALVES] = columns.lengths, columns.heads, columns.crcs
    words = array("Q")
    words.frombytes(halves.tobytes())
    for place, column in ((0, columns.indexes), (1, columns.terms), (3, columns.offsets)):
        words[place::_WORDS] = column
    return words.tobytes()


def indexes_of(region: bytes) -> array[int]:
    """The indexes of index records."""
    words = array("Q")
    words.frombytes(region)
    return words[::_WORDS]
