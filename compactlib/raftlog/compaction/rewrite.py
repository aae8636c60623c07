# SPDX-License-Identifier: Apache-2.0
"""The task of a compaction: copy the live entries of adjacent segments into a new segment.

It reads only live payloads (with the small gaps between them), checks each against its CRC, and makes the whole file
durable with one fsync. It does not need the log: it can run in any process that sees the folder, twice, or at the same
time as another attempt; each attempt writes its own file and commits nothing.

`Copier` is the inner loop. Payloads without gaps are read directly into the output buffer; of others the whole span is
read, and the payloads are copied. If NumPy is installed, it selects index records, and payloads of equal size: the
bytes are the same.
"""

from __future__ import annotations

import contextlib
import os
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, islice, pairwise, repeat
from operator import add, sub
from typing import Any

import attrs

from compactlib.errors import InvalidInput, StorageError
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, LocalFiles, OutFile, removed_on_failure
from compactlib.indexset import IndexSet
from compactlib.raftlog.segment import format as native
from compactlib.raftlog.segment.format import SegmentIndex, live_positions
from compactlib.raftlog.segment.reader import (
    MAX_GAP_BYTES,
    MAX_SPAN_BYTES,
    SegmentReader,
    read_again,
    read_spans,
    sealed_records,
)
from compactlib.raftlog.values import SegmentLimits, SegmentRef
from compactlib.rewrite import Attempt, RewriteResult, RewrittenFile

_RECORD_WORDS = native.RECORD_BYTES // 8
_IDLE: list[Copier] = []
_MAX_IDLE_VIEWS = 1 << 14


@attrs.frozen
class SegmentSource:
    """A segment to copy from.

    Attributes:
        path: its file.
        ref: its range.
        live: the indexes to keep, all within the range.
    """

    path: str
    ref: SegmentRef
    live: IndexSet


@attrs.frozen(kw_only=True)
class CompactSegments:
    """A `RewriteTask` that writes the live entries of `sources` to one sealed segment at a private path.

    Attributes:
        name: the task's name, which is the new segment's; the private file's name has it too.
        private: the beginning of the private file's path, which no other run has.
        sources: oldest first; their live indexes ascend from one to the next.
        max_bytes: the limit in the new segment's header.
        files: the disk.
    """

    name: str
    private: str
    sources: tuple[SegmentSource, ...]
    max_bytes: int
    files: Files = attrs.field(factory=LocalFiles)

    @property
    def source_files(self) -> tuple[str, ...]:
        """The paths of the sources."""
        return tuple(source.path for source in self.sources)

    def run(self, attempt: Attempt) -> RewriteResult:
        """Copy, check and sync; as `RewriteTask.run`. An error removes the new file, and leaves the sources untouched.

        Raises:
            CorruptData: a live entry is damaged.
            LiveIndexMissing: a live index is not in its segment.
            StorageError: the disk refused.
            BudgetSpent: the budget is spent.
        """
        began = attempt.clock.monotonic()
        path = f"{self.private}{self.name}.{attempt.id}"
        with contextlib.ExitStack() as stack:
            turn = stack.enter_context(contextlib.ExitStack())
            turn.enter_context(attempt.turn)
            copier = turn.enter_context(idle_copier())
            parts = [copier.part(stack, source.path, source.live, source.ref) for source in self.sources]
            with removed_on_failure(self.files, path), contextlib.closing(self.files.create(path)) as out:
                file, bytes_read = self._write(out, copier, parts, attempt)
                turn.close()
                out.sync()
        return RewriteResult(task=self.name, attempt=attempt.id, files=(file,), bytes_read=bytes_read,
                             bytes_written=file.size_bytes, seconds=attempt.clock.monotonic() - began)

    def _write(self, out: OutFile, copier: Copier, parts: Sequence[Part],
               attempt: Attempt) -> tuple[RewrittenFile, int]:
        count = sum(map(len, parts))
        if not count:
            raise InvalidInput(f"task {self.name!r} has no live entry to copy; drop its segments instead")
        limits = SegmentLimits(max_entries=count, max_bytes=self.max_bytes)
        header = native.Header(self.sources[0].ref.number, limits)
        work, total = f"compact {self.name}", sum(part.places[-1] for part in parts)
        attempt.observer.event("progress", work=work, done=0, total=total, unit="bytes")
        end, bytes_read = header.data_start, 0
        for piece, got in chain.from_iterable(map(copier.pieces, parts)):
            attempt.budget.spend(len(piece))
            end += out.write_at(end, [piece])
            bytes_read += got
            attempt.observer.event("progress", work=work, done=end - header.data_start, total=total, unit="bytes")
        records = joined_records(parts, header.data_start)
        seal = native.Seal(count, end, crc32(records, 0), sealed=True)
        # The file is durable as a whole or not used, so that both seals may be equal.
        out.write_at(0, [native.encode_start(header, seal, attrs.evolve(seal, sequence=1)), records])
        return RewrittenFile(out.path, end, count, seal.index_crc), bytes_read


@attrs.define(eq=False, kw_only=True)
class Part:
    """The entries to copy from a source, ascending.

    Attributes:
        path: the source.
        descriptor: the source, open.
        columns: their index records, with the source's offsets.
        size: the size of every payload; 0 if they differ.
        places: offset of each payload in the joined payloads, and the end of the last payload.
        rows: with NumPy and payloads of equal size at multiples of it, their row numbers from the first payload on;
            else `None`.
    """

    path: str
    descriptor: int
    columns: SegmentIndex
    size: int
    places: Sequence[int]
    rows: Any

    def __len__(self) -> int:
        return len(self.columns)

    def end_of(self, place: int) -> int:
        """The end of a payload in the file."""
        return self.columns.offsets[place] + self.columns.lengths[place]


@contextlib.contextmanager
def idle_copier() -> Iterator[Copier]:
    """A copier whose buffers serve one task after the other; one stays, unless it has grown."""
    # The page faults of new buffers, and their views, cost a fifth of a copy of runs.
    try:
        copier = _IDLE.pop()
    except IndexError:
        copier = Copier()
    yield copier
    if copier.is_small and not _IDLE:
        _IDLE.append(copier)


class Copier:
    """Copies payloads with buffers that are reused for each piece. Not thread-safe."""

    def __init__(self, *, by_arrays: bool = True) -> None:
        # A single allocation: the memory of two, or of one that grows, goes back to the system after each task, and
        # its page faults cost 15 to 25 percent of a copy at random. The second half is for spans with their gaps.
        room = memoryview(bytearray(2 * MAX_SPAN_BYTES))
        self._out, self._read = room[:MAX_SPAN_BYTES], room[MAX_SPAN_BYTES:]
        self._size = 0
        self._views: list[memoryview] = []
        self._np = _numpy() if by_arrays else None

    @property
    def is_small(self) -> bool:
        """Whether its memory has not grown for a large payload, or for the views of many of a few bytes."""
        return len(self._out) == MAX_SPAN_BYTES and len(self._views) <= _MAX_IDLE_VIEWS

    def part(self, stack: contextlib.ExitStack, path: str, live: IndexSet, ref: SegmentRef) -> Part:
        """The entries to copy from the segment at `path`, which stays open until `stack` is closed.

        Raises:
            LiveIndexMissing: a live index within the range is not in the segment.
            CorruptData: the segment's header or index is damaged, or it is not sealed.
            StorageError: the segment cannot be opened.
        """
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, descriptor)
            region = sealed_records(descriptor, path)
        except OSError as error:
            raise StorageError.from_os(error, "open", path) from error
        here = live.between(ref.first, ref.last)
        columns = native.decode_records(self._records_of(region, here) if here and region else b"")
        if len(columns) < len(here):
            # Raises, with the missing indexes.
            live_positions(native.decode_records(region), live, ref)
        return self._part(path, descriptor, columns)

    def check(self, reader: SegmentReader) -> None:
        """Read a whole segment, and check each payload. Raises as `pieces`."""
        for _ in self.pieces(self._part(reader.path, reader.fileno(), reader.index)):
            pass

    def _part(self, path: str, descriptor: int, columns: SegmentIndex) -> Part:
        lengths = columns.lengths
        size = lengths[0] if lengths and _is_uniform(lengths) else 0
        places = range(0, size * (len(lengths) + 1), size) if size else list(accumulate(lengths, initial=0))
        return Part(path=path, descriptor=descriptor, columns=columns, size=size, places=places,
                    rows=self._rows_of(columns.offsets, size))

    def pieces(self, part: Part) -> Iterator[tuple[memoryview, int]]:
        """Iterate over the part's payloads, joined to pieces of up to 1 MiB, with the bytes read. A larger payload is
        a piece of its own.

        A piece is valid until the next.

        Raises:
            CorruptData: a payload is damaged.
            StorageError: the source cannot be read.
        """
        places, first = part.places, 0
        while first < len(part):
            # As many as the buffer holds, at least one.
            stop = max(bisect_right(places, places[first] + MAX_SPAN_BYTES, first, len(places)) - 1, first + 1)
            payloads = self._room(part.size, places[first:stop + 1])
            try:
                got, is_whole = self._fill(part, first, stop)
                found = list(map(crc32, payloads, part.columns.heads[first:stop]))
                if not is_whole or found != part.columns.crcs[first:stop].tolist():
                    for place, payload in enumerate(payloads, first):
                        payload[:] = read_again(part.descriptor, part.path, part.columns, place)
            except OSError as error:
                raise StorageError.from_os(error, "read", part.path) from error
            yield self._out[:places[stop] - places[first]], got
            first = stop

    def _records_of(self, region: bytes, here: IndexSet) -> bytes | memoryview:
        """The index records of `here`, from ascending records."""
        np, (firsts, lasts) = self._np, here.columns
        if np is None:
            indexes = native.indexes_of(region)
            if indexes[0] <= here.first and here.last <= indexes[-1] == indexes[0] + len(indexes) - 1:
                # Of a dense segment; to bisect costs a fifth of a copy at random.
                starts, stops = map(sub, firsts, repeat(indexes[0])), map(sub, lasts, repeat(indexes[0] - 1))
            else:
                starts, stops = map(bisect_left, repeat(indexes), firsts), map(bisect_right, repeat(indexes), lasts)
            return b"".join(region[native.RECORD_BYTES * start:native.RECORD_BYTES * stop]
                            for start, stop in zip(starts, stops, strict=True))
        # NumPy takes rows of words five times as fast as records.
        rows = np.frombuffer(region, "<u8").reshape(-1, _RECORD_WORDS)
        begin = rows[:, 0].searchsorted(np.frombuffer(firsts, np.uint64))
        end = rows[:, 0].searchsorted(np.frombuffer(lasts, np.uint64), "right")
        bounds = np.bincount(begin, minlength=len(rows) + 1) - np.bincount(end, minlength=len(rows) + 1)
        taken = rows.take(np.flatnonzero(np.cumsum(bounds) > 0), axis=0)
        return memoryview(taken.view(np.uint8).reshape(-1).data)

    def _room(self, size: int, places: Sequence[int]) -> list[memoryview]:
        """A view of the buffer for each payload."""
        count, total = len(places) - 1, places[-1] - places[0]
        if total > len(self._out):
            self._out, self._size = memoryview(bytearray(total)), 0
        if not size:
            cuts = list(map(sub, places, repeat(places[0])))
            return list(map(self._out.__getitem__, map(slice, cuts, islice(cuts, 1, None))))
        if size != self._size or count > len(self._views):
            # No more views than needed: of payloads of one byte, the buffer has a million.
            self._size, self._views = size, [self._out[start:start + size] for start in range(0, total, size)]
        return self._views[:count]

    def _fill(self, part: Part, first: int, stop: int) -> tuple[int, bool]:
        """Read payloads, joined, into the buffer; return the bytes read, and whether the file had all of them."""
        places = part.places
        read, is_whole = 0, True
        for start, end in self._spans(part, first, stop):
            span, live = part.end_of(end - 1) - part.columns.offsets[start], places[end] - places[start]
            place = places[start] - places[first]
            target = self._out[place:place + live]
            if span == live:
                got = os.preadv(part.descriptor, [target], part.columns.offsets[start])
            else:
                got = self._gather(part, start, end, target)
            is_whole = is_whole and got == span
            read += got
        return read, is_whole

    def _rows_of(self, offsets: array[int], size: int) -> Any:
        """The row numbers of payloads in rows of `size` bytes from the first payload; `None` if they do not align."""
        if self._np is None or not size:
            return None
        places = self._np.frombuffer(offsets, self._np.uint64).astype(self._np.int64)
        places -= places[0]
        rows = places // size
        return rows if (rows * size == places).all() else None

    def _spans(self, part: Part, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Split a part's payloads into spans that are read with a single call."""
        np, rows = self._np, part.rows
        if np is not None and rows is not None:
            cuts = first + 1 + np.flatnonzero(np.diff(rows[first:stop]) > MAX_GAP_BYTES // part.size + 1)
            most = max(MAX_SPAN_BYTES // part.size, 1)
            for start, end in pairwise([first, *cuts.tolist(), stop]):
                while start < end:
                    beyond = start + int(rows[start:end].searchsorted(rows[start] + most))
                    yield start, beyond
                    start = beyond
            return
        offsets = part.columns.offsets[first:stop]
        ends = list(map(add, offsets, part.columns.lengths[first:stop]))
        yield from ((first + start, first + end) for start, end in read_spans(offsets, ends))

    def _gather(self, part: Part, first: int, stop: int, target: memoryview) -> int:
        """Read a span, and copy its payloads, without the gaps, to `target`; return the bytes read."""
        np, offsets = self._np, part.columns.offsets
        base = offsets[first]
        span = part.end_of(stop - 1) - base
        got = os.preadv(part.descriptor, [self._read[:span]], base)
        if np is not None and part.rows is not None:
            np.take(np.frombuffer(self._read[:span], np.uint8).reshape(-1, part.size),
                    part.rows[first:stop] - part.rows[first], axis=0, mode="clip",
                    out=np.frombuffer(target, np.uint8).reshape(-1, part.size))
        else:
            starts = list(map(sub, offsets[first:stop], repeat(base)))
            cuts = map(slice, starts, map(add, starts, part.columns.lengths[first:stop]))
            target[:] = b"".join(map(self._read.__getitem__, cuts))
        return got


def joined_records(parts: Sequence[Part], data_start: int) -> bytes:
    """The index records of all parts' entries, for payloads that are joined from `data_start` on."""
    joined = native.decode_records(b"")
    for part in parts:
        joined.extend(part.columns)
    joined.offsets = array("Q", accumulate(islice(joined.lengths, len(joined) - 1), initial=data_start))
    return native.encode_records(joined)


def _numpy() -> Any:
    """NumPy, or `None` where it is not installed; imported by the first copy."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy


def _is_uniform(column: array[int]) -> bool:
    """Whether all values are the same (lengths often are); a comparison of memory."""
    raw = column.tobytes()
    return raw[column.itemsize:] == raw[:-column.itemsize]
