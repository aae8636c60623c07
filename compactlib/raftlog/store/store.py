# SPDX-License-Identifier: Apache-2.0
"""`RaftLogStore`: many Raft logs in one folder and one process, with one write-ahead log for all of them.

```
<folder>/LOCK           locked by the process that writes
<folder>/wal/           the WAL files of all logs (`docs/formats/raftlog-wal.md`)
<folder>/logs/<id>/     the segments and the row of each log (`docs/formats/raftlog-segment.md`)
```

Entries go to the WAL and to memory first. When a WAL file has become large it is closed; what the logs hold in memory
of it is written to their segments, and only then the file is removed.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Sequence

import attrs

from compactlib._closing import Closing
from compactlib.errors import (
    AuditFailed,
    Busy,
    Closed,
    CompactlibError,
    CorruptData,
    InvalidInput,
    NotFound,
    StorageError,
    Unsupported,
)
from compactlib.files.disk import Files, StrPath, local_path, make_missing_folder, sync_names
from compactlib.files.folder_lock import FolderLock
from compactlib.raftlog.errors import LiveIndexMissing, NotALog
from compactlib.raftlog.log.folder import Examination
from compactlib.raftlog.log.unflushed import examine_wal
from compactlib.raftlog.memtable.replay import replay
from compactlib.raftlog.memtable.table import DEFAULT_MAX_ENTRIES, Memtable
from compactlib.raftlog.model.names import LOGS_FOLDER, SNAPSHOT_NAME, WAL_FOLDER
from compactlib.raftlog.model.row import LogRows
from compactlib.raftlog.model.snapshot_meta import NO_SNAPSHOT, SnapshotMeta
from compactlib.raftlog.model.status import RaftLogStoreStatus, told
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.store.log_folders import FoundFolders, find_folders, what_is_there
from compactlib.raftlog.store.log_segments import LogSegments
from compactlib.raftlog.store.protocols import SnapshotStore
from compactlib.raftlog.store.raft_log import RaftLog
from compactlib.raftlog.store.removal import begin_removal, finish_removals
from compactlib.raftlog.wal.batch import Confirmed
from compactlib.raftlog.wal.recovery import RecoveredWal, recover_wal, without_repeats
from compactlib.raftlog.wal.wal import ClosedFile, Wal, WalOptions
from compactlib.report import Finding, VerifyReport
from compactlib.runtime.budget import Budget
from compactlib.runtime.later import LaterCalls
from compactlib.runtime.observe import Observer, telling
from compactlib.runtime.owned_lock import OwnedLock
from compactlib.runtime.services.turns import Turns

SYNC_FAILED = "raftlog_sync_failed"
"""The disk refused a sync in the background; tried again: `error`, `message`, `failures`, `retry_in_seconds`."""
FLUSH_FAILED = "raftlog_flush_failed"
"""Entries could not be written to segments, which is tried again: the same fields."""

ROW_REBUILT = "raftlog_row_rebuilt"
"""A log's row was damaged, and was written anew from its newest snapshot: `log_id`, `snapshot_index`, `error`."""

_LOG_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@attrs.frozen(kw_only=True)
class StoreOptions:
    """How a store is kept.

    Attributes:
        log: how the segments of each log are kept; its files, clock and observer serve the whole store.
        max_wal_bytes: a WAL file is closed after the batch that exceeds this.
        max_unflushed_files: so many closed WAL files may wait for their entries to be in segments; then the caller that
            appends has to wait too.
        max_queued_bytes: what may wait for a sync before `append` syncs by itself.
        max_memtable_entries: so many entries of one log may wait for segments.
        background: flush in a thread of the store's own; else the thread that fills a WAL file does it.
        sync_by_itself: a thread of the store's own syncs whatever is appended, as fast as the disk can, and the host
            is notified through `on_confirmed` (`RaftLog.attach`); else entries wait for the next `sync`.
        keep_trailing: so many of the last entries that a snapshot covers, that of its own index included, stay in the
            log, with their terms, as if they were live: a follower that is no further behind is sent entries
            (`RaftLog.entries_after`) instead of the snapshot. Fewer stay where fewer are there: behind a snapshot from
            elsewhere, say. None by default, so that a snapshot frees what it says: how far followers lag is the
            host's to know. A few seconds of what is written is a good value.
        snapshots_of: gives the snapshot store of a log, by its id. It is asked when the store is opened, for a log
            whose row is damaged: its newest snapshot says the same, and the row is written anew from there. Without
            one, or without a snapshot, such a log is not opened.
    """

    log: LogOptions = attrs.field(factory=LogOptions)
    max_wal_bytes: int = 64 << 20
    max_unflushed_files: int = 4
    max_queued_bytes: int = 16 << 20
    max_memtable_entries: int = DEFAULT_MAX_ENTRIES
    background: bool = True
    sync_by_itself: bool = False
    keep_trailing: int = 0
    snapshots_of: Callable[[str], SnapshotStore] | None = None

    def __attrs_post_init__(self) -> None:
        for name, least in (("max_wal_bytes", 1), ("max_unflushed_files", 0), ("max_queued_bytes", 0),
                            ("max_memtable_entries", 1), ("keep_trailing", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or value < least:
                raise InvalidInput(f"{name} is {value!r}; give a whole number of at least {least}")


@attrs.frozen
class _LostRow:
    """A row that is damaged, and the snapshot that says the same."""

    error: CorruptData
    snapshots: SnapshotStore
    meta: SnapshotMeta


class RaftLogStore(Closing):
    """Many logs, one WAL. Threads may share it; a context manager.

    Args:
        folder: the store's folder; made if it is not there.
        options: how it is kept.
        create: whether it may be made. If not, a folder without a store in it is `NotALog`, and stays as it is.

    Raises:
        NotALog: there is no store in the folder, and `create` is not set.
        Busy: another process, or another object in this one, has it open.
        InvalidInput: one of its folders is a symbolic link, which is never followed.
        CorruptData: a WAL file is damaged in what was durable. A single log that cannot be opened, because a segment's
            index or its row is damaged or its folder is not there, keeps nothing else back: `log` says what is wrong
            with it, `status` lists it, and what the WAL has of it stays until it can be opened, or is removed. (A row
            can be rebuilt: see `StoreOptions.snapshots_of`.)
        Unsupported: a WAL file was written by a later release.
        StorageError: the disk refused.
    """

    def __init__(self, folder: StrPath, options: StoreOptions | None = None, *, create: bool = True) -> None:
        self._folder = local_path(folder)
        self._options = StoreOptions() if options is None else options
        self._files: Files = self._options.log.files
        self._observer: Observer = telling(self._options.log.observer)
        self._outbox = LaterCalls()
        self._rows = LogRows()
        self._logs: dict[str, RaftLog] = {}
        self._damaged: dict[str, CorruptData | Unsupported | NotALog] = {}
        self._without_row: dict[str, _LostRow] = {}
        self._memtables: dict[str, Memtable] = {}
        self._changing = OwnedLock(f"the store in {self._folder}")
        self._flushing = OwnedLock(f"the store in {self._folder}")
        self._flush_error: CompactlibError | None = None
        self._closed = False
        self._committer = self._turns(self._commit_turn, "raftlog-wal", SYNC_FAILED)
        self._flusher = self._turns(self._flush_closed, "raftlog-flush", FLUSH_FAILED)
        with contextlib.ExitStack() as stack:
            if not create:
                self._require_there()
            self._make_folders()
            self._lock: FolderLock = stack.enter_context(FolderLock(self._folder))
            self._sync_found()
            logs = os.path.join(self._folder, LOGS_FOLDER)
            self._finish_removals()
            self._found: FoundFolders = find_folders(logs, _is_log_id)
            self._recover(self._open_segments(stack), stack)
            for log_id, error in self._damaged.items():
                self._observer.event("raftlog_log_damaged", {"log_id": log_id, "error": str(error)})
            if self._found.strangers:
                self._observer.event("raftlog_strangers_found", {"folder": logs, "names": self._found.strangers})
            if len(self._wal.file_numbers) - 1 > self._options.max_unflushed_files:
                # Each opening begins a file, and may have been too short for a flush in the background.
                self._flusher.attempt()
            # From here on each log closes its own segments: those that are removed are not kept until the end.
            stack.pop_all()
        try:
            if self._options.sync_by_itself:
                self._committer.start()
            if self._options.background:
                self._flusher.start()
        except BaseException:
            # A thread that runs already would keep the store, and its lock, for ever.
            self.close()
            raise

    def _turns(self, turn: Callable[[], float | None], name: str, event: str) -> Turns:
        return Turns(turn, name=name, event=event, clock=self._options.log.clock, observer=self._observer)

    def _require_there(self) -> None:
        missing = next((path for path in (self._folder, *(os.path.join(self._folder, name)
                                                          for name in (WAL_FOLDER, LOGS_FOLDER)))
                        if not os.path.isdir(path)), None)
        if missing is not None:
            raise NotALog(f"{self._folder} is no store of logs: there is no folder {missing}; check the path, or open "
                          f"it with create=True to begin a store there", path=self._folder)

    def _make_folders(self) -> None:
        for path in (self._folder, *(os.path.join(self._folder, name) for name in (WAL_FOLDER, LOGS_FOLDER))):
            if os.path.islink(path) and path != self._folder:
                raise InvalidInput(f"{path} is a symbolic link, which a store does not follow; move what it leads to "
                                   f"to its place, or make the store's own folder the link")
            if make_missing_folder(self._files, path):
                # If another process made it a moment ago, the lock says whose store it is.
                self._files.sync_folder(os.path.dirname(path))

    def _sync_found(self) -> None:
        """Nothing may be acknowledged on top of names that an earlier process was killed before it had synced."""
        sync_names(self._files, self._folder)
        for name in (WAL_FOLDER, LOGS_FOLDER):
            self._files.sync_folder(os.path.join(self._folder, name))

    def _open_segments(self, stack: contextlib.ExitStack) -> dict[str, LogSegments]:
        """The segments of each log; one that is damaged keeps no other from being opened."""
        found: dict[str, LogSegments] = {}
        for log_id in self._found.logs:
            memtable = self._memtables[log_id] = self._new_memtable()
            try:
                try:
                    made = LogSegments(self._log_folder(log_id), memtable, self._options.log)
                except CorruptData as error:
                    self._without_row[log_id] = self._lost_row(log_id, error)
                    made = LogSegments(self._log_folder(log_id), memtable, self._options.log, row_is_lost=True)
                found[log_id] = stack.enter_context(made)
            except (CorruptData, Unsupported, NotALog) as error:
                self._without_row.pop(log_id, None)
                # Without the frames, which would keep its files open for as long as the store is.
                self._damaged[log_id] = error.with_traceback(None)
        return found

    def _lost_row(self, log_id: str, error: CorruptData) -> _LostRow:
        """What can take the place of a row that is damaged; raises the error that was given if nothing can."""
        snapshots_of = self._options.snapshots_of
        if snapshots_of is None or error.path != os.path.join(self._log_folder(log_id), SNAPSHOT_NAME):
            raise error
        snapshots = snapshots_of(log_id)
        meta = snapshots.latest()
        if meta is None:
            raise error
        return _LostRow(error, snapshots, meta)

    def _refuse_unfounded(self, segments: dict[str, LogSegments], memtables: dict[str, Memtable]) -> None:
        """A log of which neither segments nor the WAL hold what its snapshot needs stays damaged."""
        for log_id, lost in list(self._without_row.items()):
            try:
                segments[log_id].log.require_held(lost.meta)
            except LiveIndexMissing:
                self._damaged[log_id] = lost.error
                segments.pop(log_id).close()
                del memtables[log_id], self._without_row[log_id]

    def _finish_removals(self) -> None:
        try:
            finish_removals(self._files, os.path.join(self._folder, LOGS_FOLDER))
        except StorageError as error:
            # What is left only takes room; the next opening, or the next removal, tries again.
            self._observer.event("raftlog_removal_failed", {"error": type(error).__name__, "message": str(error)})

    def _log_folder(self, log_id: str) -> str:
        return os.path.join(self._folder, LOGS_FOLDER, log_id)

    def _recover(self, segments: dict[str, LogSegments], stack: contextlib.ExitStack) -> None:
        # The rows before the WAL is replayed: what they say is dead is left out.
        memtables = {log_id: self._memtables[log_id] for log_id in segments}
        for log_id, each in segments.items():
            self._rows.put(log_id, each.log.snapshot or NO_SNAPSHOT)
            memtables[log_id].skip_to(each.last)
        wal_folder = os.path.join(self._folder, WAL_FOLDER)
        found = recover_wal(self._files, wal_folder)
        for logged in found.frames:
            if logged.log_id not in memtables:
                path = self._log_folder(logged.log_id)
                self._damaged.setdefault(logged.log_id, CorruptData(
                    path=path, offset=0, found=what_is_there(path),
                    expected=f"the segments of log {logged.log_id!r}, which the WAL names"))
                continue
            replay(logged.frame, memtables[logged.log_id], self._rows.get(logged.log_id),
                   segments[logged.log_id].matching)
        self._refuse_unfounded(segments, memtables)
        for log_id, memtable in memtables.items():
            segments[log_id].roll_forward(memtable.tables, self._rows.get(log_id).index)
            memtable.freeze(found.last_number)
            memtable.skip_to(self._rows.get(log_id).index)
        self._wal = self._open_wal(wal_folder, found, memtables)
        stack.callback(self._wal.close)
        for log_id, each in segments.items():
            self._logs[log_id] = self._make_log(log_id, each, memtables[log_id])
        for log_id, lost in self._without_row.items():
            self._logs[log_id].attach(lost.snapshots)
            self._observer.event(ROW_REBUILT, {"log_id": log_id, "snapshot_index": lost.meta.index,
                                               "error": str(lost.error)})
        if found.torn_bytes:
            self._observer.event("raftlog_wal_torn", {"file": found.last_number, "bytes": found.torn_bytes})

    def _open_wal(self, folder: str, found: RecoveredWal, memtables: dict[str, Memtable]) -> Wal:
        options = WalOptions(max_bytes=self._options.max_wal_bytes, files=self._files, clock=self._options.log.clock)
        # What the WAL has of a log that cannot be opened stays, until it can be or is removed.
        held = without_repeats(logged for logged in found.frames if logged.log_id in self._damaged)
        lasts = {log_id: memtable.last for log_id, memtable in memtables.items()}
        lasts.update({log_id: found.lasts.get(log_id, -1) for log_id in {logged.log_id for logged in held}})
        unproven = found.frames[len(found.frames) - found.unproven:]
        tail = tuple(logged for logged in unproven if logged.log_id not in self._damaged)
        # Of logs that were removed it need not know; of the others the memtable knows best.
        found = attrs.evolve(found, lasts={}, frames=tail, unproven=len(tail))
        return Wal(folder, self._rows, options, recovered=found, confirmed=self._on_confirmed, rolled=self._on_rolled,
                   settled=self._on_settled, outbox=self._outbox, lasts=lasts, held=held)

    def _new_memtable(self) -> Memtable:
        return Memtable(max_entries=self._options.max_memtable_entries)

    def _make_log(self, log_id: str, segments: LogSegments, memtable: Memtable) -> RaftLog:
        return RaftLog(log_id, segments, self._wal, self._rows, memtable, make_room=self.flush,
                       catch_up=self._catch_up, queued=self._wake_committer, owner=self._lock.require_mine,
                       outbox=self._outbox, max_queued_bytes=self._options.max_queued_bytes,
                       keep_trailing=self._options.keep_trailing)

    def _wake_committer(self) -> None:
        if self._options.sync_by_itself:
            self._committer.wake()

    # -- logs

    @property
    def folder(self) -> str:
        """The store's folder, as an absolute path."""
        return self._folder

    @property
    def log_ids(self) -> tuple[str, ...]:
        """The logs there are, sorted; without those that are damaged, see `status`."""
        return tuple(sorted(self._logs))

    def log(self, log_id: str, *, create: bool = True) -> RaftLog:
        """The log of that id; the same object until that is closed. One that has closed itself is opened again.

        Args:
            log_id: 1 to 100 letters, digits, `_`, `-` and `.`, the first of them a letter, a digit or `_`.
            create: make it if it is not there.

        Raises:
            NotFound: it is not there and may not be made.
            CorruptData, Unsupported, NotALog: it could not be opened with the store, see there.
            InvalidInput: no such id can be.
            StorageError: the disk refused.
            Closed: the store was closed.
        """
        with self._changing:
            self._require_open()
            found = self._logs.get(log_id)
            if found is not None:
                if found.has_failed:
                    self._lock.require_mine()
                    found = self._opened_again(log_id, found)
                elif found.is_closed:
                    # What it had queued may still wait for the disk.
                    found = self._logs[log_id] = found.reopened()
                return found
            if log_id in self._damaged:
                raise self._damaged[log_id].with_traceback(None)
            if not create:
                raise NotFound(f"there is no log {log_id!r} in {self._folder}; it holds {', '.join(self.log_ids)}")
            if not _is_log_id(log_id):
                raise InvalidInput(f"log id {log_id!r}; an id is 1 to 100 letters, digits, '_', '-' and '.', and does "
                                   f"not begin with '-' or '.'")
            self._lock.require_mine()
            return self._begin_log(log_id)

    def _opened_again(self, log_id: str, failed: RaftLog) -> RaftLog:
        """A log whose segments have closed themselves, opened again; the others go on. Memory has all of it still."""
        with contextlib.suppress(CompactlibError):
            failed.close()
        # A cut may be queued, and is durable before files are cut.
        self._wal.sync()
        with self._flushing:
            segments = LogSegments(self._log_folder(log_id), self._memtables[log_id], self._options.log)
            try:
                self._rows.put(log_id, segments.log.snapshot or NO_SNAPSHOT)
                again = failed.reopened(segments)
                again.roll_forward()
            except BaseException:
                segments.close()
                raise
            self._logs[log_id] = again
            return again

    def _begin_log(self, log_id: str) -> RaftLog:
        """Make a log, or take one up whose removal the disk refused. Durable before the WAL names it."""
        path = self._log_folder(log_id)
        if os.path.islink(path):
            raise InvalidInput(f"{path} is a symbolic link, which a store does not follow; remove it, or choose "
                               f"another id")
        memtable = self._memtables[log_id] = self._new_memtable()
        segments = LogSegments(path, memtable, self._options.log)
        try:
            row = segments.log.snapshot or NO_SNAPSHOT
            self._rows.put(log_id, row)
            memtable.skip_to(max(row.index, segments.last))
            self._logs[log_id] = self._make_log(log_id, segments, memtable)
        except BaseException:
            segments.close()
            raise
        return self._logs[log_id]

    def remove(self, log_id: str) -> None:
        """Remove a log with all that it holds. Flushes all logs first, so that no WAL file speaks of it any more.

        One that is damaged can be removed too; what has its name and is no folder of a log stays.

        Raises:
            NotFound: it is not there.
            StorageError, LogStopped, CorruptData: nothing was removed, or the rest is when the store is opened again.
            Busy: called from within a compaction of the log.
            Closed: the store was closed.
        """
        with self._outbox, self._outbox.held(), self._changing:
            if log_id in self._damaged:
                self._remove_damaged(log_id)
                return
            log = self.log(log_id, create=False)
            self._lock.require_mine()
            log.close()
            self.flush()
            with self._flushing:
                del self._logs[log_id]
                self._wal.forget(log_id)
                self._rows.remove(log_id)
                try:
                    log.segments.close()
                    begin_removal(self._files, os.path.join(self._folder, LOGS_FOLDER), log_id)
                except BaseException:
                    if os.path.isdir(self._log_folder(log_id)):
                        with contextlib.suppress(CompactlibError):
                            self._begin_log(log_id)
                    raise
            finish_removals(self._files, os.path.join(self._folder, LOGS_FOLDER))

    def _remove_damaged(self, log_id: str) -> None:
        self._require_open()
        self._lock.require_mine()
        logs = os.path.join(self._folder, LOGS_FOLDER)
        self.flush()
        # The WAL holds what it has of the log until its folder is gone: if that is refused, nothing was removed.
        if log_id in self._found.logs:
            begin_removal(self._files, logs, log_id)
        self._wal.forget(log_id)
        # No other log may take the name while a WAL file speaks of this one.
        self.flush()
        del self._damaged[log_id]
        finish_removals(self._files, logs)

    # -- writing

    def sync(self) -> None:
        """Make everything appended to any log durable. Raises what `RaftLog.sync` does."""
        self._require_open()
        self._wal.sync()

    def _commit_turn(self) -> None:
        """Sync what is queued; what the disk refuses stays queued, and is tried again."""
        if self._wal.stopped is None:
            self._wal.sync()

    def _on_confirmed(self, confirmed: Sequence[Confirmed]) -> None:
        ticket = self._wal.durable_ticket
        for each in confirmed:
            log = self._logs.get(each.log_id)
            if log is not None:
                log.confirmed(each, ticket)

    def _on_rolled(self, closed: ClosedFile) -> None:
        for log in list(self._logs.values()):
            log.freeze(closed.number)

    def _on_settled(self, closed: ClosedFile) -> None:
        if self._closed:
            # Replayed when it is opened again.
            return
        waiting = self._wal.number - self._wal.file_numbers.start
        if self._options.background and waiting <= self._options.max_unflushed_files:
            self._flusher.wake()
        else:
            # Memory is bounded: a caller that fills it helps to empty it.
            self._flusher.attempt()

    def _catch_up(self) -> None:
        """Before an append: if flushes have failed so long that too many files wait, flush, or say why that fails."""
        if len(self._wal.file_numbers) - 1 > self._options.max_unflushed_files + 1:
            self._flush_closed()

    def _flush_closed(self) -> None:
        """Flush what waits with closed WAL files, and remove them.

        Every log that can be; one that cannot leaves the files where they are, and keeps no other back.
        """
        refused: CompactlibError | None = None
        with self._outbox, self._outbox.held(), self._flushing:
            self._lock.require_mine()
            # Asked once, before any log is: one that learns of a file only later has not been asked for it.
            number = self._wal.handed_over
            for log in list(self._logs.values()):
                try:
                    log.flush_through(number)
                except CompactlibError as error:
                    refused = refused or error
            try:
                if refused is not None:
                    raise refused
                self._wal.remove_through(number)
            except CompactlibError as error:
                self._flush_error = error
                raise
            self._flush_error = None

    def flush(self) -> None:
        """Close the WAL file, write all that the logs hold in memory to their segments, and remove the files.

        Raises:
            StorageError: it cannot be done now; nothing is lost, call again.
            LogStopped, Closed: as `RaftLog.append`.
        """
        self._require_open()
        with self._outbox, self._outbox.held():
            self._wal.sync()
            self._wal.roll_over()
            self._flush_closed()

    # -- the store itself

    def status(self) -> RaftLogStoreStatus:
        """What the store says of itself."""
        stopped = self._wal.stopped
        logs = list(self._logs.values())
        unexpected = [part for part in (self._committer, self._flusher, self._outbox) if part.failures]
        return RaftLogStoreStatus(
            logs=len(self._logs), wal_files=len(self._wal.file_numbers), wal_bytes=self._wal.size_bytes,
            queued_bytes=self._wal.queued_bytes, unflushed_files=len(self._wal.file_numbers) - 1,
            flush_error=None if self._flush_error is None else str(self._flush_error),
            stopped=None if stopped is None else str(stopped), strangers=self._found.strangers,
            damaged=tuple(sorted(self._damaged)), is_busy=any(log.segments.is_compacting for log in logs),
            failures=sum(part.failures for part in unexpected),
            last_error=told(unexpected[-1].last_error if unexpected else None))

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read every entry of all logs and of the WAL, and list what is damaged or missing, logs that are not open too.

        Args:
            budget: asked before each segment.

        Raises:
            BudgetSpent: the budget refused.
            StorageError: something cannot be read.
            Closed: the store was closed.
        """
        self._require_open()
        seen = Examination()
        for log_id in sorted({*self._logs, *self._damaged}):
            log, error = self._logs.get(log_id), self._damaged.get(log_id)
            if log is not None:
                log.segments.examine(seen, budget=budget)
            elif isinstance(error, CorruptData | Unsupported):
                seen.note(error)
            elif error is not None:
                seen.findings.append(Finding("missing", self._log_folder(log_id), str(error), error))
        examine_wal(os.path.join(self._folder, WAL_FOLDER), None, seen)
        return seen.report()

    def audit(self) -> None:
        """Check the invariants of the store, its threads, its WAL and all its logs.

        Raises:
            AuditFailed: one is broken; says which, with the numbers.
            Closed: the store was closed.
        """
        self._require_open()
        self._rows.audit()
        self._wal.audit()
        for thread in (self._committer, self._flusher):
            error = thread.last_error
            if thread.failures_in_a_row and not isinstance(error, CompactlibError):
                raise AuditFailed(f"{thread!r} has failed {thread.failures_in_a_row} times in a row: {error!r}")
        for log in list(self._logs.values()):
            log.audit_kept()

    def _require_open(self) -> None:
        self._changing.require_mine()
        if self._closed:
            raise Closed(f"the store in {self._folder} is closed; open it again")

    def close(self) -> None:
        """Sync, and let all logs go; closing again does nothing. What is in memory is replayed when it is opened.

        Compactions that run are cancelled and waited for. In a fork of the process that opened it, it only lets the
        fork's files go.

        Raises:
            Busy: called from within a compaction of one of its logs, or from one of its threads; nothing was done.
            StorageError, LogStopped: the last sync was refused; everything is closed all the same.
        """
        if self._changing.is_inherited:
            # Without another lock: a thread that held one when the process was forked does not exist to release it.
            self._closed = True
            for log in self._logs.values():
                log.segments.close()
            self._wal.abandon()
            self._lock.release()
            return
        with self._changing:
            if self._closed:
                return
            self._require_outside()
            self._closed = True
        for thread in (self._committer, self._flusher):
            thread.stop()
        with contextlib.ExitStack() as stack:
            stack.callback(self._lock.release)
            stack.callback(self._wal.close)
            for log in self._logs.values():
                stack.callback(log.segments.close)
            for log in self._logs.values():
                stack.callback(log.close)

    def _require_outside(self) -> None:
        for log in self._logs.values():
            log.require_outside()
        if self._committer.is_mine or self._flusher.is_mine:
            raise Busy(f"the store in {self._folder} cannot be closed by what one of its own threads calls; close it "
                       f"from another thread")

    def __repr__(self) -> str:
        return f"<RaftLogStore of {self._folder!r}: {len(self._logs)} logs, WAL file {self._wal.number}>"


def _is_log_id(name: str) -> bool:
    return _LOG_ID.fullmatch(name) is not None


def open_log(folder: StrPath, options: StoreOptions | None = None, *, log_id: str = "log",
             create: bool = True) -> RaftLog:
    """A log with a store of its own; closing it closes the store. Arguments and errors as `RaftLogStore`, and as
    `RaftLogStore.log`."""
    store = RaftLogStore(folder, options, create=create)
    try:
        log = store.log(log_id, create=create)
    except BaseException:
        store.close()
        raise
    log.owns(store.close)
    return log


__all__ = ["RaftLogStore", "StoreOptions", "open_log"]
