# SPDX-License-Identifier: Apache-2.0
"""`SegmentReader`: reads single, many or all entries of a segment file, and verifies their checksums."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress, count, islice, repeat
from operator import add, gt, ne, sub

import attrs

from compactlib.errors import Closed, CorruptData, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import ReadDescriptor, StrPath, read_exactly, read_into
from compactlib.raftlog.arguments import require_ascending
from compactlib.raftlog.model.values import MAX_INDEX, Answer, DamagedEntry, Entry, MissingEntry, entry_of
from compactlib.raftlog.segment.format import Columns
from compactlib.raftlog.segment.index import SegmentIndex, picked
from compactlib.raftlog.segment.load import LoadedSegment, TailRule, load_segment

MAX_GAP_BYTES = 16 << 10
MAX_SPAN_BYTES = 512 << 10
_pread = os.pread


class SegmentReader(ReadDescriptor):
    """An open segment file. Threads may share it.

    The file is closed with the last reference, so that a reader that was dropped from a cache stays usable for a
    running read.

    Args:
        path: the file; or a compaction's symbolic link to the merged segment.
        tail: the rule for an unsealed segment, see `load_segment`.
        number: the number that the header must have; `None` if it is not known.

    Raises:
        CorruptData: the header or the index is damaged.
        Unsupported: the format version is unknown.
        StorageError: the file cannot be opened.
    """

    def __init__(self, path: StrPath, *, tail: TailRule = "cut", number: int | None = None) -> None:
        super().__init__()
        self._path = os.fspath(path)
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise StorageError.from_os(error, "open", path) from error
        try:
            loaded = load_segment(self._descriptor, self._path, tail=tail, number=number)
        except OSError as error:
            raise self._refused(error) from error
        self.loaded: LoadedSegment = loaded
        self._follow(loaded.index)

    @classmethod
    def following(cls, path: StrPath, index: SegmentIndex) -> SegmentReader:
        """A reader with the `index` of the segment's writer, so that it finds all flushed entries."""
        reader = cls(path)
        reader._follow(index)
        return reader

    def _follow(self, index: SegmentIndex) -> None:
        self.index: SegmentIndex = index
        self._columns = attrs.astuple(index.columns, recurse=False)

    @property
    def path(self) -> str:
        """The path with which it was opened."""
        return self._path

    def fileno(self) -> int:
        """The descriptor.

        Raises:
            Closed: the reader was closed.
        """
        if self._descriptor < 0:
            raise Closed(f"the reader of {self._path} is closed; open the segment again")
        return self._descriptor

    def _refused(self, error: OSError) -> StorageError:
        self.fileno()
        return StorageError.from_os(error, "read", self._path)

    def read(self, index: int) -> Entry | None:
        """The entry of `index`, or `None` if the segment lacks it. One `pread`.

        Raises:
            CorruptData: the entry's checksum fails.
            Closed: the reader was closed.
        """
        indexes, terms, offsets, lengths, heads, crcs = self._columns
        # The guess of `SegmentIndex.find`, inlined: the path of every random read. Below the first index the position
        # is negative and counts from the end, where the indexes are higher.
        try:
            position = index - indexes[0]
            is_there = indexes[position] == index
        except IndexError:
            is_there = False
        if not is_there:
            position = self.index.find(index)
            if position < 0:
                return None
        length = lengths[position]
        try:
            payload = _pread(self._descriptor, length, offsets[position])
        except OSError as error:
            raise self._refused(error) from error
        if crc32(payload, heads[position]) != crcs[position] or len(payload) != length:
            payload = read_again(self.fileno(), self._path, self.index.columns, position)
        return entry_of((index, terms[position], payload))

    def read_many(self, indexes: Sequence[int]) -> Iterator[Answer]:
        """Iterate over the answers for `indexes` (strictly ascending); neighbours in the file are read together.

        A damaged entry is a `DamagedEntry`, an index that the segment lacks a `MissingEntry`.

        Raises:
            Unsorted: the indexes do not ascend.
        """
        require_ascending(indexes)
        positions = list(map(self.index.find, indexes))
        answers = self.answers_at([position for position in positions if position >= 0])
        for index, position in zip(indexes, positions, strict=True):
            yield MissingEntry(index) if position < 0 else next(answers)

    def scan(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry | DamagedEntry]:
        """Every entry from `first` to `last`, ascending; a damaged entry as `DamagedEntry`."""
        return self.answers_at(self.index.positions_between(first, last))

    def answers_at(self, positions: Sequence[int]) -> Iterator[Entry | DamagedEntry]:
        """The entries at ascending positions of the index, read in spans."""
        columns = self.index.columns
        for part, payloads, damaged in self._spans(positions):
            entries = map(entry_of, zip(picked(columns.indexes, part), picked(columns.terms, part),
                                        map(bytes, payloads), strict=True))
            if not damaged:
                yield from entries
                continue
            for position, entry in zip(part, entries, strict=True):
                yield DamagedEntry(entry.index, self._damage_at(position)) if position in damaged else entry

    def damaged_entries(self) -> list[CorruptData]:
        """Read every entry, and list those whose checksum fails."""
        return [self._damage_at(position) for _, _, damaged in self._spans(range(len(self.index)))
                for position in sorted(damaged)]

    def _spans(self, positions: Sequence[int]) -> Iterator[tuple[Sequence[int], Sequence[memoryview], set[int]]]:
        """Read and check the payloads at ascending positions of the index, physical neighbours together.

        Yields for each span its positions, a view of each payload (valid until the next span), and the damaged
        positions. A system call reads a span of up to 512 KiB; memory is a span, or the largest entry.
        """
        columns = self.index.columns
        offsets, lengths = picked(columns.offsets, positions), picked(columns.lengths, positions)
        heads, crcs = picked(columns.heads, positions), picked(columns.crcs, positions)
        ends = list(map(add, offsets, lengths))
        scratch = bytearray(min(MAX_SPAN_BYTES, ends[-1] - offsets[0]) if ends else 0)
        for first, stop in read_spans(offsets, ends):
            base, size = offsets[first], ends[stop - 1] - offsets[first]
            if size > len(scratch):
                scratch = bytearray(size)
            buffer = memoryview(scratch)[:size]
            try:
                end = base + read_into(self.fileno(), buffer, base)
            except OSError as error:
                raise self._refused(error) from error
            here = map(sub, offsets[first:stop], repeat(base))
            there = map(sub, ends[first:stop], repeat(base))
            payloads = list(map(buffer.__getitem__, map(slice, here, there)))
            found, expected = list(map(crc32, payloads, heads[first:stop])), list(crcs[first:stop])
            part = positions[first:stop]
            damaged: set[int] = set()
            if found != expected:
                damaged.update(compress(part, map(ne, found, expected)))
            if end < ends[stop - 1]:
                damaged.update(compress(part, map(gt, ends[first:stop], repeat(end))))
            yield part, payloads, damaged

    def _damage_at(self, position: int) -> CorruptData:
        """The error of a damaged entry, which is read again."""
        columns = self.index.columns
        try:
            payload = read_exactly(self.fileno(), columns.lengths[position], columns.offsets[position])
        except OSError as error:
            raise self._refused(error) from error
        return _damage(self._path, columns, position, payload)

    def __repr__(self) -> str:
        return f"SegmentReader({self._path!r}, {len(self.index)} entries)"


def read_spans(starts: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split ascending byte ranges into spans `(i, j)` of positions, each of which is read with a single call.

    Reading a gap of up to 16 KiB is cheaper than another call. No span is longer than 512 KiB, unless it is a single
    entry. O(n), in C but for the splits.
    """
    gaps = map(sub, islice(starts, 1, None), ends)
    cuts = list(compress(count(1), map(gt, gaps, repeat(MAX_GAP_BYTES))))
    for first, stop in zip([0, *cuts], [*cuts, len(starts)], strict=True):
        while first < stop:
            split = bisect_right(ends, starts[first] + MAX_SPAN_BYTES, first, stop)
            yield first, (split := max(split, first + 1))
            first = split


def read_again(descriptor: int, path: str, columns: Columns, position: int) -> bytes:
    """Read a payload again whose checksum failed: the first read may have been short.

    Raises:
        CorruptData: the payload is damaged.
        OSError: reading failed.
    """
    length, crc = columns.lengths[position], columns.crcs[position]
    payload = read_exactly(descriptor, length, columns.offsets[position])
    if len(payload) == length and crc32(payload, columns.heads[position]) == crc:
        return payload
    raise _damage(path, columns, position, payload)


def _damage(path: str, columns: Columns, position: int, payload: bytes) -> CorruptData:
    found = crc32(payload, columns.heads[position])
    return CorruptData(path=path, offset=columns.offsets[position], index=columns.indexes[position],
                       found=f"CRC {found:#010x} over {len(payload)} bytes",
                       expected=f"CRC {columns.crcs[position]:#010x} over {columns.lengths[position]} bytes")
