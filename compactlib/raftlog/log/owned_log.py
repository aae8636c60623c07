# SPDX-License-Identifier: Apache-2.0
"""`OwnedLog`: what `SegmentLog` and `RaftLog` share: the opening of the segments, reads, and compactions.

Reads are `LogReading`'s, shared with `LogReader`; entries, truncation and files are `Segments`'; compactions are the
`Compactor`'s. Each of them calls downwards only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import attrs

from compactlib.budget import Budget
from compactlib.contract import CommitFence
from compactlib.errors import Stale, StorageError
from compactlib.files.disk import make_missing_folder, sync_names
from compactlib.guard import Guard
from compactlib.indexset import IndexSet
from compactlib.observer import Observer, Observers
from compactlib.raftlog.compaction.commit import LogRecoveryReport, leftovers, purge_links, recover_folder
from compactlib.raftlog.compaction.compactor import Compactor
from compactlib.raftlog.compaction.options import LogOptions
from compactlib.raftlog.compaction.plan import LogPlan
from compactlib.raftlog.compaction.policy import LogPolicy, LogView
from compactlib.raftlog.compaction.report import LogCompactionReport, LogReclaimReport
from compactlib.raftlog.log.folder import require_log
from compactlib.raftlog.log.reading import LogReading
from compactlib.raftlog.memtable import Memtable
from compactlib.raftlog.model.snapshot_meta import (
    SnapshotMeta,
    read_snapshot_meta,
    snapshot_version,
    write_snapshot_meta,
)
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.segment.liveness import require_live
from compactlib.raftlog.segment.segment_list import Lease, OpenFiles
from compactlib.raftlog.segment.segments import Segments
from compactlib.rewrite import Executor


class OwnedLog(LogReading):
    """A log whose folder this process owns; see `SegmentLog` and `RaftLog`.

    Args:
        folder: the log's, as an absolute path.
        options: how the log is kept.
        create: whether it may be made.
        memtable: entries that no segment holds yet.
        open_files: bounds the files that are kept open for reading; default one of its own.
    """

    def __init__(self, folder: str, options: LogOptions, *, create: bool = True, memtable: Memtable | None = None,
                 open_files: OpenFiles | None = None) -> None:
        self._folder = folder
        self._options = options
        self._open_files = OpenFiles(options.max_open_segments) if open_files is None else open_files
        self._files = options.files
        guard = Guard(f"the log in {folder}")
        if not require_log(folder, may_create=create) and make_missing_folder(self._files, folder):
            # If another process made it a moment ago, the lock says whose log it is.
            self._files.sync_folder(os.path.dirname(os.path.abspath(folder)))
        try:
            with guard.lock:
                guard.begin("its opening")
                self._own: Segments = self._opened(folder, guard)
                super().__init__(folder, self._own, guard, memtable)
                guard.done()
        except BaseException:
            guard.release()
            raise
        self._compactor = Compactor(self._own, guard, options, memtable)
        observer = Observers(options.observer)
        if self._recovery:
            observer.event("raftlog_recovered", **attrs.asdict(self._recovery))
        if self.torn_entries:
            observer.event("raftlog_torn_tail_cut", records=self.torn_entries, segment=self._own.newest_number)

    def _found_row(self) -> SnapshotMeta | None:
        """The row of the last snapshot, read when the log is opened."""
        return read_snapshot_meta(self._folder)

    def _opened(self, folder: str, guard: Guard) -> Segments:
        guard.lock_folder(folder, meanwhile="read it with a LogReader")
        # An earlier writer may have been killed before it synced what is found here, and on which all will rest.
        sync_names(self._files, folder)
        row = self._found_row()
        self._recovery = recover_folder(self._files, folder)
        segments = Segments(self._files, folder, self._options.limits, guard, row, open_files=self._open_files)
        segments.remove_dropped()
        purge_links(self._files, folder, now=self._options.clock.now(), keep_seconds=self._options.keep_links_seconds)
        return segments

    @property
    def recovery(self) -> LogRecoveryReport:
        """What opening the log had to finish, undo or remove."""
        return self._recovery

    @property
    def torn_entries(self) -> int:
        """Entries that opening the log cut off at its end; none of them was ever confirmed by a `sync`."""
        return self._own.torn_entries

    @property
    def policy(self) -> LogPolicy:
        """The log's own policy: what is rewritten when the trigger asks for it."""
        return self._options.policy

    @property
    def is_compacting(self) -> bool:
        """Whether a compaction or a reclaim is under way."""
        return bool(self._guard.running)

    # -- the row of the snapshot

    def _require_held(self, row: SnapshotMeta) -> None:
        """Return if every live index of a snapshot is in a segment or in memory, and was not dead before.

        Raises:
            LiveIndexMissing: some are not; says how many, and the first.
        """
        # Before the segments are listed: what leaves the memtable is in segments by then.
        held = self.unflushed
        with self._guard.lock:
            self._guard.require_open()

            def held_by(ref: SegmentRef) -> IndexSet:
                known = self._own.known_of(ref.number)
                dense = known is not None and known.is_dense
                return IndexSet.range(ref.first, ref.last) if dense else self._own.index_of(ref.number).index_set()

            require_live(row.live, self._own.row, self._own.refs, held_by, held)

    def _record_state(self, row: SnapshotMeta) -> None:
        """Put the row of a snapshot in force durably. `_require_held` comes first; everything live must be durable.

        Raises:
            Stale: a later one is in force.
            StorageError: as `_write_row`.
        """
        with self._guard.lock:
            self._require_no_older(row)
            self._write_row(row)
            self._own.row = row

    def _write_row(self, row: SnapshotMeta) -> None:
        """Replace the row's file, durably.

        Raises:
            StorageError: the row before is in force. If either may be after a crash, the log is closed: nothing may be
                acknowledged on top of the one before.
        """
        with self._guard.lock:
            self._guard.begin("a snapshot")
            before = snapshot_version(self._folder)
            try:
                write_snapshot_meta(self._files, self._folder, row)
            except StorageError as error:
                if snapshot_version(self._folder) == before:
                    self._guard.undone()
                else:
                    self._guard.fail(error)
                raise
            self._guard.done()

    def _require_no_older(self, row: SnapshotMeta) -> None:
        recorded = self._own.row
        if recorded is not None and row.index < recorded.index:
            raise Stale(f"snapshot {row.index} is older than {recorded.index}, which is recorded; snapshots only "
                        f"move forward")

    def end_segment(self) -> None:
        """End the newest segment durably, so that a snapshot may free it; the next one has the limits of the options.

        Raises:
            StorageError: the disk refused; the log is closed.
            Closed: the log was closed.
        """
        self._require_open()
        self._own.end_segment()

    # -- reading

    def lease(self) -> Lease:
        return self._segments.lease(self._options.clock.now())

    def leftovers(self) -> Sequence[str]:
        # Files that a running compaction is making are not leftovers.
        return () if self.is_compacting else leftovers(self._folder)

    # -- compacting

    def view(self, *, budget: Budget | None = None) -> LogView:
        """The log as a policy sees it now; see `LogReader.view`. What is pinned counts as alive."""
        self._require_open()
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
        self._require_open()
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
        self._require_open()
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
        self._require_open()
        return self._compactor.reclaim(budget)
