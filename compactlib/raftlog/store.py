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
import threading
from collections.abc import Sequence

import attrs

from compactlib.errors import Closed, CompactlibError, CorruptData, InvalidInput, NotFound
from compactlib.files import Files, StrPath, list_folder
from compactlib.folder_lock import FolderLock
from compactlib.raftlog.background import Background
from compactlib.raftlog.log_segments import LogSegments
from compactlib.raftlog.log_state import LogState, LogStates
from compactlib.raftlog.memtable import DEFAULT_MAX_ENTRIES, Memtable
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.raft_log import RaftLog
from compactlib.raftlog.removal import begin_removal, finish_removals
from compactlib.raftlog.replay import replay
from compactlib.raftlog.status import StoreStatus
from compactlib.raftlog.wal.batch import Confirmed
from compactlib.raftlog.wal.recovery import RecoveredWal, recover_wal
from compactlib.raftlog.wal.wal import ClosedFile, Wal, WalOptions

WAL_FOLDER = "wal"
LOGS_FOLDER = "logs"

_LOG_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@attrs.frozen(kw_only=True)
class StoreOptions:
    """How a store is kept.

    Attributes:
        log: how the segments of each log are kept; its files, clock and observer serve the whole store.
        max_wal_bytes: a WAL file is closed after the batch that exceeds this.
        max_unflushed_files: so many closed WAL files may wait for their entries to be in segments; then whoever
            appends has to wait too.
        max_queued_bytes: what may wait for a sync before `append` syncs by itself.
        max_memtable_entries: so many entries of one log may wait for segments.
        background: flush in a thread of the store's own; else the thread that fills a WAL file does it.
        sync_by_itself: a thread of the store's own syncs whatever is appended, as fast as the disk can, and the host
            hears of it through `on_confirmed` (`RaftLog.attach`); else entries wait for somebody's `sync`.
    """

    log: LogOptions = attrs.field(factory=LogOptions)
    max_wal_bytes: int = 64 << 20
    max_unflushed_files: int = 4
    max_queued_bytes: int = 16 << 20
    max_memtable_entries: int = DEFAULT_MAX_ENTRIES
    background: bool = True
    sync_by_itself: bool = False


class RaftLogStore:
    """Many logs, one WAL. Threads may share it; a context manager.

    Args:
        folder: the store's folder; made if it is not there.
        options: how it is kept.

    Raises:
        Busy: another process, or another object in this one, has it open.
        CorruptData: a WAL file, a segment's index or a row is damaged in what was durable.
        Unsupported: a file was written by a later release.
        StorageError: the disk refused.
    """

    def __init__(self, folder: StrPath, options: StoreOptions | None = None) -> None:
        self._folder = os.path.abspath(folder)
        self._options = StoreOptions() if options is None else options
        self._files: Files = self._options.log.files
        self._states = LogStates()
        self._logs: dict[str, RaftLog] = {}
        self._changing = threading.RLock()
        self._flushing = threading.RLock()
        self._flush_error: CompactlibError | None = None
        self._closed = False
        self._flusher: Background | None = None
        self._committer: Background | None = None
        with contextlib.ExitStack() as stack:
            self._make_folders()
            stack.enter_context(FolderLock(self._folder))
            logs = os.path.join(self._folder, LOGS_FOLDER)
            finish_removals(self._files, logs)
            segments = {log_id: stack.enter_context(LogSegments(self._log_folder(log_id), self._options.log))
                        for log_id in list_folder(logs)}
            self._recover(segments, stack)
            self._open_stack = stack.pop_all()
        if len(self._wal.file_numbers) - 1 > self._options.max_unflushed_files:
            # Each opening begins a file, and may have been too short for a flush in the background.
            self._flush_closed()
        if self._options.sync_by_itself:
            self._committer = Background(self._commit_queued, "raftlog-wal")
        if self._options.background:
            self._flusher = Background(self._flush_closed, "raftlog-flush")
            self._flusher.wake()

    def _make_folders(self) -> None:
        for path in (self._folder, *(os.path.join(self._folder, name) for name in (WAL_FOLDER, LOGS_FOLDER))):
            if not os.path.isdir(path):
                self._files.make_folder(path)
                self._files.sync_folder(os.path.dirname(path))

    def _log_folder(self, log_id: str) -> str:
        return os.path.join(self._folder, LOGS_FOLDER, log_id)

    def _recover(self, segments: dict[str, LogSegments], stack: contextlib.ExitStack) -> None:
        # The rows before the WAL is replayed: what they say is dead is left out.
        memtables: dict[str, Memtable] = {}
        for log_id, each in segments.items():
            self._states.put(log_id, LogState.of(each.snapshot))
            last = each.last_index
            memtables[log_id] = Memtable(-1 if last is None else last, max_entries=self._options.max_memtable_entries)
        wal_folder = os.path.join(self._folder, WAL_FOLDER)
        found = recover_wal(self._files, wal_folder)
        for logged in found.frames:
            if logged.log_id not in memtables:
                raise CorruptData(path=self._log_folder(logged.log_id), offset=0, found="none",
                                  expected=f"the segments of log {logged.log_id!r}, which the WAL names")
            replay(logged.frame, memtables[logged.log_id], self._states.get(logged.log_id),
                   segments[logged.log_id].matching)
        for log_id, memtable in memtables.items():
            memtable.freeze(found.last_number)
            memtable.skip_to(self._states.get(log_id).snapshot_index)
        self._wal = self._open_wal(wal_folder, found, memtables)
        stack.callback(self._wal.close)
        for log_id, each in segments.items():
            self._logs[log_id] = self._make_log(log_id, each, memtables[log_id])
        if found.torn_bytes:
            self._options.log.observer.event("raftlog_wal_torn", {"file": found.last_number,
                                                                  "bytes": found.torn_bytes})

    def _open_wal(self, folder: str, found: RecoveredWal, memtables: dict[str, Memtable]) -> Wal:
        options = WalOptions(max_bytes=self._options.max_wal_bytes, files=self._files, clock=self._options.log.clock)
        # Of logs that were removed it need not know; of the others the memtable knows best.
        found = attrs.evolve(found, lasts={})
        return Wal(folder, self._states, options, recovered=found, confirmed=self._on_confirmed, rolled=self._on_rolled,
                   lasts={log_id: memtable.last for log_id, memtable in memtables.items()})

    def _make_log(self, log_id: str, segments: LogSegments, memtable: Memtable) -> RaftLog:
        return RaftLog(log_id, segments, self._wal, self._states, memtable, make_room=self.flush,
                       catch_up=self._catch_up, queued=self._wake_committer,
                       max_queued_bytes=self._options.max_queued_bytes)

    def _wake_committer(self) -> None:
        if self._committer is not None:
            self._committer.wake()

    # -- logs

    @property
    def folder(self) -> str:
        """The store's folder, as an absolute path."""
        return self._folder

    @property
    def log_ids(self) -> tuple[str, ...]:
        """The logs there are, sorted."""
        return tuple(sorted(self._logs))

    def log(self, log_id: str, *, create: bool = True) -> RaftLog:
        """The log of that id; the same object until that is closed.

        Args:
            log_id: 1 to 100 letters, digits, `_`, `-` and `.`, the first of them a letter, a digit or `_`.
            create: make it if it is not there.

        Raises:
            NotFound: it is not there and may not be made.
            InvalidInput: no such id can be.
            StorageError: the disk refused.
            Closed: the store was closed.
        """
        with self._changing:
            self._require_open()
            found = self._logs.get(log_id)
            if found is not None:
                if found.is_closed:
                    found = self._logs[log_id] = self._make_log(log_id, found.segments, found.memtable)
                return found
            if not create:
                raise NotFound(f"there is no log {log_id!r} in {self._folder}; it holds {', '.join(self.log_ids)}")
            if _LOG_ID.fullmatch(log_id) is None:
                raise InvalidInput(f"log id {log_id!r}; an id is 1 to 100 letters, digits, '_', '-' and '.', and does "
                                   f"not begin with '-' or '.'")
            # Durable before the WAL names it.
            segments = self._open_stack.enter_context(LogSegments(self._log_folder(log_id), self._options.log))
            memtable = Memtable(max_entries=self._options.max_memtable_entries)
            self._logs[log_id] = self._make_log(log_id, segments, memtable)
            return self._logs[log_id]

    def remove(self, log_id: str) -> None:
        """Remove a log with all that it holds. Flushes all logs first, so that no WAL file speaks of it any more.

        Raises:
            NotFound: it is not there.
            StorageError, LogStopped, CorruptData: nothing was removed, or the rest is when the store is opened again.
            Closed: the store was closed.
        """
        with self._changing:
            log = self.log(log_id, create=False)
            log.close()
            self.flush()
            with self._flushing:
                del self._logs[log_id]
                self._wal.forget(log_id)
                self._states.remove(log_id)
                log.segments.close()
                begin_removal(self._files, os.path.join(self._folder, LOGS_FOLDER), log_id)
            finish_removals(self._files, os.path.join(self._folder, LOGS_FOLDER))

    # -- writing

    def sync(self) -> None:
        """Make everything appended to any log durable. Raises what `RaftLog.sync` does."""
        self._require_open()
        self._wal.sync()

    def _commit_queued(self) -> None:
        """Sync what is queued; what the disk refuses stays queued, and is tried again with the next append."""
        try:
            self._wal.sync()
        except CompactlibError as error:
            self._options.log.observer.event("raftlog_sync_failed", {"error": str(error)})

    def _on_confirmed(self, confirmed: Sequence[Confirmed]) -> None:
        ticket = self._wal.durable_ticket
        for each in confirmed:
            log = self._logs.get(each.log_id)
            if log is not None:
                log.confirmed(each, ticket)

    def _on_rolled(self, closed: ClosedFile) -> None:
        for log in list(self._logs.values()):
            log.freeze(closed.number)
        waiting = self._wal.number - self._wal.file_numbers.start
        if self._flusher is not None and waiting <= self._options.max_unflushed_files:
            self._flusher.wake()
        else:
            # Memory is bounded: whoever fills it helps to empty it.
            self._flush_closed()

    def _catch_up(self) -> None:
        """Before an append: if flushes have failed so long that too many files wait, flush, or say why that fails."""
        if len(self._wal.file_numbers) - 1 > self._options.max_unflushed_files + 1:
            self._flush_through(self._wal.number - 1)

    def _flush_closed(self) -> None:
        """Flush what waits with closed WAL files; an error is kept for `status` and tried again."""
        try:
            self._flush_through(self._wal.number - 1)
        except CompactlibError as error:
            self._options.log.observer.event("raftlog_flush_failed", {"error": str(error)})

    def _flush_through(self, number: int) -> None:
        with self._flushing:
            try:
                for log in list(self._logs.values()):
                    log.flush_through(number)
                self._wal.remove_through(number)
            except CompactlibError as error:
                self._flush_error = error
                raise
            self._flush_error = None

    def flush(self) -> None:
        """Close the WAL file, write all that the logs hold in memory to their segments, and remove the files.

        Raises:
            StorageError, Busy, CorruptData: it cannot be done now; nothing is lost, call again.
            LogStopped, Closed: as `RaftLog.append`.
        """
        self._require_open()
        self._wal.sync()
        self._wal.roll_over()
        self._flush_through(self._wal.number - 1)

    # -- the store itself

    def status(self) -> StoreStatus:
        """What the store says of itself."""
        stopped = self._wal.stopped
        return StoreStatus(
            logs=len(self._logs), wal_files=len(self._wal.file_numbers), wal_bytes=self._wal.size_bytes,
            queued_bytes=self._wal.queued_bytes, unflushed_files=len(self._wal.file_numbers) - 1,
            flush_error=None if self._flush_error is None else str(self._flush_error),
            stopped=None if stopped is None else str(stopped))

    def audit(self) -> None:
        """Check the invariants of the store, its WAL and all its logs.

        Raises:
            CompactlibError: one is broken; says which, with the numbers.
        """
        self._states.audit()
        self._wal.audit()
        for log in list(self._logs.values()):
            log.audit()

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"the store in {self._folder} is closed; open it again")

    def close(self) -> None:
        """Sync, and let all logs go; closing again does nothing. What is in memory is replayed when it is opened.

        Raises:
            StorageError, LogStopped: the last sync was refused; everything is closed all the same.
        """
        with self._changing:
            if self._closed:
                return
            self._closed = True
        for thread in (self._committer, self._flusher):
            if thread is not None:
                thread.close()
        with contextlib.ExitStack() as stack:
            stack.push(self._open_stack)
            for log in self._logs.values():
                stack.callback(log.close)

    def __enter__(self) -> RaftLogStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<RaftLogStore of {self._folder!r}: {len(self._logs)} logs, WAL file {self._wal.number}>"


def open_log(folder: StrPath, options: StoreOptions | None = None, *, log_id: str = "log") -> RaftLog:
    """A log with a store of its own; closing it closes the store. Arguments and errors as `RaftLogStore`."""
    store = RaftLogStore(folder, options)
    try:
        log = store.log(log_id)
    except BaseException:
        store.close()
        raise
    log.owns(store.close)
    return log


__all__ = ["RaftLogStore", "StoreOptions", "open_log"]
