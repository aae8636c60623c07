# SPDX-License-Identifier: Apache-2.0
"""`OwnedLog`: the parts of `SegmentLog` and `RaftLog` in common: opening, snapshots, reads, and compactions.

`LogReading` has the reads, also for `LogReader`; `Segments` the files, appends and truncations; `Compactor` the
compactions. Each of them calls downwards only.
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
from compactlib.raftlog.segment.listing import read_folder
from compactlib.raftlog.segment.liveness import require_live
from compactlib.raftlog.segment.segments import Lease, OpenFiles, Segments
from compactlib.rewrite import Executor


class OwnedLog(LogReading):
    """A log whose folder this process owns; see `SegmentLog` and `RaftLog`.

    Args:
        folder: the log's, as an absolute path.
        options: the log's settings.
        create: whether a missing log is created.
        memtable: entries that are in no segment yet.
        open_files: bounds the files that are open for reading; default only this log's.
    """

    def __init__(self, folder: str, options: LogOptions, *, create: bool = True, memtable: Memtable | None = None,
                 open_files: OpenFiles | None = None) -> None:
        self._folder = folder
        self._options = options
        self._open_files = OpenFiles(options.max_open_segments) if open_files is None else open_files
        self._files = options.files
        guard = Guard(f"the log in {folder}")
        if not require_log(folder, may_create=create) and make_missing_folder(self._files, folder):
            # Another process may have made it a moment ago; the folder's lock decides who owns the log.
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
        # An earlier owner may have been killed before it synced these names.
        sync_names(self._files, folder)
        row = self._found_row()
        self._recovery = recover_folder(self._files, folder)
        found = read_folder(folder, row)
        segments = Segments(folder, guard, found.known, row, open_files=self._open_files)
        segments.begin_writing(self._files, self._options.limits, found)
        segments.remove_dropped()
        purge_links(self._files, folder, now=self._options.clock.now(), keep_seconds=self._options.keep_links_seconds)
        return segments

    @property
    def recovery(self) -> LogRecoveryReport:
        """The compactions that opening the log has finished or undone, and the leftovers that it has removed."""
        return self._recovery

    @property
    def torn_entries(self) -> int:
        """Count of entries that opening the log has cut off at its end; none of them was acknowledged by a `sync`."""
        return self._own.torn_entries

    @property
    def policy(self) -> LogPolicy:
        """The log's own policy, for compactions when the trigger is due."""
        return self._options.policy

    @property
    def is_compacting(self) -> bool:
        """Whether a compaction or a reclaim runs."""
        return bool(self._guard.running)

    # -- the row of the snapshot

    def _require_held(self, row: SnapshotMeta) -> None:
        """Raise `LiveIndexMissing` unless every live index of a snapshot is in a segment or in memory, and not dead."""
        # The memtable before the segments: an entry is in segments before it leaves the memtable.
        held = self.unflushed
        with self._guard.lock:
            self._guard.require_open()

            def held_by(ref: SegmentRef) -> IndexSet:
                known = self._own.known_of(ref.number)
                dense = known is not None and known.is_dense
                return IndexSet.range(ref.first, ref.last) if dense else self._own.index_of(ref.number).index_set()

            require_live(row.live, self._own.row, self._own.refs, held_by, held)

    def _record_state(self, row: SnapshotMeta) -> None:
        """Commit the row of a snapshot, durably. The caller has called `_require_held`; all live entries are durable.

        Raises:
            Stale: a later snapshot is in force.
            StorageError: as `_write_row`.
        """
        with self._guard.lock:
            self._require_no_older(row)
            self._write_row(row)
            self._own.row = row

    def _write_row(self, row: SnapshotMeta) -> None:
        """Replace the row's file, durably.

        Raises:
            StorageError: the row before is in force; or the outcome is unknown, and the log is closed.
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
        """Seal the newest segment, durably, so that compactions include it; the next segment has the options' limits.

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
        # The files of a running compaction are no leftovers.
        return () if self.is_compacting else leftovers(self._folder)

    # -- compacting

    def view(self, *, budget: Budget | None = None) -> LogView:
        """The current view for policies; see `LogReader.view`. Pinned entries count as live."""
        self._require_open()
        return self._compactor.view(budget)

    def plan(self, policy: LogPolicy | None = None, *, view: LogView | None = None) -> LogPlan:
        """Plan a compaction: what it would drop and rewrite, and the reason for each other segment. Changes nothing.

        Without a policy: if the log's trigger is due and the disk has room for the rewrites, the log's own policy
        chooses; else `DropDead` does, and the plan names the gate.

        Args:
            policy: chooses the victims.
            view: to plan for; default the current view.

        Raises:
            InvalidInput: the policy's choice breaks a rule, or the view is of another log.
            Closed: the log was closed.
            Exception: of the policy or the trigger.
        """
        self._require_open()
        return self._compactor.plan(self.view() if view is None else self._require_own(view), policy)

    def compact(self, plan: LogPlan | None = None, *, policy: LogPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> LogCompactionReport:
        """Compact the log: drop and rewrite what the last snapshot left dead. Appends and reads are not blocked.

        An interrupted compaction is finished first.

        Args:
            plan: of this log; default `plan(policy)`.
            policy: chooses the victims, instead of the log's own rule. Not together with a plan.
            executor: runs the copying; default this thread.
            budget: of the copying.
            observer: receives events, as the log's own observer does.
            fence: entered around the drops, and around each group's commit.

        Returns:
            The report. It is empty (`is_empty`) if there was nothing to do, or no room for the rewrites; partial
            (`is_partial`) if the budget was spent after a commit. `why` has the reason.

        Raises:
            InvalidInput: a plan of another log, or a plan and a policy.
            Stale: the plan is outdated.
            Busy: a compaction or a reclaim runs; `BudgetSpent` if the budget was spent before any commit.
            CompactionFailed: some groups failed; it has the report with the others.
            StorageError: the disk refused before any commit.
            Closed: the log was closed, or closed itself.
            Exception: of the policy, the trigger or the fence; earlier commits stay. After a commit, a library error of
                the fence is in a `CompactionFailed`.
        """
        self._require_open()
        return self._compactor.compact(plan, policy, executor, budget, observer, fence)

    def reclaim(self, *, budget: Budget | None = None) -> LogReclaimReport:
        """Remove files for which leases or `keep_links_seconds` have ended, and leftovers of an interrupted compaction.

        Every compaction does this too.

        Args:
            budget: checked at the start.

        Returns:
            The report; if it is empty, `why` names the gate.

        Raises:
            Busy: a compaction or a reclaim runs, or the budget is spent.
            StorageError: the disk refused; the next call retries.
            TaskFailed: `on_changes` raised; no file was removed.
            Closed: the log was closed.
        """
        self._require_open()
        return self._compactor.reclaim(budget)
