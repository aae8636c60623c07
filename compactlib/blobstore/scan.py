# SPDX-License-Identifier: Apache-2.0
"""Reading a log segment from its records alone, without an index: every record, and every stretch that is none.

Behind a damaged header the search goes on for the next magic under which a header's CRC holds. That CRC starts from
the store's salt, so that bytes inside a blob are not taken for a record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import attrs

from compactlib.blobstore.records import HEADER_BYTES, MAGIC, MAX_ID_BYTES, IndexEntry, check_record, decode_head
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, SegmentFile, SegmentHeader
from compactlib.errors import CorruptData

_CHUNK_BYTES = 1 << 20


@attrs.frozen
class Scanned:
    """A record whose header holds, or a stretch that is no record.

    Attributes:
        offset: where it begins.
        end: where the next record begins, or the segment ends.
        entry: the index entry of the record; `None` for a stretch that is none.
        found: what is wrong: with the record's content, or what was there instead of a header; empty for a whole
            record.
    """

    offset: int
    end: int
    entry: IndexEntry | None
    found: str = ""


class _Window:
    """Reads ahead, so that small records do not cost a system call each."""

    def __init__(self, file: SegmentFile, end: int) -> None:
        self._file = file
        self._header = file.header
        self._salt = file.header.salt
        self._end = end
        self._start = 0
        self._data = b""

    def _place_of(self, offset: int, length: int) -> int:
        """Have up to `length` bytes from an offset in memory, fewer only at the end; return where they begin there."""
        length = min(length, self._end - offset)
        place = offset - self._start
        if place < 0 or place + length > len(self._data):
            self._data = self._file.read(offset, max(length, min(_CHUNK_BYTES, self._end - offset)))
            self._start, place = offset, 0
        return place

    def record_at(self, offset: int) -> IndexEntry | str:
        """Return the record whose header is there, as `decode_head`; it fits into the segment."""
        place = self._place_of(offset, HEADER_BYTES + MAX_ID_BYTES)
        found = decode_head(self._data, place, self._salt, self._header.name, offset)
        if not isinstance(found, str) and found.end > self._header.capacity_bytes:
            return f"a record of {found.size} bytes in {self._header.capacity_bytes}"
        return found

    def problem_of(self, entry: IndexEntry) -> str:
        """Return what is wrong with a record; empty if it is whole."""
        place = self._place_of(entry.offset, entry.size)
        size = min(entry.size, self._end - entry.offset)
        return check_record(memoryview(self._data)[place:place + size], entry.size, self._salt, entry.sequence) or ""

    def next_record(self, start: int) -> int:
        """Return where the next record begins; the end if there is none."""
        while start < self._end:
            begin = self._place_of(start, _CHUNK_BYTES)
            place = self._data.find(MAGIC, begin)
            if place < 0:
                # The magic may lie across the border of two chunks.
                start = max(start + 1, self._start + len(self._data) - len(MAGIC) + 1)
                continue
            start = self._start + place
            if not isinstance(self.record_at(start), str):
                return start
            start += 1
        return self._end


def scan_records(file: SegmentFile, start: int, end: int) -> Iterator[Scanned]:
    """Yield the records from `start` to `end` of a segment, in order, and the stretches between them that are none.

    Memory is about a MiB, or the largest record. A record that the end cuts off is reported as one that is not whole.
    """
    window = _Window(file, end)
    while start < end:
        found = window.record_at(start)
        if isinstance(found, str):
            following = window.next_record(start + 1)
            yield Scanned(start, following, None, found)
            start = following
        else:
            yield Scanned(start, found.end, found, window.problem_of(found))
            start = found.end


def check_segment(path: str, expected: SegmentHeader, end: int, records: int) -> None:
    """Read a segment that a compaction committed, before its sources are removed: header, every record, and end.

    Args:
        path: its file.
        expected: its header.
        end: the offset behind its last record.
        records: how many it holds.
    """
    with contextlib.closing(SegmentFile(path)) as file:
        file.require(expected, end)
        count = 0
        for found in scan_records(file, SEGMENT_HEADER_BYTES, end):
            if found.entry is None or found.found:
                raise CorruptData(path=path, offset=found.offset, expected=f"record {count + 1} of {records}",
                                  found=found.found)
            count += 1
        if count != records:
            raise CorruptData(path=path, offset=end, expected=f"{records} records", found=f"{count}")
