# SPDX-License-Identifier: Apache-2.0
"""`RaftLogStore`: many Raft logs in one folder and one process, with one write-ahead log for all of them.

```
<folder>/LOCK           locked by the process that writes
<folder>/wal/           the WAL files of all logs (`docs/formats/raftlog-wal.md`)
<folder>/logs/<id>/     the segments and the row of each log (`docs/formats/raftlog-segment.md`)
```

Entries go to the WAL and to memory first. When a WAL file has become large it is closed; what the logs hold in memory
is written to their segments, and only then the file is removed.

What fails in one log closes that log, and `log` opens it again while the others go on; what fails in the WAL closes the
store. `_changing` is held by what opens, flushes or removes logs, before any lock of a log.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable

import attrs

from compactlib._closing import Closing
from compactlib.budget import Budget
from compactlib.errors import (
    Busy,
    CompactlibError,
    CorruptData,
    InvalidInput,
    NotFound,
    StorageError,
    Unsupported,
)
from compactlib.files.disk import (
    Files,
    StrPath,
    list_folder,
    local_path,
    look_at,
    make_missing_folder,
    sync_names,
)
from compactlib.guard import Guard, take_within
from compactlib.observer import Observer, Observers
from compactlib.raftlog.errors import NotALog
from compactlib.raftlog.log.folder import Examination, is_log
from compactlib.raftlog.log.unflushed import examine_wal
from compactlib.raftlog.memtable import Memtable
from compactlib.raftlog.model.names import LOGS_FOLDER, WAL_FOLDER
from compactlib.raftlog.model.status import RaftLogStoreStatus, told
from compactlib.raftlog.options import StoreOptions
from compactlib.raftlog.raft_log import LogMemory, RaftLog
from compactlib.raftlog.segment.segment_list import OpenFiles
from compactlib.raftlog.wal.recovery import RecoveredWal, recover_wal, without_repeats
from compactlib.raftlog.wal.wal import Wal
from compactlib.report import Finding, VerifyReport
from compactlib.service import PeriodicService

SYNC_FAILED = "raftlog_sync_failed"
"""The disk refused a sync in the background, which is tried again: `error`, `message`."""
FLUSH_FAILED = "raftlog_flush_failed"
"""Entries could not be written to segments, which is tried again: the same fields."""

# No log id begins with a dot.
_REMOVED_PREFIX = ".removed-"
_LOG_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class RaftLogStore(Closing):
    """Many logs, one WAL. Threads may share it; a context manager.

    Args:
        folder: the store's folder; made if it is not there.
        options: how it is kept.
        create: whether it may be made. If not, a folder without a store in it is `NotALog`, and stays as it is.

    Raises:
        NotALog: there is no store in the folder, and `create` is not set.
        Busy: another process, or another object in this one, has it open.
        CorruptData: a WAL file is damaged in what was durable. A single log that cannot be opened, because a segment's
            index or its row is damaged or its folder is not there, keeps nothing else back: `log` says what is wrong
            with it, `status` lists it, and what the WAL has of it stays until it can be opened, or is removed.
        Unsupported: a WAL file was written by a later release.
        StorageError: the disk refused.
    """

    def __init__(self, folder: StrPath, options: StoreOptions | None = None, *, create: bool = True) -> None:
        self._folder = local_path(folder)
        self.options: StoreOptions = StoreOptions() if options is None else options
        self._files: Files = self.options.log.files
        self._observer: Observer = Observers(self.options.log.observer)
        self.open_files: OpenFiles = OpenFiles(self.options.log.max_open_segments)
        self._logs: dict[str, RaftLog] = {}
        self._damaged: dict[str, CorruptData | Unsupported | NotALog] = {}
        self._memories: dict[str, LogMemory] = {}
        self._changing = threading.RLock()
        self._delivering = threading.Lock()
        self._flush_error: CompactlibError | None = None
        self._flushed_at = 0
        self.syncs_by_itself: bool = self.options.sync_by_itself
        self._committer = self._service(self._commit, "syncs")
        self._flusher = self._service(self._flush_in_background, "flushes")
        self._guard = Guard(f"the store in {self._folder}")
        if not create:
            self._require_there()
        self._make_folders()
        try:
            with self._guard.lock:
                self._guard.begin("its opening")
                self._guard.lock_folder(self._folder)
                self._open()
                self._guard.done()
            self._begin_logs()
            if self.options.sync_by_itself:
                self._committer.start()
            if self.options.background:
                self._flusher.start()
        except BaseException:
            for service in (self._committer, self._flusher):
                service.stop()
            self._guard.release()
            raise
        for log_id, error in self._damaged.items():
            self._observer.event("raftlog_log_damaged", log_id=log_id, error=str(error))
        if self._wal.closed_files > self.options.max_unflushed_files:
            # Each opening begins a file, and may have been too short for a flush in the background.
            self._try_to_flush()

    def _service(self, work: Callable[[], None], what: str) -> PeriodicService:
        def run_once(budget: Budget) -> None:
            if self._guard.is_open:
                work()

        return PeriodicService(run_once, name=f"{what} of {self._folder}", clock=self.options.log.clock)

    def _require_there(self) -> None:
        missing = next((path for path in (self._folder, *(os.path.join(self._folder, name)
                                                          for name in (WAL_FOLDER, LOGS_FOLDER)))
                        if not os.path.isdir(path)), None)
        if missing is not None:
            raise NotALog(f"{self._folder} is no store of logs: there is no folder {missing}; check the path, or open "
                          f"it with create=True to begin a store there", path=self._folder)

    def _make_folders(self) -> None:
        for path in (self._folder, *(os.path.join(self._folder, name) for name in (WAL_FOLDER, LOGS_FOLDER))):
            if make_missing_folder(self._files, path):
                # If another process made it a moment ago, the lock says whose store it is.
                self._files.sync_folder(os.path.dirname(path))

    def _sync_found(self) -> None:
        """Nothing may be acknowledged on top of names that an earlier process was killed before it had synced."""
        sync_names(self._files, self._folder)
        for name in (WAL_FOLDER, LOGS_FOLDER):
            self._files.sync_folder(os.path.join(self._folder, name))

    def _open(self) -> None:
        """Open all logs, replay the WAL, and begin its next file; one log that is damaged keeps no other back."""
        self._guard.keep(_LetGo(self._logs))
        self._sync_found()
        self._finish_removals()
        logs = os.path.join(self._folder, LOGS_FOLDER)
        self._found = tuple(name for name in list_folder(logs) if _is_log_id(name) and is_log(os.path.join(logs, name)))
        for log_id in self._found:
            self._memories[log_id] = self._new_memory()
            try:
                self._open_log(log_id)
            except (CorruptData, Unsupported, NotALog) as error:
                # Without the frames, which would keep its files open for as long as the store is.
                self._damaged[log_id] = error.with_traceback(None)
        found = recover_wal(self._files, os.path.join(self._folder, WAL_FOLDER))
        # The rows were read before the WAL is replayed: what they say is dead is left out.
        for logged in found.frames:
            log = self._logs.get(logged.log_id)
            if log is None:
                self._damaged.setdefault(logged.log_id, CorruptData(
                    path=self._log_folder(logged.log_id), offset=0, found="no folder with them",
                    expected=f"the segments of log {logged.log_id!r}, which the WAL names"))
            else:
                log._replay(logged.frame)
        # Later frames may take back what an earlier one says, and segments be cut already.
        for log_id, memory in list(self._memories.items()):
            try:
                memory.memtable.require_links()
                if log_id in self._logs:
                    self._logs[log_id]._require_whole_received()
            except CorruptData as error:
                self._set_aside(log_id, error)
        self._wal = self._begin_wal(found)
        self._flushed_at = self._wal.number
        if found.torn_bytes:
            self._observer.event("raftlog_wal_torn", file=found.last_number, bytes=found.torn_bytes)

    def _begin_logs(self) -> None:
        for log in list(self._logs.values()):
            try:
                log._begin(self._wal)
            except StorageError:
                # A received snapshot that the disk has no room for, say. `log` tries again; the others go on.
                log._end()
                log._let_go()

    def _open_log(self, log_id: str) -> RaftLog:
        log = RaftLog(self, log_id, self._log_folder(log_id), self._memories[log_id])
        self._logs[log_id] = log
        return log

    def _new_memory(self) -> LogMemory:
        return LogMemory(Memtable(max_entries=self.options.max_memtable_entries))

    def _set_aside(self, log_id: str, error: CorruptData | Unsupported | NotALog) -> None:
        """A damaged log keeps no other back."""
        self._damaged[log_id] = error.with_traceback(None)
        self._logs.pop(log_id)._let_go()
        del self._memories[log_id]

    def _finish_removals(self) -> None:
        try:
            _finish_removals(self._files, os.path.join(self._folder, LOGS_FOLDER))
        except StorageError as error:
            # What is left only takes room; the next opening, or the next removal, tries again.
            self._observer.event("raftlog_removal_failed", error=type(error).__name__, message=str(error))

    def _log_folder(self, log_id: str) -> str:
        return os.path.join(self._folder, LOGS_FOLDER, log_id)

    def _begin_wal(self, found: RecoveredWal) -> Wal:
        # What the WAL has of a log that cannot be opened stays, until it can be or is removed.
        held = without_repeats(logged for logged in found.frames if logged.log_id in self._damaged)
        lasts = {log_id: memory.memtable.last for log_id, memory in self._memories.items() if log_id in self._logs}
        lasts.update({log_id: found.lasts.get(log_id, -1) for log_id in {logged.log_id for logged in held}})
        unproven = found.frames[len(found.frames) - found.unproven:]
        tail = tuple(logged for logged in unproven if logged.log_id not in self._damaged)
        return Wal(os.path.join(self._folder, WAL_FOLDER), self._guard, max_bytes=self.options.max_wal_bytes,
                   files=self._files, clock=self.options.log.clock, lasts=lasts, held=held,
                   recovered=attrs.evolve(found, frames=tail, unproven=len(tail)))

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
        """The log of that id; the same object until that is closed. One that was closed, or closed itself, is opened
        again.

        Args:
            log_id: 1 to 100 letters, digits, `_`, `-` and `.`, the first of them a letter, a digit or `_`.
            create: make it if it is not there.

        Raises:
            NotFound: it is not there and may not be made.
            CorruptData, Unsupported, NotALog: it could not be opened with the store, see there.
            InvalidInput: no such id can be.
            StorageError: the disk refused.
            Closed: the store was closed, or closed itself.
        """
        self._guard.require_open()
        found = self._logs.get(log_id)
        if found is not None and not found.is_closed:
            return found
        with self._changing:
            self._guard.require_open()
            if log_id in self._logs:
                return self._opened(log_id)
            if log_id in self._damaged:
                raise self._damaged[log_id].with_traceback(None)
            if not create:
                raise NotFound(f"there is no log {log_id!r} in {self._folder}; it holds {', '.join(self.log_ids)}")
            if not _is_log_id(log_id):
                raise InvalidInput(f"log id {log_id!r}; an id is 1 to 100 letters, digits, '_', '-' and '.', and does "
                                   f"not begin with '-' or '.'")
            return self._begin_log(log_id)

    def _opened(self, log_id: str) -> RaftLog:
        """The log, opened again if it is closed; the others go on. Memory has all that it had queued."""
        log = self._logs[log_id]
        if log.is_closed:
            with contextlib.suppress(StorageError):
                log._close_alone()
            if any(table.cuts for table in self._memories[log_id].memtable.tables):
                # It is durable before files are cut.
                self._wal.sync()
            log = self._open_log(log_id)
            try:
                log._begin(self._wal)
            except BaseException:
                log._let_go()
                raise
        return log

    def _begin_log(self, log_id: str) -> RaftLog:
        """Make a log, or take one up whose removal the disk refused. Durable before the WAL names it."""
        self._memories[log_id] = self._new_memory()
        try:
            log = self._open_log(log_id)
            log._begin(self._wal)
        except BaseException:
            self._logs.pop(log_id, None)
            raise
        return log

    def remove(self, log_id: str) -> None:
        """Remove a log with all that it holds. Flushes all logs first, so that no WAL file speaks of it any more.

        One that is damaged can be removed too; what has its name and is no folder of a log stays.

        Raises:
            NotFound: it is not there.
            StorageError, CorruptData: nothing was removed, or the rest is when the store is opened again.
            Busy: called from within a compaction of the log.
            Closed: the store was closed.
        """
        self._guard.require_open()
        found = self._logs.get(log_id)
        if found is not None:
            found._guard.require_outside()
            found._stop_worker()
        with self._changing:
            if log_id in self._damaged:
                self._remove_damaged(log_id)
                return
            log = self.log(log_id, create=False)
            # Nothing is appended between the flush and the removal.
            with log._files_lock, log._lock:
                self.flush()
                log._close_alone()
            del self._logs[log_id], self._memories[log_id]
            self._wal.forget(log_id)
            try:
                _begin_removal(self._files, os.path.join(self._folder, LOGS_FOLDER), log_id)
            except BaseException:
                if os.path.isdir(self._log_folder(log_id)):
                    with contextlib.suppress(CompactlibError):
                        self._begin_log(log_id)
                raise
            _finish_removals(self._files, os.path.join(self._folder, LOGS_FOLDER))

    def _remove_damaged(self, log_id: str) -> None:
        logs = os.path.join(self._folder, LOGS_FOLDER)
        self.flush()
        # The WAL holds what it has of the log until its folder is gone: if that is refused, nothing was removed.
        if log_id in self._found:
            _begin_removal(self._files, logs, log_id)
        self._wal.forget(log_id)
        # No other log may take the name while a WAL file speaks of this one.
        self.flush()
        del self._damaged[log_id]
        _finish_removals(self._files, logs)

    # -- writing

    def sync(self) -> None:
        """Make everything appended to any log durable. Raises what `RaftLog.sync` does."""
        self._wal.sync()
        self._guard.require_open()
        self.settle()

    def wake_committer(self) -> None:
        """Something was queued, which the store's own thread syncs."""
        if self.syncs_by_itself:
            self._committer.wake()

    def settle(self) -> None:
        """After a sync, with no lock held: notify of what became durable, and flush if WAL files were closed."""
        self._deliver()
        closed = self._wal.closed_files
        if closed and self._wal.number != self._flushed_at:
            self._flushed_at = self._wal.number
            if self.options.background and closed <= self.options.max_unflushed_files:
                self._flusher.wake()
            else:
                # Memory is bounded: a caller that fills it helps to empty it.
                self._try_to_flush()

    def _deliver(self) -> None:
        """Notify the logs' hosts of what became durable, in order: one thread at a time, for all others."""
        confirmed = self._wal.confirmed
        while confirmed:
            taken: list[bool] = []
            try:
                take_within(self._delivering, 0.0, taken)
                if taken != [True]:
                    return
                while confirmed:
                    each = confirmed.popleft()
                    log = self._logs.get(each.log_id)
                    if log is not None:
                        log._notify_confirmed(each)
            finally:
                if taken == [True]:
                    self._delivering.release()

    def _commit(self) -> None:
        try:
            self.sync()
        except CompactlibError as error:
            self._observer.event(SYNC_FAILED, error=type(error).__name__, message=str(error))
            raise

    def _flush_in_background(self) -> None:
        if self._wal.closed_files:
            try:
                self.flush_closed()
            except CompactlibError as error:
                self._observer.event(FLUSH_FAILED, error=type(error).__name__, message=str(error))
                raise

    def _try_to_flush(self) -> None:
        # What it fails with is in the status, and it is tried again with the next file.
        with contextlib.suppress(CompactlibError):
            self.flush_closed()

    def flush_closed(self) -> None:
        """Write what the logs hold in memory to their segments, and remove the closed WAL files.

        Every log that can be; one that cannot leaves the files where they are, and keeps no other back.
        """
        self._guard.require_open()
        refused: CompactlibError | None = None
        with self._changing:
            # Before any log is asked: what these files hold was queued, and is put into memory under the log's lock.
            number = self._wal.number - 1
            for log_id in list(self._logs):
                try:
                    self._opened(log_id)._flush_memtable()
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
            Closed: as `RaftLog.append`.
        """
        self._wal.sync()
        self._wal.roll_over()
        self._deliver()
        self.flush_closed()

    # -- the store itself

    def status(self) -> RaftLogStoreStatus:
        """What the store says of itself."""
        self._guard.require_open()
        logs, wal = list(self._logs.values()), self._wal
        failed = [service for service in (self._committer, self._flusher) if service.failures]
        return RaftLogStoreStatus(
            logs=len(self._logs), wal_files=wal.closed_files + 1, wal_bytes=wal.size_bytes,
            queued_bytes=wal.queued_bytes, unflushed_files=wal.closed_files,
            flush_error=None if self._flush_error is None else str(self._flush_error),
            damaged=tuple(sorted(self._damaged)),
            is_busy=any(log.is_compacting for log in logs), failures=sum(service.failures for service in failed),
            last_error=told(failed[-1].last_error if failed else None))

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read every entry of all logs and of the WAL, and list what is damaged or missing, logs that are not open too.

        Args:
            budget: asked before each segment.

        Raises:
            BudgetSpent: the budget refused.
            StorageError: something cannot be read.
            Closed: the store was closed.
        """
        self._guard.require_open()
        seen = Examination()
        for log_id in sorted({*self._logs, *self._damaged}):
            log, error = self._logs.get(log_id), self._damaged.get(log_id)
            if log is not None:
                log.examine(seen, budget=budget)
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
        self._guard.require_open()
        for log in list(self._logs.values()):
            if not log.is_closed:
                log.audit()

    def close(self) -> None:
        """Sync, and let all logs go; closing again does nothing. What is in memory is replayed when it is opened.

        Compactions that run are cancelled and waited for. In a fork of the process that opened it, it only lets the
        fork's files go.

        Raises:
            Busy: called from within a compaction of one of its logs, or from one of its threads; nothing was done. Or
                work on a log goes on, and it is closed when that has ended: call again.
            StorageError: the last sync was refused; everything is closed all the same.
        """
        logs = list(self._logs.values())
        for log in logs:
            log._guard.require_outside()
        if self._committer.is_own_thread or self._flusher.is_own_thread:
            raise Busy(f"the store in {self._folder} cannot be closed by what one of its own threads calls; close it "
                       f"from another thread")
        for service in (self._committer, self._flusher):
            service.stop()
        for log in logs:
            log._stop_worker()
        try:
            if self._guard.is_open:
                self._wal.sync()
                self._deliver()
        finally:
            for log in logs:
                log._end()
            self._guard.release()

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
    log.closes_store = True
    return log


# -- removing a log: one rename, after which it is gone, and then its files


def _begin_removal(files: Files, logs: str, log_id: str) -> None:
    """Take a log's folder out of the list, durably; again, where that was refused half way. It must not be open."""
    path, removed = os.path.join(logs, log_id), os.path.join(logs, _REMOVED_PREFIX + log_id)
    if look_at(removed) is not None:
        # An earlier one of this name; its files go only where it is out of the list for certain.
        files.sync_folder(logs)
        _finish_removals(files, logs)
    if look_at(path) is not None:
        files.rename(path, removed)
    files.sync_folder(logs)


def _finish_removals(files: Files, logs: str) -> None:
    """Remove the folders that were taken out of the list, those that a crash left included."""
    removed = [name for name in list_folder(logs) if name.startswith(_REMOVED_PREFIX)]
    for name in removed:
        _remove_folder(files, os.path.join(logs, name))
    if removed:
        files.sync_folder(logs)


def _remove_folder(files: Files, folder: str) -> None:
    for name in list_folder(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            _remove_folder(files, path)
        else:
            files.unlink(path)
    files.remove_folder(folder)


@attrs.frozen
class _LetGo:
    """The logs as the store's guard keeps them."""

    logs: dict[str, RaftLog]

    def close(self) -> None:
        for log in self.logs.values():
            log._let_go()

