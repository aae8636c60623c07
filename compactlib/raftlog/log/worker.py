# SPDX-License-Identifier: Apache-2.0
"""`LogCompactionWorker`, a `LogWorker`: compacts a log and writes its snapshots, so that no thread of the server does.

```
asked ──▶ compaction, what it replaces held in place ──▶ the server is notified ──▶ files removed ──▶ again, if asked
```

It is asked for by a snapshot, by new segments, by the host, and by time: once in a period it looks whether a compaction
has become due, and removes what was kept long enough. One compaction at a time. What is asked for meanwhile is
remembered as one request, the strongest of all, and runs afterwards: dropping what is wholly dead is less than what the
log's own rule says, and that less than a policy. What `RaftLog.compact` is asked for takes the same way, in the thread
that asks. Snapshots and checkpoints are written in another thread, so that none waits for a long compaction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.errors import Closed, CompactlibError, InvalidInput, StorageError, TaskFailed
from compactlib.executors.tasks import foreign_error
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.raftlog.compaction.plan.policies.drop import DropDead
from compactlib.raftlog.compaction.plan.policy import LogPolicy
from compactlib.raftlog.compaction.report import GroupStats, LogCompactionReport, report_of
from compactlib.raftlog.log.segment_log import SegmentLog
from compactlib.raftlog.log.snapshot_writer import SnapshotWriter, SnapshotWritten
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import SegmentRef
from compactlib.rewrite import Executor
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, telling
from compactlib.runtime.ownership import Ownership
from compactlib.runtime.services.service_face import ServiceFace
from compactlib.runtime.services.work_service import Job, WorkService, ended_in

WORKER_FAILED = "raftlog_worker_failed"
"""An unexpected exception was raised: `error`, `message`, `failures` in a row, `retry_in_seconds`."""
SNAPSHOT_WRITTEN = "raftlog_snapshot_written"
"""The worker has written a snapshot or checkpoint: the fields of `SnapshotWritten`."""

PERIOD_SECONDS = 60.0
"""How often a worker looks by itself, unless it is given another time."""

_WORK, _LOOK, _SNAPSHOT = "compaction", "look", "snapshot"
_IF_DUE, _AT_ONCE = 1, 2
_DROPS, _OWN_RULE, _POLICY = 1, 2, 3


@attrs.frozen
class MergedSegments:
    """Segments that became one.

    Attributes:
        members: their numbers, ascending; the first is that of the new one.
        ref: the new segment's range.
    """

    members: tuple[int, ...]
    ref: SegmentRef


@attrs.frozen
class SegmentChanges:
    """What a compaction did to the list of segments; empty if it did nothing.

    Attributes:
        dropped: segments that are listed no more.
        merged: segments that became one.
    """

    dropped: tuple[int, ...] = ()
    merged: tuple[MergedSegments, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dropped or self.merged)

    @classmethod
    def of(cls, report: LogCompactionReport, refs: Sequence[SegmentRef]) -> SegmentChanges:
        """The changes in a report, with the ranges from the log's list after it."""
        found = {ref.number: ref for ref in refs}
        groups = [group.members for group in report.groups if isinstance(group, GroupStats)]
        gone = tuple(number for members in groups if members[0] not in found for number in members)
        return cls((*report.dropped, *gone), tuple(MergedSegments(members, found[members[0]]) for members in groups
                                                   if members[0] in found))

    @classmethod
    def between(cls, before: Sequence[SegmentRef], after: Sequence[SegmentRef]) -> SegmentChanges:
        """The changes from one list to a later one, for a compaction that left no report: each segment alone."""
        found = {ref.number: ref for ref in after}
        return cls(tuple(ref.number for ref in before if ref.number not in found),
                   tuple(MergedSegments((ref.number,), found[ref.number]) for ref in before[:-1]
                         if found.get(ref.number, ref) != ref))

    def applied_to(self, refs: Sequence[SegmentRef]) -> tuple[SegmentRef, ...]:
        """A list of segments with the changes made, whatever came to it since the compaction began. O(segments).

        New segments and truncations concern only what lies above the snapshot, so they stay as they are. Changes that
        the list has already are made again without effect.
        """
        gone = {*self.dropped, *(number for each in self.merged for number in each.members)}
        kept = [ref for ref in refs if ref.number not in gone]
        return tuple(sorted([*kept, *(each.ref for each in self.merged)]))


WorkerOutcome: TypeAlias = Done[LogCompactionReport] | Skipped | Failed
SnapshotOutcome: TypeAlias = Done[SnapshotWritten] | Skipped | Failed
Server: TypeAlias = Callable[[SegmentChanges, WorkerOutcome], object]
"""Notified by the worker of each compaction's end, before a file is removed. It may use the log."""


class LogCompactionWorker(ServiceFace):
    """See the module; a `Service`. Any thread may call any method; those of `LogWorker` never block.

    Whatever a compaction raises ends in a `Failed` outcome, is kept in `last_error`, and lets everything go that was
    held; what an executor's own error or the disk has kept from being done is tried again after a growing delay.

    Args:
        log: what is compacted; `RaftLog.segments`, or a `SegmentLog` of its own. Stays open when the worker is stopped.
        server: notified of what changed, by each compaction that this worker or `RaftLog.compact` carries out.
        snapshots: has snapshots and checkpoints written; without one the host writes them.
        executor: runs the copying; default the worker's thread.
        budget: what each compaction may use up, and the state of each snapshot, lent anew each time.
        observer: notified as `raftlog_worker_failed` of an unexpected exception, and as `raftlog_snapshot_written`.
        every_seconds: how often it looks by itself whether the log's trigger asks for a compaction by now (`Elapsed`
            does while nothing else happens), and removes old names of merged segments and what leases held back, at
            first when it is started; `None`: never.
        clock: when that is.

    Raises:
        InvalidInput: one of them is not what it should be.
    """

    def __init__(self, log: SegmentLog, *, server: Server | None = None, snapshots: SnapshotWriter | None = None,
                 executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                 every_seconds: float | None = PERIOD_SECONDS, clock: Clock | None = None) -> None:
        if not callable(getattr(log, "lease", None)):
            raise InvalidInput(f"the log is {log!r:.100}; give a SegmentLog, or the `segments` of a RaftLog")
        self._service = WorkService(f"the worker of the log in {log.folder}", event=WORKER_FAILED, budget=budget,
                                    observer=observer, clock=clock)
        # Damage stays so; another try may find another executor, or room.
        self._service.add(_WORK, self._turn, retries=lambda _: self._may_pass)
        if every_seconds is not None:
            self._service.add(_LOOK, self._look, every_seconds=every_seconds)
        if snapshots is not None:
            # What has failed, the host's copy or the disk, is tried again.
            self._service.add(_SNAPSHOT, self._write_snapshot, lane=_SNAPSHOT, every_seconds=snapshots.look_seconds)
        self._log = log
        self._server = server
        self._snapshots = snapshots
        self._executor = executor
        self._observer = telling(observer)
        self._clock: Clock = SystemClock() if clock is None else clock
        # Held from a compaction's beginning until the server knows of it, whoever asked for it.
        self._carrying = Ownership(f"the worker of the log in {log.folder}")
        self._policy: LogPolicy | None = None
        self._has_snapshot = False
        self._may_pass = False
        self._last: WorkerOutcome = Skipped("nothing was asked for yet")
        self.last_snapshot: SnapshotOutcome = Skipped("none was looked for yet")
        """How the last look for a snapshot ended: `Skipped` says what holds one back."""

    def snapshot_recorded(self, row: SnapshotMeta) -> None:
        """See `LogWorker.snapshot_recorded`: what died by it can go."""
        self._has_snapshot = self._has_snapshot or row.index >= 0
        self.request()

    def segments_flushed(self, last_index: int | None) -> None:
        """See `LogWorker.segments_flushed`: what was the newest segment need not be left alone any more."""
        if self._has_snapshot:
            self.request()
        if self._snapshots is not None:
            self._service.request(_SNAPSHOT, _IF_DUE)

    def request_snapshot(self) -> None:
        """Ask for a snapshot of what the machine has applied by now; see `last_snapshot`, and the observer.

        Raises:
            InvalidInput: the worker was given no `snapshots`.
        """
        if self._snapshots is None:
            raise InvalidInput("the worker writes no snapshots; make it with snapshots=SnapshotWriter(...), or call "
                               "RaftLog.snapshot")
        self._service.request(_SNAPSHOT, _AT_ONCE)

    def carry_out(self, compact: Callable[[], WorkerOutcome]) -> WorkerOutcome:
        """See `LogWorker.carry_out`: the server is notified as of any other compaction."""
        outcome, _ = self._carried_out(compact, self._service.note)
        return outcome

    def request(self, policy: LogPolicy | None = None) -> None:
        """Ask for a compaction; one that runs is followed by the strongest that was asked for meanwhile.

        Args:
            policy: decides what is rewritten; of several the last one does. `None`: the log's own rule says.

        Raises:
            InvalidInput: it is none.
        """
        if policy is not None and not isinstance(policy, DropDead):
            self._policy = policy
        strength = _OWN_RULE if policy is None else _DROPS if isinstance(policy, DropDead) else _POLICY
        self._service.request(_WORK, strength)

    def wait_until_idle(self, seconds: float = 60.0) -> WorkerOutcome:
        """Return when nothing runs and nothing waits, with how the last compaction ended.

        What waits for its delay after a failure is not waited for.

        Raises:
            Busy: that has not come in `seconds`; or called from within the worker's own work.
            AuditFailed: the thread has ended, as after `SystemExit`.
        """
        self._service.wait_until_idle(seconds)
        return self._last

    def __repr__(self) -> str:
        return f"<LogCompactionWorker: {self._service.report()._summary()}>"

    # -- inside

    def _turn(self, job: Job) -> Outcome[Any]:
        self._may_pass = False
        policy = {_DROPS: DropDead(), _POLICY: self._policy}.get(job.turn.strength)
        try:
            _, told = self._carried_out(lambda: self._compact(job, policy), job.note)
            return told
        except Closed as error:
            self._last = Failed(error)
            if self._is_log_closed():
                job.rest()
            else:
                job.note(error)
                self._may_pass = True
            return self._last

    def _carried_out(self, compact: Callable[[], WorkerOutcome], note: Callable[[Exception], object],
                     ) -> tuple[WorkerOutcome, WorkerOutcome]:
        """Compact, and notify the server while what was replaced is held in place; then let it go.

        Returns how the compaction ended, and how that together with the server did.
        """
        with self._carrying.begin() as run:
            if run is None:
                busy = Skipped("another compaction of the log runs, or its server is being notified; ask again when it "
                               "has ended", is_busy=True)
                return busy, busy
            before, lease = self._log.refs, None
            try:
                if self._server is not None:
                    lease = self._log.lease()
                try:
                    outcome = compact()
                except BaseException as error:
                    # A fence's exception, say, after a part of it was committed.
                    if changes := SegmentChanges.between(before, self._log.refs):
                        self._told(Failed(ended_in("the compaction", error), "partly"), changes, note)
                    raise
                report = report_of(outcome)
                changes = SegmentChanges() if report is None else SegmentChanges.of(report, self._log.refs)
                self._last = told = self._told(outcome, changes, note)
            finally:
                if lease is not None:
                    lease.release()
            if lease is not None:
                # What the disk refuses to remove is tried again by the next compaction; a closed log has done it or
                # will.
                with contextlib.suppress(CompactlibError):
                    self._log.reclaim()
            return outcome, told

    def _write_snapshot(self, job: Job) -> Outcome[Any]:
        assert self._snapshots is not None, "the work was added for it"
        try:
            outcome: SnapshotOutcome = self._snapshots.write(self._clock.monotonic(), job.budget,
                                                             is_asked=job.turn.strength == _AT_ONCE)
        except CompactlibError as error:
            outcome = Failed(error)
            if isinstance(error, Closed) and self._is_log_closed():
                job.rest()
        except Exception as error:
            self.last_snapshot = Failed(foreign_error("snapshot", error))
            raise
        self.last_snapshot = outcome
        if isinstance(outcome, Done):
            self._observer.event(SNAPSHOT_WRITTEN, attrs.asdict(outcome.stats))
        return outcome

    def _look(self, job: Job) -> Outcome[Any]:
        """Ask for what has become due; of nothing, remove what may go."""
        try:
            plan = self._log.plan(view=self._log.view(budget=job.budget))
            # Damage alone is for the next one that is asked for to report, not for each period.
            if not (plan.drops or plan.groups):
                return self._log.reclaim(budget=job.budget)
        except CompactlibError as error:
            if isinstance(error, Closed) and self._is_log_closed():
                job.rest()
            return Failed(error)
        self.request()
        return Skipped(f"a compaction is due, and was asked for: {plan.why}")

    def _compact(self, job: Job, policy: LogPolicy | None) -> WorkerOutcome:
        try:
            outcome: WorkerOutcome = self._log.compact(policy=policy, executor=self._executor, budget=job.budget)
        except CompactlibError as error:
            if isinstance(error, Closed):
                raise
            return Failed(error)
        except Exception as error:
            # A policy, say.
            job.note(error)
            self._may_pass = True
            return Failed(foreign_error("compaction", error))
        report = report_of(outcome)
        errors = [group.error for group in report.failed] if report is not None else \
            [outcome.error] if isinstance(outcome, Failed) else []
        passing = [error for error in errors if isinstance(error, TaskFailed | StorageError)]
        if passing:
            job.note(passing[0])
            self._may_pass = True
        return outcome

    def _is_log_closed(self) -> bool:
        """Whether the log was closed before its worker; `Closed` may also come from a policy's own tool."""
        try:
            self._log.status()
        except Closed:
            return True
        return False

    def _told(self, outcome: WorkerOutcome, changes: SegmentChanges, note: Callable[[Exception], object]
              ) -> WorkerOutcome:
        """Notify the server; how the compaction ended, or that the server failed."""
        # What was busy is asked for again soon.
        if self._server is not None and not (isinstance(outcome, Skipped) and outcome.is_busy):
            try:
                self._server(changes, outcome)
            except Exception as error:
                # A server that fails must not keep the files for ever, nor end this thread.
                note(error)
                if isinstance(error, CompactlibError):
                    return Failed(error)
                return Failed(TaskFailed(f"the server that was notified of a compaction raised {error!r}; its list of "
                                         f"segments may be outdated", task="report", kind=type(error).__name__,
                                         detail=foreign_error("report", error).detail))
        return outcome
