# SPDX-License-Identifier: Apache-2.0
"""Carrying out a plan: drop, rewrite through an executor, commit group by group, reclaim.

The references are switched before any file goes. A group that fails stays as it was while the others go on; what was
committed stays when a later one fails, the disk fills up, or the budget ends, and the next run goes on from there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from typing import Literal

import attrs

from compactlib.clock import Clock
from compactlib.contract import CommitFence
from compactlib.errors import Busy, CompactlibError, InvalidInput, NotFound, StorageError
from compactlib.executors.tasks import answers_of, own_error
from compactlib.files.disk import Files, list_folder
from compactlib.raftlog.compaction.commit import finish_group, link_members, place_leader
from compactlib.raftlog.compaction.plan.feasible import set_aside, without_blocked, without_drops
from compactlib.raftlog.compaction.plan.plan import GroupFailed, LogPlan, PlannedGroup
from compactlib.raftlog.compaction.reclaim import purge_links, remove_segments
from compactlib.raftlog.compaction.recover import LogRecoveryReport, recover_folder, remove_private_folder
from compactlib.raftlog.compaction.report import GroupOutcome, GroupStats, LogCompactionReport, LogReclaimReport
from compactlib.raftlog.compaction.rewrite import CompactSegments, SegmentSource
from compactlib.raftlog.model.names import REWRITE_PREFIX, compacting_members, compacting_name, segment_name
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import SegmentLimits
from compactlib.raftlog.segment.known import KnownSegment, file_bytes, is_committed, know_segment
from compactlib.raftlog.segment.segment_set import SegmentSet, open_segment
from compactlib.rewrite import Executor, RewriteFailure, RewriteResult
from compactlib.runtime.budget import spent_at_once
from compactlib.runtime.observe import Observer, Progress
from compactlib.runtime.owned_lock import OwnedLock
from compactlib.runtime.ownership import Run


@attrs.frozen
class _Garbage:
    """A segment that is not listed any more, and whose file is still there.

    Attributes:
        number: the segment.
        epoch: the list's when it was taken out.
        since: when that was, in seconds since the epoch.
        is_hidden: whether its file may hold entries above the snapshot, which only newer segments hide.
        may_hide: whether it may be such a newer one.
        one_by_one: see `Compactor.discard`.
    """

    number: int
    epoch: int
    since: float
    is_hidden: bool
    may_hide: bool
    one_by_one: bool


class Compactor:
    """Carries out plans on the files of one log, and removes what they leave behind. One run at a time.

    Args:
        folder: the log's folder, locked by this process.
        segments: the log's segments.
        switch: held while the list of segments is changed, and by every thread that makes files in the folder.
        files: the disk.
        clock: where time comes from.
        keep_links_seconds: how long the names of merged segments stay readable.
        run_id: gives each run's private folder its name.
        switched: called after each change of the list, while `switch` is held, with the segments that it left covered.
    """

    def __init__(self, folder: str, segments: SegmentSet, switch: OwnedLock, *, files: Files, clock: Clock,
                 keep_links_seconds: float, run_id: Callable[[], str],
                 switched: Callable[[Sequence[int]], object]) -> None:
        self._folder = folder
        self._segments = segments
        self._switch = switch
        self._files = files
        self._clock = clock
        self._keep_links_seconds = keep_links_seconds
        self._run_id = run_id
        self._switched = switched
        self._garbage: list[_Garbage] = []
        # Whether one that was hidden has gone, and may come back in a crash.
        self._may_come_back = False
        self._link_epochs: dict[int, int] = {}
        # By leader, the groups whose `.compacting` name is still there: their list is switched, but members may have
        # files of their own again after a crash, and would count without it.
        self._unfinished: dict[int, tuple[int, ...]] = {}
        # Guards the four above, and the removal of files: a `sync` that discards may meet a compaction that reclaims.
        self._reclaiming = threading.RLock()

    def run(self, plan: LogPlan, state: SnapshotMeta, *, limits: SegmentLimits, executor: Executor, run: Run,
            observer: Observer, fence: CommitFence | None = None) -> LogCompactionReport:
        """Carry out `plan`, which fits this log's segments and `state`.

        Args:
            plan: what to do.
            state: the snapshot that the plan relies on.
            limits: of the segments to be written.
            executor: runs the copying.
            run: whose budget the copying may use up, and in whose name the observer is notified.
            observer: notified of progress and of what was freed.
            fence: entered around the drops, and around each group's commit.
        """
        began = self._clock.monotonic()
        told = run.observer(observer)
        dropped, dropped_bytes = tuple(stats.number for stats in plan.drops), 0
        early: tuple[int, ...] = ()
        groups: list[GroupOutcome] = list(plan.damaged)
        waiting: tuple[GroupFailed, ...] = ()
        refused: StorageError | None = None
        fenced_off: CompactlibError | None = None
        try:
            with _fenced(fence if dropped else None):
                dropped_bytes = self._drop(dropped, state.index)
                # Before the rewrite, so that it finds the room, and no file between the members of a group. If the disk
                # refuses, the end of the run tries again.
                early, refused = self._try_to_reclaim()
        except _Refused as error:
            fenced_off, changed = error.error, error.changed
            groups += [GroupFailed((number,), fenced_off, changed) for number in dropped]
            dropped = dropped if changed == "partly" else ()
        if fenced_off is not None:
            groups += [GroupFailed(group.numbers, fenced_off) for group in plan.groups]
        else:
            free, blocked = set_aside(plan, self.doomed, refused)
            if refused is None:
                waiting = blocked
            else:
                groups += blocked
            for outcome in self._rewrite(free, state, limits, executor, run, told, fence):
                gone = self._taken_back(outcome)
                if gone is None:
                    groups.append(outcome)
                else:
                    waiting += (gone,)
        purged, unreclaimed = self._try_to_reclaim(finish=fence is None)
        report = LogCompactionReport(
            policy=plan.policy, why=plan.why, snapshot_index=state.index, dropped=dropped, dropped_bytes=dropped_bytes,
            groups=tuple(groups), waiting=waiting, left_out=plan.left_out,
            purged_links=tuple(sorted({*early, *purged})), unreclaimed=unreclaimed,
            seconds=self._clock.monotonic() - began)
        _tell(report, told)
        return report

    def settle(self) -> LogRecoveryReport:
        """Finish or undo what an earlier run in this process left half done, as opening the log would.

        Returns what there was.

        Raises:
            StorageError: the disk still refuses; nothing is lost, try again later.
        """
        with self._switch:
            # No other thread is making files now whose temporary names could be taken for leftovers.
            for name in list_folder(self._folder):
                members = compacting_members(name)
                # What was taken back since is not listed again.
                if members is not None and is_committed(self._folder, name) and members[0] not in self.doomed:
                    self._adopt_from_disk(members)
            report = recover_folder(self._files, self._folder)
            with self._reclaiming:
                self._unfinished.clear()
            return report

    def hiding(self, plan: LogPlan) -> frozenset[int]:
        """Those of the plan's drops without which entries that were taken back would count again."""
        return self._segments.hiding({stats.number for stats in plan.drops},
                                     -1 if plan.snapshot_index is None else plan.snapshot_index)

    def feasible(self, plan: LogPlan) -> LogPlan:
        """The plan without what must wait.

        That is a drop that would uncover entries which were taken back, and a group that would reach across a segment
        whose file stays, for this reason or because of a lease.
        """
        hiding = self.hiding(plan)
        plan = without_drops(plan, hiding)
        drops = {stats.number for stats in plan.drops}
        with self._reclaiming:
            kept = {garbage.number for garbage in self._garbage if self._segments.is_leased(garbage.epoch)}
        if self._segments.is_leased(self._segments.epoch + 1):
            kept.update(drops)
        return without_blocked(plan, kept | hiding)

    @property
    def doomed(self) -> frozenset[int]:
        """Segments that are not listed any more, but whose files are still there."""
        with self._reclaiming:
            return frozenset(garbage.number for garbage in self._garbage)

    def oldest_doomed(self) -> float | None:
        """Since when the oldest of them waits, in seconds since the epoch."""
        with self._reclaiming:
            return min((garbage.since for garbage in self._garbage), default=None)

    def discard(self, numbers: Sequence[int], *, one_by_one: bool = False) -> None:
        """Remove the files of segments of which newer ones have taken everything back, and which are no longer listed,
        at the next `reclaim` that no lease prevents.

        Args:
            numbers: of the segments.
            one_by_one: whether each is to be gone durably before the next one goes, and what waits already before all.
        """
        for number in numbers:
            self._discard(number, is_hidden=True, one_by_one=one_by_one)

    def _discard(self, number: int, *, is_hidden: bool, may_hide: bool = False, one_by_one: bool = False) -> None:
        with self._reclaiming:
            self._garbage.append(_Garbage(number, self._segments.epoch, self._clock.now(), is_hidden=is_hidden,
                                          may_hide=may_hide, one_by_one=one_by_one))

    def reclaim(self) -> LogReclaimReport:
        """Remove what no reader can reach any more; returns what is gone.

        Raises:
            StorageError: the disk refused; what is left is tried again the next time.
        """
        removed: list[int] = []
        freed = 0
        is_durable = False
        with self._reclaiming:
            for garbage in list(self._garbage):
                if not self._segments.is_leased(garbage.epoch):
                    if (garbage.one_by_one and not is_durable) or (garbage.may_hide and self._may_come_back):
                        # What it covers, and what went in an earlier call, would count again without it.
                        self._files.sync_folder(self._folder)
                        self._may_come_back = False
                    # Before its group's links a leader's file may not go.
                    self._finish(garbage.number)
                    self._may_come_back |= garbage.is_hidden
                    freed += remove_segments(self._files, self._folder, [garbage.number])
                    is_durable = garbage.one_by_one
                    if is_durable:
                        self._files.sync_folder(self._folder)
                        self._may_come_back = False
                    self._garbage.remove(garbage)
                    removed.append(garbage.number)
            purged = purge_links(
                self._files, self._folder, now=self._clock.now(), keep_seconds=self._keep_links_seconds,
                is_leased=lambda number: self._segments.is_leased(self._link_epochs.get(number, 0)))
            for number in purged:
                self._link_epochs.pop(number, None)
            return LogReclaimReport(segments=tuple(removed), links=purged, leftovers=(), bytes_freed=freed,
                                 waiting=len(self._garbage))

    def _try_to_reclaim(self, *, finish: bool = False) -> tuple[tuple[int, ...], StorageError | None]:
        try:
            if finish:
                self._finish(*self._unfinished)
            return self.reclaim().links, None
        except StorageError as error:
            return (), error

    def _drop(self, numbers: Sequence[int], above: int) -> int:
        """Take segments out of the list that hold nothing alive up to the snapshot `above`."""
        size = sum(map(self._size, numbers))
        with self._switch:
            known = map(self._segments.known_of, numbers)
            hidden = {number for number, segment in zip(numbers, known, strict=True)
                      if segment is None or segment.ref.last > above}
            try:
                self._segments.drop(numbers)
                self._discard_dropped(numbers, hidden)
            except BaseException:
                # Interrupted: a file that is neither listed nor garbage would keep its neighbours from being merged.
                self._discard_dropped(numbers, hidden)
                raise
        return size

    def _discard_dropped(self, numbers: Sequence[int], hidden: Collection[int]) -> None:
        doomed = self.doomed
        for number in numbers:
            if number not in doomed and self._segments.known_of(number) is None:
                self._discard(number, is_hidden=number in hidden, may_hide=True)
        self._switched(())

    def _rewrite(self, groups: Sequence[PlannedGroup], state: SnapshotMeta, limits: SegmentLimits, executor: Executor,
                 run: Run, observer: Observer, fence: CommitFence | None) -> Iterator[GroupOutcome]:
        if not groups:
            return
        private = os.path.join(self._folder, f"{REWRITE_PREFIX}{self._run_id()}")
        waiting = {segment_name(group.members[0].number): group for group in groups}
        tasks = {name: self._task(name, group, private, state, limits) for name, group in waiting.items()}
        try:
            self._files.make_folder(private)
        except StorageError as error:
            yield from (GroupFailed(group.numbers, error) for group in groups)
            return
        try:
            observer.progress(Progress("compact", 0, len(tasks), "groups"))
            with contextlib.closing(self._rewritten(waiting, tasks, executor, run, observer, fence)) as ended:
                for count, outcome in enumerate(ended, 1):
                    yield outcome
                    observer.progress(Progress("compact", count, len(tasks), "groups"))
        finally:
            # An attempt that outlives its run finds no folder to create its file in.
            with contextlib.suppress(StorageError):
                remove_private_folder(self._files, private)

    def _rewritten(self, waiting: dict[str, PlannedGroup], tasks: Mapping[str, CompactSegments], executor: Executor,
                   run: Run, observer: Observer, fence: CommitFence | None) -> Generator[GroupOutcome, None, None]:
        """Have the groups rewritten and commit each; those that the executor never answers for have failed."""
        error: CompactlibError | None = None
        left = run.budget.remaining.total_bytes
        with contextlib.closing(answers_of(executor, list(tasks.values()), budget=run.budget,
                                           observer=observer)) as outcomes:
            while error is None:
                try:
                    outcome = next(outcomes, None)
                except Exception as raised:  # whatever a host's executor raises
                    error = own_error("compact", raised)
                    break
                if outcome is None:
                    return
                group = waiting.pop(outcome.task)
                if isinstance(outcome, RewriteFailure):
                    failure, needed = outcome.error, group.live_bytes
                    if left is not None and left < needed:
                        failure = spent_at_once(failure, f"the group of segments {group.numbers}", left=left,
                                                needed=needed)
                    yield GroupFailed(group.numbers, failure)
                    continue
                done: list[GroupOutcome] = []
                # What a fence raises that is none of the library's errors is the caller's to see.
                try:
                    with _fenced(fence):
                        done.append(self._commit(group, tasks[outcome.task], outcome, finish=fence is not None))
                except _Refused as refused:
                    # The present holder of the fence does the rest.
                    error = refused.error
                    done.append(GroupFailed(group.numbers, error, refused.changed))
                yield from done
        for group in waiting.values():
            yield GroupFailed(group.numbers, error)

    def _taken_back(self, outcome: GroupOutcome) -> GroupFailed | None:
        """The outcome of a group that found no file because it was taken back meanwhile, which is no failure."""
        if (not isinstance(outcome, GroupFailed) or outcome.changed != "no" or not (
                isinstance(outcome.error, NotFound) or getattr(outcome.error, "errno", None) == errno.ENOENT)):
            return None
        gone = [number for number in outcome.members if self._segments.known_of(number) is None]
        return GroupFailed(outcome.members, Busy(
            f"segments {', '.join(map(str, gone))} hold only what was taken back, and went while their group was "
            f"rewritten; compact again, which sees what is left")) if gone else None

    def _task(self, name: str, group: PlannedGroup, private: str, state: SnapshotMeta,
              limits: SegmentLimits) -> CompactSegments:
        sources = tuple(
            SegmentSource(os.path.join(self._folder, segment_name(stats.number)), stats.ref,
                          state.live.between(stats.ref.first, stats.ref.last))
            for stats in group.members)
        return CompactSegments(name=name, folder=private, sources=sources, max_bytes=limits.max_bytes,
                               files=self._files)

    def _commit(self, group: PlannedGroup, task: CompactSegments, result: RewriteResult, *,
                finish: bool) -> GroupOutcome:
        """Put a group's new segment in force. Unless it is finished at once, as inside a fence, one sync at the end of
        the run makes the links of all groups durable.
        """
        members = group.numbers
        if len(result.files) != 1:
            return GroupFailed(members, InvalidInput(f"the rewrite of segments {members} made {len(result.files)} "
                                                     f"files; expected one"))
        file = result.files[0]
        adopted = False
        try:
            sizes = sum(map(self._size, members))
            merged = place_leader(self._files, self._folder, members, file,
                                  [source.live for source in task.sources])
            # The list is switched before the members lose their files.
            self._adopt(members, merged)
            adopted = True
            with self._reclaiming:
                if members[0] in self._unfinished:
                    link_members(self._files, self._folder, members)
            if finish:
                self._finish(members[0])
        except CompactlibError as error:
            # Whichever list is in force answers: if the leader was replaced it holds all that was live, and the
            # members' names lead either to their own files or to the leader. The next run completes it.
            replaced = True
            with contextlib.suppress(StorageError):
                replaced = is_committed(self._folder, compacting_name(members))
            return GroupFailed(members, error, "partly" if adopted else "unknown" if replaced else "no")
        return GroupStats(members=members, entries_before=sum(stats.entries for stats in group.members),
                          entries_after=file.entries, bytes_read=result.bytes_read, bytes_written=file.size_bytes,
                          bytes_freed=sizes - file.size_bytes, seconds=result.seconds)

    def _adopt(self, members: Sequence[int], merged: KnownSegment) -> None:
        with self._switch, self._reclaiming:
            covered = self._segments.merge(members, merged)
            self._link_epochs.update(dict.fromkeys(members[1:], self._segments.epoch))
            self._unfinished[members[0]] = tuple(members)
            self._switched(covered)

    def _finish(self, *leaders: int) -> None:
        """Make the links of leaders' groups durable, all with one sync, and let their `.compacting` names go."""
        with self._reclaiming:
            unfinished = [self._unfinished[leader] for leader in leaders if leader in self._unfinished]
            if unfinished:
                self._files.sync_folder(self._folder)
            for members in unfinished:
                finish_group(self._files, self._folder, members)
                del self._unfinished[members[0]]

    def _adopt_from_disk(self, members: Sequence[int]) -> None:
        with open_segment(self._folder, members[0]) as reader:
            merged = know_segment(members[0], reader)
        assert merged is not None, "a group has a live entry"
        self._adopt(members, merged)

    def _size(self, number: int) -> int:
        return file_bytes(self._folder, number)


def _tell(report: LogCompactionReport, observer: Observer) -> None:
    for failed in report.failed:
        observer.event("raftlog_group_failed", {"members": failed.members, "error": str(failed.error)})
    if report.unreclaimed is not None:
        observer.event("raftlog_unreclaimed", {"error": str(report.unreclaimed)})


class _Refused(Exception):
    """A fence did not let a commit happen, or said after it that it should not have."""

    def __init__(self, error: CompactlibError, changed: Literal["no", "partly"]) -> None:
        super().__init__(str(error))
        self.error = error
        self.changed = changed


@contextlib.contextmanager
def _fenced(fence: CommitFence | None) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        if fence is not None:
            try:
                stack.enter_context(fence.guard())
            except CompactlibError as error:
                raise _Refused(error, "no") from error
        yield
        try:
            stack.close()
        except CompactlibError as error:
            raise _Refused(error, "partly") from error
