# SPDX-License-Identifier: Apache-2.0
"""The heavy step of a compaction: copy records from some segments into one new segment.

Runs of adjacent records, and runs with little between them, are read at once, and some of them written at once; each
record is checked against its CRC in between: what is written is what was checked. One fsync makes the whole file
durable. The task knows nothing of the store it works for: it can run in any process that sees the folder, twice, or at
the same time as another try; each writes its own file and publishes nothing, and all write the same bytes.

An attempt may go on with what an earlier one has written. It takes that file over under a name of its own, and only if
no process has it open for writing any more: the writer of a file that may be taken over holds a lock on it (`flock`, so
that it ends with the process, too). So no file ever has two writers, even if an earlier attempt's thread still runs.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import struct
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, zip_longest

import attrs

from compactlib.blobstore.compaction.rewrite.cycle_plan import Picked
from compactlib.blobstore.model.names import UNPUBLISHED_SUFFIX, SegmentName
from compactlib.blobstore.model.pace import Pace, PaceKeeper
from compactlib.blobstore.segment.reader import (
    SEGMENT_HEADER_BYTES,
    SegmentFile,
    SegmentHeader,
    encode_header,
    is_ordinary,
)
from compactlib.blobstore.segment.records import TRAILER_BYTES, check_head, check_whole
from compactlib.errors import CorruptData, InvalidInput, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, LocalFiles, OutFile, read_into
from compactlib.rewrite import Attempt, RewriteResult, RewrittenFile
from compactlib.runtime.breather import Breather
from compactlib.runtime.observe import Progress

_CRC = struct.Struct("<I")
_LEAST_BUFFER_BYTES = 4096
_STRETCH_BYTES = 1 << 20
"""How much is written at once. Beside threads that read, each system call waits for the interpreter afterwards."""
_HAND_OVER_BYTES = 4 << 20
"""Of so much the system begins to write at once; the sync does the rest."""
_MAX_GAP_BYTES = 16 << 10
"""So much between two spans is read over: that takes less than another call."""
_MOST_SPANS = 256
"""Of a stretch; a call takes a buffer for each, and one for what is between."""
_NAP_SECONDS = 0.1
_NO_WAIT: int = getattr(os, "RWF_NOWAIT", 0)
_CAN_ADVISE = hasattr(os, "posix_fadvise")
_READ_AHEAD_BYTES = 4 << 20
"""How far behind what was asked for the system may have read; a guess on the high side."""


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

    @classmethod
    def of(cls, picked: Picked) -> SourceRecords:
        """Pack what a plan has picked."""
        return cls(picked.segment, picked.offsets.tobytes(), picked.sizes.tobytes(), picked.sequences.tobytes())

    def columns(self) -> tuple[array[int], array[int], array[int]]:
        """Offsets, sizes and sequences."""
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
        buffer_bytes: how much is read at once, at least one page.
        kept: whether a file that the attempt could not finish is kept, so that a later one can go on with it; only
            for attempts that die with the process that holds the store.
        resume_from: such a file. It is taken over if it has no writer any more; what it holds is checked, and used
            as far as it is right.
        pace: how the copying slows down on a slow disk, if at all.
        files: the disk.
    """

    name: str
    folder: str
    header: SegmentHeader
    sources: tuple[SourceRecords, ...]
    buffer_bytes: int = 4 << 20
    kept: bool = False
    resume_from: str | None = None
    pace: Pace | None = None
    files: Files = attrs.field(factory=LocalFiles)

    def run(self, attempt: Attempt) -> RewriteResult:
        """Copy, check and sync; see `RewriteTask.run`.

        Raises:
            CorruptData: a record is damaged, or is not the one that the index names; the new file is removed.
            StorageError: the disk refused; likewise.
            BudgetSpent: the budget ran out; the file is removed unless it is `kept`.
        """
        began = attempt.clock.monotonic()
        opened = self._open(attempt)
        out = opened.out
        writing = _Writing(self, attempt, out)
        try:
            try:
                writing.resume(opened.size)
                writing.copy_all()
            finally:
                opened.close()
        except BaseException as error:
            # A disk that refused may have lost what it had taken before: that file is no base to go on from.
            if not self.kept or isinstance(error, StorageError | CorruptData):
                with contextlib.suppress(StorageError):
                    self.files.unlink(out.path)
            raise
        file = RewrittenFile(out.path, writing.end, writing.records, writing.crc)
        return RewriteResult(task=self.name, attempt=attempt.id, files=(file,), bytes_read=writing.bytes_read,
                             bytes_written=writing.bytes_written, seconds=attempt.clock.monotonic() - began)

    def check(self, path: str, attempt: Attempt) -> None:
        """Read a finished file back, once, and hold it against what the task was to write: header, records, end.

        What an attempt reports may have come from another process, and what it wrote may have changed since.

        Args:
            path: the file.
            attempt: its budget may end it; nothing is spent.

        Raises:
            CorruptData: the file is something else.
            StorageError: it cannot be read.
        """
        with contextlib.closing(self.files.open(path)) as out:
            _Writing(self, attempt, out).check()

    def _open(self, attempt: Attempt) -> _Opened:
        path = os.path.join(self.folder, f"{self.header.name.log_file}.{attempt.id}.")
        if not self.kept:
            return _Opened(self.files.create(path + "lent" + UNPUBLISHED_SUFFIX))
        kept = path + "kept" + UNPUBLISHED_SUFFIX
        taken = None if self.resume_from is None else _taken_over(self.files, self.resume_from, kept)
        if taken is not None:
            return taken
        opened = _Opened(self.files.create(kept))
        if _is_locked(opened.out.fileno()):
            return opened
        # A file system without locks, or another attempt was quicker: then no later attempt may continue what this one
        # writes.
        opened.close()
        with contextlib.suppress(StorageError):
            self.files.unlink(kept)
        return _Opened(self.files.create(path + "lent" + UNPUBLISHED_SUFFIX))


@attrs.frozen
class _Opened:
    """An attempt's file.

    Attributes:
        out: written through.
        size: how much an earlier attempt has written.
        holder: holds the lock, if that is not `out` itself.
    """

    out: OutFile
    size: int = 0
    holder: OutFile | None = None

    def close(self) -> None:
        try:
            self.out.close()
        finally:
            if self.holder is not None:
                self.holder.close()


def _taken_over(files: Files, found: str, path: str) -> _Opened | None:
    """An earlier attempt's file under this attempt's name; `None` if it is gone, or it may still have a writer.

    Raises:
        StorageError: the disk refused the new name.
    """
    if not is_ordinary(found):
        return None
    try:
        holder = files.open(found)
    except StorageError:
        return None
    try:
        # An attempt that has locked it and finds the name gone came after another one that took it over.
        if not _is_locked(holder.fileno()) or not _is_at(holder.fileno(), found):
            holder.close()
            return None
        files.rename(found, path)
        return _Opened(files.open(path), os.fstat(holder.fileno()).st_size, holder)
    except BaseException:
        holder.close()
        raise


def _is_locked(descriptor: int) -> bool:
    """Lock a file for the holder of this descriptor; returns whether that could be done."""
    try:
        import fcntl
    except ImportError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _is_at(descriptor: int, path: str) -> bool:
    """Whether the name is still that of the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False


@attrs.frozen
class _Span:
    """Adjacent records of a file, no more than the buffer holds, or one record that is larger.

    Attributes:
        offset: where it begins in its file.
        length: of all its records.
        first: the number of its first record among those that are copied from the file.
        sizes: of its records.
        sequences: of its records.
    """

    offset: int
    length: int
    first: int
    sizes: list[int]
    sequences: list[int]

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def numbers(self) -> range:
        return range(self.first, self.first + len(self.sizes))


def _spans(source: SourceRecords, limit: int) -> Iterator[_Span]:
    """The spans of a source, each at most `limit` bytes long unless it is one record."""
    offsets, all_sizes, all_sequences = source.columns()
    first = 0
    while first < len(offsets):
        last, end = first + 1, offsets[first] + all_sizes[first]
        while last < len(offsets) and offsets[last] == end and end + all_sizes[last] - offsets[first] <= limit:
            end += all_sizes[last]
            last += 1
        yield _Span(offsets[first], end - offsets[first], first, all_sizes[first:last].tolist(),
                    all_sequences[first:last].tolist())
        first = last


def _stretches(spans: Iterable[_Span], limit: int) -> Iterator[list[_Span]]:
    """The same spans, those together that are at most `limit` bytes long."""
    stretch: list[_Span] = []
    length = 0
    for span in spans:
        if stretch and (length + span.length > limit or len(stretch) == _MOST_SPANS):
            yield stretch
            stretch, length = [], 0
        stretch.append(span)
        length += span.length
    if stretch:
        yield stretch


class _Writing:
    """One attempt at a file, as far as it has come."""

    def __init__(self, task: CopyRecords, attempt: Attempt, out: OutFile) -> None:
        self.task = task
        self.attempt = attempt
        self.out = out
        self.end = SEGMENT_HEADER_BYTES
        self.records = 0
        self.spans = 0
        self.crc = 0
        self.bytes_read = 0
        self.bytes_written = 0
        self.total = sum(sum(source.columns()[1]) for source in task.sources)
        self.buffer = memoryview(bytearray(min(max(task.buffer_bytes, _LEAST_BUFFER_BYTES), self.total + 1)))
        self.gap = memoryview(bytearray(_MAX_GAP_BYTES))
        self.cold: list[tuple[int, int]] = []
        self.handed_over = 0
        self.keeper = None if task.pace is None else PaceKeeper(task.pace)

    def resume(self, size: int) -> None:
        """See how far an earlier attempt's file of `size` bytes is right, and go on from there."""
        head = encode_header(self.task.header)
        if size >= len(head) and os.pread(self.out.fileno(), len(head), 0) == head:
            with contextlib.suppress(CorruptData):
                written = _Source(self.out.fileno(), self.out.path)
                for source in self.task.sources:
                    for span in _spans(source, len(self.buffer)):
                        self._take(written, [attrs.evolve(span, offset=self.end)], write=False)
        if size > self.end:
            self.out.truncate(self.end)
        self.out.write_at(0, [head])

    def check(self) -> None:
        """Whether the file is the one that this task writes."""
        path, head = self.out.path, encode_header(self.task.header)
        size = os.fstat(self.out.fileno()).st_size
        if os.pread(self.out.fileno(), len(head), 0) != head:
            raise CorruptData(path=path, offset=0, expected=f"the header of segment {self.task.header.name}",
                              found="other bytes")
        # As one source, whose records lie one after the other.
        columns = [source.columns() for source in self.task.sources]
        sizes = array("Q", chain.from_iterable(each[1] for each in columns))
        offsets = array("Q", islice(accumulate(sizes, initial=SEGMENT_HEADER_BYTES), len(sizes)))
        sequences = array("Q", chain.from_iterable(each[2] for each in columns))
        written = SourceRecords(self.task.header.name, offsets.tobytes(), sizes.tobytes(), sequences.tobytes())
        file, before = _Source(self.out.fileno(), path, offsets, sizes), SEGMENT_HEADER_BYTES
        for span in _spans(written, len(self.buffer)):
            self.attempt.budget.check()
            self._take(file, [span], write=False)
            # What the copying has given up is given up again.
            self._forget_read(file, [span], before)
            before = span.end
        if size != self.end:
            raise CorruptData(path=path, offset=self.end, expected=f"a file of {self.end} bytes", found=f"{size} bytes")

    def copy_all(self) -> None:
        """Copy what is not there yet, and make the file durable."""
        left, self.handed_over = self.spans, self.end - self.end % mmap.PAGESIZE
        self._tell()
        for source in self.task.sources:
            file = self._open_source(source.segment)
            try:
                left = self._copy_source(source, file, left)
            finally:
                file.close()
        if not self.records:
            raise InvalidInput(f"task {self.task.name!r} has no record to copy; drop its segments instead")
        self.out.sync()
        for offset, length in self.cold:
            _forget(self.out.fileno(), offset, length)

    def _tell(self) -> None:
        done = self.end - SEGMENT_HEADER_BYTES
        self.attempt.observer.progress(Progress(f"compact {self.task.name}", done, self.total))

    def _copy_source(self, source: SourceRecords, file: SegmentFile, left: int) -> int:
        """Copy the spans of one source, of which the first `left` are there; how many of the next one's are."""
        cache, before = _Source(file.fileno(), file.path, *source.columns()[:2]), SEGMENT_HEADER_BYTES
        spans = _spans(source, len(self.buffer))
        for span in islice(spans, left):
            left, before = left - 1, span.end
        for stretch in _stretches(spans, min(len(self.buffer), _STRETCH_BYTES)):
            self._copy(cache, stretch)
            self._hand_over()
            self._forget_read(cache, stretch, before)
            self._tell()
            before = stretch[-1].end
        if cache.was_cold:
            cache.forget(before, before + _READ_AHEAD_BYTES)
        return left

    def _hand_over(self) -> None:
        """Have the system write whole pages to the disk while the next span is read, so that the sync waits less.

        Linux begins to write dirty pages that it is told to forget, and keeps those in the cache that it is writing.
        """
        whole = self.end - self.end % mmap.PAGESIZE
        if whole - self.handed_over < _HAND_OVER_BYTES:
            return
        _forget(self.out.fileno(), self.handed_over, whole - self.handed_over)
        self.handed_over = whole

    def _forget_read(self, cache: _Source, stretch: list[_Span], before: int) -> None:
        """Give up what only this attempt has read: what was cold in a stretch that was written last, and the gaps
        before it."""
        if not cache.was_cold:
            return
        target = self.end - sum(span.length for span in stretch)
        for span in stretch:
            at = span.offset
            for number, size in zip(span.numbers, span.sizes, strict=True):
                if cache.is_cold(number):
                    cache.forget(before, at + size)
                    if self.cold and sum(self.cold[-1]) == target:
                        self.cold[-1] = self.cold[-1][0], self.cold[-1][1] + size
                    else:
                        self.cold.append((target, size))
                at, target, before = at + size, target + size, at + size

    def _open_source(self, name: SegmentName) -> SegmentFile:
        # Before the header is read: what the system has begun to read behind it comes in, whatever is given up.
        file = SegmentFile(os.path.join(self.task.folder, name.log_file), read_ahead=False)
        if file.header.name != name or file.header.incarnation != self.task.header.incarnation:
            file.close()
            raise CorruptData(path=file.path, offset=0, expected=f"segment {name} of this store",
                              found=f"segment {file.header.name} of store {file.header.incarnation.hex()}")
        return file

    def _copy(self, source: _Source, stretch: list[_Span]) -> None:
        granted: list[_Span] = []
        try:
            for span in stretch:
                self.attempt.budget.spend(span.length)
                granted.append(span)
        finally:
            # Also of a budget that is spent half-way: who goes on asks for the rest.
            if granted:
                self._take_in_turn(source, granted)

    def _take_in_turn(self, source: _Source, spans: list[_Span]) -> None:
        before = self.end
        with self.attempt.turn:
            began = self.attempt.clock.monotonic()
            self._take(source, spans, write=True)
            seconds = self.attempt.clock.monotonic() - began
        self.bytes_written += self.end - before
        if self.keeper is not None:
            wait = self.keeper.wait_after(self.end - before, seconds)
            while wait > 0:
                self.attempt.budget.check()
                self.attempt.clock.sleep(min(wait, _NAP_SECONDS))
                wait -= _NAP_SECONDS

    def _take(self, source: _Source, spans: list[_Span], *, write: bool) -> None:
        """Read spans and check their records; then write them behind the last one, unless they are there already."""
        if spans[0].length > len(self.buffer):
            length, self.crc = spans[0].length, self._take_large(source, spans[0], write)
        else:
            length = self._fill(source, spans)
            at, crc = 0, self.crc
            for span in spans:
                crc = self._checked(source, self.buffer[at:at + span.length], span, crc)
                at += span.length
            if write:
                self.out.write_at(self.end, [self.buffer[:length]])
            self.crc = crc
        self.end += length
        self.records += sum(len(span.sizes) for span in spans)
        self.spans += len(spans)

    def _fill(self, source: _Source, spans: list[_Span]) -> int:
        """Read spans back to back into the buffer, those with little between them at once; their length."""
        place = start = first = 0
        pieces: list[memoryview] = []
        for span, following in zip_longest(spans, spans[1:]):
            if not pieces:
                start, first = span.offset, span.first
            pieces.append(self.buffer[place:place + span.length])
            place += span.length
            if following is not None and not source.was_cold and following.offset - span.end <= _MAX_GAP_BYTES:
                pieces.append(self.gap[:following.offset - span.end])
            else:
                self.bytes_read += source.read(pieces, start, range(first, span.numbers.stop))
                pieces = []
        return place

    def _checked(self, source: _Source, view: memoryview, span: _Span, crc: int) -> int:
        """Check each record of a span; the sum over their checksums goes on from `crc`."""
        salt, at, breather = self.task.header.salt, 0, Breather(self.attempt.clock)
        for size, sequence in zip(span.sizes, span.sequences, strict=True):
            breather.breathe()
            found = check_whole(view[at:at + size], salt, sequence)
            if found is not None:
                raise CorruptData(path=source.path, offset=span.offset + at,
                                  expected=f"record {sequence} of {size} bytes", found=found)
            at += size
            crc = crc32(view[at - TRAILER_BYTES:at], crc)
        return crc

    def _take_large(self, source: _Source, span: _Span, write: bool) -> int:
        """One record larger than the buffer, piece by piece. It is written before its end was checked: if that is
        wrong, the whole file goes."""
        salt, at, running, trailer = self.task.header.salt, 0, 0, b""
        while at < span.length:
            view = self.buffer[:min(len(self.buffer), span.length - at)]
            self.bytes_read += source.read([view], span.offset + at, span.numbers)
            body = view
            if at == 0:
                start, running, found = check_head(view, span.length, salt, span.sequences[0])
                if found is not None:
                    raise CorruptData(path=source.path, offset=span.offset, found=found,
                                      expected=f"record {span.sequences[0]} of {span.length} bytes")
                body = view[start:]
            # The last bytes are the checksum itself, and may be spread over two pieces.
            beyond = max(at + len(view) - (span.length - TRAILER_BYTES), 0)
            cut = max(len(body) - beyond, 0)
            running = crc32(body[:cut], running)
            trailer += bytes(body[cut:])
            if write:
                self.out.write_at(self.end + at, [view])
            at += len(view)
        (stored,) = _CRC.unpack(trailer)
        if stored != running:
            raise CorruptData(path=source.path, offset=span.offset, found=f"record CRC {running:#010x}",
                              expected=f"record CRC {stored:#010x}")
        return crc32(trailer, self.crc)


class _Source:
    """A file that records are read from, and what of it the page cache need not hold any longer, where the platform
    has the means to say so (Linux).

    A compaction reads and writes far more than the cache holds. What was not cached before it came is given up again
    at once, in the source and in the new file; what was cached before is in use, and stays, in the new file too.
    Advice only: nothing depends on it. As long as all is in the cache, nothing is asked that is not read.

    Args:
        descriptor: the file, opened by the caller for this alone, without reading ahead.
        path: its path.
        offsets: where each record begins that is going to be read; `None` if it does not matter what is cached.
        sizes: how long each is.

    Attributes:
        was_cold: whether something was not in the cache.
    """

    def __init__(self, descriptor: int, path: str, offsets: Sequence[int] | None = None,
                 sizes: Sequence[int] = ()) -> None:
        self.path = path
        self.was_cold = False
        self._descriptor = descriptor
        self._offsets = () if offsets is None else offsets
        self._sizes = sizes
        self._cold = bytearray()
        self._can_ask = bool(_NO_WAIT) and _CAN_ADVISE and offsets is not None

    def read(self, pieces: Sequence[memoryview], offset: int, numbers: range) -> int:
        """Fill memory with the bytes from `offset` on; how many were read. The records of these numbers lie there.

        Args:
            pieces: what the records go to; every other one what lies between them, which is read only if that takes no
                call more, and does not matter.
            offset: where the first begins.
            numbers: of the records.

        Raises:
            CorruptData: the file ends before.
            StorageError: the disk refused.
        """
        length, at = sum(map(len, pieces)), offset
        try:
            got = self._from_cache(pieces, offset)
            reached = offset + got
            if self._can_ask and not self.was_cold and got < length:
                self._look(numbers, reached)
            for number, piece in enumerate(pieces):
                start, at = max(at, min(reached, at + len(piece))), at + len(piece)
                if number % 2 == 0 and start < at:
                    count = read_into(self._descriptor, piece[len(piece) - (at - start):], start)
                    got += count
                    if start + count < at:
                        raise CorruptData(path=self.path, offset=start + count, found="the end of the file",
                                          expected=f"{offset + length - start - count} more bytes of records")
        except OSError as error:
            raise StorageError.from_os(error, "read", self.path) from error
        return got

    def _from_cache(self, pieces: Sequence[memoryview], offset: int) -> int:
        if self.was_cold:
            return 0
        try:
            return os.preadv(self._descriptor, pieces, offset, _NO_WAIT if self._can_ask else 0)
        except BlockingIOError:
            return 0
        except OSError:
            if not self._can_ask:
                return 0
            # A file system that cannot answer: everything is taken to be in use.
            self._can_ask = False
            return self._from_cache(pieces, offset)

    def _look(self, numbers: range, reached: int) -> None:
        """What of the records is cached that were not read, of which those in `numbers` are behind `reached`.

        All at once and first: reading one brings others into the cache. These are on their way there already.
        """
        self.was_cold = True
        self._cold = bytearray(numbers.start)
        self._cold.extend(self._offsets[number] + self._sizes[number] > reached for number in numbers)
        one = bytearray(1)
        self._cold.extend(not self._is_cached(place, one) for place in self._offsets[numbers.stop:])

    def _is_cached(self, offset: int, one: bytearray) -> bool:
        try:
            return os.preadv(self._descriptor, [one], offset, _NO_WAIT) == 1
        except OSError:
            return False

    def is_cold(self, number: int) -> bool:
        """Whether a record was not in the cache before this attempt read it."""
        return self.was_cold and bool(self._cold[number])

    def forget(self, start: int, end: int) -> None:
        """Give up the pages from `start` to `end`, which nobody else had in use."""
        if end > start:
            os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


def _forget(descriptor: int, offset: int, length: int) -> None:
    """Give up the cached pages of a stretch that are durable, and begin to write the others."""
    if _CAN_ADVISE and length > 0:
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
