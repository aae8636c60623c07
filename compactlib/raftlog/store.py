# SPDX-License-Identifier: Apache-2.0
"""`RaftLogStore`: many Raft logs in one folder and one process, with one write-ahead log for all of them.

```
<folder>/LOCK           locked by the process that writes
<folder>/wal/           the WAL files of all logs (`docs/formats/raftlog-wal.md`)
<folder>/logs/<id>/     the segments and the row of each log (`docs/formats/raftlog-segment.md`)
```

Entries are written to the WAL and to memtables first. A WAL file that exceeds its limit is closed; it is removed after
the memtables of all logs were written to segments.

A failure in a log closes that log alone, and `log` opens it again; a failure in the WAL closes the store. `_changing`
is held while logs are opened, flushed or removed; it is taken before any lock of a log. These calls hold `use()` of the
store's guard too, and switches of a log's snapshot that of the log's: `close` waits for them, so that none changes a
file of the next owner.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterable

import attrs

from compactlib._closing import Closing, closed_on_failure
from compactlib.budget import Budget
from compactlib.errors import (
    Busy,
    Closed,
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
from compactlib.guard import Guard
from compactlib.observer import Observer, Observers
from compactlib.raftlog.errors import NotALog
from compactlib.raftlog.log.folder import Examination, examine_wal, is_log, require_no_store
from compactlib.raftlog.names import LOGS_FOLDER, WAL_FOLDER
from compactlib.raftlog.options import StoreOptions
from compactlib.raftlog.raft_log import RaftLog
from compactlib.raftlog.segment.segments import OpenFiles
from compactlib.raftlog.status import RaftLogStoreStatus, error_text
from compactlib.raftlog.wal.frames import Frame, read_wal
from compactlib.raftlog.wal.wal import Wal
from compactlib.report import VerifyReport
from compactlib.service import PeriodicService

# No log id begins with a dot.
_REMOVED_PREFIX = ".removed-"
_LOG_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


class RaftLogStore(Closing):
    """Many logs with a common WAL. Threads may share it; a context manager.

    A log that cannot be opened (a segment's index or the row is damaged, or the log's folder is missing) does not
    prevent the opening of the store: `log` raises its error, `status` lists it, and the WAL keeps its entries until it
    can be opened, or is removed.

    Args:
        folder: the store's folder.
        options: the store's settings.
        create: whether a missing store is created.

    Raises:
        NotALog: there is no store in the folder, and `create` is not set; nothing was changed.
        Busy: another process, or another object in this one, has the store open.
        CorruptData: a WAL file is missing, or damaged in its durable part.
        Unsupported: a WAL file was written by a later release, or the folder is that of a log of a store.
        StorageError: the disk refused.
    """

    def __init__(self, folder: StrPath, options: StoreOptions | None = None, *, create: bool = True) -> None:
        self._folder = local_path(folder)
        require_no_store(self._folder)
        self._wal_folder = os.path.join(self._folder, WAL_FOLDER)
        self._logs_folder = os.path.join(self._folder, LOGS_FOLDER)
        self.options: StoreOptions = StoreOptions() if options is None else options
        self._files: Files = self.options.log.files
        self._observer: Observer = Observers(self.options.log.observer)
        self.open_files: OpenFiles = OpenFiles(self.options.log.max_open_segments)
        self._logs: dict[str, RaftLog] = {}
        # The ids of logs by device and inode of their folders.
        self._folders: dict[tuple[int, int] | None, str] = {}
        self._damaged: dict[str, CorruptData | Unsupported] = {}
        self._changing = threading.RLock()
        self._flush_error: CompactlibError | None = None
        self._flushed_at = 0
        self._flusher = PeriodicService(self._flush_in_background, name=f"flushes of {self._folder}",
                                        clock=self.options.log.clock)
        self._guard = Guard(f"the store in {self._folder}")
        self._make_folders(create)
        with self._guard.lock, self._guard.opening():
            self._guard.lock_folder(self._folder)
            self._open()
        with closed_on_failure(self):
            for log in list(self._logs.values()):
                # A full disk cannot install a received snapshot, for example. `log` retries.
                with contextlib.suppress(StorageError):
                    log._begin()
            if self.options.background:
                self._flusher.start()
            for log_id, error in self._damaged.items():
                self._observer.event("raftlog_log_damaged", log_id=log_id, error=str(error))
            if self._wal.closed_files > self.options.max_unflushed_files:
                # Each opening begins a WAL file, and may have ended before its flush in the background.
                self._try_to_flush()

    def _flush_in_background(self, budget: Budget) -> None:
        if self._guard.is_open:
            try:
                self.flush_closed()
            except CompactlibError as error:
                self._observer.event("raftlog_flush_failed", error=type(error).__name__, message=str(error))
                raise

    def _make_folders(self, create: bool) -> None:
        for path in (self._folder, self._wal_folder, self._logs_folder):
            if not create and not os.path.isdir(path):
                raise NotALog(f"{self._folder} is no store of logs: there is no folder {path}; check the path, or open "
                              f"it with create=True to create a store")
            if make_missing_folder(self._files, path):
                # Another process may have made it a moment ago; the folder's lock decides who owns the store.
                self._files.sync_folder(os.path.dirname(path))

    def _open(self) -> None:
        """Open all logs that are not damaged, replay the WAL, and begin its next file."""
        self._guard.keep(_LetGo(self._logs))
        # An earlier process may have been killed before it synced these names.
        sync_names(self._files, self._folder)
        self._files.sync_folder(self._wal_folder)
        self._files.sync_folder(self._logs_folder)
        try:
            self._finish_removals()
        except StorageError as error:
            # The leftovers only take room; the next opening, or the next removal, retries.
            self._observer.event("raftlog_removal_failed", error=type(error).__name__, message=str(error))
        names = [name for name in list_folder(self._logs_folder)
                 if _LOG_ID.fullmatch(name) and is_log(self._log_folder(name))]
        found = read_wal(self._wal_folder)
        if names and not found.numbers:
            raise CorruptData(path=self._wal_folder, offset=0, found="no file",
                              expected="a WAL file, since the store has logs")
        self._wal = Wal(self._wal_folder, self._guard, self.options, found)
        for log_id in names:
            try:
                self._open_log(log_id, found.frames.get(log_id, ()))
            except (CorruptData, Unsupported) as error:
                # Without the traceback, whose frames would keep the log's files open.
                self._damaged[log_id] = error.with_traceback(None)
        for log_id in found.frames.keys() - self._logs.keys():
            self._damaged.setdefault(log_id, CorruptData(
                path=self._log_folder(log_id), offset=0, found="no such folder",
                expected=f"the segments of log {log_id!r}, which the WAL names"))
        # The frames of damaged logs stay in the WAL until the log can be opened or is removed.
        self._wal.begin(self._damaged)
        self._flushed_at = self._wal.number

    def _open_log(self, log_id: str, frames: Iterable[Frame] = ()) -> RaftLog:
        """Open a log; one that was closed keeps its memtable, which has all queued entries."""
        path = self._log_folder(log_id)
        identity = _identity_of(path)
        other = self._folders.get(identity, log_id)
        # The other folder may be gone, and its inode used again.
        if other != log_id and None is not identity == _identity_of(self._log_folder(other)):
            raise Unsupported(f"log {log_id!r} has the folder of log {other!r}: by a link, or because names in "
                              f"{self._logs_folder} ignore case; choose another id")
        log = RaftLog(self, self._wal, log_id, path, self._logs.get(log_id), frames)
        self._logs[log_id] = log
        self._folders[_identity_of(path)] = log_id
        return log

    def _finish_removals(self) -> None:
        """Remove the folders that were renamed, those of an interrupted removal too."""
        removed = [name for name in list_folder(self._logs_folder) if name.startswith(_REMOVED_PREFIX)]
        if removed:
            # Durable first: a log whose rename a crash undoes is whole.
            self._files.sync_folder(self._logs_folder)
            for name in removed:
                _remove_folder(self._files, self._log_folder(name))
            self._files.sync_folder(self._logs_folder)

    def _log_folder(self, log_id: str) -> str:
        return os.path.join(self._logs_folder, log_id)

    # -- logs

    @property
    def folder(self) -> str:
        """The store's folder, as an absolute path."""
        return self._folder

    @property
    def log_ids(self) -> tuple[str, ...]:
        """The ids of the logs, sorted; without the damaged logs, see `status`."""
        return tuple(sorted(self._logs))

    def log(self, log_id: str, *, create: bool = True) -> RaftLog:
        """Return the log of that id, the same object while it is open. A closed log is opened again.

        Args:
            log_id: 1 to 100 letters, digits, `_`, `-` and `.`, the first of them a letter, a digit or `_`.
            create: whether a missing log is created.

        Raises:
            NotFound: there is no such log, and `create` is not set.
            CorruptData, Unsupported, NotALog: the log could not be opened with the store, see `RaftLogStore`; or its
                folder is that of another log.
            InvalidInput: not a valid id.
            Busy: it is closed, and called from its own worker or from within its own work; or that has not ended in 30
                seconds.
            StorageError: the disk refused.
            Closed: the store was closed, or closed itself.
        """
        self._guard.require_open()
        found = self._logs.get(log_id)
        if found is not None and not found.is_closed:
            return found
        if found is not None:
            # Before `_changing` is held: a worker may flush the store.
            found._require_outside()
            found._stop_workers()
        with self._guard.use(), self._changing:
            self._guard.require_open()
            if log_id in self._damaged:
                raise self._damaged[log_id].with_traceback(None)
            if not create and log_id not in self._logs:
                raise NotFound(f"there is no log {log_id!r} in {self._folder}; its logs are {', '.join(self.log_ids)}")
            if not _LOG_ID.fullmatch(log_id):
                raise InvalidInput(f"log id {log_id!r}; an id is 1 to 100 letters, digits, '_', '-' and '.', and does "
                                   f"not begin with '-' or '.'")
            return self._opened(log_id)

    def _opened(self, log_id: str) -> RaftLog:
        """The log, created or opened again if it is not open. Durable before the WAL names it."""
        # A flush opens no log again that `close` has closed.
        self._guard.require_open()
        log = self._logs.get(log_id)
        if log is None or log.is_closed:
            if log is None:
                # A store that opened on a full disk may have no WAL file yet; a store with logs and no file is damaged.
                self._wal.sync(0)
            else:
                with contextlib.suppress(StorageError):
                    log._close_alone()
            log = self._open_log(log_id)
            log._begin()
        return log

    def remove(self, log_id: str) -> None:
        """Remove a log with its files. Flushes all logs first, so that no WAL file names the log.

        A damaged log can be removed too. A folder of that name that is not a log's stays, and one that a link leads to.

        Raises:
            NotFound: there is no such log.
            StorageError, CorruptData: nothing was removed; or the next opening of the store removes the rest.
            Busy: called from within a compaction or a worker of the log, or one has not ended in 30 seconds.
            Closed: the store was closed; or the log was closed meanwhile, and is there still: call again.
        """
        self._guard.require_open()
        found = self._logs.get(log_id)
        if found is not None:
            found._require_outside()
            found._stop_workers()
            # Before `_changing` is held: the executor of a compaction may flush.
            found._guard.cancel()
            with contextlib.suppress(Closed):
                found._guard.wait_for_runs()
        path = self._log_folder(log_id)
        with self._guard.use(), self._changing:
            is_damaged = log_id in self._damaged
            log = None if is_damaged else self.log(log_id, create=False)
            if log is None:
                self.flush()
            else:
                # Nothing is appended between the flush and the removal.
                with log._files_lock, log._lock:
                    self.flush()
                    # If it was closed, the flush has opened another object, which a thread may have by now.
                    log._guard.require_open()
                    log._guard.close()
                log._close_alone()
            if look_at(self._log_folder(_REMOVED_PREFIX + log_id)) is not None:
                # Of an earlier log of this id.
                self._finish_removals()
            if look_at(path) is not None and (log is not None or is_log(path)):
                try:
                    # The switch. If the disk refuses it, the log is opened again.
                    self._files.rename(path, self._log_folder(_REMOVED_PREFIX + log_id))
                finally:
                    # Also after an interrupt behind it: a new log of this id does not take this log's memory.
                    if look_at(path) is None:
                        self._logs.pop(log_id, None)
            self._logs.pop(log_id, None)
            self._folders = {identity: each for identity, each in self._folders.items() if each != log_id}
            self._finish_removals()
            self._wal.forget(log_id)
            if is_damaged:
                # No new log gets the id while a WAL file has its frames.
                self.flush()
                del self._damaged[log_id]

    # -- writing

    def sync(self) -> None:
        """Make everything appended to any log durable. Raises as `RaftLog.sync`."""
        self._wal.sync()
        self.settle()

    def settle(self) -> None:
        """After a sync, with no lock held: flush if WAL files were closed."""
        closed = self._wal.closed_files
        if closed and self._wal.number != self._flushed_at:
            self._flushed_at = self._wal.number
            if self.options.background and closed <= self.options.max_unflushed_files:
                self._flusher.wake()
            else:
                # The caller flushes, so that memory is bounded.
                self._try_to_flush()

    def _try_to_flush(self) -> None:
        # `status` has the error, and the next closed WAL file retries.
        with contextlib.suppress(CompactlibError):
            self.flush_closed()

    def flush_closed(self) -> None:
        """Write the memtables of all logs to segments, and remove the closed WAL files.

        A log that fails does not stop the flush of the others, but no WAL file is removed then.
        """
        self._guard.require_open()
        refused: CompactlibError | None = None
        with self._guard.use(), self._changing:
            if not self._wal.closed_files:
                return
            # Read before the first flush: the entries of these files are in the memtables by then.
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
                self._flush_error = None
            except CompactlibError as error:
                self._flush_error = error
                raise

    def flush(self) -> None:
        """Close the current WAL file, write the memtables of all logs to segments, and remove the WAL files.

        Raises:
            StorageError: the disk refused; nothing is lost, call again.
            Closed: as `RaftLog.append`.
        """
        self._wal.sync()
        self._wal.roll_over()
        self.flush_closed()

    # -- status and checks

    def status(self) -> RaftLogStoreStatus:
        """The store's counters, its damaged logs and its last error."""
        self._guard.require_open()
        logs, wal = list(self._logs.values()), self._wal
        return RaftLogStoreStatus(
            logs=len(self._logs), wal_files=wal.closed_files + 1, wal_bytes=wal.size_bytes,
            queued_bytes=wal.queued_bytes, damaged=tuple(sorted(self._damaged)),
            is_busy=any(log.is_compacting for log in logs), failures=self._flusher.failures,
            last_error=error_text(self._flush_error))

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read every entry of all logs, of damaged logs too, and of the WAL; list what is damaged or missing.

        Raises:
            BudgetSpent: the budget, which is checked before each segment, is spent.
            StorageError: a file cannot be read.
            Closed: a log was closed, and its live entries cannot be checked; open it again.
        """
        self._guard.require_open()
        seen = Examination()
        for log_id in sorted({*self._logs, *self._damaged}):
            if (error := self._damaged.get(log_id)) is not None:
                seen.note(error)
            while (log := self._logs.get(log_id)) is not None:
                found = Examination()
                failure: CompactlibError | None = None
                try:
                    log.examine(found, budget=budget)
                except (Closed, StorageError) as raised:
                    failure = raised
                with self._changing:
                    self._guard.require_open()
                    if self._logs.get(log_id) is not log:
                        continue  # removed, or opened again
                if failure is not None:
                    raise failure
                seen.add(found)
                break
        examine_wal(self._wal_folder, None, seen)
        return seen.report()

    def audit(self) -> None:
        """Check the invariants of all logs; raise `AuditFailed` with the numbers of a broken one."""
        self._guard.require_open()
        for log in list(self._logs.values()):
            if not log.is_closed:
                log.audit()

    def close(self) -> None:
        """Sync, cancel compactions and wait for their end, and close all logs. Idempotent.

        Raises:
            Busy: called from within a compaction or a flush (by an observer, for example), from a worker of a log, or
                from the thread of the store; nothing was done. Or one of them has not ended in time: its log is closed
                when it ends, call again.
            StorageError: the disk refused the last sync; everything is closed nevertheless.
        """
        self._guard.require_outside()
        logs = list(self._logs.values())
        for log in logs:
            log._require_outside()
        if self._flusher.is_own_thread:
            raise Busy(f"the store in {self._folder} cannot be closed from its own thread; close it from another")
        self._flusher.stop()
        for log in logs:
            log._stop_workers()
        try:
            if self._guard.is_open and not self._wal.is_synced:
                self._wal.sync()
        finally:
            for log in logs:
                log._end()
            self._guard.release()

    def __repr__(self) -> str:
        return f"<RaftLogStore of {self._folder!r}: {len(self._logs)} logs, WAL file {self._wal.number}>"


def open_log(folder: StrPath, options: StoreOptions | None = None, *, log_id: str = "log",
             create: bool = True) -> RaftLog:
    """Open a store for a single log, and return the log; closing the log closes the store.

    Arguments and errors as `RaftLogStore` and `RaftLogStore.log`.
    """
    store = RaftLogStore(folder, options, create=create)
    with closed_on_failure(store):
        log = store.log(log_id, create=create)
    log.closes_store = True
    return log


def _identity_of(folder: str) -> tuple[int, int] | None:
    """Device and inode of a folder, or of the folder to which a link leads; `None` if it is missing."""
    found = look_at(os.path.join(folder, os.curdir))
    return None if found is None else (found.st_dev, found.st_ino)


def _remove_folder(files: Files, path: str) -> None:
    """Remove a folder and all in it; of a link, the link alone."""
    if os.path.isdir(path) and not os.path.islink(path):
        for name in list_folder(path):
            _remove_folder(files, os.path.join(path, name))
        files.remove_folder(path)
    else:
        files.unlink(path)


@attrs.frozen
class _LetGo:
    """Closes the files of all logs when the store's guard is released."""

    logs: dict[str, RaftLog]

    def close(self) -> None:
        for log in self.logs.values():
            log._let_go()

