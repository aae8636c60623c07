# SPDX-License-Identifier: Apache-2.0
"""The rewrite of a compaction: a picklable task that copies records of some segments into one new segment.

Records with small gaps between them are read by one call and written by one call; the bytes that are written are the
bytes that were checked against their CRCs. One fsync makes the file durable. The task can run in any process that sees
the folder, twice, or concurrently with another attempt: each attempt writes its own file and publishes nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence

import attrs

from compactlib.blobstore.names import UNPUBLISHED_SUFFIX, SegmentName
from compactlib.blobstore.records import check_record
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, SegmentFile, SegmentHeader, encode_header
from compactlib.blobstore.survivors import Picked
from compactlib.errors import CorruptData, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, LocalFiles
from compactlib.rewrite import Attempt, RewriteResult, RewrittenFile

_MOST_READ = 1 << 20
"""The bytes of one read, unless a record is larger."""
_MAX_GAP_BYTES = 16 << 10
"""The largest gap that is read and skipped, which takes less time than another call."""


@attrs.frozen(kw_only=True)
class CopyRecords:
    """A `RewriteTask` that writes one new segment."""

    name: str
    folder: str
    header: SegmentHeader  # the header of the new segment
    picked: tuple[Picked, ...]  # its records, source by source, at least one
    files: Files = attrs.field(factory=LocalFiles)

    @property
    def source_files(self) -> tuple[str, ...]:
        """The paths of the sources."""
        return tuple(os.path.join(self.folder, part.segment.log_file) for part in self.picked)

    def run(self, attempt: Attempt) -> RewriteResult:
        """Copy, check and sync."""
        began = attempt.clock.monotonic()
        path = os.path.join(self.folder, f"{self.header.name.log_file}.{attempt.id}{UNPUBLISHED_SUFFIX}")
        total = sum(sum(part.sizes) for part in self.picked)
        out = self.files.create(path)
        try:
            end, read, records, crc = SEGMENT_HEADER_BYTES, 0, 0, 0
            out.write_at(0, [encode_header(self.header)])
            self._report(attempt, 0, total)
            for part in self.picked:
                with contextlib.closing(self._opened(part.segment)) as file:
                    for first, last in runs(part.offsets, part.sizes, _MOST_READ):
                        size = sum(part.sizes[first:last])
                        attempt.budget.spend(size)
                        pieces, span = _read(file, part, first, last, self.header.store.salt)
                        out.write_at(end, pieces)
                        for piece in pieces:
                            crc = crc32(piece, crc)
                        end, read, records = end + size, read + span, records + last - first
                        self._report(attempt, end - SEGMENT_HEADER_BYTES, total)
            out.sync()
        except BaseException:
            out.close()
            with contextlib.suppress(StorageError):
                self.files.unlink(path)
            raise
        out.close()
        return RewriteResult(task=self.name, attempt=attempt.id, files=(RewrittenFile(path, end, records, crc),),
                             bytes_read=read, bytes_written=total, seconds=attempt.clock.monotonic() - began)

    def _report(self, attempt: Attempt, done: int, total: int) -> None:
        attempt.observer.event("progress", work=f"compact {self.name}", done=done, total=total, unit="bytes")

    def _opened(self, name: SegmentName) -> SegmentFile:
        file = SegmentFile(os.path.join(self.folder, name.log_file))
        if file.header.name != name or file.header.store.incarnation != self.header.store.incarnation:
            file.close()
            raise CorruptData(path=file.path, offset=0, expected=f"segment {name} of this store",
                              found=f"segment {file.header.name} of store {file.header.store.incarnation.hex()}")
        return file


def runs(offsets: Sequence[int], sizes: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows, first and end, of records that one call reads: with small gaps between them, in at most
    `limit` bytes, or one larger record."""
    first = 0
    while first < len(offsets):
        last, end = first + 1, offsets[first] + sizes[first]
        while (last < len(offsets) and 0 <= offsets[last] - end <= _MAX_GAP_BYTES
               and offsets[last] + sizes[last] - offsets[first] <= limit):
            end = offsets[last] + sizes[last]
            last += 1
        yield first, last
        first = last


def _read(file: SegmentFile, part: Picked, first: int, last: int, salt: int) -> tuple[list[memoryview], int]:
    """Read and check a range of records; return them without the gaps, and the number of bytes read."""
    start = part.offsets[first]
    data = memoryview(file.read(start, part.offsets[last - 1] + part.sizes[last - 1] - start))
    pieces: list[memoryview] = []
    begin = end = 0
    for row in range(first, last):
        at, size, sequence = part.offsets[row] - start, part.sizes[row], part.sequences[row]
        record = data[at:at + size]
        found = check_record(record, size, salt, sequence)
        if found is not None:
            raise CorruptData(path=file.path, offset=start + at, index=sequence, found=found,
                              expected=f"record {sequence} of {size} bytes")
        if at != end:
            pieces.append(data[begin:end])
            begin = at
        end = at + size
    return [*pieces, data[begin:end]], len(data)
