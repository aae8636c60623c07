# SPDX-License-Identifier: Apache-2.0
"""`SegmentLog`: the one writer of a Raft log in a folder of segments, and the compactions that keep it small.

What an owner calls, with what each call does and raises. Reads are `LogReading`'s, shared with `LogReader`; entries,
truncation and files are `Segments`'; compactions are the `Compactor`'s. Each of them calls downwards only.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compactlib.contract import CommitFence
from compactlib.errors import InvalidInput, Stale, StorageError, Unsupported
from compactlib.files.disk import StrPath, local_path, make_missing_folder, sync_names
from compactlib.guard import Guard
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.arguments import bytes_of, index_set, whole
from compactlib.raftlog.compaction.commit import LogRecoveryReport, leftovers, purge_links, recover_folder
from compactlib.raftlog.compaction.compactor import Compactor
from compactlib.raftlog.compaction.plan.plan import LogPlan
from compactlib.raftlog.compaction.plan.policy import LogPolicy
from compactlib.raftlog.compaction.plan.view import LogView
from compactlib.raftlog.compaction.report import LogCompactionReport, LogReclaimReport
from compactlib.raftlog.log.folder import discard_headless_newest, require_log, wal_of
from compactlib.raftlog.log.reading import LogReading
from compactlib.raftlog.model.snapshot_meta import (
    NO_SNAPSHOT,
    SnapshotMeta,
    read_snapshot_meta,
    write_snapshot_meta,
)
from compactlib.raftlog.model.status import LogStatus
from compactlib.raftlog.model.values import MAX_INDEX, MAX_PAYLOAD_BYTES, Entry, SegmentRef
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.segment.liveness import require_live
from compactlib.raftlog.segment.segment_list import Lease
from compactlib.raftlog.segment.segments import Segments
from compactlib.rewrite import Executor
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, telling

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from compactlib.raftlog.memtable.table import Memtable

_FEW = 10
"""So many entries cost less one by one."""


class SegmentLog(LogReading):
    """A log open for writing: append, sync, record snapshots, compact. One process at a time holds it.

    Threads may share one: appends and reads exclude each other only on the newest segment, and a compaction runs
    beside both. Opening finishes or undoes what a crash interrupted and cuts a torn tail; `recovery` and `torn_entries`
    say what was found.

    A log that fails in the middle of a change (an error of the disk, a Ctrl-C) closes itself. Every later call is
    `Closed`, which says why; opening it again finds all that was synced.

    Args:
        folder: the log's folder; made, with a first segment, if there is none.
        options: how the log is kept.
        create: whether it may be made. If not, a folder without a log is `NotALog`, and stays as it is.
        memtable: given by a `RaftLogStore` alone, whose logs have entries in memory too.
        row_is_lost: given by a `RaftLogStore` alone, which then puts another row in force: the present one is damaged,
            and is not read.

    Raises:
        Busy: another process, or another object in this one, has it open for writing.
        NotALog: the folder holds other things; or no log, and `create` is not set.
        CorruptData: a segment's index or the snapshot state is damaged; nothing was changed.
        Unsupported: a file was written by a later release, or the folder is that of a log of a `RaftLogStore`.
        StorageError: the disk refused; `ReadOnly` where this process may not write (a `LogReader` can read it).
    """

    def __init__(self, folder: StrPath, options: LogOptions | None = None, *, create: bool = True,
                 memtable: Memtable | None = None, row_is_lost: bool = False) -> None:
        path = local_path(folder)
        if memtable is None and wal_of(path) is not None:
            raise Unsupported(f"{os.fspath(folder)} is the folder of a log of a store, whose newest entries are in the "
                              f"store's write-ahead log; open the store (RaftLogStore), or read it with a LogReader")
        self._memtable = memtable
        self._options = LogOptions() if options is None else options
        self._files = self._options.files
        self._guard: Guard = Guard(f"the log in {path}")
        if not require_log(path, may_create=create) and make_missing_folder(self._files, path):
            # If another process made it a moment ago, the lock says whose log it is.
            self._files.sync_folder(os.path.dirname(os.path.abspath(path)))
        try:
            with self._guard.lock:
                self._guard.begin("its opening")
                super().__init__(path, self._opened(path, row_is_lost), self._guard)
                self._guard.done()
        except BaseException:
            self._guard.release()
            raise
        self._compactor = Compactor(self.segments, self._guard, self._options, memtable)
        self._notify_recovery()

    def _opened(self, folder: str, row_is_lost: bool) -> Segments:
        self._guard.lock_folder(folder, meanwhile="read it with a LogReader")
        # An earlier writer may have been killed before it synced what is found here, and on which all will rest.
        sync_names(self._files, folder)
        row = None if row_is_lost else read_snapshot_meta(folder)
        self._recovery = recover_folder(self._files, folder)
        discard_headless_newest(self._files, folder)
        segments = Segments(self._files, folder, self._options.limits, self._guard, row,
                            max_open=self._options.max_open_segments)
        segments.remove_dropped()
        purge_links(self._files, folder, now=self._options.clock.now(), keep_seconds=self._options.keep_links_seconds)
        return segments

    def _notify_recovery(self) -> None:
        observer = telling(self._options.observer)
        if self._recovery:
            observer.event("raftlog_recovered", attrs.asdict(self._recovery))
        if self.torn_entries:
            observer.event("raftlog_torn_tail_cut", {"records": self.torn_entries,
                                                     "segment": self.segments.newest_number})

    @property
    def recovery(self) -> LogRecoveryReport:
        """What opening the log had to finish, undo or remove."""
        return self._recovery

    @property
    def torn_entries(self) -> int:
        """Entries that opening the log cut off at its end; none of them was ever confirmed by a `sync`."""
        return self.segments.torn_entries

    @property
    def segments(self) -> Segments:
        """The store's: the segments, for what is flushed to them."""
        segments = self._segments
        assert isinstance(segments, Segments), "a writer has all of them"
        return segments

    @property
    def guard(self) -> Guard:
        """The store's: the lock of the log, and whether it can be used."""
        return self._guard

    @property
    def policy(self) -> LogPolicy:
        """The log's own policy: what is rewritten when the trigger asks for it."""
        return self._options.policy

    @property
    def is_compacting(self) -> bool:
        """Whether a compaction or a reclaim is under way."""
        return bool(self._guard.running)

    # -- writing

    def append(self, index: int, term: int, payload: Buffer) -> None:
        """Add one entry. Durable after `sync`; visible to reads at once.

        An index that the log already holds takes back everything from there on, whatever its term, durably before the
        new entry is: what a follower of a Raft group is sent belongs into `RaftLog.append_entries`. A crash in between
        leaves the entries before `index`, or more of the old ones. Gaps are allowed.

        Raises:
            InvalidInput: the index lies at or below the snapshot, or is no 64-bit number, or the payload is too large.
            StorageError: the disk refused. Entries that were not synced are lost, and the log is closed.
            Closed: the log was closed, or closed itself.
        """
        entry = _checked(index, term, payload)
        with self._guard.lock:
            self._require_above_snapshot(entry[0])
            self.segments.append(*entry)

    def extend(self, entries: Iterable[Entry | tuple[int, int, Buffer]]) -> None:
        """Add entries, `Entry` values or (index, term, payload) tuples; as `append`, in order, with one locking.

        All are checked before the first is appended.
        """
        run = _run_of(entries)
        if run is not None:
            with self._guard.lock:
                self._require_above_snapshot(run[0])
                self.segments.append_run(*run)
            return
        checked = [_checked_row(row) for row in entries]
        with self._guard.lock:
            self._guard.require_open()
            for index, _, _ in checked:
                self._require_above_snapshot(index)
            for entry in checked:
                self.segments.append(*entry)

    def _require_above_snapshot(self, index: int) -> None:
        row = self._segments.row
        if row is not None and index <= row.index:
            raise InvalidInput(f"index {index} lies at or below the snapshot {row.index}; what a snapshot covers is "
                               f"committed and cannot be written again, append from {row.index + 1}")

    def sync(self) -> None:
        """Make every entry appended so far durable: one fsync, none if there is nothing new.

        Raises:
            StorageError: as `append`.
            Closed: as `append`.
        """
        self.segments.sync()

    def record_snapshot(self, index: int, live: IndexSet | Iterable[int] = ()) -> None:
        """Note durably that a snapshot covers everything up to `index`, except the entries of `live`.

        Everything else at or below `index` is dead from here on. Syncs the log first.

        Args:
            index: the snapshot's index, not below the one before.
            live: indexes <= `index` that the log must keep; a set, or strictly ascending numbers.

        Raises:
            Stale: a later snapshot was recorded already.
            LiveAboveSnapshot: a live index lies above `index`.
            Unsorted: the live indexes do not ascend.
            LiveIndexMissing: a live index is in no segment, or was dead before.
            StorageError: the disk refused. In each case the snapshot before stays in force; only when the sync of the
                folder was refused may the new one be found when the log is opened again.
        """
        row = SnapshotMeta(whole("the snapshot index", index), live=index_set("the live indexes", live))
        if row.index < 0:
            raise InvalidInput(f"snapshot index {row.index}; it must be between 0 and {MAX_INDEX}")
        with self._guard.lock:
            self.segments.sync()
            self._require_no_older(row)
            self.require_held(row)
            self.record_state(row)

    def require_held(self, row: SnapshotMeta) -> None:
        """The store's: check that every live index of a snapshot is in a segment or in memory, and was not dead before.

        Raises:
            LiveIndexMissing: some are not; says how many, and the first.
        """
        # Before the segments are listed: what leaves the memtable is in segments by then.
        held = self.unflushed
        with self._guard.lock:
            self._guard.require_open()
            require_live(row.live, self._segments.row, self.refs, self._held_by, held)

    def _held_by(self, ref: SegmentRef) -> IndexSet:
        known = self._segments.known_of(ref.number)
        if known is not None and known.is_dense:
            return IndexSet.range(ref.first, ref.last)
        return self._segments.index_of(ref.number).index_set()

    def record_state(self, row: SnapshotMeta) -> None:
        """The store's: put the row of a snapshot in force durably.

        `require_held` comes first; everything live must be durable.

        Raises:
            Stale: a later one is in force.
            StorageError: as `record_snapshot`.
        """
        with self._guard.lock:
            self._guard.require_open()
            self._require_no_older(row)
            self._guard.begin("a snapshot")
            try:
                write_snapshot_meta(self._files, self._folder, row)
            except StorageError:
                # Whichever of the two the disk has, nothing is lost by going on with the one before.
                self._guard.undone()
                raise
            self._segments.row = row
            self._guard.done()

    def _require_no_older(self, row: SnapshotMeta) -> None:
        recorded = self._segments.row
        if recorded is not None and row.index < recorded.index:
            raise Stale(f"snapshot {row.index} is older than {recorded.index}, which is recorded; snapshots only "
                        f"move forward")

    # -- reading

    @property
    def unflushed(self) -> IndexSet:
        return IndexSet() if self._memtable is None else self._memtable.indexes()

    @property
    def last_index(self) -> int | None:
        """The highest index in the log, `None` if it is empty. O(1)."""
        return self.segments.last_index

    def lease(self) -> Lease:
        lease = super().lease()
        lease.since = self._options.clock.now()
        return lease

    def leftovers(self) -> Sequence[str]:
        # Files that a running compaction is making are not leftovers.
        return () if self.is_compacting else leftovers(self._folder)

    # -- compacting

    def view(self, *, budget: Budget | None = None) -> LogView:
        """The log as a policy sees it now; see `LogReader.view`. What is pinned counts as alive."""
        return self._compactor.view(budget)

    def plan(self, policy: LogPolicy | None = None, *, view: LogView | None = None) -> LogPlan:
        """What `compact` would do now, and why it would leave the rest: a dry run that changes nothing.

        Without a policy the log's trigger decides: the log's own policy is asked if the trigger wants that and there is
        room for what it would rewrite; else `DropDead` is, and the plan says what held the other one back.

        Args:
            policy: decides what is rewritten.
            view: to plan for instead of the log as it is now.

        Raises:
            InvalidInput: the policy is none, or its choice breaks a rule; or the view is of another log.
            Closed: the log was closed.
            Exception: whatever the policy or the trigger raised.
        """
        self._guard.require_open()
        return self._compactor.plan(self.view() if view is None else self._require_own(view), policy)

    def compact(self, plan: LogPlan | None = None, *, policy: LogPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> LogCompactionReport:
        """Free what the last snapshot left dead. Appends and reads go on meanwhile.

        What an earlier compaction was interrupted in is finished first.

        Args:
            plan: of this log; default what `plan(policy)` says now.
            policy: decides what is rewritten, instead of the log's own rule. Not together with a plan.
            executor: runs the copying; default this thread.
            budget: what the copying may use up.
            observer: notified, besides the log's own.
            fence: entered around the drops, and around each group's commit.

        Returns:
            What was done. Nothing (`is_empty`), if there was nothing to do or no room for what would be written; a part
            (`is_partial`), if the budget ended after something was committed. `why` says the reason.

        Raises:
            InvalidInput: a plan of another log, a plan and a policy, or an argument of another kind.
            Stale: the plan is outdated.
            Busy: a compaction or a reclaim is under way; `BudgetSpent` if the budget ended before anything was
                committed.
            CompactionFailed: some groups failed, and the others were carried out; it has the report.
            StorageError: the disk refused before anything was committed.
            Closed: the log was closed, or closed itself.
            Exception: whatever the policy, the trigger or the fence raised; what was committed before stays. An error
                of the library's from a fence is in `CompactionFailed` if something was.
        """
        return self._compactor.compact(plan, policy, executor, budget, observer, fence)

    def reclaim(self, *, budget: Budget | None = None) -> LogReclaimReport:
        """Remove what leases or `keep_links_seconds` held back, and what an interrupted compaction has left.

        Every compaction does this as well.

        Args:
            budget: asked before it begins.

        Returns:
            What is gone; of an empty report `why` says what files wait for.

        Raises:
            Busy: a compaction or a reclaim is under way, or the budget is spent.
            StorageError: the disk refused; what is left is tried again the next time.
            TaskFailed: `on_changes` raised; no file was removed.
            Closed: the log was closed.
        """
        return self._compactor.reclaim(budget)

    def status(self) -> LogStatus:
        """What the log says of itself, at once."""
        with self._guard.lock:
            self._guard.require_open()
            segments, refs, row = self.segments, self.refs, self._segments.row or NO_SNAPSHOT
            last = refs[-1].last if refs else -1
            return LogStatus(
                log_id=os.path.basename(self._folder), first_index=refs[0].first if refs else None,
                last_index=max(row.index, last), last_term=segments.last_term, durable_index=segments.durable_index,
                unconfirmed=segments.unsynced_entries, snapshot_index=row.index, snapshot_term=row.term,
                smallest_live_index=row.smallest_live_index, live=len(row.live), memtable_entries=0,
                segments=len(refs), pinned=len(segments.pinned), pins=segments.pins, stopped=None,
                is_busy=self.is_compacting)

    def audit(self) -> None:
        """Check the log's own invariants, and what it remembers of its newest segment.

        Raises:
            AuditFailed: one is broken; says which, with the numbers.
        """
        self._guard.require_open()
        self._segments.audit()

    # -- ending

    def close(self) -> None:
        """Sync, and let the log go; closing again does nothing. A compaction that runs is cancelled and waited for.

        A log that has closed itself is let go without a sync; so is that of a fork's parent.

        Raises:
            Busy: called from within a compaction, by an observer for example; nothing was done.
            StorageError: the disk refused the last sync; the log is closed all the same.
        """
        self._guard.require_outside()
        try:
            self.segments.end()
        finally:
            # Waits for a compaction: the folder must not be given to another process while groups are committed in it.
            self._guard.release()


def _checked(index: Any, term: Any, payload: Any) -> tuple[int, int, bytes]:
    """An entry as a host gives it, before anything is changed."""
    if type(payload) is not bytes:
        payload = bytes_of(payload)
    if type(index) is not int or type(term) is not int:
        index, term = whole("the index", index), whole("the term", term)
    if not 0 <= index <= MAX_INDEX or not 0 <= term <= MAX_INDEX or len(payload) > MAX_PAYLOAD_BYTES:
        raise InvalidInput(f"entry {index} in term {term} with {len(payload)} bytes: index and term are 0 to "
                           f"{MAX_INDEX}, a payload at most {MAX_PAYLOAD_BYTES} bytes")
    return index, term, payload


def _checked_row(row: Any) -> tuple[int, int, bytes]:
    try:
        index, term, payload = row
    except (TypeError, ValueError):
        raise InvalidInput(f"an entry is {row!r:.100}; give an Entry, or index, term, payload") from None
    return _checked(index, term, payload)


def _run_of(entries: object) -> tuple[int, int, Sequence[bytes]] | None:
    """First index, term and payloads, if these are many entries of consecutive indexes and one term, with bytes."""
    if not isinstance(entries, list | tuple) or len(entries) < _FEW:
        return None
    try:
        indexes, terms, payloads = zip(*entries, strict=True)
    except (TypeError, ValueError):
        return None
    if {*map(type, indexes), *map(type, terms)} != {int} or set(map(type, payloads)) != {bytes}:
        return None
    first, term, count = indexes[0], terms[0], len(indexes)
    fits = (0 <= first <= MAX_INDEX - count and 0 <= term <= MAX_INDEX and terms.count(term) == count
            and indexes == tuple(range(first, first + count)) and max(map(len, payloads)) <= MAX_PAYLOAD_BYTES)
    return (first, term, payloads) if fits else None
