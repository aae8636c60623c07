# SPDX-License-Identifier: Apache-2.0
"""The compaction of one log: sense, plan, rewrite, check, commit, reclaim. `Compactor._compact` is the algorithm.

A group that fails stays as it was while the others go on; what was committed stays when a later one fails, the disk
fills up, or the budget ends, and the next run goes on from there. The list of segments is switched before a file goes.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeVar

import attrs

from compactlib.clock import Clock
from compactlib.contract import CommitFence
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
from compactlib.executors.tasks import LocalExecutor, answers_of, own_error
from compactlib.files.disk import Files
from compactlib.guard import Guard
from compactlib.indexset.index_set import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog.compaction.commit import (
    check_rewritten,
    finish_groups,
    is_placed,
    link_members,
    links_in,
    place_leader,
    purge_links,
    recover_folder,
    remove_private_folder,
)
from compactlib.raftlog.compaction.plan.plan import GroupFailed, LogPlan, PlannedGroup, plan_for, require_fitting
from compactlib.raftlog.compaction.plan.policies.drop import DropDead
from compactlib.raftlog.compaction.plan.policy import LogPolicy
from compactlib.raftlog.compaction.plan.view import LogView
from compactlib.raftlog.compaction.report import (
    CompactionOutcome,
    GroupOutcome,
    GroupStats,
    LogCompactionReport,
    LogReclaimReport,
    outcome_of,
    report_of,
)
from compactlib.raftlog.compaction.rewrite import CompactSegments, SegmentSource
from compactlib.raftlog.compaction.sense.cadence import CadenceFile, MajorCadence
from compactlib.raftlog.compaction.sense.statistics import StatsCache, room_in, view_of
from compactlib.raftlog.compaction.sense.trigger import Trigger
from compactlib.raftlog.model.names import LOGS_FOLDER, REWRITE_PREFIX, segment_name
from compactlib.raftlog.model.refs import asked_refs
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import SegmentLimits
from compactlib.raftlog.segment.known import file_bytes
from compactlib.raftlog.segment.segment_list import between
from compactlib.raftlog.segment.segments import Segments
from compactlib.rewrite import Executor, RewriteFailure, RewriteResult
from compactlib.runtime.budget import Budget, spent_at_once
from compactlib.runtime.observe import Observer, Observers, Progress, telling
from compactlib.runtime.ownership import Ownership, Run
from compactlib.runtime.store_numbers import Moved, StoreLevels, StoreNumbers

_T = TypeVar("_T")


@attrs.define
class Beside:
    """What a store keeps of a log beside its segments.

    Attributes:
        held: gives the indexes of the entries that are in memory.
        pinned: gives those that must stay although they are dead.
        row_is_lost: whether the log's row is damaged and is not to be read: the store puts another in force.
    """

    held: Callable[[], IndexSet] = IndexSet
    pinned: Callable[[], IndexSet] = IndexSet
    row_is_lost: bool = False


class Compactor:
    """Plans and carries out the compactions of one log. One run at a time; appends and reads go on meanwhile.

    Args:
        segments: the log's segments.
        guard: of the log; its lock is held while files are switched.
        beside: what else has to be kept.
        files, clock, observer, limits, policy, trigger, keep_links_seconds, run_id: see `LogOptions`.

    Attributes:
        runs: whose compaction or reclaim is under way.
    """

    def __init__(self, segments: Segments, guard: Guard, beside: Beside, *, files: Files, clock: Clock,
                 observer: Observer, limits: SegmentLimits, policy: LogPolicy, trigger: Trigger,
                 keep_links_seconds: float, run_id: Callable[[], str]) -> None:
        self._segments = segments
        self._guard = guard
        self._beside = beside
        self._folder = segments.folder
        self._files = files
        self._clock = clock
        self._observer = telling(observer)
        self._limits = limits
        self._policy = policy
        self._keep_links_seconds = keep_links_seconds
        self._run_id = run_id
        self._stats = StatsCache()
        self._cadence = MajorCadence(trigger, clock, CadenceFile(files, segments.folder, self._observer))
        # By merged segment, the change of the list that made it a link: leases from before may use that.
        self._linked: dict[int, int] = {}
        self.runs: Ownership = Ownership(f"the log in {segments.folder}")

    # -- sense and plan

    def view(self, budget: Budget | None = None) -> LogView:
        """The log as a policy sees it now; what is pinned counts as alive."""
        return self._sense(budget)[1]

    def _sense(self, budget: Budget | None) -> tuple[SnapshotMeta | None, LogView]:
        """What a plan is made from: the snapshot as far as segments have to keep what it names, and the view."""
        self._guard.require_open()
        known = self._segments.known()
        # Of this state, whatever is recorded meanwhile: what is copied must be what was counted.
        state = self._state_of_segments()
        return state, view_of(self._segments, state, known, self._stats, self._limits, budget, self._clock)

    def _state_of_segments(self) -> SnapshotMeta | None:
        """The snapshot, with what is pinned, and without what no segment holds (it is in memory, or held by its pin).
        """
        state = self._segments.row
        if state is None:
            return None
        pinned = self._beside.pinned().at_most(state.index)
        live = state.live | pinned
        suspects = live & (self._beside.held() | pinned)
        if not suspects:
            return state
        found = []
        for ref, here in asked_refs(self._segments.refs, suspects):
            try:
                found.append(here & self._segments.index_of(ref.number).index_set())
            except (CorruptData, Unsupported, StorageError, NotFound):
                # What judges it says so, and it stays as it is.
                found.append(here)
        return SnapshotMeta(state.index, state.term, live - (suspects - IndexSet().union(*found)))

    def plan(self, view: LogView, policy: LogPolicy | None) -> LogPlan:
        """See `SegmentLog.plan`."""
        now, room = self._clock.now(), room_in(self._files, self._folder)

        def planned(chosen: LogPolicy, why: str) -> LogPlan:
            return plan_for(view, chosen, now, why=why, bytes_available=room)

        if policy is not None:
            return planned(policy, "")
        due = self._cadence.reason_for_major(view)
        if not due:
            return planned(DropDead(), f"nothing is rewritten yet: {self._cadence.why_not(view)}")
        if not view.candidates:
            # With nothing alive a rewrite would only do what a drop does.
            return planned(DropDead(), "")
        # Why a rewrite is due holds nothing back; of a policy that rewrites nothing, that it does not is what does.
        plan = planned(self._policy, "" if isinstance(self._policy, DropDead) else due)
        if room is None or plan.bytes_needed <= room:
            return plan
        return planned(DropDead(), f"nothing is rewritten for want of room: {_without_room(plan.bytes_needed, room)}")

    # -- the five steps

    def compact(self, plan: LogPlan | None, policy: LogPolicy | None, executor: Executor | None,
                budget: Budget | None, observer: Observer | None, fence: CommitFence | None) -> CompactionOutcome:
        """See `SegmentLog.compact`."""
        self._guard.require_open()
        if plan is not None:
            self._require_own(plan, policy)
        told = self._observer if observer is None else Observers(self._observer, observer)
        began, views = self._clock.monotonic(), list[LogView]()
        outcome: CompactionOutcome
        with self.runs.begin(budget) as run:
            if run is None:
                outcome = self._busy()
                if self.runs.is_mine:
                    # Asked for by an observer, say, which must not be notified because it asked.
                    return outcome
            else:
                try:
                    outcome = self._compact(plan, policy, executor, run, told, fence, views)
                except _Ended as ended:
                    outcome = self._failed(ended.error)
            if not told.is_deaf:  # else nobody would read the numbers, for which new segments are opened
                self._tell_numbers(telling(told) if run is None else run.observer(told), outcome,
                                   self._clock.monotonic() - began, views)
        return outcome

    def _compact(self, given: LogPlan | None, policy: LogPolicy | None, executor: Executor | None, run: Run,
                 observer: Observer, fence: CommitFence | None, views: list[LogView]) -> CompactionOutcome:
        began = self._clock.monotonic()
        told = run.observer(observer)
        with _ending():
            run.budget.check()
            self._recover()
            state, view = self._sense(run.budget)                                  # sense
        views.append(view)
        plan = self.plan(view, policy) if given is None else given                  # plan
        with _ending():
            run.budget.check()
            if given is not None:
                require_fitting(plan, view)
            needed, room = self._room_for(plan, executor)
            if needed > room:
                return Skipped(_without_room(needed, room))
            self._cadence.planned(plan, view)
            if plan.is_empty or state is None:
                self._reclaim()
                self._cadence.ended(plan, ())
                return Skipped(plan.why)
            groups: list[GroupOutcome] = list(plan.damaged)
            drop = self._drop(plan, fence)
            error = drop.error
            if error is not None:
                groups += [GroupFailed((stats.number,), error, "partly" if drop.numbers else "no")
                           for stats in plan.drops]
            waiting = dict(self._tasks(plan.groups, state))
            placed: list[tuple[int, ...]] = []
            with self._rewritten(waiting if error is None else {}, executor or LocalExecutor(), run, told) as answers:
                for group, task, answer in answers:                                 # rewrite
                    if isinstance(answer, GroupFailed):
                        groups.append(answer)
                        continue
                    outcomes, error = self._commit(group, task, answer, fence, placed)  # check, commit
                    groups += outcomes
                    if error is not None:
                        break
            groups += [GroupFailed(group.numbers, error) for group, _ in waiting.values() if error is not None]
            purged, unreclaimed = self._try_to_reclaim(placed)                       # reclaim
        report = LogCompactionReport(
            policy=plan.policy, why=plan.why, snapshot_index=state.index, dropped=drop.numbers,
            dropped_bytes=drop.freed, groups=tuple(groups), left_out=plan.left_out,
            purged_links=tuple(sorted({*drop.purged, *purged})), unreclaimed=unreclaimed,
            seconds=self._clock.monotonic() - began)
        self._cadence.ended(plan, report.failed)
        _tell(report, told)
        return outcome_of(report)

    def _recover(self) -> tuple[str, ...]:
        """Finish what an earlier run has left of its links and files, as opening the log would; returns the names."""
        with self._guard.lock:
            # No other thread is making files now whose temporary names could be taken for leftovers.
            self._guard.require_open()
            return recover_folder(self._files, self._folder).names

    def _room_for(self, plan: LogPlan, executor: Executor | None) -> tuple[int, float]:
        """The bytes that are needed, and those that are available."""
        room = room_in(self._files, self._folder) if plan.groups else None
        # Others than this thread may copy all groups before the first is committed.
        needed = plan.bytes_needed if executor is None else plan.bytes_to_copy
        return needed, float("inf") if room is None else room

    def _drop(self, plan: LogPlan, fence: CommitFence | None) -> _Drop:
        """Take what is wholly dead out of the list, and remove the files that no lease holds."""
        numbers = tuple(stats.number for stats in plan.drops)
        if not numbers:
            return _Drop()
        freed = sum(file_bytes(self._folder, number) for number in numbers)

        def drop() -> tuple[int, ...]:
            self._segments.drop(numbers, self._clock)
            # So that the rewrite finds the room.
            return self._try_to_reclaim()[0]

        purged, error = _in_fence(fence, drop)
        return _Drop(numbers, freed, purged, error) if purged is not None else _Drop(error=error)

    def _tasks(self, groups: Sequence[PlannedGroup],
               state: SnapshotMeta) -> Iterator[tuple[str, tuple[PlannedGroup, CompactSegments]]]:
        private = os.path.join(self._folder, f"{REWRITE_PREFIX}{self._run_id()}") if groups else ""
        for group in groups:
            name = segment_name(group.members[0].number)
            sources = tuple(
                SegmentSource(os.path.join(self._folder, segment_name(stats.number)), stats.ref,
                              state.live.between(stats.ref.first, stats.ref.last))
                for stats in group.members)
            yield name, (group, CompactSegments(name=name, folder=private, sources=sources,
                                                max_bytes=self._limits.max_bytes, files=self._files))

    @contextlib.contextmanager
    def _rewritten(self, waiting: dict[str, tuple[PlannedGroup, CompactSegments]], executor: Executor, run: Run,
                   observer: Observer) -> Iterator[Iterator[tuple[PlannedGroup, CompactSegments,
                                                                  RewriteResult | GroupFailed]]]:
        """Give each group with what its rewrite has made, in the order in which they end; what ends leaves `waiting`.

        Then the private folder goes: an attempt that outlives its run finds none to create its file in.
        """
        if not waiting:
            yield iter(())
            return
        private = next(iter(waiting.values()))[1].folder
        try:
            self._files.make_folder(private)
        except StorageError as error:
            yield iter([(group, task, GroupFailed(group.numbers, error)) for group, task in waiting.values()])
            waiting.clear()
            return
        try:
            with contextlib.closing(self._answers(waiting, executor, run, observer)) as answers:
                yield answers
        finally:
            with contextlib.suppress(StorageError):
                remove_private_folder(self._files, private)

    def _answers(self, waiting: dict[str, tuple[PlannedGroup, CompactSegments]], executor: Executor, run: Run,
                 observer: Observer) -> Generator[tuple[PlannedGroup, CompactSegments, RewriteResult | GroupFailed]]:
        count, left = len(waiting), run.budget.remaining.total_bytes
        observer.progress(Progress("compact", 0, count, "groups"))
        tasks = [task for _, task in waiting.values()]
        with contextlib.closing(answers_of(executor, tasks, budget=run.budget, observer=observer)) as outcomes:
            while True:
                try:
                    outcome = next(outcomes, None)
                except Exception as raised:  # whatever a host's executor raises
                    error = own_error("compact", raised)
                    for name, (group, task) in list(waiting.items()):
                        del waiting[name]
                        yield group, task, GroupFailed(group.numbers, error)
                    return
                if outcome is None:
                    return
                group, task = waiting.pop(outcome.task)
                if isinstance(outcome, RewriteFailure):
                    failure, needed = outcome.error, group.live_bytes
                    if left is not None and left < needed:
                        failure = spent_at_once(failure, f"the group of segments {group.numbers}", left=left,
                                                needed=needed)
                    yield group, task, GroupFailed(group.numbers, failure)
                else:
                    yield group, task, outcome
                observer.progress(Progress("compact", count - len(waiting), count, "groups"))

    def _commit(self, group: PlannedGroup, task: CompactSegments, result: RewriteResult, fence: CommitFence | None,
                placed: list[tuple[int, ...]]) -> tuple[list[GroupOutcome], CompactlibError | None]:
        """Check a group's new segment and put it in force; the error is one that ends the run.

        A fence is held until the group is finished; else one sync at the end of the run finishes all, in `placed`.
        """
        members = group.numbers
        if len(result.files) != 1:
            return [GroupFailed(members, InvalidInput(f"the rewrite of segments {members} made {len(result.files)} "
                                                      f"files; expected one"))], None
        file = result.files[0]
        try:
            merged = check_rewritten(file, members, [source.live for source in task.sources])
            sizes = sum(file_bytes(self._folder, number) for number in members)
        except CompactlibError as error:
            return [GroupFailed(members, error)], None

        def switch() -> CompactlibError | None:
            """What stood in the way; before the switch, or behind it, where links are missing."""
            try:
                with self._guard.lock:
                    self._require_unchanged(group)
                    self._guard.begin("a commit")
                    try:
                        place_leader(self._files, self._folder, members, file.path)
                    except StorageError:
                        if not is_placed(self._folder, members):
                            self._guard.undone()
                        raise
                    epoch = self._segments.replace(members, merged)
                    self._guard.done()
                self._linked.update(dict.fromkeys(members[1:], epoch))
                placed.append(members)
                link_members(self._files, self._folder, members)
                if fence is not None:
                    self._finish(placed)
            except (StorageError, Busy) as error:
                return error
            return None

        stopped, refused = _in_fence(fence, switch)
        is_open, failure = self._guard.is_open, refused or stopped
        is_in_force = self._segments.known_of(members[0]) == merged
        outcomes: list[GroupOutcome] = []
        if is_in_force and stopped is None:
            outcomes.append(GroupStats(
                members=members, entries_before=sum(stats.entries for stats in group.members),
                entries_after=file.entries, bytes_read=result.bytes_read, bytes_written=file.size_bytes,
                bytes_freed=sizes - file.size_bytes, seconds=result.seconds))
        if failure is not None:
            outcomes.append(GroupFailed(members, failure,
                                        "partly" if is_in_force else "no" if is_open else "unknown"))
        # The present holder of the fence does the rest; a log that closed itself does none.
        return outcomes, refused if is_open else failure

    def _require_unchanged(self, group: PlannedGroup) -> None:
        refs, members = self._segments.refs, group.numbers
        if refs[between(refs, members)] != tuple(stats.ref for stats in group.members):
            raise Busy(f"segments {', '.join(map(str, members))} are not neighbours as they were when they were "
                       f"planned; compact again")

    def _finish(self, placed: list[tuple[int, ...]]) -> None:
        finish_groups(self._files, self._folder, placed)
        placed.clear()

    # -- reclaim

    def reclaim(self, budget: Budget | None) -> Done[LogReclaimReport] | Skipped | Failed:
        """See `SegmentLog.reclaim`."""
        self._guard.require_open()
        with self.runs.begin(budget) as run:
            if run is None:
                return self._busy()
            try:
                run.budget.check()
                names = self._recover()
                report = attrs.evolve(self._reclaim(), leftovers=names)
            except CompactlibError as error:
                return self._failed(error)
        if report:
            return Done(report)
        if report.waiting:
            return Skipped(f"{report.waiting} dropped segments wait for the end of a lease; release it")
        if links_in(self._folder):
            return Skipped(f"{len(links_in(self._folder))} old names of merged segments are kept for "
                           f"keep_links_seconds={self._keep_links_seconds:g}, for readers in other processes; "
                           f"wait, or lower it")
        return Skipped("nothing waits to be removed")

    def _reclaim(self) -> LogReclaimReport:
        """Remove what no reader can reach any more."""
        self._guard.require_open()
        removed, freed = self._segments.remove_dropped()
        purged = purge_links(self._files, self._folder, now=self._clock.now(),
                             keep_seconds=self._keep_links_seconds,
                             is_leased=lambda number: self._segments.is_leased(self._linked.get(number, 0)))
        for number in purged:
            self._linked.pop(number, None)
        return LogReclaimReport(segments=removed, links=purged, leftovers=(), bytes_freed=freed,
                                waiting=len(self._segments.dropped))

    def _try_to_reclaim(self, placed: list[tuple[int, ...]] | None = None
                        ) -> tuple[tuple[int, ...], StorageError | None]:
        """Finish the groups that were placed, and remove what nobody reaches; what the disk refuses is for later."""
        if not self._guard.is_open:
            return (), None
        try:
            if placed:
                self._finish(placed)
            return self._reclaim().links, None
        except StorageError as error:
            return (), error

    # -- what is said of it

    def _require_own(self, plan: LogPlan, policy: LogPolicy | None) -> None:
        if not isinstance(plan, LogPlan):
            raise InvalidInput(f"the plan is {plan!r:.100}; give one that plan() made, or policy= for a policy")
        if policy is not None:
            raise InvalidInput("a plan and a policy were given; a plan says already what its policy chose")
        if not plan.folder or os.path.realpath(plan.folder) != os.path.realpath(self._folder):
            whose = f"the log in {plan.folder}" if plan.folder else "no log, but of a view made by hand"
            raise InvalidInput(f"the plan is of {whose}, and this is the one in {self._folder}; plan with this log")

    def _busy(self) -> Skipped:
        if self.runs.is_closed:
            raise Closed(f"the log in {self._folder} is closed; open it again")
        return Skipped("a compaction is running; ask again when it has ended", is_busy=True)

    def _failed(self, error: CompactlibError) -> Failed:
        if not self._guard.is_open and isinstance(error, Closed):
            raise error
        return Failed(error)

    def _tell_numbers(self, observer: Observer, outcome: CompactionOutcome, seconds: float,
                      views: Sequence[LogView]) -> None:
        above, name = os.path.split(self._folder)
        if os.path.basename(above) == LOGS_FOLDER:
            # Of a store with many: ids are often the same in each.
            name = f"{os.path.basename(os.path.dirname(above))}/{name}"
        numbers, report = StoreNumbers("raftlog", name), report_of(outcome)
        numbers.compacted(observer, outcome, seconds, policy="" if report is None else report.policy.name,
                          moved=None if report is None else Moved(read=report.bytes_read, copied=report.bytes_written,
                                                                  freed=report.bytes_freed))
        with contextlib.suppress(CompactlibError):
            if views:
                numbers.levels(observer, self._levels(views[-1] if report is None else self.view()))

    def _levels(self, view: LogView) -> StoreLevels:
        room = room_in(self._files, self._folder)
        return StoreLevels(
            live_bytes=sum(each.live_bytes for each in view.segments),
            dead_bytes=sum(each.dead_bytes for each in view.segments), free_bytes=room,
            capacity_bytes=None if room is None else sum(each.file_bytes for each in view.segments) + room,
            oldest_lease_seconds=self._segments.oldest_lease(),
            oldest_unreclaimed_seconds=self._segments.oldest_dropped())


@attrs.frozen
class _Drop:
    """The drops of a plan, if they were carried out.

    Attributes:
        numbers: the segments.
        freed: what their files held.
        purged: merged segments whose old names went as well.
        error: what the fence said before or after.
    """

    numbers: tuple[int, ...] = ()
    freed: int = 0
    purged: tuple[int, ...] = ()
    error: CompactlibError | None = None


class _Ended(Exception):
    """A run has ended with an error of the library, which becomes its outcome."""

    def __init__(self, error: CompactlibError) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def _ending() -> Iterator[None]:
    """Inside it an error of the library ends the run; what a policy raises in between is for the caller to see."""
    try:
        yield
    except CompactlibError as error:
        raise _Ended(error) from error


def _in_fence(fence: CommitFence | None, work: Callable[[], _T]) -> tuple[_T | None, CompactlibError | None]:
    """What `work` returned, `None` if it was not done; and what the fence raised before it or after it."""
    done: _T | None = None
    try:
        with contextlib.nullcontext() if fence is None else fence.guard():
            done = work()
    except CompactlibError as error:
        return done, error
    return done, None


def _tell(report: LogCompactionReport, observer: Observer) -> None:
    for failed in report.failed:
        observer.event("raftlog_group_failed", {"members": failed.members, "error": str(failed.error)})
    if report.unreclaimed is not None:
        observer.event("raftlog_unreclaimed", {"error": str(report.unreclaimed)})


def _without_room(needed: int, room: float) -> str:
    return (f"{needed:,} bytes are needed and {room:,} are available; make room, or drop what is wholly dead: "
            f"compact(policy=DropDead()) needs none")


