"""Carrying out a plan: drop, rewrite through an executor, commit group by group, reclaim.

The references are switched before any file goes. A group that fails stays as it was while the others go on; what was
committed stays when a later one fails, the disk fills up, or the budget ends, and the next run goes on from there.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

import attrs

from compactlib.clock import Clock
from compactlib.errors import CompactlibError, InvalidInput, StorageError
from compactlib.files import Files, list_folder
from compactlib.observe import Observer, Progress
from compactlib.raftlog.commit import finish_group, is_committed, place_leader
from compactlib.raftlog.feasible import without_blocked, without_drops, without_refused
from compactlib.raftlog.known import KnownSegment, know_segment
from compactlib.raftlog.model import SegmentLimits
from compactlib.raftlog.names import REWRITE_PREFIX, compacting_members, segment_name
from compactlib.raftlog.plan import CompactionPlan, PlannedGroup
from compactlib.raftlog.reclaim import purge_links, remove_segments
from compactlib.raftlog.recover import recover_folder, remove_private_folder
from compactlib.raftlog.result import CompactionReport, GroupFailed, GroupOutcome, GroupStats
from compactlib.raftlog.rewrite import CompactSegments, SegmentSource
from compactlib.raftlog.segment_set import SegmentSet, open_segment
from compactlib.raftlog.snapshot_state import SnapshotState
from compactlib.rewrite import Executor, RewriteFailure, RewriteResult, foreign_error
from compactlib.runtime import Run, telling


@attrs.frozen
class _Garbage:
    number: int
    epoch: int


class Compactor:
    """Carries out plans on the files of one log, and removes what they leave behind. One run at a time.

    Args:
        folder: the log's folder, locked by this process.
        segments: the log's segments.
        switch: held while the list of segments is changed, and by everyone who makes files in the folder.
        files: the disk.
        clock: where time comes from.
        observer: told of progress and of what was freed.
        keep_links_seconds: how long the names of merged segments stay readable.
        run_id: gives each run's private folder its name.
        switched: called after each change of the list, while `switch` is held.
    """

    def __init__(self, folder: str, segments: SegmentSet, switch: threading.RLock, *, files: Files, clock: Clock,
                 observer: Observer, keep_links_seconds: float, run_id: Callable[[], str],
                 switched: Callable[[], object]) -> None:
        self._folder = folder
        self._segments = segments
        self._switch = switch
        self._files = files
        self._clock = clock
        self._observer = telling(observer)
        self._keep_links_seconds = keep_links_seconds
        self._run_id = run_id
        self._switched = switched
        self._garbage: list[_Garbage] = []
        self._link_epochs: dict[int, int] = {}
        # Guards the two above, and the removal of files: a `sync` that discards may meet a compaction that reclaims.
        self._reclaiming = threading.RLock()

    def run(self, plan: CompactionPlan, state: SnapshotState, *, why: str, limits: SegmentLimits, executor: Executor,
            run: Run, set_aside: Sequence[GroupFailed] = ()) -> CompactionReport:
        """Carry out `plan`, which was made of this log's segments and `state`.

        Args:
            plan: what to do.
            state: the snapshot that the plan relies on.
            why: for the report.
            limits: of the segments to be written.
            executor: who copies.
            run: whose budget the copying may use up, and as whose work the observer is told.
            set_aside: what was found damaged while planning, for the report.
        """
        began = self._clock.monotonic()
        dropped_bytes = self._drop([stats.number for stats in plan.drops])
        # Before the rewrite, so that it finds the room, and no file between the members of a group. If the disk
        # refuses, the end of the run tries again.
        early, refused = self._try_to_reclaim()
        if refused is not None:
            plan, blocked = without_refused(plan, self.doomed, refused)
            set_aside = (*set_aside, *blocked)
        groups = list(self._rewrite(plan, state, limits, executor, run)) if plan.groups else []
        purged, unreclaimed = self._try_to_reclaim()
        report = CompactionReport(
            kind=plan.kind, why=why, snapshot_index=state.index, dropped=tuple(stats.number for stats in plan.drops),
            dropped_bytes=dropped_bytes, groups=(*set_aside, *groups), left_out=plan.left_out,
            purged_links=tuple(sorted({*early, *purged})), unreclaimed=unreclaimed,
            seconds=self._clock.monotonic() - began)
        self._tell(report)
        return report

    def settle(self) -> None:
        """Finish or undo what an earlier run in this process left half done, as opening the log would.

        Raises:
            StorageError: the disk still refuses; nothing is lost, try again later.
        """
        with self._switch:
            # Nobody else is making files now whose temporary names could be taken for leftovers.
            for name in list_folder(self._folder):
                members = compacting_members(name)
                if members is not None and is_committed(self._folder, name):
                    self._adopt_from_disk(members)
            recover_folder(self._files, self._folder)

    def feasible(self, plan: CompactionPlan) -> CompactionPlan:
        """The plan without what must wait.

        That is a drop that would uncover entries which were taken back, and a group that would reach across a segment
        whose file stays, for this reason or because of a lease.
        """
        drops = {stats.number for stats in plan.drops}
        hiding = self._segments.hiding(drops, -1 if plan.snapshot_index is None else plan.snapshot_index)
        plan = without_drops(plan, hiding)
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

    def discard(self, numbers: Sequence[int]) -> None:
        """Remove the files of segments that are no longer listed, at the next `reclaim` that no lease prevents."""
        with self._reclaiming:
            self._garbage.extend(_Garbage(number, self._segments.epoch) for number in numbers)

    def reclaim(self) -> tuple[int, ...]:
        """Remove what nobody can still read; returns the merged segments whose old names are gone.

        Raises:
            StorageError: the disk refused; what is left is tried again the next time.
        """
        with self._reclaiming:
            for garbage in list(self._garbage):
                if not self._segments.is_leased(garbage.epoch):
                    remove_segments(self._files, self._folder, [garbage.number])
                    self._garbage.remove(garbage)
            purged = purge_links(
                self._files, self._folder, now=self._clock.now(), keep_seconds=self._keep_links_seconds,
                is_leased=lambda number: self._segments.is_leased(self._link_epochs.get(number, 0)))
            for number in purged:
                self._link_epochs.pop(number, None)
        return purged

    def _try_to_reclaim(self) -> tuple[tuple[int, ...], StorageError | None]:
        try:
            return self.reclaim(), None
        except StorageError as error:
            return (), error

    def _drop(self, numbers: Sequence[int]) -> int:
        size = sum(map(self._size, numbers))
        with self._switch:
            self._segments.drop(numbers)
            self.discard(numbers)
            self._switched()
        return size

    def _rewrite(self, plan: CompactionPlan, state: SnapshotState, limits: SegmentLimits, executor: Executor,
                 run: Run) -> Iterator[GroupOutcome]:
        private = os.path.join(self._folder, f"{REWRITE_PREFIX}{self._run_id()}")
        waiting = {segment_name(group.members[0].number): group for group in plan.groups}
        tasks = [self._task(name, group, private, state, limits) for name, group in waiting.items()]
        try:
            self._files.make_folder(private)
        except StorageError as error:
            yield from (GroupFailed(group.numbers, error) for group in plan.groups)
            return
        try:
            self._observer.progress(Progress("compact", 0, len(tasks), "groups"))
            with contextlib.closing(self._rewritten(waiting, tasks, executor, run)) as ended:
                for count, outcome in enumerate(ended, 1):
                    yield outcome
                    self._observer.progress(Progress("compact", count, len(tasks), "groups"))
        finally:
            # An attempt that outlives its run finds no folder to create its file in.
            with contextlib.suppress(StorageError):
                remove_private_folder(self._files, private)

    def _rewritten(self, waiting: dict[str, PlannedGroup], tasks: Sequence[CompactSegments], executor: Executor,
                   run: Run) -> Generator[GroupOutcome, None, None]:
        """Have the groups rewritten and commit each; those that the executor never answers for have failed."""
        try:
            outcomes: Iterable[object] = executor.run(tasks, budget=run.budget, observer=run.observer(self._observer))
            with _left(outcomes):
                for outcome in outcomes:
                    if not isinstance(outcome, RewriteResult | RewriteFailure) or outcome.task not in waiting:
                        raise InvalidInput(f"the executor {executor!r} answered {outcome!r:.200}; it must give one "
                                           f"outcome for each of the tasks it was given: see Executor.run")
                    group = waiting.pop(outcome.task)
                    if isinstance(outcome, RewriteResult):
                        yield self._commit(group, outcome)
                    else:
                        yield GroupFailed(group.numbers, outcome.error)
            error: CompactlibError = InvalidInput(f"the executor {executor!r} gave no outcome for this group; it must "
                                                  f"give one for each task: see Executor.run")
        except CompactlibError as raised:
            error = raised
        except Exception as raised:  # whatever a host's executor raises
            error = foreign_error("compact", raised)
        for group in waiting.values():
            yield GroupFailed(group.numbers, error)

    def _task(self, name: str, group: PlannedGroup, private: str, state: SnapshotState,
              limits: SegmentLimits) -> CompactSegments:
        sources = tuple(
            SegmentSource(os.path.join(self._folder, segment_name(stats.number)), stats.ref,
                          state.live.between(stats.ref.first, stats.ref.last))
            for stats in group.members)
        return CompactSegments(name=name, folder=private, sources=sources, max_bytes=limits.max_bytes,
                               files=self._files)

    def _commit(self, group: PlannedGroup, result: RewriteResult) -> GroupOutcome:
        members = group.numbers
        if len(result.files) != 1:
            return GroupFailed(members, InvalidInput(f"the rewrite of segments {members} made {len(result.files)} "
                                                     f"files; expected one"))
        file = result.files[0]
        try:
            sizes = sum(map(self._size, members))
            merged = place_leader(self._files, self._folder, members, file)
            # The list is switched before the members lose their files.
            self._adopt(members, merged)
            finish_group(self._files, self._folder, members)
        except CompactlibError as error:
            # Whichever list is in force answers: if the leader was replaced it holds all that was live, and the
            # members' names lead either to their own files or to the leader. The next run settles it.
            return GroupFailed(members, error)
        return GroupStats(members=members, entries_before=sum(stats.entries for stats in group.members),
                          entries_after=file.entries, bytes_read=result.bytes_read, bytes_written=file.size_bytes,
                          bytes_freed=sizes - file.size_bytes, seconds=result.seconds)

    def _adopt(self, members: Sequence[int], merged: KnownSegment) -> None:
        with self._switch, self._reclaiming:
            self._segments.merge(members, merged)
            self._link_epochs.update(dict.fromkeys(members[1:], self._segments.epoch))
            self._switched()

    def _adopt_from_disk(self, members: Sequence[int]) -> None:
        with open_segment(self._folder, members[0]) as reader:
            merged = know_segment(members[0], reader)
        assert merged is not None, "a group has a live entry"
        self._adopt(members, merged)

    def _size(self, number: int) -> int:
        try:
            return os.lstat(os.path.join(self._folder, segment_name(number))).st_size
        except FileNotFoundError:
            # Somebody has removed it by hand. Dropping it is still right; copying from it fails by name.
            return 0

    def _tell(self, report: CompactionReport) -> None:
        kind = {"kind": report.kind}
        for name, value in (("raftlog_compactions", 1), ("raftlog_freed_bytes", report.bytes_freed),
                            ("raftlog_read_bytes", report.bytes_read), ("raftlog_written_bytes", report.bytes_written),
                            ("raftlog_groups_failed", len(report.failed))):
            self._observer.count(name, value, kind)
        for failed in report.failed:
            self._observer.event("raftlog_group_failed", {"members": failed.members, "error": str(failed.error)})
        if report.unreclaimed is not None:
            self._observer.event("raftlog_unreclaimed", {"error": str(report.unreclaimed)})


@contextlib.contextmanager
def _left(outcomes: Iterable[object]) -> Iterator[None]:
    """Leave what an executor gave, so that nothing it began runs on; not every iterator can be left."""
    try:
        yield
    finally:
        close = getattr(outcomes, "close", None)
        if close is not None:
            close()
