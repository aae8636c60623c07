"""`SegmentLog`: the one writer of a Raft log in a folder of segments, and the compactions that keep it small."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, TypeVar

import attrs

from compactlib.arguments import require_method, require_policy
from compactlib.contract import CommitFence
from compactlib.errors import Closed, CompactlibError, InvalidInput, Stale, StorageError, Unsupported
from compactlib.executors.tasks import LocalExecutor
from compactlib.files.disk import StrPath, list_folder
from compactlib.indexset.index_set import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog.arguments import folder_path, index_set, require_budget, whole
from compactlib.raftlog.compaction.holes import DEFAULT_MIN_HOLE_BYTES, HoleReport, punch_holes
from compactlib.raftlog.compaction.live_check import require_live
from compactlib.raftlog.compaction.plan.feasible import require_fitting
from compactlib.raftlog.compaction.plan.plan import CompactionPlan, plan_for
from compactlib.raftlog.compaction.plan.policies.drop import DropDead
from compactlib.raftlog.compaction.plan.policy import CompactionPolicy
from compactlib.raftlog.compaction.plan.view import CompactionView
from compactlib.raftlog.compaction.report import CompactionReport, ReclaimReport, outcome_of
from compactlib.raftlog.compaction.sense.cadence import MajorCadence
from compactlib.raftlog.log.appending import LogWriter
from compactlib.raftlog.log.folder import room_in, wal_of
from compactlib.raftlog.model.names import segment_number
from compactlib.raftlog.model.row import LogRow
from compactlib.raftlog.model.snapshot_state import SnapshotState, write_snapshot_state
from compactlib.raftlog.model.status import LogStatus
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.segment.known import KnownSegment
from compactlib.rewrite import Executor
from compactlib.runtime import Ownership, Run
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, Observers

_ReportT = TypeVar("_ReportT")


@attrs.frozen
class _Sensed:
    """What a plan is made from: a snapshot state, the segments as a compaction may rely on them, and their view."""

    state: SnapshotState | None
    known: tuple[KnownSegment, ...]
    view: CompactionView


class SegmentLog(LogWriter):
    """A log open for writing: append, sync, record snapshots, compact. One process at a time holds it.

    Threads may share one: appends and reads exclude each other only on the newest segment, and a compaction runs
    beside both. Opening finishes or undoes what a crash interrupted and cuts a torn tail; `recovery` and `torn_entries`
    say what was found.

    Args:
        folder: the log's folder; made, with a first segment, if there is none.
        options: how the log is kept.

    Raises:
        Busy: another process, or another object in this one, has it open for writing.
        NotALog: the folder holds other things.
        CorruptData: a segment's index or the snapshot state is damaged; nothing was changed.
        Unsupported: a file was written by a later release, or the folder is that of a log of a `RaftLogStore`.
        StorageError: the disk refused; `ReadOnly` where this process may not write (a `LogReader` can read it).
    """

    _knows_wal: ClassVar[bool] = False

    def __init__(self, folder: StrPath, options: LogOptions | None = None) -> None:
        if not self._knows_wal and wal_of(folder_path(folder)) is not None:
            raise Unsupported(f"{os.fspath(folder)} is the folder of a log of a store, whose newest entries are in the "
                              f"store's write-ahead log; open the store (RaftLogStore), or read it with a LogReader")
        super().__init__(folder, options)
        self._owner = Ownership(f"the log in {self._folder}")
        self._cadence = MajorCadence(self._options.trigger, self._options.clock)

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
        state = SnapshotState(whole("the snapshot index", index), index_set("the live indexes", live))
        with self._switch:
            self.sync()
            if self._state is not None and index < self._state.index:
                raise Stale(f"snapshot {index} is older than {self._state.index}, which is recorded; "
                            f"snapshots only move forward")
            require_live(state.live, self._state, self.refs,
                         lambda ref: self._segments.reader(ref.number).index.index_set())
            write_snapshot_state(self._files, self._folder, state)
            self._state = state

    @property
    def policy(self) -> CompactionPolicy:
        """The log's own policy: what is rewritten when the trigger asks for it."""
        return self._options.policy

    def view(self, *, budget: Budget | None = None) -> CompactionView:
        """The log as a policy sees it now; see `LogReader.view`. What is pinned counts as alive."""
        return super().view(budget=budget)

    def plan(self, policy: CompactionPolicy | None = None, *, view: CompactionView | None = None) -> CompactionPlan:
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
        require_policy("the policy", policy, or_none=True)
        return self._planned(self._view_for(view), policy)

    def _planned(self, view: CompactionView, policy: CompactionPolicy | None) -> CompactionPlan:
        now, room = self._options.clock.now(), room_in(self._files, self._folder)

        def planned(chosen: CompactionPolicy, why: str) -> CompactionPlan:
            return self._compactor.feasible(plan_for(view, chosen, now, why=why, bytes_available=room))

        if policy is not None:
            return planned(policy, "")
        due = self._cadence.reason_for_major(view)
        if not due:
            return planned(DropDead(), f"nothing is rewritten yet: {self._cadence.why_not(view)}")
        if not view.candidates:
            # With nothing alive a rewrite would only do what a drop does.
            return planned(DropDead(), "")
        # Why a rewrite is due holds nothing back; of a policy that rewrites nothing, that it does not is what does.
        plan = planned(self._options.policy, "" if isinstance(self._options.policy, DropDead) else due)
        if room is None or plan.bytes_needed <= room:
            return plan
        return planned(DropDead(), f"nothing is rewritten for want of room: {_without_room(plan.bytes_needed, room)}")

    def compact(self, plan: CompactionPlan | None = None, *, policy: CompactionPolicy | None = None,
                executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> Done[CompactionReport] | Skipped | Failed:
        """Free what the last snapshot left dead. Appends and reads go on meanwhile.

        What an earlier compaction was interrupted in is finished first.

        Args:
            plan: of this log; default what `plan(policy)` says now.
            policy: decides what is rewritten, instead of the log's own rule. Not together with a plan.
            executor: who copies; default this thread.
            budget: what the copying may use up.
            observer: is told, besides the log's own.
            fence: entered around the drops, and around each group's commit.

        Returns:
            `Done` with the report if everything was carried out; `Skipped` if there was nothing to do, a compaction is
            running, or there is no room for what would be written; `Failed` if something could not be done,
            `CompactionFailed` with the report if other things may have been.

        Raises:
            InvalidInput: a plan of another log, a plan and a policy, or an argument of another kind.
            Closed: the log was closed.
            Exception: whatever the policy, the trigger or the fence raised that is none of the library's errors; what
                was committed before stays.
        """
        self._require_open()
        require_policy("the policy", policy, or_none=True)
        for name, value, method in (("the executor", executor, "run"), ("the observer", observer, "progress"),
                                    ("the fence", fence, "guard")):
            if value is not None:
                require_method(name, value, method)
        if plan is not None:
            self._require_own(plan, policy)

        def made(sensed: _Sensed) -> CompactionPlan:
            return self._planned(sensed.view, policy) if plan is None else plan

        def carried_out(chosen: CompactionPlan, sensed: _Sensed, run: Run) -> Done[CompactionReport] | Skipped | Failed:
            if plan is not None:
                require_fitting(plan, sensed.view, self._compactor.hiding(plan))
            return self._compact(chosen, sensed, executor, run, observer, fence)

        return self._work(budget, made, carried_out)

    def _require_own(self, plan: CompactionPlan, policy: CompactionPolicy | None) -> None:
        if not isinstance(plan, CompactionPlan):
            raise InvalidInput(f"the plan is {plan!r:.100}; give one that plan() made, or policy= for a policy")
        if policy is not None:
            raise InvalidInput("a plan and a policy were given; a plan says already what its policy chose")
        if not plan.folder or os.path.realpath(plan.folder) != os.path.realpath(self._folder):
            whose = f"the log in {plan.folder}" if plan.folder else "no log, but of a view made by hand"
            raise InvalidInput(f"the plan is of {whose}, and this is the one in {self._folder}; plan with this log")

    def _work(self, budget: Budget | None, made: Callable[[_Sensed], CompactionPlan],
              carried_out: Callable[[CompactionPlan, _Sensed, Run], Done[_ReportT] | Skipped | Failed]
              ) -> Done[_ReportT] | Skipped | Failed:
        """Own the log, finish what was interrupted, look, plan, and carry the plan out."""
        self._require_open()
        require_budget(budget)
        with self._owner.begin(budget) as run:
            if run is None:
                return self._busy()
            try:
                run.budget.check()
                self._compactor.settle()
                sensed = self._sense(run.budget)
            except CompactlibError as error:
                return self._failed(error)
            # Not as the failures of the work: a policy's answer is used, and what it raises is for the caller to see.
            plan = made(sensed)
            try:
                run.budget.check()
                return carried_out(plan, sensed, run)
            except CompactlibError as error:
                return self._failed(error)

    def _busy(self) -> Skipped:
        if self._owner.is_closed:
            raise Closed(f"the log in {self._folder} is closed; open it again")
        return Skipped("a compaction is running; ask again when it has ended", is_busy=True)

    def _failed(self, error: CompactlibError) -> Failed:
        if self._closed and isinstance(error, Closed):
            raise error
        return Failed(error)

    def _sense(self, budget: Budget) -> _Sensed:
        """What a plan is made from, as a compaction may rely on it."""
        self._require_open()
        known = self._durable_list()
        # Of this state, whatever is recorded meanwhile: what is copied must be what was counted.
        state = self._compacted_state(known)
        return _Sensed(state, known, self._view_of(state, known, budget))

    def _look(self, budget: Budget | None) -> CompactionView:
        self._publish_newest()
        known = self._segments.known()
        return self._view_of(self._compacted_state(known), known, budget)

    def _compact(self, plan: CompactionPlan, sensed: _Sensed, executor: Executor | None, run: Run,
                 observer: Observer | None, fence: CommitFence | None) -> Done[CompactionReport] | Skipped | Failed:
        if plan.groups:
            # Others than this thread may copy all groups before the first is committed.
            needed = plan.bytes_needed if executor is None else plan.bytes_to_copy
            room = room_in(self._files, self._folder)
            if room is not None and needed > room:
                return Skipped(_without_room(needed, room))
        self._cadence.planned(plan, sensed.view)
        if plan.is_empty or sensed.state is None:
            self._compactor.reclaim()
            self._cadence.ended(plan, ())
            return Skipped(plan.why)
        told = self._observer if observer is None else Observers(self._observer, observer)
        report = self._compactor.run(plan, sensed.state, limits=self._limits, executor=executor or LocalExecutor(),
                                     run=run, observer=told, fence=fence)
        self._cadence.ended(plan, [*report.failed, *report.waiting])
        if report.waiting and not (report.dropped or report.groups):
            return Skipped(str(report.waiting[0].error), is_busy=True)
        return outcome_of(report)

    def punch_holes(self, *, min_bytes: int = DEFAULT_MIN_HOLE_BYTES, budget: Budget | None = None
                    ) -> Done[HoleReport] | Skipped | Failed:
        """Give back the room of dead payloads in segments that the policy leaves alone. Appends and reads go on.

        Args:
            min_bytes: dead bytes on end that are worth a hole; 64 KiB by default, never less than a block of 4 KiB.
            budget: what may be used up, in bytes of holes.

        Returns:
            `Done` with the report, in which single segments may have failed; `Skipped` if there was nothing to do, or a
            compaction runs, or somebody holds a lease; `Failed` with `Unsupported` where there are no holes, or with
            `BudgetSpent`, and the next call goes on.

        Raises:
            InvalidInput: `min_bytes` is less than 1.
            Closed: the log was closed.
            Exception: whatever the policy raised; nothing was changed.
        """
        if whole("min_bytes", min_bytes) < 1:
            raise InvalidInput(f"min_bytes is {min_bytes}; a hole has at least 1 byte")

        def carried_out(plan: CompactionPlan, sensed: _Sensed, run: Run) -> Done[HoleReport] | Skipped | Failed:
            if sensed.state is None:
                return Skipped(plan.why)
            if self._segments.is_leased(self._segments.epoch + 1):
                return Skipped("somebody holds a lease and may still read what has died since; ask again when it ended",
                               is_busy=True)
            leave = {stats.number for stats in plan.drops}.union(
                *(each.members for each in plan.damaged), *(group.numbers for group in plan.groups))
            return punch_holes(self._folder, self._files, self._segments, [each.ref for each in sensed.known[:-1]],
                               sensed.state, leave=leave, min_bytes=min_bytes, budget=run.budget)

        return self._work(budget, lambda sensed: plan_for(sensed.view, self._options.policy, self._options.clock.now()),
                          carried_out)

    def reclaim(self, *, budget: Budget | None = None) -> Done[ReclaimReport] | Skipped | Failed:
        """Remove what leases or `keep_links_seconds` held back, and what an interrupted compaction has left.

        Every compaction does this as well.

        Args:
            budget: asked before it begins.

        Returns:
            `Done` with what is gone; `Skipped` if there was nothing, or a compaction is running; `Failed` if the disk
            refused, and what is left is tried again the next time.

        Raises:
            InvalidInput: an argument of another kind.
            Closed: the log was closed.
        """
        self._require_open()
        require_budget(budget)
        with self._owner.begin(budget) as run:
            if run is None:
                return self._busy()
            try:
                run.budget.check()
                self._require_open()
                settled = self._compactor.settle()
                report = attrs.evolve(self._compactor.reclaim(), leftovers=settled.names)
            except CompactlibError as error:
                return self._failed(error)
        if report:
            return Done(report)
        if report.waiting:
            return Skipped(f"{report.waiting} dropped segments wait for the end of a lease; release it")
        links = sum(os.path.islink(os.path.join(self._folder, name)) for name in list_folder(self._folder)
                    if segment_number(name) is not None)
        if links:
            return Skipped(f"{links} old names of merged segments are kept for keep_links_seconds="
                           f"{self._options.keep_links_seconds:g}, for readers in other processes; wait, or lower it")
        return Skipped("nothing waits to be removed")

    def status(self) -> LogStatus:
        """What the log says of itself, at once."""
        self._require_open()
        with self._switch:
            newest, refs, row = self._newest.known(), self._segments.refs, LogRow.of(self._state)
            unsynced, last_term = self._newest.unsynced_entries, self._newest.last_term
            durable = self._newest.durable_index
        listed = {ref.number for ref in refs} if newest is None else {newest.ref.number, *(ref.number for ref in refs)}
        last = newest.ref.last if newest is not None else refs[-1].last if refs else -1
        first = refs[0].first if refs else newest.ref.first if newest is not None else None
        return LogStatus(
            log_id=os.path.basename(self._folder), first_index=first, last_index=max(row.snapshot_index, last),
            last_term=last_term, durable_index=self._older_last if durable is None else durable, unconfirmed=unsynced,
            snapshot_index=row.snapshot_index, snapshot_term=row.snapshot_term,
            smallest_live_index=row.smallest_live_index, live=len(row.live), memtable_entries=0, segments=len(listed),
            pinned=0, pins=0, stopped=None, is_busy=self._owner.is_running)

    def _leftovers(self) -> Sequence[str]:
        # What a compaction that runs is making was not left by anybody.
        return () if self._owner.is_running else super()._leftovers()

    def _compacted_state(self, known: Sequence[KnownSegment]) -> SnapshotState | None:
        """What a compaction of the segments `known` has to keep. They are listed first: what is added later is safe."""
        return self._state

    def _durable_list(self) -> tuple[KnownSegment, ...]:
        """The segments as a compaction may rely on them: no range was cut by entries that a crash may take back.

        What those cut off is needed then, although it lies outside of every range and above the snapshot.
        """
        with self._switch:
            if self._overwrite_unsynced:
                self.sync()
            # A disk too full to go on with the newest segment must not keep a compaction, which never touches that one,
            # from making room.
            with contextlib.suppress(StorageError):
                self._publish_newest()
            return self._segments.known()

    def close(self) -> None:
        """Sync, and let the log go; closing again does nothing. A compaction that runs is cancelled and waited for.

        Raises:
            Busy: called from within a compaction, by an observer for example; nothing was done.
            StorageError: the disk refused the last sync; the log is closed all the same.
        """
        # The folder must not be given to another process while groups are still committed in it.
        if self._lock.is_mine:
            self._owner.close()
        super().close()

    def __enter__(self) -> SegmentLog:
        return self


def _without_room(needed: int, room: int) -> str:
    return (f"{needed:,} bytes are needed and {room:,} are available; make room, or drop what is wholly dead: "
            f"compact(policy=DropDead()) needs none")
