"""The writing half of a log: open it, append, sync, and read what was appended; compactions are `segment_log.py`'s."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import attrs

from compactlib.arguments import require_type
from compactlib.errors import (
    AuditFailed,
    CompactlibError,
    InvalidInput,
    StorageError,
)
from compactlib.files.disk import StrPath, sync_names
from compactlib.files.folder_lock import FolderLock
from compactlib.raftlog.arguments import whole
from compactlib.raftlog.compaction.recover import RecoveryReport, recover_folder
from compactlib.raftlog.compaction.run import Compactor
from compactlib.raftlog.log.folder import discard_headless_newest, read_folder, require_log
from compactlib.raftlog.log.log_reader import LogReader
from compactlib.raftlog.log.newest import NewestSegment
from compactlib.raftlog.model.snapshot_state import read_snapshot_state
from compactlib.raftlog.model.values import MAX_INDEX, Dead, Entry, Missing, SegmentRef
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.segment.segment_set import Lease, SegmentSet
from compactlib.runtime import telling

if TYPE_CHECKING:
    from typing_extensions import Buffer

_BEYOND = MAX_INDEX + 1


class LogWriter(LogReader):
    """What `SegmentLog` is without its compactions; see there for arguments, threads and errors."""

    def __init__(self, folder: StrPath, options: LogOptions | None = None) -> None:
        require_type("the options", options, LogOptions, or_none=True)
        self._options = LogOptions() if options is None else options
        self._files = self._options.files
        self._observer = telling(self._options.observer)
        self._switch = threading.RLock()
        self._older_last = -1
        self._newest_first = _BEYOND
        self._to_discard: list[int] = []
        self._overwrite_unsynced = False
        self._must_recover = False
        self._recovery = RecoveryReport()
        with contextlib.ExitStack() as stack:
            self._open_stack = stack
            super().__init__(folder, max_open_segments=self._options.max_open_segments)
            self._open_stack = stack.pop_all()

    def _load(self) -> None:
        folder = self._folder
        if not require_log(folder, may_create=True) and not os.path.isdir(folder):
            self._make_folder(folder)
            self._files.sync_folder(os.path.dirname(os.path.abspath(folder)))
        self._lock = self._open_stack.enter_context(FolderLock(folder, meanwhile="read it with a LogReader"))
        # An earlier writer may have been killed before it synced what is found here, and on which all will rest.
        sync_names(self._files, folder)
        self._limits = self._options.limits
        self._state = read_snapshot_state(folder)
        self._recovery = recover_folder(self._files, folder)
        discard_headless_newest(self._files, folder)
        contents = read_folder(folder, keep_open=self._max_open)
        self._segments = SegmentSet(folder, contents.known, max_open=self._max_open)
        for place, reader in contents.readers[:-1]:
            self._segments.keep_open(place, reader)
        number, newest = contents.newest or (0, None)
        self._newest = NewestSegment(self._files, folder, self._limits, number=number, found=newest)
        self._open_stack.callback(self._newest.close)
        if not number:
            self._newest.create_first()
        self._compactor = Compactor(folder, self._segments, self._switch, files=self._files, clock=self._options.clock,
                                    keep_links_seconds=self._options.keep_links_seconds,
                                    run_id=self._options.run_id, switched=self._note_newest)
        empty = [segment for segment in contents.empty if segment != self._newest.number]
        self._compactor.discard([*self._segments.covered, *empty])
        self._compactor.reclaim()
        self._note_newest()
        self._tell_recovery()

    def _make_folder(self, folder: str) -> None:
        try:
            self._files.make_folder(folder)
        except StorageError:
            # Another process may have made it a moment ago; the lock says whose log it is.
            if not os.path.isdir(folder):
                raise

    def _tell_recovery(self) -> None:
        if self._recovery:
            self._observer.event("raftlog_recovered", attrs.asdict(self._recovery))
        if self.torn_entries:
            self._observer.event("raftlog_torn_tail_cut", {"records": self.torn_entries,
                                                           "segment": self._newest.number})

    @property
    def recovery(self) -> RecoveryReport:
        """What opening the log had to finish, undo or remove."""
        return self._recovery

    @property
    def torn_entries(self) -> int:
        """Entries that opening the log cut off at its end; none of them was ever confirmed by a `sync`."""
        return self._newest.torn_entries

    def refresh(self) -> None:
        """Nothing: a writer always knows its log."""

    # -- writing

    def append(self, index: int, term: int, payload: Buffer) -> None:
        """Add one entry. Durable after `sync`; visible to reads at once.

        An index that the log already holds takes back everything from there on, as Raft does when a leader changes.
        Gaps are allowed. The payload must not be changed before the next `sync`. About 3 microseconds.

        Raises:
            InvalidInput: the index lies at or below the snapshot, or is no 64-bit number, or the payload is too large.
            StorageError: the disk refused. Entries that were not synced are lost, and the log goes on from what is
                there: look at `last_index` before appending again.
            Closed: the log was closed.
        """
        with self._switch:
            self._append(index, term, payload)

    def extend(self, entries: Iterable[Entry | tuple[int, int, bytes]]) -> None:
        """Add entries, `Entry` values or (index, term, payload) tuples; as `append`, in order, with one locking."""
        with self._switch:
            for entry in _iterated(entries):
                try:
                    index, term, payload = entry
                except (TypeError, ValueError):
                    raise InvalidInput(f"an entry is {entry!r:.100}; give an Entry, or index, term, payload") from None
                self._append(index, term, payload)

    def _append(self, index: int, term: int, payload: Buffer) -> None:
        self._require_open()
        state = self._state
        if state is not None and (index if type(index) is int else whole("the index", index)) <= state.index:
            raise InvalidInput(f"index {index} lies at or below the snapshot {state.index}; what a snapshot covers is "
                               f"committed and cannot be written again, append from {state.index + 1}")
        self._put(index, term, payload)

    def _put(self, index: int, term: int, payload: Buffer) -> None:
        if self._must_recover:
            self._recover_newest()
        try:
            ended = self._newest.make_room()
            if ended is not None:
                self._segments.put(ended)
                self._older_last, self._newest_first = ended.ref.last, _BEYOND
            self._newest.append(index, term, payload)
        except StorageError:
            self._lose_unsynced()
            raise
        if index <= self._older_last:
            self._overwrite_older()
        elif index < self._newest_first:
            self._newest_first = index

    def _overwrite_older(self) -> None:
        newest = self._newest.known()
        assert newest is not None, "an entry was just appended"
        # The files of covered segments may go only once the entries that cover them are durable.
        self._to_discard.extend(self._segments.put(newest))
        self._overwrite_unsynced = True
        self._note_newest()

    def sync(self) -> None:
        """Make every entry appended so far durable: one fsync, none if there is nothing new.

        Raises:
            StorageError: as `append`.
            Closed: the log was closed.
        """
        with self._switch:
            self._require_open()
            if self._must_recover:
                self._recover_newest()
            try:
                self._newest.sync()
            except StorageError:
                self._lose_unsynced()
                raise
            self._overwrite_unsynced = False
            if self._to_discard:
                self._compactor.discard(self._to_discard)
                self._to_discard = []
                # The entries are durable; what the disk refuses to remove is tried again by the next compaction.
                with contextlib.suppress(StorageError):
                    self._compactor.reclaim()

    def _lose_unsynced(self) -> None:
        """After a `StorageError`: go on from what is durable, now or (if that is refused too) with the next call."""
        self._must_recover = True
        with contextlib.suppress(CompactlibError):
            self._recover_newest()

    def _recover_newest(self) -> None:
        self._lock.require_mine()
        self._newest.recover()
        known = read_folder(self._folder).known
        self._segments.reset(segment for segment in known if segment.ref.number not in self._compactor.doomed)
        self._to_discard = list(self._segments.covered)
        self._must_recover = self._overwrite_unsynced = False
        self._note_newest()

    def _note_newest(self) -> None:
        """Follow a change of the list. While the newest segment is not recovered nothing is known of it."""
        if self._must_recover:
            return
        newest = self._newest.known()
        if newest is not None:
            self._segments.put(newest)
        self._older_last, self._newest_first = self._ends()

    def _ends(self) -> tuple[int, int]:
        """The last index of the older segments (-1 if none), and the first of the one that is written to."""
        newest, refs = self._newest.known(), self._segments.refs
        if newest is None:
            return (refs[-1].last if refs else -1), _BEYOND
        return (refs[-2].last if len(refs) > 1 else -1), newest.ref.first

    def _publish_newest(self) -> None:
        """Let the list of segments, and those who open the newest one, see what was appended last."""
        with self._switch:
            if self._must_recover:
                self._recover_newest()
            newest = self._newest.known()
            if newest is None or self._closed:
                return
            self._lock.require_mine()
            try:
                self._newest.flush()
            except StorageError:
                self._lose_unsynced()
                raise
            number = self._newest.number
            outdated = self._segments.open_entries(number) not in (-1, newest.entries)
            if outdated or self._segments.known_of(number) != newest:
                self._segments.put(newest)

    # -- reading

    @property
    def refs(self) -> tuple[SegmentRef, ...]:
        """The segments, oldest first, with the range of indexes each answers for."""
        self._publish_newest()
        return self._segments.refs

    @property
    def last_index(self) -> int | None:
        """The highest index in the log, `None` if it is empty. O(1)."""
        with self._switch:
            if self._must_recover:
                self._recover_newest()
            newest = self._newest.known()
        return super().last_index if newest is None else newest.ref.last

    def read(self, index: int) -> Entry | Dead | Missing:
        """See `LogReader.read`."""
        if type(index) is not int:
            index = whole("the index", index)
        if index < self._newest_first:
            # By name: this is the path of every random read, and `super()` takes as long as a bisection.
            return LogReader.read(self, index)
        state = self._state
        if state is not None and state.is_dead(index):
            return super().read(index)
        with self._switch:
            self._require_open()
            if self._must_recover:
                self._recover_newest()
            if index < self._newest_first:
                # It moved on while this thread waited.
                return super().read(index)
            try:
                entry = self._newest.read(index)
            except StorageError:
                self._lose_unsynced()
                raise
        # What an older segment holds from here on was taken back.
        return self._absent(index) if entry is None else entry

    def _is_behind(self) -> bool:
        return False

    def lease(self) -> Lease:
        """See `LogReader.lease`."""
        self._publish_newest()
        return super().lease()

    def audit(self) -> None:
        """See `LogReader.audit`; also checks what the writer remembers of its newest segment."""
        with self._switch:
            self._require_open()
            self._publish_newest()
            super().audit()
            found, wanted = (self._older_last, self._newest_first), self._ends()
            if found != wanted:
                raise AuditFailed(f"(end of the older segments, start of the newest) is {found}, expected {wanted}")

    def _require_open(self) -> None:
        # A fork of the process that opened the log has its memory, and must not write what that holds.
        if self._closed or not self._lock.is_mine:
            super()._require_open()
            self._lock.require_mine()

    def close(self) -> None:
        """Sync, and let the log go; closing again does nothing. In a fork it only lets the fork's files go.

        Raises:
            StorageError: the disk refused the last sync; the log is closed all the same.
        """
        if not self._closed and not self._lock.is_mine:
            # Without the locks: whoever held one when the process was forked is not here to give it back.
            self._closed = True
            self._newest.abandon()
            self._open_stack.close()
            return
        with self._switch:
            super().close()
            self._open_stack.close()


def _iterated(entries: Iterable[Entry | tuple[int, int, bytes]]) -> Iterator[Entry | tuple[int, int, bytes]]:
    try:
        return iter(entries)
    except TypeError:
        raise InvalidInput(f"the entries are {entries!r:.100}; give an iterable of entries") from None
