# SPDX-License-Identifier: Apache-2.0
"""`Wal`: the one file that all logs of a store append to, with one fsync for what many threads have queued.

Writes are queued at once, in the order of each log, and made durable by `sync`: the first thread that syncs writes what
all have queued, the others wait for it. A write that the disk refuses for want of room is taken off the file again and
stays queued. A sync that fails, or an interrupt in the middle of a batch, closes the WAL, and with it the store: nobody
knows what is durable then, and opening finds out.

A file that has become large is closed, and the next is begun; each names all logs at its head. What the closed files
hold has to be in segments before they are removed, oldest first.
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
"""The last second of which the nanoseconds are a 64-bit number, or nearly."""


class QueuedWrite(NamedTuple):
    """A write that waits for the next batch.

    Attributes:
        log_id: of which log.
        body: its bytes, checksummed already.
        previous: the index that the first entry follows; `None` if none does.
        cut_after: everything above is taken back first; `None` if nothing is.
        first: the first index.
        last: the last index; below `first` if there is no entry.
        term: of the entries, the last one's if they differ.
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
    """Entries of one log and term became durable. Entries taken back in the same batch are not among them.

    Attributes:
        log_id: of which log.
        term: their term.
        indexes: which.
    """

    log_id: str
    term: int
    indexes: IndexSet


class Wal:
    """See the module. Threads may share it.

    Args:
        folder: where the files are; nothing else may write there.
        guard: of the store, which is closed by what fails here.
        max_bytes: a file is closed, and the next begun, after the batch that exceeds this.
        files: the disk.
        clock: where time comes from.
        recovered: what the folder holds.
        lasts: the last index of each log.
        held: frames of logs that cannot be opened now, in order: each file repeats them, so that files may go.

    Attributes:
        guard: as given.
        smallest_live: by log, the index below which everything is dead; a log sets it with each snapshot.
        confirmed: what became durable, in order, for the store to take.
        queued_bytes: what waits for the next batch.
        number: of the file that is written to.
        closed_files: how many files there are besides the one that is written to.
        durable_ticket: everything up to this ticket is durable.
    """

    def __init__(self, folder: StrPath, guard: Guard, *, max_bytes: int, files: Files, clock: Clock,
                 recovered: RecoveredWal, lasts: Mapping[str, int], held: Sequence[LoggedFrame] = ()) -> None:
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
        tail = recovered.frames[len(recovered.frames) - recovered.unproven:]
        self._out: OutFile = self._begin_file(recovered.last_number + 1, recovered.last_end, tail)
        guard.keep(self)

    # -- files

    def _begin_file(self, number: int, previous_end: int, tail: Sequence[LoggedFrame] = ()) -> OutFile:
        """Create the next file durably: it names every log, and repeats what was not proven to be durable."""
        # A clock may stand anywhere; the time is for people who look at the file; together with the number it
        # identifies the file.
        created_ns = int(min(max(self._clock.now(), 0.0), _LAST_SECOND) * 1e9)
        header = FileHeader(number, previous_end, created_ns)
        with self._queueing:
            # A copy: other threads go on to write, to logs that are new as well.
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
        """The file that is written to."""
        return os.path.join(self._folder, wal_name(self.number))

    @property
    def size_bytes(self) -> int:
        """How much of that file is durable."""
        return self._end

    def remove_through(self, number: int) -> None:
        """Remove the closed files up to `number`: everything in them is durable in segments. One call at a time.

        One after the other, each durably: an older file that came back after a newer one had gone would undo it.

        Raises:
            StorageError: the disk refused; call again.
        """
        self.guard.require_open()
        assert number < self.number, "that file is written to"
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
            # Last: what comes before does no harm if an interrupt comes in between.
            self._queue += (write,)
            return self._taken + len(self._queue)

    def forget(self, log_id: str) -> None:
        """The log is no more; nothing of it is queued. Later files do not name it."""
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
        """Return when everything up to `ticket` (default: all that is queued) is durable.

        Raises:
            StorageError: the disk has no room, and the writes stay queued; or a sync failed, and the store is closed:
                nobody knows whether they are durable.
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
        """Close the file and begin the next, after all that was made durable. Called by itself at `max_bytes`.

        Raises:
            StorageError: the disk has no room; the file goes on to be written to, and it is tried again.
        """
        with self._committing:
            self._begin_writing()
            before, following = self._out, os.path.join(self._folder, wal_name(self.number + 1))
            try:
                self._out = self._begin_file(self.number + 1, self._end)
            except StorageError as error:
                if may_be_there(following):
                    # It may count after a crash or not: nothing may be added to this file any more, nor to that.
                    self.guard.fail(error)
                self._is_writing = False
                raise
            self._is_writing = False
            # All of it is durable; an error now would mean nothing.
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
        # What is held is no reason to begin another file, which would hold it too.
        if self._end - (self._begun if self._held else 0) > self._max_bytes:
            # What was asked for is durable; a full disk shows with the next batch, which tries this again.
            with contextlib.suppress(StorageError):
                self.roll_over()

    def _write_batch(self, writes: Sequence[QueuedWrite]) -> None:
        """Make `writes` durable. A `StorageError` of a store that is open means that nothing of them counts."""
        if not writes:
            return
        pieces, size, named = assemble(writes, offset=self._end, salt=self._salt, numbers=self._numbers)
        if self._must_cut:
            self._cut_refused()
        try:
            self._out.write_at(self._end, pieces)
        except StorageError:
            # Whole frames of it may be there. The next batch may be a shorter one, and they would count behind it.
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
        """Take what a refused batch has left off the end; durable with the next batch, before which nothing counts."""
        self._out.truncate(self._end)
        self._ahead = ZerosAhead(self._begun, self._end)
        self._must_cut = False

    def _without_dead(self, writes: Sequence[QueuedWrite]) -> list[QueuedWrite]:
        """What a snapshot has overtaken since it was queued need not be written; a cut is always."""
        smallest = self.smallest_live
        return [write for write in writes
                if write.cut_after is not None or write.last >= smallest.get(write.log_id, 0)]

    def _write_mark(self) -> None:
        # It says that everything before is durable; so does the next batch, which is written over it.
        with contextlib.suppress(StorageError):
            self._out.write_at(self._end, encode_frame(empty_body(FrameKind.MARK), log=0, previous=None, cuts=False,
                                                       first=0, term=0, synced_end=self._end, salt=self._salt))

    def close(self) -> None:
        """Give the file up without another write; closing again does nothing. The store's guard calls it."""
        self._out.close()

    def __repr__(self) -> str:
        return f"<Wal {self.path!r}: {self._end:,} bytes durable, {len(self._queue)} writes queued>"


# -- what is written


def encode_beginning(header: FileHeader, lasts: Mapping[str, int],
                     tail: Sequence[LoggedFrame] = ()) -> tuple[list[bytes], dict[str, int]]:
    """Return the bytes that a new file is made with, and the numbers it gives to logs.

    Header, every log by name, and what was not proven durable in the file before.

    Args:
        header: the file's.
        lasts: the last index of every log, -1 if it has none.
        tail: frames of the file before, to be written again.
    """
    salt = salt_of(header)
    pieces = [encode_file_header(header)]
    numbers: dict[str, int] = {}
    for log_id, last in lasts.items():
        numbers[log_id] = len(numbers)
        # No number comes behind the highest index: such a log's last index is said itself.
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
    """Return the bytes of a batch back to back, how many they are, and the numbers of logs that it names. O(writes).

    Args:
        writes: in the order they were queued.
        offset: where the batch begins; up to there the file is durable.
        salt: of the file.
        numbers: of the logs that the file names already; others are new, and named first.
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
    """Return one index set for each log and term of a batch, in the order of first use, without what it takes back.

    O(writes and sparse entries).
    """
    # By log: first index, last index and term of what stands, ascending.
    standing: dict[str, list[tuple[int, int, int]]] = {}
    found: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for write in writes:
        runs = standing.setdefault(write.log_id, [])
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
    for log_id, runs in standing.items():
        for first, last, term in runs:
            found[log_id, term].append((first, last))
    return [Confirmed(log_id, term, IndexSet.from_runs(stand)) for (log_id, term), stand in found.items() if stand]
