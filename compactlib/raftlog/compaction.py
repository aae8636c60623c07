"""Carrying out a plan: drop, rewrite through an executor, commit group by group, reclaim.

The references are switched before any file goes. A group that fails stays as it was while the others go on; what was
committed stays when a later one fails, the disk fills up, or the budget ends, and the next run goes on from there.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Iterator, Sequence

import attrs

from compactlib.budget import Budget
from compactlib.clock import Clock
from compactlib.errors import CompactlibError, StorageError
from compactlib.files import Files
from compactlib.observe import Observer, Progress
from compactlib.raftlog.commit import commit_group
from compactlib.raftlog.model import SegmentLimits, SegmentRef
from compactlib.raftlog.names import REWRITE_PREFIX, segment_name
from compactlib.raftlog.plan import CompactionPlan, PlannedGroup
from compactlib.raftlog.reclaim import purge_links, remove_segments
from compactlib.raftlog.recover import recover_folder, remove_private_folder
from compactlib.raftlog.result import CompactionReport, GroupFailed, GroupOutcome, GroupStats
from compactlib.raftlog.rewrite import CompactSegments, SegmentSource
from compactlib.raftlog.segment_set import SegmentSet, know_segment, open_segment
from compactlib.raftlog.snapshot_state import SnapshotState
from compactlib.rewrite import Executor, RewriteResult


@attrs.frozen
class _Garbage:
    number: int
    epoch: int


class Compactor:
    """Carries out plans on the files of one log, and removes what they leave behind. One run at a time.

    Args:
        folder: the log's folder, locked by this process.
        segments: the log's segments.
        switch: held while the list of segments is changed.
        files: the disk.
        clock: where time comes from.
        observer: told of progress and of what was freed.
        keep_links_seconds: how long the names of merged segments stay readable.
    """

    def __init__(self, folder: str, segments: SegmentSet, switch: threading.RLock, *, files: Files, clock: Clock,
                 observer: Observer, keep_links_seconds: float) -> None:
        self._folder = folder
        self._segments = segments
        self._switch = switch
        self._files = files
        self._clock = clock
        self._observer = observer
        self._keep_links_seconds = keep_links_seconds
        self._garbage: list[_Garbage] = []
        self._link_epochs: dict[int, int] = {}

    def run(self, plan: CompactionPlan, state: SnapshotState, *, why: str, limits: SegmentLimits, executor: Executor,
            budget: Budget) -> CompactionReport:
        """Carry out `plan`, which was made of this log's segments and `state`.

        Raises:
            StorageError: the disk refused something that concerns no single group.
        """
        began = self._clock.monotonic()
        dropped_bytes = self._drop([stats.number for stats in plan.drops])
        groups = list(self._rewrite(plan, state, limits, executor, budget)) if plan.groups else []
        purged = self.reclaim()
        report = CompactionReport(
            kind=plan.kind, why=why, snapshot_index=state.index, dropped=tuple(stats.number for stats in plan.drops),
            dropped_bytes=dropped_bytes, groups=tuple(groups), left_out=plan.left_out, purged_links=purged,
            seconds=self._clock.monotonic() - began)
        self._tell(report)
        return report

    def settle(self) -> None:
        """Finish or undo what an earlier run in this process left half done, as opening the log would.

        Raises:
            StorageError: the disk still refuses; nothing is lost, try again later.
        """
        for members in recover_folder(self._files, self._folder).finished:
            self._adopt(members)

    def discard(self, numbers: Sequence[int]) -> None:
        """Remove the files of segments that are no longer listed, now or when the last lease on them ends."""
        self._garbage.extend(_Garbage(number, self._segments.epoch) for number in numbers)

    def reclaim(self) -> tuple[int, ...]:
        """Remove what nobody can still read; returns the merged segments whose old names are gone.

        Raises:
            StorageError: the disk refused; what is left is tried again the next time.
        """
        free = [garbage for garbage in self._garbage if not self._segments.is_leased(garbage.epoch)]
        remove_segments(self._files, self._folder, [garbage.number for garbage in free])
        self._garbage = [garbage for garbage in self._garbage if garbage not in free]
        purged = purge_links(
            self._files, self._folder, now=self._clock.now(), keep_seconds=self._keep_links_seconds,
            is_leased=lambda number: self._segments.is_leased(self._link_epochs.get(number, 0)))
        for number in purged:
            self._link_epochs.pop(number, None)
        return purged

    def _drop(self, numbers: Sequence[int]) -> int:
        if not numbers:
            return 0
        with self._switch:
            self._segments.replace(numbers)
        size = sum(self._size(number) for number in numbers)
        self.discard(numbers)
        # Before the rewrite, so that it finds the room.
        self.reclaim()
        return size

    def _rewrite(self, plan: CompactionPlan, state: SnapshotState, limits: SegmentLimits, executor: Executor,
                 budget: Budget) -> Iterator[GroupOutcome]:
        private = os.path.join(self._folder, f"{REWRITE_PREFIX}{uuid.uuid4().hex}")
        planned = {segment_name(group.members[0].number): group for group in plan.groups}
        tasks = [self._task(name, group, private, state, limits) for name, group in planned.items()]
        self._files.make_folder(private)
        try:
            self._observer.progress(Progress("compact", 0, len(tasks), "groups"))
            for count, outcome in enumerate(executor.run(tasks, budget=budget, observer=self._observer), 1):
                group = planned[outcome.task]
                if isinstance(outcome, RewriteResult):
                    yield self._commit(group, outcome)
                else:
                    yield GroupFailed(_numbers(group), outcome.error)
                self._observer.progress(Progress("compact", count, len(tasks), "groups"))
        finally:
            # An attempt that outlives its run finds no folder to create its file in.
            with contextlib.suppress(StorageError):
                remove_private_folder(self._files, private)

    def _task(self, name: str, group: PlannedGroup, private: str, state: SnapshotState,
              limits: SegmentLimits) -> CompactSegments:
        sources = tuple(
            SegmentSource(os.path.join(self._folder, segment_name(stats.number)), stats.ref,
                          state.live.between(stats.ref.first, stats.ref.last))
            for stats in group.members)
        return CompactSegments(name=name, folder=private, sources=sources, max_bytes=limits.max_bytes,
                               files=self._files)

    def _commit(self, group: PlannedGroup, result: RewriteResult) -> GroupOutcome:
        members = _numbers(group)
        sizes = sum(map(self._size, members))
        try:
            commit_group(self._files, self._folder, members, result.files[0])
            self._adopt(members)
        except CompactlibError as error:
            # The old list still answers: if the leader was replaced, it holds all that was live in it, and the
            # members' names lead either to their own files or to the leader. The next run settles it.
            self._segments.forget_readers(members)
            return GroupFailed(members, error)
        file = result.files[0]
        return GroupStats(members=members, entries_before=sum(stats.entries for stats in group.members),
                          entries_after=file.entries, bytes_read=result.bytes_read, bytes_written=file.size_bytes,
                          bytes_freed=sizes - file.size_bytes, seconds=result.seconds)

    def _adopt(self, members: Sequence[int]) -> None:
        reader = open_segment(self._folder, members[0])
        merged = know_segment(members[0], reader)
        if merged is None:
            raise CompactlibError(f"segment {members[0]} was merged from {members}, but is empty")
        with self._switch:
            self._segments.replace(members, merged)
            self._link_epochs.update(dict.fromkeys(members[1:], self._segments.epoch))
        self._segments.keep_open(members[0], reader)

    def _size(self, number: int) -> int:
        return os.stat(os.path.join(self._folder, segment_name(number))).st_size

    def _tell(self, report: CompactionReport) -> None:
        kind = {"kind": report.kind}
        for name, value in (("raftlog_compactions", 1), ("raftlog_bytes_freed", report.bytes_freed),
                            ("raftlog_bytes_read", report.bytes_read), ("raftlog_bytes_written", report.bytes_written),
                            ("raftlog_groups_failed", len(report.failed))):
            self._observer.count(name, value, kind)
        for failed in report.failed:
            self._observer.event("raftlog_group_failed", {"members": failed.members, "error": str(failed.error)})


def _numbers(group: PlannedGroup) -> tuple[int, ...]:
    return tuple(stats.number for stats in group.members)
