# SPDX-License-Identifier: Apache-2.0
"""`Wal`: the one file that all logs of a store append to, with one fsync for what many threads have queued."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.errors import AuditFailed, Closed, InvalidInput, StorageError
from compactlib.files.disk import Files, LocalFiles, OutFile, StrPath, look_at, may_be_there, write_durably
from compactlib.files.zeros_ahead import ZerosAhead
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.arguments import whole
from compactlib.raftlog.errors import LogStopped
from compactlib.raftlog.model.row import LogRows
from compactlib.raftlog.model.values import MAX_INDEX
from compactlib.raftlog.wal.batch import (
    Confirmed,
    QueuedWrite,
    WrittenIndexes,
    assemble,
    confirmations,
    mark,
)
from compactlib.raftlog.wal.frames import (
    FILE_HEADER_BYTES,
    FileHeader,
    FrameKind,
    empty_body,
    encode_file_header,
    encode_frame,
    log_body,
    run_body,
    salt_of,
    sparse_body,
)
from compactlib.raftlog.wal.names import WAL_TEMPORARY_SUFFIX, wal_name
from compactlib.raftlog.wal.recovery import LoggedFrame, RecoveredWal
from compactlib.raftlog.wal.rules import Verdict, Write, WriterState, judge
from compactlib.runtime.later import LaterCalls
from compactlib.runtime.owned_lock import OwnedLock

__all__ = ["ClosedFile", "Confirmed", "Wal", "WalOptions"]

_LAST_SECOND = 1.8e10
"""The last second of which the nanoseconds are a 64-bit number, or nearly."""


@attrs.frozen(kw_only=True)
class WalOptions:
    """How a WAL is kept.

    Attributes:
        max_bytes: a file is closed, and the next begun, after the batch that exceeds this.
        files: the disk.
        clock: where time comes from.
    """

    max_bytes: int = 64 << 20
    files: Files = attrs.field(factory=LocalFiles)
    clock: Clock = attrs.field(factory=SystemClock)

    def __attrs_post_init__(self) -> None:
        if whole("max_bytes", self.max_bytes) < 1:
            raise InvalidInput(f"max_bytes is {self.max_bytes}; a WAL file holds at least 1 byte")


@attrs.frozen
class ClosedFile:
    """A WAL file that takes no more writes.

    Attributes:
        number: the file's number.
        indexes: for each log, what stands of its entries in this file.
    """

    number: int
    indexes: Mapping[str, IndexSet]


class Wal:
    """The write-ahead log of many logs. Threads may share it: the first to sync writes what all have queued.

    Writes are judged at once (`judge`), queued, and made durable by `sync`. A write that the disk refuses for want of
    room stays queued and can be tried again; after a sync that failed the WAL is stopped for good.

    Args:
        folder: where the files are; nothing else may write there.
        rows: the rows of the logs.
        options: how it is kept.
        recovered: from `recover_wal`, if the folder holds files.
        lasts: the last index of each log, as far as it is known.
        held: frames of logs that cannot be opened now, in order: each file repeats them, so that files may go.
        confirmed: called after each batch, in order, with no lock held; may be called by another thread that syncs.
        rolled: called when a file was closed, while no other thread can write: quick, and without calling back.
        settled: called after `rolled`, as `confirmed` is.
        outbox: through which `confirmed` and `settled` are called; one of its own by default.
    """

    def __init__(self, folder: StrPath, rows: LogRows, options: WalOptions | None = None, *,
                 recovered: RecoveredWal | None = None, lasts: Mapping[str, int] | None = None,
                 held: Sequence[LoggedFrame] = (),
                 confirmed: Callable[[Sequence[Confirmed]], object] = lambda confirmed: None,
                 rolled: Callable[[ClosedFile], object] = lambda closed: None,
                 settled: Callable[[ClosedFile], object] = lambda closed: None,
                 outbox: LaterCalls | None = None) -> None:
        self._folder = os.fspath(folder)
        self._rows = rows
        self._options = WalOptions() if options is None else options
        self._files = self._options.files
        self._confirmed = confirmed
        self._rolled = rolled
        self._settled = settled
        self._outbox: LaterCalls = LaterCalls() if outbox is None else outbox
        self._committing = OwnedLock(f"the WAL in {self._folder}")
        self._queueing = OwnedLock(f"the WAL in {self._folder}")
        self._queue: list[QueuedWrite] = []
        self._queued_bytes = 0
        self._ticket = 0
        self._durable_ticket = 0
        self._stopped: LogStopped | None = None
        self._closed = False
        found = recovered or RecoveredWal()
        # Only up to here is it known what has to be in segments before files may be removed.
        self._handed_over: int = found.last_number
        self._oldest: int = found.numbers[0] if found.numbers else found.last_number + 1
        known = {**found.lasts, **(lasts or {})}
        self._writers: dict[str, WriterState] = {log_id: WriterState(last) for log_id, last in known.items()}
        self._in_file = WrittenIndexes()
        self._held: tuple[LoggedFrame, ...] = tuple(held)
        tail = found.frames[len(found.frames) - found.unproven:]
        self._out: OutFile = self._begin_file(found.last_number + 1, found.last_end, tail)

    # -- files

    def _begin_file(self, number: int, previous_end: int, tail: Sequence[LoggedFrame] = ()) -> OutFile:
        """Create the next file durably: it names every log, and repeats what was not proven to be durable."""
        # A clock may stand anywhere; the time is for people who look at the file; together with the number it
        # identifies the file.
        created_ns = int(min(max(self._options.clock.now(), 0.0), _LAST_SECOND) * 1e9)
        header = FileHeader(number, previous_end, created_ns)
        salt = salt_of(header)
        with self._queueing:
            # A copy: other threads go on to write, to logs that are new as well.
            writers = dict(self._writers)
        lasts = {log_id: state.last for log_id, state in writers.items()}
        pieces, numbers = encode_beginning(header, lasts, [*self._held, *tail])
        path = os.path.join(self._folder, wal_name(number))
        write_durably(self._files, path, pieces, temporary_suffix=WAL_TEMPORARY_SUFFIX)
        out = self._files.open(path)
        self._number, self._salt, self._numbers = number, salt, numbers
        self._end = self._begun = sum(map(len, pieces))
        self._ahead = ZerosAhead(self._begun, self._end)
        self._must_cut = False
        return out

    @property
    def number(self) -> int:
        """The number of the file that is written to."""
        return self._number

    @property
    def path(self) -> str:
        """That file."""
        return os.path.join(self._folder, wal_name(self._number))

    @property
    def file_numbers(self) -> range:
        """The files there are, the one that is written to included."""
        return range(self._oldest, self._number + 1)

    @property
    def size_bytes(self) -> int:
        """How much of the file that is written to is durable."""
        return self._end

    @property
    def handed_over(self) -> int:
        """The newest file that `rolled` has been told of, or that was found: what older ones hold is known by then."""
        return self._handed_over

    def remove_through(self, number: int) -> None:
        """Remove the closed files up to `number`: everything in them is durable elsewhere.

        One after the other, each durably: an older file that came back after a newer one had gone would undo it.

        Raises:
            StorageError: the disk refused; call again.
            InvalidInput: that file is being written to, or `handed_over` is below it.
        """
        self._committing.require_mine()
        if number > self._handed_over:
            raise InvalidInput(f"WAL file {number} is in use; only files up to {self._handed_over} can go")
        while self._oldest <= number:
            path = os.path.join(self._folder, wal_name(self._oldest))
            if look_at(path) is not None:
                self._files.unlink(path)
            self._files.sync_folder(self._folder)
            self._oldest += 1

    # -- queueing

    def write_run(self, log_id: str, previous: int | None, first: int, term: int,
                  payloads: Sequence[bytes]) -> Verdict:
        """Queue entries of consecutive indexes and one term. A few calls, however many entries.

        Args:
            log_id: of which log.
            previous: the index that the first entry follows, `None` for whatever there is.
            first: the first index.
            term: of all entries.
            payloads: of the entries, at least one.

        Raises:
            InvalidInput: a payload is too large.
            LogStopped: a sync has failed before.
            Closed: the WAL was closed.
        """
        with self._queueing:
            self._require_running()
            verdict = judge(self._writers.get(log_id), self._rows.get(log_id), previous, first,
                            first + len(payloads) - 1)
            if isinstance(verdict, Write):
                dead = verdict.first - first
                body = run_body(payloads[dead:] if dead else payloads)
                self._enqueue(QueuedWrite(log_id, body, previous, verdict.cut_after, verdict.first,
                                          verdict.state.last, term), verdict.state)
            else:
                self._writers[log_id] = verdict.state
        return verdict

    def write_sparse(self, log_id: str, previous: int | None, indexes: Sequence[int], terms: Sequence[int],
                     payloads: Sequence[bytes]) -> Verdict:
        """Queue entries of ascending indexes, each following the one before. Arguments and errors as `write_run`."""
        with self._queueing:
            self._require_running()
            row = self._rows.get(log_id)
            verdict = judge(self._writers.get(log_id), row, previous, indexes[0], indexes[-1])
            if isinstance(verdict, Write):
                dead = sum(index < verdict.first for index in indexes)
                indexes, terms = indexes[dead:], terms[dead:]
                body = sparse_body(indexes, terms, payloads[dead:])
                self._enqueue(QueuedWrite(log_id, body, previous, verdict.cut_after, indexes[0], indexes[-1],
                                          terms[-1], indexes, terms), verdict.state)
            else:
                self._writers[log_id] = verdict.state
        return verdict

    def cut(self, log_id: str, after: int) -> None:
        """Queue that everything above `after` is taken back, -1 for everything there is. Raises as `write_run`."""
        with self._queueing:
            self._require_running()
            self._enqueue(QueuedWrite(log_id, empty_body(FrameKind.CUT), None, after, after + 1, after, 0),
                          WriterState(after))

    def forget(self, log_id: str) -> None:
        """The log is no more; nothing of it is queued. Later files do not name it."""
        with self._committing, self._queueing:
            self._writers.pop(log_id, None)
            self._held = tuple(logged for logged in self._held if logged.log_id != log_id)

    def _enqueue(self, write: QueuedWrite, state: WriterState) -> None:
        size = write.body.frame_bytes
        # Without a call in between, so that an interrupt comes before or after all four.
        self._writers[write.log_id] = state
        self._queued_bytes += size
        self._ticket += 1
        self._queue += (write,)

    @property
    def ticket(self) -> int:
        """Grows with each write: what `sync` takes to mean everything queued so far."""
        return self._ticket

    @property
    def durable_ticket(self) -> int:
        """Everything up to this ticket is durable."""
        return self._durable_ticket

    @property
    def queued_bytes(self) -> int:
        """What waits for the next batch."""
        return self._queued_bytes

    def last_index(self, log_id: str) -> int | None:
        """The last index written for a log, `None` if it is not known."""
        state = self._writers.get(log_id)
        return None if state is None else state.last

    # -- committing

    def sync(self, ticket: int | None = None) -> None:
        """Return when everything up to `ticket` (default: all that is queued) is durable.

        Of several threads one writes and syncs what all have queued; the others wait for it.

        Raises:
            StorageError: the disk has no room; the writes stay queued, call again.
            LogStopped: a sync failed, now or before.
            Closed: the WAL was closed.
        """
        wanted = self._ticket if ticket is None else ticket
        while self._durable_ticket < wanted:
            with self._outbox, self._outbox.held(), self._committing:
                if self._durable_ticket < wanted:
                    self._require_running()
                    self._commit()

    def _commit(self) -> None:
        writes: list[QueuedWrite] = []
        size = 0
        try:
            # Within the `try` from here on: what an interrupt leaves behind in neither queue nor file must not be taken
            # for written by the next thread that finds the queue empty.
            with self._queueing:
                writes, self._queue = self._queue, []
                size, self._queued_bytes = self._queued_bytes, 0
                ticket = self._ticket
            kept = self._without_dead(writes)
            self._write_batch(kept)
        except StorageError:
            with self._queueing:
                self._queue[:0] = writes
                self._queued_bytes += size
            raise
        except BaseException as error:
            # Interrupted, by Ctrl-C for example: what is in the file now is not known any more.
            if self._stopped is None:
                self._stop(error)
            raise
        self._durable_ticket = ticket
        if kept and not self._queue:
            self._write_mark()
        self._outbox.put(self._confirmed, confirmations(kept))
        # What is held is no reason to begin another file, which would hold it too.
        if self._end - (self._begun if self._held else 0) > self._options.max_bytes:
            # What was asked for is durable; a full disk shows with the next batch, which tries this again.
            with contextlib.suppress(StorageError):
                self.roll_over()

    def _write_batch(self, writes: Sequence[QueuedWrite]) -> None:
        """Make `writes` durable. A `StorageError` means that nothing of them counts."""
        if not writes:
            return
        batch = assemble(writes, offset=self._end, salt=self._salt, numbers=self._numbers)
        if self._must_cut:
            self._cut_refused()
        try:
            self._out.write_at(self._end, batch.pieces)
        except StorageError:
            # Whole frames of it may be there. The next batch may be a shorter one, and they would count behind it.
            self._must_cut = True
            with contextlib.suppress(StorageError):
                self._cut_refused()
            raise
        self._ahead.follow(self._out, self._end + batch.size)
        try:
            self._out.sync()
        except StorageError as error:
            self._stop(error)
            raise self._stopped_now() from error
        self._end += batch.size
        self._numbers.update(batch.named)
        for write in writes:
            self._in_file.add(write)

    def _cut_refused(self) -> None:
        """Take what a refused batch has left off the end; durable with the next batch, before which nothing counts."""
        self._out.truncate(self._end)
        self._ahead = ZerosAhead(self._begun, self._end)
        self._must_cut = False

    def _without_dead(self, writes: Sequence[QueuedWrite]) -> list[QueuedWrite]:
        """What a snapshot has overtaken since it was queued need not be written; a cut is always."""
        get = self._rows.get
        return [write for write in writes
                if write.cut_after is not None or write.last >= get(write.log_id).smallest_live_index]

    def _write_mark(self) -> None:
        try:
            self._out.write_at(self._end, mark(self._end, self._salt))
        except StorageError:
            # It only informs a reader; the next batch says the same.
            return

    def roll_over(self) -> None:
        """Close the file and begin the next, after all that was made durable. Called by itself at `max_bytes`.

        Raises:
            StorageError: the disk has no room; the file goes on to be written to, and it is tried again.
            LogStopped: the disk left it open whether there is a next file.
        """
        with self._outbox, self._outbox.held(), self._committing:
            self._require_running()
            closed = ClosedFile(self._number, self._in_file.by_log())
            before = self._out
            following = os.path.join(self._folder, wal_name(self._number + 1))
            try:
                self._out = self._begin_file(self._number + 1, self._end)
            except StorageError as error:
                if may_be_there(following):
                    # It may count after a crash or not: nothing may be added to this file any more, nor to that.
                    self._stop(error)
                    raise self._stopped_now() from error
                raise
            self._in_file = WrittenIndexes()
            self._rolled(closed)
            self._handed_over = closed.number
            self._outbox.put(self._settled, closed)
            # All of it is durable; an error now would mean nothing.
            with contextlib.suppress(StorageError):
                before.close()

    def _stop(self, error: BaseException) -> None:
        self._stopped = LogStopped(path=self.path, reason=str(error) or type(error).__name__)

    def _stopped_now(self) -> LogStopped:
        assert self._stopped is not None, "it was just stopped"
        return LogStopped(path=self._stopped.path, reason=self._stopped.reason)

    @property
    def stopped(self) -> LogStopped | None:
        """Why the WAL was stopped, `None` if it runs."""
        return self._stopped

    def _require_running(self) -> None:
        if self._stopped is not None:
            raise self._stopped_now()
        if self._closed:
            raise Closed(f"the WAL in {self._folder} is closed; open the store again")

    def audit(self) -> None:
        """Check the WAL's own invariants.

        Raises:
            AuditFailed: one is broken; says which, with the numbers.
        """
        with self._committing, self._queueing:
            if self._durable_ticket > self._ticket or self._ticket - self._durable_ticket < len(self._queue):
                raise AuditFailed(f"{len(self._queue)} writes are queued between tickets {self._durable_ticket} "
                                      f"and {self._ticket}")
            queued = sum(write.body.frame_bytes for write in self._queue)
            if queued != self._queued_bytes:
                raise AuditFailed(f"{queued} bytes are queued, {self._queued_bytes} were counted")
            unnamed = self._in_file.by_log().keys() - self._numbers.keys()
            if unnamed or sorted(self._numbers.values()) != list(range(len(self._numbers))):
                raise AuditFailed(f"the file does not name {sorted(unnamed)}; it names {self._numbers}")

    def close(self) -> None:
        """Make durable what can be made so, and give the file up; closing again does nothing.

        Raises:
            StorageError: the disk refused; the file is closed all the same.
        """
        with self._outbox, self._outbox.held(), self._committing:
            if self._closed:
                return
            try:
                if self._stopped is None:
                    self.sync()
            finally:
                self._closed = True
                self._out.close()

    def abandon(self) -> None:
        """In a fork of the owner: give the file up without another write."""
        self._closed = True
        self._out.close()

    def __repr__(self) -> str:
        return f"<Wal {self.path!r}: {self._end:,} bytes durable, {len(self._queue)} writes queued>"


def encode_beginning(header: FileHeader, lasts: Mapping[str, int],
                     tail: Sequence[LoggedFrame] = ()) -> tuple[list[bytes], dict[str, int]]:
    """The bytes that a new file is made with, and the numbers it gives to logs.

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
        pieces += _again(logged, numbers[logged.log_id], salt)
    return pieces, numbers


def _again(logged: LoggedFrame, number: int, salt: int) -> list[bytes]:
    frame = logged.frame
    match frame.kind:
        case FrameKind.RUN:
            body = run_body(frame.payloads)
        case FrameKind.SPARSE:
            body = sparse_body(frame.indexes, frame.terms, frame.payloads)
        case _:
            body = empty_body(frame.kind)
    return encode_frame(body, log=number, previous=frame.previous, cuts=frame.cuts, first=frame.first,
                        term=frame.term, synced_end=FILE_HEADER_BYTES, salt=salt)
