# SPDX-License-Identifier: Apache-2.0
"""The heavy step of a compaction: copy records from some segments into one new segment.

Runs of adjacent records are read and written at once, and each record is checked against its CRC in between: what is
written is what was checked. One fsync makes the whole file durable. The task knows nothing of the store it works for:
it can run in any process that sees the folder, twice, or at the same time as another try; each writes its own file and
publishes nothing, and all write the same bytes.

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
from collections.abc import Iterable, Iterator

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
    """Adjacent records that are read and written at once, or one record larger than the buffer.

    Attributes:
        offset: where it begins in its file.
        sizes: of its records.
        sequences: of its records.
        cold: stretches that were not in the page cache: places relative to `offset`, and lengths.
    """

    offset: int
    sizes: list[int]
    sequences: list[int]
    cold: list[tuple[int, int]]

    @property
    def length(self) -> int:
        return sum(self.sizes)

    @property
    def end(self) -> int:
        return self.offset + self.length


def _spans(source: SourceRecords, limit: int, cached: bytes | None = None) -> Iterator[_Span]:
    """The spans of a source, each at most `limit` bytes long unless it is one record."""
    offsets, all_sizes, all_sequences = source.columns()
    in_use = b"\x01" * len(offsets) if cached is None else cached
    first = 0
    while first < len(offsets):
        last, end = first + 1, offsets[first] + all_sizes[first]
        while last < len(offsets) and offsets[last] == end and end + all_sizes[last] - offsets[first] <= limit:
            end += all_sizes[last]
            last += 1
        cold: list[tuple[int, int]] = []
        for place in range(first, last):
            at = offsets[place] - offsets[first]
            if in_use[place]:
                continue
            if cold and sum(cold[-1]) == at:
                cold[-1] = cold[-1][0], cold[-1][1] + all_sizes[place]
            else:
                cold.append((at, all_sizes[place]))
        yield _Span(offsets[first], all_sizes[first:last].tolist(), all_sequences[first:last].tolist(), cold)
        first = last


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
        self.cold: list[tuple[int, int]] = []
        self.was_cold = False
        self.handed_over = 0
        self.keeper = None if task.pace is None else PaceKeeper(task.pace)

    def resume(self, size: int) -> None:
        """See how far an earlier attempt's file of `size` bytes is right, and go on from there."""
        head = encode_header(self.task.header)
        if size >= len(head) and os.pread(self.out.fileno(), len(head), 0) == head:
            with contextlib.suppress(CorruptData):
                for source in self.task.sources:
                    for span in _spans(source, len(self.buffer)):
                        self._take(_Input(self.out.fileno(), self.out.path, self.end), span, write=False)
        if size > self.end:
            self.out.truncate(self.end)
        self.out.write_at(0, [head])

    def copy_all(self) -> None:
        """Copy what is not there yet, and make the file durable."""
        work, done = f"compact {self.task.name}", self.spans
        seen = 0
        self.handed_over = self.end - self.end % mmap.PAGESIZE
        self.attempt.observer.progress(Progress(work, self.end - SEGMENT_HEADER_BYTES, self.total))
        for source in self.task.sources:
            file = self._open_source(source.segment)
            try:
                seen = self._copy_source(source, file, seen, done, work)
            finally:
                file.close()
        if not self.records:
            raise InvalidInput(f"task {self.task.name!r} has no record to copy; drop its segments instead")
        self.out.sync()
        for offset, length in self.cold:
            _forget(self.out.fileno(), offset, length)

    def _copy_source(self, source: SourceRecords, file: SegmentFile, seen: int, done: int, work: str) -> int:
        """Copy the spans of one source behind the first `done` of all; how many were seen."""
        cache, before = _PageCache(file.fileno()), SEGMENT_HEADER_BYTES
        # All at once and first: reading one record brings others into the cache.
        for span in _spans(source, len(self.buffer), cache.cached(source.columns()[0])):
            seen += 1
            if seen > done:
                self._copy(_Input(file.fileno(), file.path, span.offset), span)
                self._hand_over()
                self._forget_read(cache, span, before)
                self.attempt.observer.progress(Progress(work, self.end - SEGMENT_HEADER_BYTES, self.total))
            before = span.end
        if self.was_cold:
            cache.forget(before, before + _READ_AHEAD_BYTES)
        return seen

    def _hand_over(self) -> None:
        """Have the system write whole pages to the disk while the next span is read, so that the sync waits less.

        Linux begins to write dirty pages that it is told to forget, and keeps those in the cache that it is writing.
        """
        whole = self.end - self.end % mmap.PAGESIZE
        _forget(self.out.fileno(), self.handed_over, whole - self.handed_over)
        self.handed_over = whole

    def _forget_read(self, cache: _PageCache, span: _Span, before: int) -> None:
        """Give up what only this attempt has read: the gap before the span, and what was cold in it."""
        if not span.cold:
            # Nothing came from the disk, and nothing beside it either.
            return
        self.was_cold = True
        cache.forget(before, span.offset)
        target = self.end - span.length
        for at, length in span.cold:
            cache.forget(span.offset + at, span.offset + at + length)
            if self.cold and sum(self.cold[-1]) == target + at:
                self.cold[-1] = self.cold[-1][0], self.cold[-1][1] + length
            else:
                self.cold.append((target + at, length))

    def _open_source(self, name: SegmentName) -> SegmentFile:
        file = SegmentFile(os.path.join(self.task.folder, name.log_file))
        if file.header.name != name or file.header.incarnation != self.task.header.incarnation:
            file.close()
            raise CorruptData(path=file.path, offset=0, expected=f"segment {name} of this store",
                              found=f"segment {file.header.name} of store {file.header.incarnation.hex()}")
        return file

    def _copy(self, source: _Input, span: _Span) -> None:
        self.attempt.budget.spend(span.length)
        with self.attempt.turn:
            began = self.attempt.clock.monotonic()
            self._take(source, span, write=True)
            seconds = self.attempt.clock.monotonic() - began
        self.bytes_written += span.length
        if self.keeper is not None:
            wait = self.keeper.wait_after(span.length, seconds)
            while wait > 0:
                self.attempt.budget.check()
                self.attempt.clock.sleep(min(wait, _NAP_SECONDS))
                wait -= _NAP_SECONDS

    def _take(self, source: _Input, span: _Span, *, write: bool) -> None:
        """Read a span and check its records; then write it behind the last one, unless it is there already."""
        if span.length <= len(self.buffer):
            view = self.buffer[:span.length]
            self._read(source, view, 0)
            self.crc = self._checked(source, view, span, self.crc)
            if write:
                self.out.write_at(self.end, [view])
        else:
            self.crc = self._take_large(source, span, write)
        self.end += span.length
        self.records += len(span.sizes)
        self.spans += 1

    def _read(self, source: _Input, view: memoryview, at: int) -> None:
        try:
            got = read_into(source.descriptor, view, source.offset + at)
        except OSError as error:
            raise StorageError.from_os(error, "read", source.path) from error
        self.bytes_read += got
        if got < len(view):
            raise CorruptData(path=source.path, offset=source.offset + at + got, found="the end of the file",
                              expected=f"{len(view) - got} more bytes of records")

    def _checked(self, source: _Input, view: memoryview, span: _Span, crc: int) -> int:
        """Check each record of a span; the sum over their checksums goes on from `crc`."""
        salt, at, breather = self.task.header.salt, 0, Breather(self.attempt.clock)
        for size, sequence in zip(span.sizes, span.sequences, strict=True):
            breather.breathe()
            found = check_whole(view[at:at + size], salt, sequence)
            if found is not None:
                raise CorruptData(path=source.path, offset=source.offset + at,
                                  expected=f"record {sequence} of {size} bytes", found=found)
            at += size
            crc = crc32(view[at - TRAILER_BYTES:at], crc)
        return crc

    def _take_large(self, source: _Input, span: _Span, write: bool) -> int:
        """One record larger than the buffer, piece by piece. It is written before its end was checked: if that is
        wrong, the whole file goes."""
        salt, at, running, trailer = self.task.header.salt, 0, 0, b""
        while at < span.length:
            view = self.buffer[:min(len(self.buffer), span.length - at)]
            self._read(source, view, at)
            body = view
            if at == 0:
                start, running, found = check_head(view, span.length, salt, span.sequences[0])
                if found is not None:
                    raise CorruptData(path=source.path, offset=source.offset, found=found,
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
            raise CorruptData(path=source.path, offset=source.offset, found=f"record CRC {running:#010x}",
                              expected=f"record CRC {stored:#010x}")
        return crc32(trailer, self.crc)


@attrs.frozen
class _Input:
    """Where a span is read from: the source, or what an earlier attempt wrote."""

    descriptor: int
    path: str
    offset: int


class _PageCache:
    """What the page cache holds of one open file, and what it need not hold any longer, where the platform has the
    means to say so (Linux).

    A compaction reads and writes far more than the cache holds. What was not cached before it came is given up again
    at once, in the source and in the new file; what was cached before is in use, and stays, in the new file too.
    Advice only: nothing depends on it.

    Args:
        descriptor: the file, opened by the caller for this alone.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._can_ask = bool(_NO_WAIT) and _CAN_ADVISE and hasattr(os, "preadv")
        if self._can_ask:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)

    def cached(self, offsets: Iterable[int]) -> bytes:
        """One byte for each place: 1 if its page is cached, or if that is unknown; one system call each."""
        one = bytearray(1)
        return bytes(self._is_cached(offset, one) for offset in offsets)

    def _is_cached(self, offset: int, one: bytearray) -> bool:
        if self._can_ask:
            try:
                os.preadv(self._descriptor, [one], offset, _NO_WAIT)
            except BlockingIOError:
                return False
            except OSError:
                # A file system that cannot answer: everything is taken to be in use.
                self._can_ask = False
        return True

    def forget(self, start: int, end: int) -> None:
        """Give up the pages from `start` to `end`, unless it is unknown what is in use."""
        if self._can_ask and end > start:
            os.posix_fadvise(self._descriptor, start, end - start, os.POSIX_FADV_DONTNEED)


def _forget(descriptor: int, offset: int, length: int) -> None:
    """Give up the cached pages of a stretch that are durable, and begin to write the others."""
    if _CAN_ADVISE and length > 0:
        os.posix_fadvise(descriptor, offset, length, os.POSIX_FADV_DONTNEED)
