# SPDX-License-Identifier: Apache-2.0
"""Reading a log segment from its records alone, without an index: every record, and every stretch that is none.

Behind a damaged header the search goes on for the next magic under which a header's CRC holds. That CRC starts from
the store's salt, so that bytes inside a blob are not taken for a record.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import attrs

from compactlib.blobstore.records import HEADER_BYTES, MAGIC, TRAILER_BYTES, RecordHeader, decode_head
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, SegmentFile, SegmentHeader
from compactlib.blobstore.values import MAX_ID_BYTES
from compactlib.errors import CorruptData
from compactlib.files.checksum import crc32

_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = HEADER_BYTES + MAX_ID_BYTES


@attrs.frozen
class ScannedRecord:
    """A record whose header holds.

    Attributes:
        header: what it says.
        offset: where it begins.
        whole: whether the content and its CRC hold too.
    """

    header: RecordHeader
    offset: int
    whole: bool

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.header.size


@attrs.frozen
class DamagedRange:
    """Bytes that are no record.

    Attributes:
        offset: where they begin.
        end: where the next record begins, or the segment ends.
        found: what was there instead of a header.
    """

    offset: int
    end: int
    found: str


Scanned: TypeAlias = ScannedRecord | DamagedRange
"""What a stretch of a log can be."""


class _Window:
    """Reads ahead, so that small records do not cost a system call each."""

    def __init__(self, file: SegmentFile, end: int) -> None:
        self._file = file
        self._end = end
        self._start = 0
        self._data = b""

    def at(self, offset: int, length: int) -> bytes:
        """Up to `length` bytes; shorter only at the end."""
        length = min(length, self._end - offset)
        skip = offset - self._start
        if skip < 0 or skip + length > len(self._data):
            self._data = self._file.read(offset, max(length, min(_CHUNK_BYTES, self._end - offset)))
            self._start, skip = offset, 0
        return self._data[skip:skip + length]


def scan_records(file: SegmentFile, start: int, end: int) -> Iterator[Scanned]:
    """The records from `start` to `end` of a segment, in order, with the stretches between them that are none.

    Memory is about two MiB. A record that the end cuts off is reported as one that is not whole.

    Raises:
        StorageError: the disk refused.
    """
    window = _Window(file, end)
    salt, capacity = file.header.salt, file.header.capacity_bytes
    while start < end:
        header = decode_head(window.at(start, _HEAD_BYTES), 0, salt)
        if isinstance(header, str) or start + header.size > capacity:
            following = _next_record(window, start + 1, end, salt, capacity)
            found = header if isinstance(header, str) else f"a record of {header.size} bytes in {capacity}"
            yield DamagedRange(start, following, found)
            start = following
            continue
        whole = start + header.size <= end and _content_holds(window, start, header)
        yield ScannedRecord(header, start, whole)
        start += header.size


def _content_holds(window: _Window, start: int, header: RecordHeader) -> bool:
    at, crc = start + HEADER_BYTES + len(header.id), header.crc
    stop = start + header.size - TRAILER_BYTES
    while at < stop:
        piece = window.at(at, min(_CHUNK_BYTES, stop - at))
        if not piece:
            return False
        crc = crc32(piece, crc)
        at += len(piece)
    return window.at(stop, TRAILER_BYTES) == crc.to_bytes(TRAILER_BYTES, "little")


def _next_record(window: _Window, start: int, end: int, salt: int, capacity: int) -> int:
    while start < end:
        chunk = window.at(start, _CHUNK_BYTES)
        place = chunk.find(MAGIC)
        if place < 0:
            # The magic may lie across the border of two chunks.
            start += max(len(chunk) - len(MAGIC) + 1, 1)
            continue
        start += place
        header = decode_head(window.at(start, _HEAD_BYTES), 0, salt)
        if not isinstance(header, str) and start + header.size <= capacity:
            return start
        start += 1
    return end


def check_segment(path: str, expected: SegmentHeader, end: int, records: int, sequences: Sequence[int] | None = None,
                  check: Callable[[], None] | None = None) -> None:
    """Read a segment that a compaction has written, before its sources go: header, every record, and end.

    Args:
        path: its file.
        expected: its header.
        end: the offset behind its last record.
        records: how many it holds.
        sequences: the number of each, if known.
        check: called with each record; what it raises ends it.

    Raises:
        CorruptData: the file is something else.
        StorageError: it cannot be read.
    """
    with contextlib.closing(SegmentFile(path)) as file:
        size, count = file.size(), 0
        if file.header != expected or size != end:
            raise CorruptData(path=path, offset=0, expected=f"segment {expected.name} of {end} bytes",
                              found=f"segment {file.header.name} of {size} bytes")
        for found in scan_records(file, SEGMENT_HEADER_BYTES, end):
            is_right = isinstance(found, ScannedRecord) and found.whole and (
                sequences is None or (count < records and found.header.sequence == sequences[count]))
            if not is_right:
                raise CorruptData(path=path, offset=found.offset, expected=f"record {count + 1} of {records}",
                                  found=f"{found}")
            count += 1
            if check is not None:
                check()
        if count != records:
            raise CorruptData(path=path, offset=end, expected=f"{records} records", found=f"{count}")
