# SPDX-License-Identifier: Apache-2.0
"""`Wal`: the file to which all logs of a store append, with an fsync for the queued writes of many threads.

Writes are queued in the order of each log, and made durable by `sync`: the first thread that syncs writes the whole
queue, the others wait for it. A batch that the disk refuses for lack of space is cut off the file again and stays
queued. A failed fsync, or an interrupt within a batch, closes the WAL, and with it the store: the outcome is unknown,
and opening reads it from the disk.

A file that exceeds its limit is closed, and the next file is begun; each file names all logs at its start. Closed files
are removed, oldest first, after their entries are durable in segments.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import attrs

from compactlib.clock import Clock
from compactlib.errors import StorageError
from compactlib.files.disk import Files, OutFile, StrPath, look_at, may_be_there, write_durably
from compactlib.files.zeros_ahead import ZerosAhead
from compactlib.guard import Guard
from compactlib.indexset import IndexSet
from compactlib.raftlog.model.values import MAX_INDEX
from compactlib.raftlog.wal.frames import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    WAL_TEMPORARY_SUFFIX,
    Body,
    FileHeader,
    FrameKind,
    empty_body,
    encode_file_header,
    encode_frame,
    log_body,
    run_body,
    salt_of,
    sparse_body,
    wal_name,
)
from compactlib.raftlog.wal.recovery import LoggedFrame, RecoveredWal

_LAST_SECOND = 1.8e10
"""The last second whose nanoseconds fit into 64 bits, rounded down."""


class QueuedWrite(NamedTuple):
    """A write that waits for the next batch.

    Attributes:
        log_id: of the log.
        body: its bytes with their checksum.
        previous: the index of the first entry's predecessor; `None` without a predecessor.
        cut_after: the log is truncated above this index first; `None` without a truncation.
        first: the first index.
        last: the last index; below `first` for a write without entries.
        term: of the entries; of the last entry if they differ.
        indexes: of sparse entries, `None` for a run.
        terms: of sparse entries, `None` for a run.
    """

    log_id: str
    body: Body
    previous: int | None
    cut_after: int | None
    first: int
    last: int
    term: int
    indexes: Sequence[int] | None = None
    terms: Sequence[int] | None = None


@attrs.frozen
class Confirmed:
    """Entries of a log and term that became durable, without those that the same batch truncates.

    Attributes:
        log_id: of the log.
        term: of the entries.
        indexes: of the entries.
    """

    log_id: str
    term: int
    indexes: IndexSet


class Wal:
    """The write-ahead log of a store. Thread-safe.

    Args:
        folder: of the WAL files, locked by this process.
        guard: of the store, which a failure in the WAL closes.
        max_bytes: a file is closed, and the next begun, after the batch that exceeds this.
        files: the disk.
        clock: stamps the files.
        recovered: the content of the folder.
        lasts: the last index of each log.
        held: frames of damaged logs, in order: each new file repeats them, so that old files can be removed.
        tail: the other frames that are not proven durable, in order: the first file repeats them.

    Attributes:
        guard: as given.
        smallest_live: by log, the index below which everything is dead; a log sets it with each snapshot.
        confirmed: queue of what became durable, in order; the store takes from it.
        queued_bytes: bytes that wait for the next batch.
        number: of the current file.
        closed_files: count of the files before the current file.
        durable_ticket: everything up to this ticket is durable.
    """

    def __init__(self, folder: StrPath, guard: Guard, *, max_bytes: int, files: Files, clock: Clock,
                 recovered: RecoveredWal, lasts: Mapping[str, int], held: Sequence[LoggedFrame] = (),
                 tail: Sequence[LoggedFrame] = ()) -> None:
        self._folder = os.fspath(folder)
        self.guard = guard
        self._max_bytes = max_bytes
        self._files = files
        self._clock = clock
        self._committing = threading.RLock()
        self._queueing = threading.Lock()
        self._queue: list[QueuedWrite] = []
        self._taken = 0  # writes that have left the queue
        self._is_writing = False
        self._lasts = dict(lasts)
        self._held = tuple(held)
        self._oldest = recovered.numbers[0] if recovered.numbers else recovered.last_number + 1
        self.smallest_live: dict[str, int] = {}
        self.confirmed: deque[Confirmed] = deque()
        self.queued_bytes: int = 0
        self.number: int = 0
        self.closed_files: int = 0
        self.durable_ticket: int = 0
        self._out: OutFile = self._begin_file(recovered.last_number + 1, recovered.last_end, tail)
        guard.keep(self)

    # -- files

    def _begin_file(self, number: int, previous_end: int, tail: Sequence[LoggedFrame] = ()) -> OutFile:
        """Create the next file durably: it names every log, and repeats the frames that were not proven durable."""
        # The clock may return any time. The time serves people who inspect the file, and the salt of its frames.
        created_ns = int(min(max(self._clock.now(), 0.0), _LAST_SECOND) * 1e9)
        header = FileHeader(number, previous_end, created_ns)
        with self._queueing:
            # A copy: other threads queue writes at the same time, also of new logs.
            lasts = dict(self._lasts)
        pieces, numbers = encode_beginning(header, lasts, [*self._held, *tail])
        path = os.path.join(self._folder, wal_name(number))
        write_durably(self._files, path, pieces, temporary_suffix=WAL_TEMPORARY_SUFFIX)
        out = self._files.open(path)
        self.number, self._salt, self._numbers = number, salt_of(header), numbers
        self._end = self._begun = sum(map(len, pieces))
        self._ahead = ZerosAhead(self._begun, self._end)
        self._must_cut = False
        self.closed_files = number - self._oldest
        return out

    @property
    def path(self) -> str:
        """The path of the current file."""
        return os.path.join(self._folder, wal_name(self.number))

    @property
    def size_bytes(self) -> int:
        """Durable bytes of the current file."""
        return self._end

    def remove_through(self, number: int) -> None:
        """Remove the closed files up to `number`: everything in them is durable in segments. One call at a time.

        The folder is synced after each removal: an older file that reappeared without its successor would be damage.

        Raises:
            StorageError: the disk refused; call again.
        """
        self.guard.require_open()
        assert number < self.number, "the current file"
        while self._oldest <= number:
            path = os.path.join(self._folder, wal_name(self._oldest))
            if look_at(path) is not None:
                self._files.unlink(path)
            self._files.sync_folder(self._folder)
            self._oldest += 1
            self.closed_files = self.number - self._oldest

    # -- queueing

    def queue(self, write: QueuedWrite) -> int:
        """Queue a write, and return its ticket for `sync`. Called under the log's lock.

        Raises:
            Closed: the store is closed.
        """
        self.guard.require_open()
        with self._queueing:
            self._lasts[write.log_id] = write.last
            self.queued_bytes += FRAME_HEADER_BYTES + len(write.body.data)
            # Last: an interrupt before this statement leaves nothing queued.
            self._queue += (write,)
            return self._taken + len(self._queue)

    def forget(self, log_id: str) -> None:
        """Forget a removed log, without queued writes: later files do not name it."""
        with self._committing, self._queueing:
            self._lasts.pop(log_id, None)
            self.smallest_live.pop(log_id, None)
            self._held = tuple(logged for logged in self._held if logged.log_id != log_id)

    @property
    def ticket(self) -> int:
        """The ticket of the last write that was queued."""
        with self._queueing:
            return self._taken + len(self._queue)

    # -- committing

    def sync(self, ticket: int | None = None) -> None:
        """Make the writes up to `ticket` (default: the whole queue) durable.

        Raises:
            StorageError: the disk is full, and the writes stay queued; or an fsync failed, and the store is closed: the
                outcome is unknown.
            Closed: the store was closed, or closed itself.
        """
        self.guard.require_open()
        wanted = self.ticket if ticket is None else ticket
        while self.durable_ticket < wanted:
            self.guard.require_open()
            with self._committing:
                if self.durable_ticket < wanted:
                    self._commit()

    def roll_over(self) -> None:
        """Close the current file and begin the next. Also called after the batch that exceeds `max_bytes`.

        Raises:
            StorageError: the disk is full; the current file stays, and the next batch retries.
        """
        with self._committing:
            self._begin_writing()
            before, following = self._out, os.path.join(self._folder, wal_name(self.number + 1))
            try:
                self._out = self._begin_file(self.number + 1, self._end)
            except StorageError as error:
                if may_be_there(following):
                    # After a crash the new file may exist or not: neither file may be written any more.
                    self.guard.fail(error)
                self._is_writing = False
                raise
            self._is_writing = False
            # The file is durable; an error of closing it has no meaning.
            with contextlib.suppress(StorageError):
                before.close()

    def _begin_writing(self) -> None:
        if self._is_writing:
            self.guard.close("was left in the middle of a batch by an error or an interrupt")
        self.guard.require_open()
        self._is_writing = True

    def _commit(self) -> None:
        self._begin_writing()
        with self._queueing:
            writes, self._queue = self._queue, []
            self._taken += len(writes)
            self.queued_bytes = 0
            ticket = self._taken
        kept = self._without_dead(writes)
        try:
            self._write_batch(kept)
        except StorageError:
            with self._queueing:
                self._queue[:0] = writes
                self._taken -= len(writes)
                self.queued_bytes += sum(FRAME_HEADER_BYTES + len(write.body.data) for write in writes)
            self._is_writing = False
            raise
        self.durable_ticket = ticket
        if kept and not self._queue:
            self._write_mark()
        self.confirmed.extend(confirmations(kept))
        self._is_writing = False
        # Without the held frames, which the next file would repeat.
        if self._end - (self._begun if self._held else 0) > self._max_bytes:
            # The batch is durable. On a full disk, the next batch retries.
            with contextlib.suppress(StorageError):
                self.roll_over()

    def _write_batch(self, writes: Sequence[QueuedWrite]) -> None:
        """Make `writes` durable. After a `StorageError` that leaves the store open, none of them counts."""
        if not writes:
            return
        pieces, size, named = assemble(writes, offset=self._end, salt=self._salt, numbers=self._numbers)
        if self._must_cut:
            self._cut_refused()
        try:
            self._out.write_at(self._end, pieces)
        except StorageError:
            # Whole frames may be on the disk. They would count behind a shorter next batch.
            self._must_cut = True
            with contextlib.suppress(StorageError):
                self._cut_refused()
            raise
        self._ahead.follow(self._out, self._end + size)
        try:
            self._out.sync()
        except StorageError as error:
            self.guard.fail(error)
            raise
        self._end += size
        self._numbers.update(named)

    def _cut_refused(self) -> None:
        """Cut a refused batch off the file; durable with the next batch, before which none of its frames counts."""
        self._out.truncate(self._end)
        self._ahead = ZerosAhead(self._begun, self._end)
        self._must_cut = False

    def _without_dead(self, writes: Sequence[QueuedWrite]) -> list[QueuedWrite]:
        """The writes without those that died by a snapshot since they were queued; truncations are kept."""
        smallest = self.smallest_live
        return [write for write in writes
                if write.cut_after is not None or write.last >= smallest.get(write.log_id, 0)]

    def _write_mark(self) -> None:
        # The mark proves that everything before is durable. The next batch proves it too, and overwrites the mark.
        with contextlib.suppress(StorageError):
            self._out.write_at(self._end, encode_frame(empty_body(FrameKind.MARK), log=0, previous=None, cuts=False,
                                                       first=0, term=0, synced_end=self._end, salt=self._salt))

    def close(self) -> None:
        """Close the file without another write; idempotent. Called by the store's guard."""
        self._out.close()

    def __repr__(self) -> str:
        return f"<Wal {self.path!r}: {self._end:,} bytes durable, {len(self._queue)} writes queued>"


# -- the bytes


def encode_beginning(header: FileHeader, lasts: Mapping[str, int],
                     tail: Sequence[LoggedFrame] = ()) -> tuple[list[bytes], dict[str, int]]:
    """Return the first bytes of a new file, and the numbers of the logs in it.

    The bytes are the header, every log's name, and the frames that were not proven durable in the file before.

    Args:
        header: the file's.
        lasts: the last index of every log, -1 of an empty log.
        tail: the frames to repeat.
    """
    salt = salt_of(header)
    pieces = [encode_file_header(header)]
    numbers: dict[str, int] = {}
    for log_id, last in lasts.items():
        numbers[log_id] = len(numbers)
        # The highest index has no successor: the frame has the last index itself.
        ended = last == MAX_INDEX
        pieces += encode_frame(log_body(log_id), log=numbers[log_id], previous=last if ended else None, cuts=False,
                               first=0 if ended else last + 1, term=0, synced_end=FILE_HEADER_BYTES, salt=salt)
    for logged in tail:
        frame = logged.frame
        body = (run_body(frame.payloads) if frame.kind == FrameKind.RUN
                else sparse_body(frame.indexes, frame.terms, frame.payloads) if frame.kind == FrameKind.SPARSE
                else empty_body(frame.kind))
        pieces += encode_frame(body, log=numbers[logged.log_id], previous=frame.previous, cuts=frame.cuts,
                               first=frame.first, term=frame.term, synced_end=FILE_HEADER_BYTES, salt=salt)
    return pieces, numbers


def assemble(writes: Iterable[QueuedWrite], *, offset: int, salt: int,
             numbers: Mapping[str, int]) -> tuple[list[bytes], int, dict[str, int]]:
    """Return the bytes of a batch, their count, and the numbers of the new logs that it names. O(writes).

    Args:
        writes: in the order of the queue.
        offset: of the batch in the file; everything before is durable.
        salt: of the file.
        numbers: of the logs that the file names already.
    """
    pieces: list[bytes] = []
    size = 0
    named: dict[str, int] = {}
    for write in writes:
        number = numbers.get(write.log_id, named.get(write.log_id))
        if number is None:
            number = named[write.log_id] = len(numbers) + len(named)
            body = log_body(write.log_id)
            pieces += encode_frame(body, log=number, previous=None, cuts=False, first=0, term=0, synced_end=offset,
                                   salt=salt)
            size += body.frame_bytes
        cuts = write.cut_after is not None
        pieces += encode_frame(write.body, log=number, previous=write.cut_after if cuts else write.previous, cuts=cuts,
                               first=write.first, term=write.term, synced_end=offset, salt=salt)
        size += write.body.frame_bytes
    return pieces, size, named


def confirmations(writes: Iterable[QueuedWrite]) -> list[Confirmed]:
    """Return an index set for each log and term of a batch, in the order of first use, without truncated entries.

    O(writes and sparse entries).
    """
    # By log: first index, last index and term of the entries that are not truncated, ascending.
    remaining: dict[str, list[tuple[int, int, int]]] = {}
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for write in writes:
        runs = remaining.setdefault(write.log_id, [])
        while write.cut_after is not None and runs and runs[-1][1] > write.cut_after:
            first, _, term = runs.pop()
            if first <= write.cut_after:
                runs.append((first, write.cut_after, term))
        if write.indexes is not None and write.terms is not None:
            runs.extend((index, index, term) for index, term in zip(write.indexes, write.terms, strict=True))
        elif write.first <= write.last:
            runs.append((write.first, write.last, write.term))
        for term in (write.term,) if write.terms is None else write.terms:
            found.setdefault((write.log_id, term), [])
    for log_id, runs in remaining.items():
        for first, last, term in runs:
            found[log_id, term].append((first, last))
    return [Confirmed(log_id, term, IndexSet.from_runs(runs)) for (log_id, term), runs in found.items() if runs]
