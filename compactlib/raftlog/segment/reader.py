# SPDX-License-Identifier: Apache-2.0
"""`SegmentReader`: opens a segment file, reads single, many or all of its entries, and verifies their checksums.

Opening loads the header and the index. The index records that a seal covers were durable: their CRC must hold. Behind
the seal of an unsealed segment, entries count up to the first incomplete entry, by their own CRCs: the rest is a tail
that a crash has torn.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import compress, count, islice, repeat
from operator import add, gt, ne, or_, sub

import attrs

from compactlib.errors import Closed, CorruptData, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import ReadDescriptor, StrPath, read_exactly, read_into
from compactlib.raftlog.segment import format as native
from compactlib.raftlog.segment.format import SegmentIndex, picked
from compactlib.raftlog.values import MAX_INDEX, DamagedEntry, Entry, entry_of

MAX_GAP_BYTES = 16 << 10
MAX_SPAN_BYTES = 1 << 20
_pread = os.pread


class SegmentReader(ReadDescriptor):
    """An open segment file. Threads may share it.

    The file is closed with the last reference, so that a reader that was dropped from a cache stays usable for a
    running read.

    Args:
        path: the file; or a compaction's symbolic link to the merged segment.
        sealed: whether an unsealed segment is damage, see `load_segment`.
        number: the number that the header must have; `None` if it is not known.

    Attributes:
        path: as given.

    Raises:
        CorruptData: the header or the index is damaged.
        Unsupported: the format version is unknown.
        StorageError: the file cannot be opened.
    """

    def __init__(self, path: StrPath, *, sealed: bool = False, number: int | None = None) -> None:
        super().__init__()
        self.path: str = os.fspath(path)
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            self.loaded: LoadedSegment = load_segment(self._descriptor, self.path, sealed=sealed, number=number)
        except OSError as error:
            raise StorageError.from_os(error, "open", path) from error
        self._follow(self.loaded.index)

    @classmethod
    def following(cls, path: StrPath, index: SegmentIndex) -> SegmentReader:
        """A reader with the `index` of the segment's writer, so that it finds all flushed entries."""
        reader = cls(path)
        reader._follow(index)
        return reader

    def _follow(self, index: SegmentIndex) -> None:
        self.index: SegmentIndex = index
        self._columns = index.columns

    def fileno(self) -> int:
        """The descriptor; `Closed` if the reader was closed."""
        if self._descriptor < 0:
            raise Closed(f"the reader of {self.path} is closed; open the segment again")
        return self._descriptor

    def _refused(self, error: OSError) -> StorageError:
        self.fileno()
        return StorageError.from_os(error, "read", self.path)

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
            payload = self._again(position)
        return entry_of((index, terms[position], payload))

    def scan(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry | DamagedEntry]:
        """Every entry from `first` to `last`, ascending; a damaged entry as `DamagedEntry`."""
        return self.answers_at(self.index.positions_between(first, last))

    def answers_at(self, positions: Sequence[int]) -> Iterator[Entry | DamagedEntry]:
        """The entries at ascending positions of the index, read in spans."""
        index = self.index
        for part, payloads, damaged in self._spans(positions):
            entries = map(entry_of, zip(picked(index.indexes, part), picked(index.terms, part),
                                        map(bytes, payloads), strict=True))
            if not damaged:
                yield from entries
                continue
            for position, entry in zip(part, entries, strict=True):
                yield DamagedEntry(entry.index, damaged[position]) if position in damaged else entry

    def damaged_entries(self) -> list[CorruptData]:
        """Read every entry, and list those whose checksum fails."""
        return [error for _, _, damaged in self._spans(range(len(self.index))) for error in damaged.values()]

    def _spans(self, positions: Sequence[int]) -> Iterator[
            tuple[Sequence[int], Sequence[memoryview], dict[int, CorruptData]]]:
        """Read and check the payloads at ascending positions of the index, physical neighbours together.

        Yields for each span its positions, a view of each payload (valid until the next span), and the error of each
        damaged position. A system call reads a span of up to 1 MiB; memory is a span, or the largest entry.
        """
        offsets, lengths, heads, crcs = (picked(column, positions) for column in self.index.columns[2:])
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
            damaged: dict[int, CorruptData] = {}
            if found != expected or end < ends[stop - 1]:
                # The memory behind the end of the file may have another payload.
                behind = map(gt, ends[first:stop], repeat(end))
                for place in compress(count(), map(or_, map(ne, found, expected), behind)):
                    try:
                        payloads[place] = memoryview(self._again(part[place]))
                    except CorruptData as error:
                        damaged[part[place]] = error
            yield part, payloads, damaged

    def _again(self, position: int) -> bytes:
        try:
            return read_again(self.fileno(), self.path, self.index, position)
        except OSError as error:
            raise self._refused(error) from error

    def __repr__(self) -> str:
        return f"SegmentReader({self.path!r}, {len(self.index)} entries)"


def read_spans(starts: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Split ascending byte ranges into spans `(i, j)` of positions, each of which is read with a single call.

    Reading a gap of up to 16 KiB is cheaper than another call. No span is longer than 1 MiB, unless it is a single
    entry. O(n), in C but for the splits.
    """
    gaps = map(sub, islice(starts, 1, None), ends)
    cuts = list(compress(count(1), map(gt, gaps, repeat(MAX_GAP_BYTES))))
    for first, stop in zip([0, *cuts], [*cuts, len(starts)], strict=True):
        while first < stop:
            split = bisect_right(ends, starts[first] + MAX_SPAN_BYTES, first, stop)
            yield first, (split := max(split, first + 1))
            first = split


def read_again(descriptor: int, path: str, index: SegmentIndex, position: int) -> bytes:
    """Read a payload again whose checksum failed, since the first read may have been short; raise `CorruptData`."""
    length, crc = index.lengths[position], index.crcs[position]
    payload = read_exactly(descriptor, length, index.offsets[position])
    found = crc32(payload, index.heads[position])
    if len(payload) == length and found == crc:
        return payload
    raise CorruptData(path=path, offset=index.offsets[position], index=index.indexes[position],
                      found=f"CRC {found:#010x} over {len(payload)} bytes",
                      expected=f"CRC {crc:#010x} over {length} bytes")


# -- loading


@attrs.frozen
class LoadedSegment:
    """The checked header, seal and index of a segment file.

    Attributes:
        index: the index of the entries that count.
        header: the header of the segment.
        seal: the newest whole seal.
        data_end: offset of the end of the last payload.
        index_crc: CRC-32 of the index records.
        torn_records: count of index records behind the whole entries, incomplete or with an incomplete payload.
        is_torn: whether there are bytes behind the whole entries; they were never acknowledged.
    """

    index: SegmentIndex
    header: native.Header
    seal: native.Seal
    data_end: int
    index_crc: int
    torn_records: int = 0
    is_torn: bool = False


def load_segment(descriptor: int, path: str, *, sealed: bool = False, number: int | None = None) -> LoadedSegment:
    """Read and check a segment's header and index, without the payloads that a seal covers.

    Args:
        descriptor: the file, open for reading.
        path: its name, for messages.
        sealed: whether an unsealed file is damage; if not, the incomplete entries at its end, which were never
            acknowledged, are left out.
        number: the number in the file's name, which the header must have.
    """
    header, seal = _start_of(descriptor, path, number)
    if sealed:
        _require_sealed(seal, path)
    size = os.fstat(descriptor).st_size
    if seal is None:
        # No crash damages both seals, and without a seal the durable size is not known.
        if size > header.data_start or _records_from(descriptor, native.INDEX_START, header.data_start):
            raise CorruptData(path=path, offset=native.HEADER_BYTES, found="two damaged seals before entries",
                              expected="one that says how many entries were durable; a crash damages one at most")
        seal = native.Seal(0, header.data_start, 0, sealed=False)
    region = _durable_region(descriptor, path, header, seal)
    if not seal.sealed:
        return _with_tail(descriptor, header, seal, region, size)
    index = native.decode_records(region)
    # In a truncated segment, the truncated payloads take room until it is rewritten.
    index.data_bytes = max(index.data_bytes, size - header.data_start)
    return LoadedSegment(index, header, seal, seal.data_end, seal.index_crc)


def sealed_records(descriptor: int, path: str) -> bytes:
    """The bytes of the index records of a sealed segment; raises as `load_segment` of one that must be sealed."""
    header, seal = _start_of(descriptor, path, None)
    return _durable_region(descriptor, path, header, _require_sealed(seal, path))


def _require_sealed(seal: native.Seal | None, path: str) -> native.Seal:
    if seal is None or not seal.sealed:
        raise CorruptData(path=path, offset=native.HEADER_BYTES, expected="a sealed segment, since newer ones exist",
                          found="two damaged seals" if seal is None else "one left open, by the seal that is whole")
    return seal


def _start_of(descriptor: int, path: str, number: int | None) -> tuple[native.Header, native.Seal | None]:
    start = read_exactly(descriptor, native.INDEX_START, 0)
    header = native.decode_header(start, path)
    if len(start) < native.INDEX_START:
        raise CorruptData(path=path, offset=len(start), found="the end of the file",
                          expected=f"a header and seals of {native.INDEX_START} bytes, which a segment begins as")
    if number is not None and header.number != number:
        raise CorruptData(path=path, offset=24, expected=f"segment number {number} as in the file name",
                          found=str(header.number))
    return header, native.decode_seal(start)


def _durable_region(descriptor: int, path: str, header: native.Header, seal: native.Seal) -> bytes:
    if seal.entries > header.limits.max_entries or seal.data_end < header.data_start:
        raise CorruptData(path=path, offset=native.HEADER_BYTES, found=f"{seal}",
                          expected=f"at most {header.limits.max_entries} entries, ending from {header.data_start}")
    wanted = seal.entries * native.RECORD_BYTES
    region = read_exactly(descriptor, wanted, native.INDEX_START)
    size = os.fstat(descriptor).st_size
    # Entries without payload leave the file shorter than where payloads would begin.
    if len(region) < wanted or header.data_start < seal.data_end > size:
        raise CorruptData(path=path, offset=size, expected=f"{seal.entries} entries ending at {seal.data_end}",
                          found=f"the end of the file at {size}")
    found = crc32(region, 0)
    if found != seal.index_crc:
        raise CorruptData(path=path, offset=native.INDEX_START, found=f"{found:#010x}",
                          expected=f"index CRC {seal.index_crc:#010x} over {seal.entries} records")
    return region


def _with_tail(descriptor: int, header: native.Header, seal: native.Seal, durable: bytes, size: int) -> LoadedSegment:
    behind = _records_from(descriptor, native.INDEX_START + len(durable), header.data_start)
    records = native.decode_records(behind)
    # A record may end in zeros: one that the end of the file cuts short would look whole, and be missed by a seal.
    complete = min(len(records), (size - native.INDEX_START) // native.RECORD_BYTES - seal.entries)
    whole, data_end = 0, seal.data_end
    last = int(native.indexes_of(durable[-native.RECORD_BYTES:])[0]) if durable else -1
    while whole < complete and records.indexes[whole] > last and _is_whole(descriptor, records, whole, data_end):
        last = records.indexes[whole]
        data_end += records.lengths[whole]
        whole += 1
    kept = durable + behind[:whole * native.RECORD_BYTES]
    torn = len(records) - whole
    return LoadedSegment(native.decode_records(kept), header, seal, data_end, crc32(kept, 0), torn,
                         is_torn=torn > 0 or size > max(data_end, header.data_start))


def _records_from(descriptor: int, start: int, end: int) -> bytes:
    """The index region from `start` to the last record that is not all zeros. A crash may leave zeros in between."""
    found = read_exactly(descriptor, end - start, start).rstrip(b"\0")
    return found + bytes(-len(found) % native.RECORD_BYTES)


def _is_whole(descriptor: int, records: SegmentIndex, position: int, expected_offset: int) -> bool:
    length, head = records.lengths[position], records.heads[position]
    if records.offsets[position] != expected_offset or native.head_crc(
            records.indexes[position], records.terms[position], length) != head:
        return False
    payload = read_exactly(descriptor, length, expected_offset)
    return len(payload) == length and crc32(payload, head) == records.crcs[position]
