# SPDX-License-Identifier: Apache-2.0
"""The heavy step of a compaction: copy records from some segments into one new segment, as a picklable task.

Runs of records with little between them are read by one call and written by one call; each record is checked against
its CRC in between, so that what is written is what was checked. One fsync makes the whole file durable. The task knows
nothing of the store: it can run in any process that sees the folder, twice, or beside another try; each writes its own
file and publishes nothing.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice

import attrs

from compactlib.blobstore.names import UNPUBLISHED_SUFFIX, SegmentName
from compactlib.blobstore.records import check_whole
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, SegmentFile, SegmentHeader, encode_header
from compactlib.blobstore.survivors import OutputPlan
from compactlib.budget import Budget
from compactlib.errors import CorruptData, InvalidInput, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, LocalFiles
from compactlib.rewrite import Attempt, RewriteResult, RewrittenFile

_MOST_READ, _LEAST_READ = 1 << 20, 64 << 10
"""How much is read and written at once: a quarter of a second's worth of the budget's rate, within these bounds."""
_MAX_GAP_BYTES = 16 << 10
"""So much between two records is read over: that takes less than another call."""


@attrs.frozen
class SourceRecords:
    """Records of one segment, by place; packed, so that a task stays small on its way to another process.

    Attributes:
        segment: the segment; its file lies in the task's folder.
        offsets: where each record begins, ascending: packed unsigned 64-bit numbers of this machine.
        sizes: how long each is.
        sequences: the number that each must have.
    """

    segment: SegmentName
    offsets: bytes
    sizes: bytes
    sequences: bytes

    def columns(self) -> tuple[array[int], array[int], array[int]]:
        """Return offsets, sizes and sequences."""
        columns = array("Q"), array("Q"), array("Q")
        for column, data in zip(columns, (self.offsets, self.sizes, self.sequences), strict=True):
            column.frombytes(data)
        return columns


@attrs.frozen(kw_only=True)
class CopyRecords:
    """A `RewriteTask` that writes one new segment.

    Attributes:
        name: the task's name.
        folder: the store's folder, where the new file goes too.
        header: the header of the new segment.
        sources: what it gets, in order.
        files: the disk.
    """

    name: str
    folder: str
    header: SegmentHeader
    sources: tuple[SourceRecords, ...]
    files: Files = attrs.field(factory=LocalFiles)

    @property
    def source_files(self) -> tuple[str, ...]:
        """The paths of the sources."""
        return tuple(os.path.join(self.folder, source.segment.log_file) for source in self.sources)

    @classmethod
    def of(cls, folder: str, header: SegmentHeader, output: OutputPlan, files: Files) -> CopyRecords:
        """Return the task that writes an output."""
        sources = tuple(SourceRecords(part.segment, part.offsets.tobytes(), part.sizes.tobytes(),
                                      part.sequences.tobytes()) for part in output.picked)
        return cls(name=f"{folder} {output.name}", folder=folder, header=header, sources=sources, files=files)

    def run(self, attempt: Attempt) -> RewriteResult:
        """Copy, check and sync; see `RewriteTask.run`.

        Raises:
            CorruptData: a record is damaged, or is not the one that the index names; the new file is removed.
            StorageError: the disk refused; likewise.
            BudgetSpent: the budget ran out; likewise.
        """
        began = attempt.clock.monotonic()
        path = os.path.join(self.folder, f"{self.header.name.log_file}.{attempt.id}{UNPUBLISHED_SUFFIX}")
        columns = [source.columns() for source in self.sources]
        total = sum(sum(sizes) for _, sizes, _ in columns)
        if not total:
            raise InvalidInput(f"task {self.name!r} has no record to copy; drop its segments instead")
        out = self.files.create(path)
        try:
            end, read, records, crc = SEGMENT_HEADER_BYTES, 0, 0, 0
            limit = _piece_bytes(attempt.budget)
            out.write_at(0, [encode_header(self.header)])
            self._tell(attempt, 0, total)
            for source, (offsets, sizes, sequences) in zip(self.sources, columns, strict=True):
                with contextlib.closing(self._opened(source.segment)) as file:
                    for piece in _pieces(offsets, sizes, sequences, limit):
                        attempt.budget.spend(piece.length)
                        with attempt.turn:
                            data = piece.read(file, self.header.salt)
                            out.write_at(end, [data])
                        crc, end = crc32(data, crc), end + piece.length
                        read, records = read + piece.span, records + len(piece.sizes)
                        self._tell(attempt, end - SEGMENT_HEADER_BYTES, total)
            out.sync()
        except BaseException:
            out.close()
            with contextlib.suppress(StorageError):
                self.files.unlink(path)
            raise
        out.close()
        return RewriteResult(task=self.name, attempt=attempt.id, files=(RewrittenFile(path, end, records, crc),),
                             bytes_read=read, bytes_written=total, seconds=attempt.clock.monotonic() - began)

    def _tell(self, attempt: Attempt, done: int, total: int) -> None:
        attempt.observer.event("progress", work=f"compact {self.name}", done=done, total=total, unit="bytes")

    def _opened(self, name: SegmentName) -> SegmentFile:
        file = SegmentFile(os.path.join(self.folder, name.log_file))
        if file.header.name != name or file.header.incarnation != self.header.incarnation:
            file.close()
            raise CorruptData(path=file.path, offset=0, expected=f"segment {name} of this store",
                              found=f"segment {file.header.name} of store {file.header.incarnation.hex()}")
        return file


def check_output(path: str, task: CopyRecords, budget: Budget) -> None:
    """Read a finished output back, and hold it against what the task was to write: header, every record, end.

    What an attempt reported may have come from another process, and what it wrote may have changed since.

    Args:
        path: the file.
        task: what was to be written.
        budget: may end it; nothing is spent.

    Raises:
        CorruptData: the file is something else.
        StorageError: it cannot be read.
    """
    columns = [source.columns() for source in task.sources]
    sizes, sequences = array("Q"), array("Q")
    for _, lengths, numbers in columns:
        sizes.extend(lengths)
        sequences.extend(numbers)
    offsets = array("Q", islice(accumulate(sizes, initial=SEGMENT_HEADER_BYTES), len(sizes)))
    with contextlib.closing(SegmentFile(path)) as file:
        size, end = file.size(), SEGMENT_HEADER_BYTES + sum(sizes)
        if file.header != task.header or size != end:
            raise CorruptData(path=path, offset=0, expected=f"segment {task.header.name} of {end} bytes",
                              found=f"segment {file.header.name} of {size} bytes")
        for piece in _pieces(offsets, sizes, sequences, _MOST_READ):
            budget.check()
            piece.read(file, task.header.salt)


def _piece_bytes(budget: Budget) -> int:
    rate = budget.remaining.bytes_per_second
    return _MOST_READ if rate is None else max(_LEAST_READ, min(_MOST_READ, int(rate / 4)))


@attrs.frozen
class _Piece:
    """Records of one file that are read at once.

    Attributes:
        offsets: where each begins, ascending.
        sizes: how long each is.
        sequences: the number of each.
        length: of the records.
    """

    offsets: Sequence[int]
    sizes: Sequence[int]
    sequences: Sequence[int]
    length: int

    @property
    def span(self) -> int:
        return self.offsets[-1] + self.sizes[-1] - self.offsets[0]

    def read(self, file: SegmentFile, salt: int) -> memoryview:
        """Read and check the records; return them back to back."""
        buffer, gap = memoryview(bytearray(self.length)), memoryview(bytearray(_MAX_GAP_BYTES))
        memories: list[memoryview] = []
        place, start, run = 0, 0, self.offsets[0]
        for offset, size in zip(self.offsets, self.sizes, strict=True):
            if offset != run:
                memories += [buffer[start:place], gap[:offset - run]]
                start, run = place, offset
            place, run = place + size, run + size
        memories.append(buffer[start:place])
        try:
            got = _read_all(file.fileno(), memories, self.offsets[0])
        except OSError as error:
            raise StorageError.from_os(error, "read", file.path) from error
        if got < self.span:
            raise CorruptData(path=file.path, offset=self.offsets[0] + got, found="the end of the file",
                              expected=f"{self.span - got} more bytes of records")
        at = 0
        for offset, size, sequence in zip(self.offsets, self.sizes, self.sequences, strict=True):
            found = check_whole(buffer[at:at + size], salt, sequence)
            if found is not None:
                raise CorruptData(path=file.path, offset=offset, index=sequence, found=found,
                                  expected=f"record {sequence} of {size} bytes")
            at += size
        return buffer


_MOST_MEMORIES = 1000


def _read_all(descriptor: int, memories: Sequence[memoryview], offset: int) -> int:
    """Fill these one behind the other; return how many bytes there were, fewer only where the file ends."""
    total = 0
    for first in range(0, len(memories), _MOST_MEMORIES):
        left = list(memories[first:first + _MOST_MEMORIES])
        while left:
            got = os.preadv(descriptor, left, offset + total)
            if not got:
                return total
            total += got
            while left and got >= len(left[0]):
                got -= len(left.pop(0))
            if left and got:
                left[0] = left[0][got:]
    return total


def _pieces(offsets: Sequence[int], sizes: Sequence[int], sequences: Sequence[int], limit: int) -> Iterator[_Piece]:
    """Yield the records in pieces of at most `limit` bytes, or of one record that is larger, with small gaps."""
    first = 0
    while first < len(offsets):
        last, length = first + 1, sizes[first]
        while (last < len(offsets) and length + sizes[last] <= limit
               and 0 <= offsets[last] - offsets[last - 1] - sizes[last - 1] <= _MAX_GAP_BYTES):
            length += sizes[last]
            last += 1
        yield _Piece(offsets[first:last].tolist() if isinstance(offsets, array) else offsets[first:last],
                     sizes[first:last].tolist() if isinstance(sizes, array) else sizes[first:last],
                     sequences[first:last].tolist() if isinstance(sequences, array) else sequences[first:last], length)
        first = last
