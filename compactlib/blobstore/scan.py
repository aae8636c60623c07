# SPDX-License-Identifier: Apache-2.0
"""Reading a log segment without an index: every record, and every damaged stretch between records.

After a damaged header the scan searches the next magic with a valid header CRC. The CRC starts from the store's salt,
so that bytes inside a blob are not taken for a record.

`verify_segment` compares a segment with its index. Findings: `damage`; `missing` records, which the index names and the
log does not hold, and lost segments; and records without an index entry (`orphan`: dropped by the next compaction).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator

import attrs

from compactlib.blobstore.contents import LogSegment
from compactlib.blobstore.erasure import read_state
from compactlib.blobstore.records import HEADER_BYTES, MAGIC, MAX_ID_BYTES, IndexEntry, check_record, decode_head
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, Descriptor, SegmentFile, SegmentHeader
from compactlib.budget import Budget
from compactlib.errors import CompactlibError, CorruptData
from compactlib.files.disk import look_at
from compactlib.report import Finding

_CHUNK_BYTES = 1 << 20


@attrs.frozen
class Scanned:
    """A record with a valid header, or a damaged stretch."""

    offset: int  # its start
    end: int  # the start of the next record, or the end of the segment
    entry: IndexEntry | None  # the index entry of the record; `None` for a damaged stretch
    found: str = ""  # the damage of the content or of the header; empty for a whole record

    def damage(self, path: str) -> CorruptData:
        """Return the error of a damaged record, or of a stretch that is no record."""
        if self.entry is None:
            return CorruptData(path=path, offset=self.offset, expected="a record",
                               found=f"{self.end - self.offset} bytes of something else: {self.found}")
        return CorruptData(path=path, offset=self.offset, index=self.entry.sequence, found=self.found,
                           expected=f"{self.entry.size} bytes of blob {self.entry.id!r}")


class _Window:
    """Reads ahead, so that small records need no system call each."""

    def __init__(self, file: SegmentFile, end: int) -> None:
        self._file = file
        self._header = file.header
        self._salt = file.header.store.salt
        self._end = end
        self._start = 0
        self._data = b""

    def _place_of(self, offset: int, length: int) -> int:
        """Read up to `length` bytes from an offset, fewer only at the end; return their place in `_data`."""
        length = min(length, self._end - offset)
        place = offset - self._start
        if place < 0 or place + length > len(self._data):
            self._data = self._file.read(offset, max(length, min(_CHUNK_BYTES, self._end - offset)))
            self._start, place = offset, 0
        return place

    def record_at(self, offset: int) -> IndexEntry | str:
        """Return the record at an offset, or its damage, as `decode_head`; the record fits into the segment."""
        place = self._place_of(offset, HEADER_BYTES + MAX_ID_BYTES)
        found = decode_head(self._data, place, self._salt, self._header.name, offset)
        if not isinstance(found, str) and found.end > self._header.store.segment_bytes:
            return f"a record of {found.size} bytes in {self._header.store.segment_bytes}"
        return found

    def problem_of(self, entry: IndexEntry) -> str:
        """Return the damage of a record; empty if it is whole."""
        place = self._place_of(entry.offset, entry.size)
        size = min(entry.size, self._end - entry.offset)
        return check_record(memoryview(self._data)[place:place + size], entry.size, self._salt, entry.sequence) or ""

    def next_record(self, start: int) -> int:
        """Return the offset of the next record; the end without one."""
        while start < self._end:
            begin = self._place_of(start, _CHUNK_BYTES)
            place = self._data.find(MAGIC, begin)
            if place < 0:
                # The magic may cross the border of two chunks.
                start = max(start + 1, self._start + len(self._data) - len(MAGIC) + 1)
                continue
            start = self._start + place
            if not isinstance(self.record_at(start), str):
                return start
            start += 1
        return self._end


def scan_records(file: SegmentFile, start: int, end: int) -> Iterator[Scanned]:
    """Yield the records from `start` to `end` of a segment, in order, and the damaged stretches between them.

    Memory is about a MiB, or the largest record. A record that the end cuts off is damaged.
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


def check_segment(path: str, expected: SegmentHeader, end: int, records: int, sequences: Iterable[int],
                  budget: Budget) -> None:
    """Read a segment that a compaction wrote, before its sources are removed: header, every record, and end.

    Also the sequence of each record, if they are known.
    """
    with contextlib.closing(SegmentFile(path)) as file:
        size = file.size()
        if file.header != expected or size != end:
            raise CorruptData(path=path, offset=0, expected=f"segment {expected.name} of {end} bytes",
                              found=f"segment {file.header.name} of {size} bytes")
        wanted, count = iter(sequences), 0
        for each in scan_records(file, SEGMENT_HEADER_BYTES, end):
            budget.check()
            found = each.found
            if each.entry is not None and next(wanted, each.entry.sequence) != each.entry.sequence:
                found = f"record {each.entry.sequence}"
            if found:
                raise CorruptData(path=path, offset=each.offset, expected=f"record {count + 1} of {records}",
                                  found=found)
            count += 1
        if count != records:
            raise CorruptData(path=path, offset=end, expected=f"{records} records", found=f"{count}")


def verify_segment(folder: str, segment: LogSegment, store: Descriptor) -> list[Finding]:
    """Read every record of a segment, and compare it with the index. A writer may append concurrently.

    A record that a hard delete is overwriting is no finding: damage counts if it is there twice, and the note of the
    hard delete, read in between, does not name the record. The note is cleared after its records are overwritten.
    """
    name = str(segment.name)
    path = os.path.join(folder, segment.name.log_file)
    if segment.is_lost:
        error = CorruptData(path=path, offset=0, expected="a segment of the log", found="no such file")
        return [Finding("missing", name, str(error), error)]
    try:
        file = SegmentFile(path)
        if attrs.evolve(file.header, first_sequence=0) != store.header(segment.name):
            raise CorruptData(path=path, offset=0, expected=f"the header {store.header(segment.name)}",
                              found=f"{file.header}")
    except CompactlibError as error:
        if not segment.records and look_at(path) is None:
            return []  # the creation of the store was cut off
        return [Finding("damage", name, str(error), error)]
    found = _compare(file, segment)
    if found:
        erasing = read_state(folder, file.header.store.incarnation)[0].offsets.get(segment.name, set())
        still = {each.place for each in _compare(file, segment)} - {f"{name}:{offset}" for offset in erasing}
        found = [each for each in found if each.place in still]
    return found


def _compare(file: SegmentFile, segment: LogSegment) -> list[Finding]:
    name = segment.name
    findings: list[Finding] = []
    entries = {entry.offset: entry for entry in segment.entries()}
    for each in scan_records(file, SEGMENT_HEADER_BYTES, segment.end):
        here, entry = each.entry, entries.pop(each.offset, None)
        place, error = f"{name}:{each.offset}", each.damage(file.path) if each.found else None
        if here is not None and entry is None:
            findings.append(Finding("orphan", place, f"record {here.sequence} of {here.id!r} has no index entry"))
        elif here is not None and entry is not None and entry != here._replace(flags=entry.flags, segment=name):
            error = error or CorruptData(path=file.path, offset=each.offset, found=f"record {here.sequence} of "
                                         f"{here.id!r}", expected=f"record {entry.sequence} of {entry.id!r}")
        if error is not None:
            findings.append(Finding("damage", place, str(error), error))
    findings += [Finding("missing", f"{name}:{entry.offset}", f"record {entry.sequence} of {entry.id!r} is not there")
                 for entry in entries.values()]
    return findings
