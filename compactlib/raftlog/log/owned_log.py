# SPDX-License-Identifier: Apache-2.0
"""`OwnedLog`: a log that is open for writing: its opening, its snapshots and its compactions.

`LogReading` has the reads, `Segments` the files, appends and truncations.

A compaction senses, plans, rewrites, checks, commits and reclaims: `OwnedLog._compact` is the algorithm. A failed group
leaves its segments unchanged, and stops no other group. Commits stay when a later group fails, the disk is full, or the
budget is spent; the next run continues with the rest. The list of segments is switched, and the host is notified of the
change, before a file is removed.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Generator

import attrs

from compactlib._store_numbers import notify_compaction, notify_levels, outcome_of
from compactlib.budget import Budget
from compactlib.contract import CommitFence
from compactlib.errors import (
    BudgetSpent,
    Busy,
    CompactionFailed,
    CompactlibError,
    CorruptData,
    DiskFull,
    InvalidInput,
    NotFound,
    Stale,
    StorageError,
    TaskFailed,
    Unsupported,
)
from compactlib.executors.tasks import LocalExecutor, answers_of, foreign_error, new_attempt_id, own_error
from compactlib.files.disk import make_missing_folder, sync_names
from compactlib.guard import Guard, Run
from compactlib.observer import Observer, Observers
from compactlib.raftlog.compaction.commit import (
    LogRecoveryReport,
    check_rewritten,
    finish_groups,
    is_committed,
    link_members,
    links_in,
    place_leader,
    purge_links,
    recover_folder,
    remove_private,
)
from compactlib.raftlog.compaction.plan import (
    LogPlan,
    MajorCadence,
    PlannedGroup,
    lack_of_room,
    plan_for,
    require_fitting,
)
from compactlib.raftlog.compaction.policy import GroupFailed, LogPolicy, LogView
from compactlib.raftlog.compaction.report import GroupStats, LogCompactionReport, LogReclaimReport, SegmentChanges
from compactlib.raftlog.compaction.rewrite import CompactSegments, Copier, SegmentSource
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.log.folder import require_links, require_log, wal_of
from compactlib.raftlog.log.reading import LogReading
from compactlib.raftlog.memtable import Memtable
from compactlib.raftlog.names import LOCK_NAME, LOGS_FOLDER, REWRITE_PREFIX, segment_name
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.segment.listing import between, file_bytes, read_folder
from compactlib.raftlog.segment.segments import Lease, OpenFiles, Segments
from compactlib.raftlog.snapshot_meta import (
    SnapshotMeta,
    read_snapshot_meta,
    snapshot_version,
    write_snapshot_meta,
)
from compactlib.raftlog.values import SegmentRef, SegmentStats
from compactlib.rewrite import Executor, RewriteFailure, RewriteResult

_LOGGER = logging.getLogger("compactlib.raftlog")


@attrs.define
class _Work:
    """The progress of a run; fields as in its report.

    Attributes:
        waiting: groups that are not rewritten yet, by task.
        placed: committed groups whose members are not links yet.
        copier: reads the new segments; made for the first.
    """

    plan: LogPlan
    drops: tuple[SegmentStats, ...] = ()
    done: list[GroupStats] = attrs.field(factory=list)
    failed: list[GroupFailed] = attrs.field(factory=list)
    unreclaimed: CompactlibError | None = None
    waiting: dict[str, tuple[PlannedGroup, CompactSegments]] = attrs.field(factory=dict)
    placed: list[tuple[int, ...]] = attrs.field(factory=list)
    copier: Copier | None = None

    def give_up(self, error: CompactlibError) -> None:
        """Record this error as the failure of the groups that were not rewritten."""
        self.failed += [GroupFailed(group.numbers, error) for group, _ in self.waiting.values()]
        self.waiting.clear()

    def report(self, seconds: float, why: str = "") -> LogCompactionReport:
        """The report of the run; `why` replaces the plan's reason."""
        return LogCompactionReport(
            plan=self.plan, why=why or self.plan.why, drops=self.drops, done=tuple(self.done),
            failed=tuple(self.failed), unreclaimed=self.unreclaimed, seconds=seconds)


class OwnedLog(LogReading):
    """A log whose folder this process owns; see `SegmentLog` and `RaftLog`.

    Args:
        folder: the log's, as an absolute path.
        options: the log's settings.
        create: whether a missing log is created.
        memtable: entries that are in no segment yet.
        open_files: bounds the files that are open for reading; default only this log's.

    Attributes:
        policy: chooses the victims when the trigger is due.
        recovery: the compactions that opening has finished or undone, and the leftovers that it has removed.
    """

    def __init__(self, folder: str, options: LogOptions, *, create: bool = True, memtable: Memtable | None = None,
                 open_files: OpenFiles | None = None) -> None:
        self._folder = folder
        self._options = options
        self.policy: LogPolicy = options.policy
        self._is_of_store = memtable is not None
        self._open_files = OpenFiles(options.max_open_segments) if open_files is None else open_files
        self._files = options.files
        self._clock = options.clock
        self._observer = Observers(options.observer)
        self._cadence = MajorCadence(options.trigger, options.clock)
        guard = Guard(f"the log in {folder}")
        if not require_log(folder, may_create=create):
            # Another process may have made it a moment ago; the folder's lock decides who owns the log.
            make_missing_folder(self._files, folder)
        with guard.lock, guard.opening():
            self._own: Segments = self._opened(folder, guard)
            super().__init__(folder, self._own, guard, memtable)
            # The list of the host's last notification.
            self._listed: dict[int, SegmentRef] = {ref.number: ref for ref in self._own.refs}
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(guard.release)
            if self.recovery:
                self._observer.event("raftlog_recovered", **attrs.asdict(self.recovery))
            if self.torn_entries:
                self._observer.event("raftlog_torn_tail_cut", records=self.torn_entries,
                                     segment=self._own.newest_number)
            unfinished.pop_all()

    def _found_row(self) -> SnapshotMeta | None:
        """The row of the last snapshot, read when the log is opened."""
        return read_snapshot_meta(self._folder)

    def _opened(self, folder: str, guard: Guard) -> Segments:
        locked = folder
        if self._is_of_store and wal_of(folder) is not None:
            # The store's lock keeps other owners out of its logs too (`require_no_store`), which so need no handles.
            # Not out of a folder that a link puts there: its own path leads to no store.
            locked = os.path.dirname(os.path.dirname(folder))
        else:
            guard.lock_folder(folder, meanwhile="read it with a LogReader")
        # A new folder's name; and an earlier owner may have been killed before it synced names.
        sync_names(self._files, folder)
        row = self._found_row()
        self.recovery: LogRecoveryReport = recover_folder(self._files, folder)
        found = read_folder(folder, row)
        if row is None and not found.known:
            require_links(folder, os.path.join(locked, LOCK_NAME))
        segments = Segments(folder, guard, found.known, row, open_files=self._open_files)
        segments.begin_writing(self._files, self._options.limits, found, rests=self._is_of_store)
        removed, _ = segments.remove_dropped()
        if removed:
            # Durable before the newest segment has entries: an empty segment below it may be unsealed.
            self._files.sync_folder(folder)
        purge_links(self._files, folder, now=self._options.clock.now(), keep_seconds=self._options.keep_links_seconds)
        return segments

    @property
    def torn_entries(self) -> int:
        """Count of entries that opening the log has cut off at its end; none of them was acknowledged by a `sync`."""
        return self._own.torn_entries

    @property
    def is_compacting(self) -> bool:
        """Whether a compaction or a reclaim runs."""
        return bool(self._guard.running)

    # -- the row of the snapshot

    def _require_held(self, row: SnapshotMeta) -> None:
        """Raise `LiveIndexMissing` unless every live index of a snapshot is in a segment or in memory, and not dead.

        O(live runs log segments), and the indexes of the segments that are not dense.
        """
        # The memtable before the segments: an entry is in segments before it leaves the memtable.
        live, missing = row.live, row.live - self.unflushed
        with self._guard.lock:
            self._guard.require_open()
            before = self._own.row
            missing -= self._own.held(missing)
        if before is not None:
            # A dead entry does not become live again.
            missing |= live.at_most(before.index) - before.live
        if missing:
            raise LiveIndexMissing(f"{len(missing)} of {len(live)} live indexes are in no segment or died before, the "
                                   f"first of them {missing.first}; the live set must come from this log's own state",
                                   missing=len(missing), first=missing.first)

    def _record_state(self, row: SnapshotMeta) -> None:
        """Commit the row of a snapshot, durably, after `_require_held`; all live entries are durable."""
        with self._guard.lock:
            self._require_no_older(row)
            self._write_row(row)

    def _write_row(self, row: SnapshotMeta, *, shows: bool = True) -> None:
        """Replace the row's file, durably, and the row in memory, unless the caller replaces that later.

        If the disk refuses, the row before is in force, or the log is closed.
        """
        with self._guard.lock:
            self._guard.begin("a snapshot")
            before = snapshot_version(self._folder)
            try:
                write_snapshot_meta(self._files, self._folder, row)
            except StorageError:
                if snapshot_version(self._folder) == before:
                    self._guard.undone()
                raise
            if shows:
                self._own.row = row
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
        """Keep compactions from removing the file of any current segment until the lease is released.

        The old names of merged segments are links, which `keep_links_seconds` keeps. Truncations do not wait for
        leases: their entries were never committed.
        """
        return self._segments.lease(self._options.clock.now())

    # -- sense and plan

    def view(self, *, budget: Budget | None = None) -> LogView:
        self._require_open()
        return self._sense(budget)[1]

    def _sense(self, budget: Budget | None) -> tuple[SnapshotMeta | None, LogView]:
        return self._retried(lambda: self._sensed(budget))

    def _sensed(self, budget: Budget | None) -> tuple[SnapshotMeta | None, LogView]:
        self._guard.require_open()
        known = self._own.known()
        # Read once: the entries that are copied are those that were counted, also if a snapshot is recorded later.
        state = self._state_of_segments()
        return state, self._view_of(known, state, self._options.limits, budget)

    def _state_of_segments(self) -> SnapshotMeta | None:
        """Return the snapshot with the pinned indexes, without the live indexes that are only in memory."""
        state = self._own.row
        if state is None:
            return None
        pinned = self._own.pinned.at_most(state.index)
        live = state.live | pinned
        suspects = live & (self.unflushed | pinned)
        # The view lists an unreadable segment as damaged, and the compaction leaves it.
        held = self._own.held(suspects, counted=(CorruptData, Unsupported, StorageError, NotFound))
        return SnapshotMeta(state.index, state.term, live - (suspects - held))

    def _planned(self, view: LogView, policy: LogPolicy | None) -> LogPlan:
        now, room = self._clock.now(), self._files.available_bytes(self._folder)
        if policy is not None:
            return plan_for(view, policy, now, bytes_available=room)
        return self._cadence.plan(view, self.policy, now, bytes_available=room)

    # -- the five steps

    def compact(self, plan: LogPlan | None = None, *, policy: LogPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> LogCompactionReport:
        """Compact the log: drop and rewrite what the last snapshot left dead. Appends and reads are not blocked.

        An interrupted compaction is finished first. Arguments as of `compactlib.contract.Compaction`; the fence is
        entered around the drops, and around each group's commit.

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
        if plan is not None:
            self._require_own_plan(plan, policy)
        notified = Observers(self._observer, observer)
        began = self._clock.monotonic()
        run = Run(self._guard, budget)
        with run.held:
            run.begin("compaction")
            try:
                report = self._compact(plan, policy, executor, run.budget, notified, fence)
            except CompactlibError as error:
                done = error.report if isinstance(error, CompactionFailed) else None
                self._notify_numbers(notified, outcome_of(error, ""), done, self._clock.monotonic() - began)
                raise
            self._notify_numbers(notified, outcome_of(report, report.policy.name), report, report.seconds)
        return report

    def _compact(self, given: LogPlan | None, policy: LogPolicy | None, executor: Executor | None, budget: Budget,
                 observer: Observer, fence: CommitFence | None) -> LogCompactionReport:
        began = self._clock.monotonic()
        budget.check()
        self._recover()
        state, view = self._sense(budget)                                               # sense
        plan = self._planned(view, policy) if given is None else given                  # plan
        if given is not None:
            require_fitting(given, view)
        budget.check()
        work = _Work(plan)
        # An executor may copy all groups before the first commit.
        needed = plan.bytes_needed if executor is None else plan.bytes_to_copy
        if plan.groups and (lack := lack_of_room(needed, self._files.available_bytes(self._folder))):
            return work.report(self._clock.monotonic() - began, lack)
        work.failed += plan.view.damaged
        ended: CompactlibError | None = None
        try:
            self._drop(work, fence)
            work.waiting = self._tasks(plan, state)
            with contextlib.closing(self._rewritten(work, executor or LocalExecutor(), budget, observer)) as made:
                for group, task, result in made:                                        # rewrite
                    self._commit(group, task, result, fence, work)                      # check, commit
            self._finish_and_reclaim(work)                                              # reclaim
        except CompactlibError as error:
            ended = error
            work.give_up(error)
        self._cadence.ended(plan, [*(each.error for each in work.failed), *filter(None, [ended])])
        report = work.report(self._clock.monotonic() - began)
        for failed in report.failed:
            observer.event("raftlog_group_failed", members=failed.members, error=str(failed.error))
        if report.unreclaimed is not None:
            observer.event("raftlog_unreclaimed", error=str(report.unreclaimed))
        return _returned(report, ended)

    def _recover(self) -> tuple[str, ...]:
        """Recover the folder from an interrupted run, as opening the log does; return the names."""
        with self._guard.lock:
            self._guard.require_open()
            # A full disk keeps no wholly dead segment from being dropped.
            with contextlib.suppress(DiskFull):
                self._own.settle()
            # Under the lock no other thread has temporary files, which would look like leftovers.
            return recover_folder(self._files, self._folder).names

    def _drop(self, work: _Work, fence: CommitFence | None) -> None:
        """Drop the wholly dead segments from the list, and remove the files without a lease."""
        drops = work.plan.drops
        if not drops:
            return
        numbers = tuple(stats.number for stats in drops)
        try:
            with _entered(fence):
                self._own.drop(numbers, self._clock)
                # Within the fence, which may fail behind the change.
                work.drops = drops
        except CompactlibError as error:
            if not work.drops:
                work.failed += [GroupFailed((number,), error) for number in numbers]
            raise
        # Now, so that the rewrites can use the room.
        with _entered(fence):
            self._finish_and_reclaim(work)

    def _tasks(self, plan: LogPlan, state: SnapshotMeta | None) -> dict[str, tuple[PlannedGroup, CompactSegments]]:
        if state is None or not plan.groups:
            return {}
        # Of this run alone: a former owner that wakes removes no file of a later owner.
        private = os.path.join(self._folder, f"{REWRITE_PREFIX}{new_attempt_id()}-")
        tasks = {}
        for group in plan.groups:
            name = segment_name(group.members[0].number)
            sources = tuple(SegmentSource(os.path.join(self._folder, segment_name(stats.number)), stats.ref,
                                          state.live.between(stats.ref.first, stats.ref.last))
                            for stats in group.members)
            tasks[name] = group, CompactSegments(name=name, private=private, sources=sources, files=self._files,
                                                 max_bytes=self._options.limits.max_bytes)
        return tasks

    def _rewritten(self, work: _Work, executor: Executor, budget: Budget,
                   observer: Observer) -> Generator[tuple[PlannedGroup, CompactSegments, RewriteResult]]:
        """Yield each rewritten group with its task and result, in the order in which they end; record failures.

        At the end the files of failed and of unused attempts are removed.
        """
        waiting = work.waiting
        if not waiting:
            return
        count, left = len(waiting), budget.remaining.total_bytes
        tasks = [task for _, task in waiting.values()]
        try:
            observer.event("progress", work="compact", done=0, total=count, unit="groups")
            with contextlib.closing(answers_of(executor, tasks, budget=budget, observer=observer)) as answers:
                for answer in answers:
                    group, task = waiting.pop(answer.task)
                    if isinstance(answer, RewriteFailure):
                        work.failed.append(GroupFailed(group.numbers, _naming_total(answer.error, group, left)))
                    else:
                        yield group, task, answer
                    observer.event("progress", work="compact", done=count - len(waiting), total=count, unit="groups")
        except Exception as raised:  # of a host's executor
            work.give_up(own_error("compact", raised))
        finally:
            remove_private(self._files, tasks[0].private)

    def _commit(self, group: PlannedGroup, task: CompactSegments, result: RewriteResult, fence: CommitFence | None,
                work: _Work) -> None:
        """Check a group's new segment and commit it. A raised error ends the run, a recorded error only the group.

        With a fence the group is finished within the fence; else a single sync at the end of the run finishes all.
        """
        members = group.numbers
        try:
            if len(result.files) != 1:
                raise InvalidInput(f"the rewrite of segments {members} made {len(result.files)} files; expected one")
            file = result.files[0]
            work.copier = work.copier or Copier()
            merged = check_rewritten(file, members, [source.live for source in task.sources], work.copier)
            sizes = sum(file_bytes(self._folder, number) for number in members)
        except CompactlibError as error:
            work.failed.append(GroupFailed(members, error))
            return
        with _entered(fence):
            try:
                with self._guard.lock:
                    self._require_unchanged(group)
                    self._guard.begin("a commit")
                    try:
                        place_leader(self._files, self._folder, members, file.path)
                    except StorageError:
                        if not is_committed(self._folder, members):
                            self._guard.undone()
                        raise
                    self._own.replace(members, merged)
                    self._guard.done()
            except (StorageError, Busy) as error:
                work.failed.append(GroupFailed(members, error))
                if not self._guard.is_open:
                    raise
                return
            work.placed.append(members)
            work.done.append(GroupStats(
                members=members, bytes_read=result.bytes_read, bytes_written=file.size_bytes,
                bytes_freed=sizes - file.size_bytes))
            try:
                link_members(self._files, self._folder, members)
                if fence is not None:
                    self._finish(work)
            except StorageError as error:
                work.unreclaimed = error

    def _require_unchanged(self, group: PlannedGroup) -> None:
        refs, members = self._own.refs, group.numbers
        if refs[between(refs, members)] != tuple(stats.ref for stats in group.members):
            raise Busy(f"segments {', '.join(map(str, members))} are not neighbours as they were when they were "
                       f"planned; compact again")

    def _finish(self, work: _Work) -> None:
        finish_groups(self._files, self._folder, work.placed)
        work.placed.clear()

    # -- reclaim

    def reclaim(self, *, budget: Budget | None = None) -> LogReclaimReport:
        """Remove files for which leases or `keep_links_seconds` have ended, and leftovers of an interrupted compaction.

        Every compaction does this too. The budget is checked at the start. If the report is empty, its `why` names the
        gate.

        Raises:
            Busy: a compaction or a reclaim runs, or the budget is spent.
            StorageError: the disk refused; the next call retries.
            TaskFailed: `on_changes` raised; no file was removed.
        """
        self._require_open()
        run = Run(self._guard, budget)
        with run.held:
            run.begin("compaction")
            run.budget.check()
            names = self._recover()
            report = attrs.evolve(self._reclaim(), leftovers=names)
            return attrs.evolve(report, why=self._why_kept(report)) if report.is_empty else report

    def _why_kept(self, report: LogReclaimReport) -> str:
        if report.waiting:
            return f"{report.waiting} dropped segments wait for the end of a lease; release it"
        links = len(links_in(self._folder))
        if links:
            return (f"{links} old names of merged segments are kept for keep_links_seconds="
                    f"{self._options.keep_links_seconds:g}, for readers in other processes; wait, or lower it")
        return "nothing waits to be removed"

    def _reclaim(self) -> LogReclaimReport:
        """Notify the host of the changed list, then remove the files that no reader can reach."""
        self._guard.require_open()
        self._notify_changes()
        removed, freed = self._own.remove_dropped()
        purged = purge_links(self._files, self._folder, now=self._clock.now(),
                             keep_seconds=self._options.keep_links_seconds)
        return LogReclaimReport(segments=removed, links=purged, leftovers=(), bytes_freed=freed,
                                waiting=len(self._own.dropped))

    def _finish_and_reclaim(self, work: _Work) -> None:
        """Finish the committed groups, and reclaim; the next run retries what the disk or the host refuses."""
        try:
            self._finish(work)
            self._reclaim()
        except (StorageError, TaskFailed) as error:
            work.unreclaimed = error

    def _notify_changes(self) -> None:
        """Notify the host of the changes of the list since the last notification."""
        notified = self._options.on_changes
        now = {ref.number: ref for ref in self._own.refs}
        if notified is None or now == self._listed:
            return
        newest = max(self._listed, default=0)
        changed = [ref for number, ref in now.items() if self._listed.get(number) != ref]
        try:
            notified(SegmentChanges(
                folder=self._folder, new=tuple(ref for ref in changed if ref.number >= newest),
                merged=tuple(ref for ref in changed if ref.number < newest),
                removed=tuple(sorted(self._listed.keys() - now))))
        except Exception as error:
            _LOGGER.warning("on_changes of the log in %s failed; no file is removed, and the next reclaim calls it "
                            "again", self._folder, exc_info=error)
            raise foreign_error("on_changes", error) from error
        self._listed = now

    # -- checks and numbers

    def _require_own_plan(self, plan: LogPlan, policy: LogPolicy | None) -> None:
        if policy is not None:
            raise InvalidInput("a plan and a policy were given; a plan says already what its policy chose")
        folder = plan.view.folder
        if not folder or os.path.realpath(folder) != os.path.realpath(self._folder):
            raise InvalidInput(f"the plan is of a view of {folder or 'no log'}, and this log is in {self._folder}; "
                               f"plan with this log")

    def _notify_numbers(self, observer: Observers, outcome: tuple[str, str], report: LogCompactionReport | None,
                        seconds: float) -> None:
        if observer.is_deaf:  # the numbers, for which new segments are opened, would have no reader
            return
        above, name = os.path.split(self._folder)
        if os.path.basename(above) == LOGS_FOLDER:
            # Stores often have logs of the same ids.
            name = f"{os.path.basename(os.path.dirname(above))}/{name}"
        read, copied, freed = (0, 0, 0) if report is None else (report.bytes_read, report.bytes_written,
                                                                report.bytes_freed)
        notify_compaction(observer, "raftlog", name, *outcome, seconds, read=read, copied=copied, freed=freed)
        with contextlib.suppress(CompactlibError):
            view, room = self.view(), self._files.available_bytes(self._folder)
            notify_levels(
                observer, "raftlog", name,
                live_bytes=sum(each.live_bytes for each in view.segments),
                dead_bytes=sum(each.dead_bytes for each in view.segments), free_bytes=room,
                capacity_bytes=None if room is None else sum(each.file_bytes for each in view.segments) + room,
                oldest_lease_seconds=self._own.oldest_lease(),
                oldest_unreclaimed_seconds=self._own.oldest_dropped())


def _entered(fence: CommitFence | None) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if fence is None else fence.guard()


def _returned(report: LogCompactionReport, ended: CompactlibError | None) -> LogCompactionReport:
    """Return the report, or raise the error or the `CompactionFailed` of the run."""
    is_changed = bool(report.done or report.drops)
    if ended is not None and not is_changed:
        raise ended
    failures = {_name(each): each.error for each in report.failed if not isinstance(each.error, BudgetSpent)}
    if ended is not None:
        failures["the run"] = ended
    if failures:
        raise CompactionFailed(report=report, failures=failures) from next(iter(failures.values()))
    if report.is_partial and not is_changed:
        raise report.failed[0].error
    return report


def _name(failed: GroupFailed) -> str:
    return f"segments {', '.join(map(str, failed.members))}"


def _naming_total(error: CompactlibError, group: PlannedGroup, left: int | None) -> CompactlibError:
    """Return `error`; if the budget's total is too small for a group, a `BudgetSpent` with the needed total."""
    if not isinstance(error, BudgetSpent) or error.reason != "bytes" or left is None or left >= group.output.live_bytes:
        return error
    least = max(group.output.live_bytes, left + 1)
    return BudgetSpent(f"segments {group.numbers} become one at once: the budget had {left} bytes left "
                       f"({error.spent_bytes} bytes spent in all); give at least {least}",
                       reason=error.reason, spent_bytes=error.spent_bytes, needed_bytes=least)
