# SPDX-License-Identifier: Apache-2.0
"""`LogCompactionWorker`: compacts a log and writes its snapshots in threads of its own.

A compaction is requested by a snapshot, by a flush and by the host; once in a period the worker evaluates the log's
trigger, and reclaims. Snapshots and checkpoints are written in another thread, so that they do not wait for a long
compaction (`SnapshotWriter`). The log decides what a compaction does, the writer when a snapshot is due; the worker
runs both, and retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

import attrs

from compactlib._arguments import is_above, is_whole
from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import BudgetSpent, Busy, Closed, CompactionFailed, InvalidInput, Stale, StorageError, TaskFailed
from compactlib.indexset import IndexSet
from compactlib.observer import Observer, Observers
from compactlib.raftlog.compaction.policy import LogPolicy
from compactlib.raftlog.compaction.report import LogCompactionReport
from compactlib.raftlog.snapshot_meta import live_set
from compactlib.report import Printed
from compactlib.rewrite import Executor
from compactlib.service import PeriodicService

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from compactlib.raftlog.log.segment_log import SegmentLog
    from compactlib.raftlog.raft_log import RaftLog

WORKER_FAILED = "raftlog_worker_failed"
"""A compaction or a snapshot failed, and is retried: `work`, `error`, `message`, `failures` of the worker."""
SNAPSHOT_WRITTEN = "raftlog_snapshot_written"
"""A snapshot or checkpoint was written: the fields of `SnapshotReport`."""

PERIOD_SECONDS = 60.0
"""The default period in which a worker evaluates the log's trigger."""
_BUSY_SECONDS = 1.0
_COMPACTION, _SNAPSHOT = "compaction", "snapshot"

SnapshotKind: TypeAlias = Literal["snapshot", "checkpoint"]


@attrs.frozen
class Applied:
    """The trigger of snapshots or checkpoints: a count of applied entries, or a time if any entry was applied.

    Attributes:
        entries: applied since the last snapshot or checkpoint, >= 1.
        seconds: since then, > 0; `None`: only `entries` counts.

    Raises:
        InvalidInput: a value is out of its range.
    """

    entries: int = attrs.field(default=10_000, validator=is_whole(1))
    seconds: float | None = attrs.field(default=None, validator=is_above(0, or_none=True))

    def is_due(self, entries: int, seconds: float) -> bool:
        """Whether a snapshot is due that many entries and seconds after the last snapshot."""
        return entries >= self.entries or (self.seconds is not None and seconds >= self.seconds)


@attrs.frozen
class MachineCopy:
    """A copy of the host's machine, from which a snapshot is written.

    Attributes:
        index: the last entry that the copy has applied.
        live: the indexes <= `index` that the log must keep; a set, or strictly ascending numbers.
        pieces: the state, in pieces of any size. It is iterated while the machine applies later entries: iterate over a
            copy, or over immutable values.
    """

    index: int
    live: IndexSet | Iterable[int]
    pieces: Iterable[Buffer]


@attrs.frozen(kw_only=True)
class SnapshotReport(Printed):
    """The result of an attempt to write a snapshot.

    Attributes:
        kind: `"snapshot"` or `"checkpoint"`; `None` if nothing was written.
        index: its last entry, -1 if nothing was written.
        live: count of its live entries.
        state_bytes: size of the machine's state.
        why: the trigger, or the gate that held the snapshot back.
    """

    kind: SnapshotKind | None = None
    index: int = -1
    live: int = 0
    state_bytes: int = 0
    why: str

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written."""
        return self.kind is None

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row."""
        return [attrs.asdict(self)]


class SnapshotWriter:
    """Writes snapshots and checkpoints of the host's machine, for a single `LogCompactionWorker`.

    The worker calls it after each flush and every `every_seconds`. The host may also take snapshots itself: they
    exclude each other, and both triggers count from the newest.

    Args:
        log: the machine's log.
        applied: returns the last index that the machine has applied, -1 before the first; called in the worker's
            thread.
        copy: makes a copy of the machine; called in the worker's thread. It holds the lock that excludes `apply` only
            while it copies.
        when: the trigger of snapshots; `None`: only `request_snapshot`.
        checkpoint_when: the trigger of checkpoints; `None`: never.
        every_seconds: period in which the triggers are evaluated without a flush, > 0; `None`: only after flushes.
    """

    def __init__(self, log: RaftLog, *, applied: Callable[[], int], copy: Callable[[], MachineCopy],
                 when: Applied | None = Applied(), checkpoint_when: Applied | None = None,
                 every_seconds: float | None = 5.0) -> None:
        self._log = log
        self._applied = applied
        self._copy = copy
        self._triggers: tuple[tuple[SnapshotKind, Applied | None], ...] = (
            ("snapshot", when), ("checkpoint", checkpoint_when))
        self.every_seconds: float | None = every_seconds
        # For each kind: the newest index, and the time when it was seen first.
        self._newest: dict[SnapshotKind, tuple[int, float]] = {}

    def write(self, now: float, budget: Budget, *, is_asked: bool = False) -> SnapshotReport:
        """Write the snapshot or checkpoint that is due.

        Args:
            now: seconds on a monotonic clock.
            budget: charged for each piece of the state.
            is_asked: write a snapshot also if it is not due.

        Raises:
            BudgetSpent: the budget is spent; nothing has changed.
            InvalidInput, LiveIndexMissing, StorageError, Closed: as `RaftLog.snapshot`.
            Exception: of `applied` or `copy`.
        """
        applied, row = self._applied(), self._log.state.index
        self._seen("snapshot", row, now)
        self._seen("checkpoint", row, now)
        if applied <= row:
            return SnapshotReport(why=f"the machine has applied {applied}, and the snapshot {row} is in force")
        kind: SnapshotKind | None = "snapshot" if is_asked else None
        why = "the host requested it"
        for each, trigger in self._triggers:
            since, at = self._newest[each]
            if kind is None and trigger is not None and applied > since and trigger.is_due(applied - since, now - at):
                kind, why = each, f"{applied - since} entries were applied in {now - at:.0f} seconds: {trigger}"
        if kind is None:
            since, at = self._newest["snapshot"]
            return SnapshotReport(why=f"no snapshot is due: {applied - since} entries were applied in {now - at:.0f} "
                                      f"seconds since {since if since >= 0 else 'the start'}, "
                                      f"when={self._triggers[0][1]}")
        copied, sizes = self._copy(), list[int]()

        def paced() -> Iterator[Buffer]:
            for piece in copied.pieces:
                sizes.append(memoryview(piece).nbytes)
                budget.spend(sizes[-1])
                yield piece

        live = live_set(copied.live)
        try:
            (self._log.snapshot if kind == "snapshot" else self._log.checkpoint)(copied.index, live, paced())
        except Stale as error:
            # The host has taken a newer snapshot.
            self._seen(kind, copied.index, now)
            return SnapshotReport(why=str(error))
        self._seen(kind, copied.index, now)
        self._seen("checkpoint", copied.index, now)
        return SnapshotReport(kind=kind, index=copied.index, live=live.count, state_bytes=sum(sizes), why=why)

    def _seen(self, kind: SnapshotKind, index: int, now: float) -> None:
        """Record the newest index of a kind."""
        if kind not in self._newest or index > self._newest[kind][0]:
            self._newest[kind] = index, now


class LogCompactionWorker:
    """Compacts a log and writes its snapshots in the background. Use it in a `with`, or `start` and `stop` it.

    Thread-safe. An error is logged, kept in `last_error`, and the work is retried after a growing delay; damage is in
    `last_report` instead, of each compaction that meets it. The worker ends when its log is closed.

    Args:
        log: the log to compact; stays open when the worker is stopped.
        snapshots: writes snapshots and checkpoints; without it the host takes them.
        executor: runs the copying; default the worker's thread.
        budget: the budget of each compaction, and of the state of each snapshot.
        observer: receives `raftlog_worker_failed` and `raftlog_snapshot_written`.
        every_seconds: period in which the log's trigger is evaluated and leftovers are reclaimed; `None`: only at the
            start.
        clock: for these periods.

    Attributes:
        last_report: the report of the last compaction that ended; `None` before the first.
        last_snapshot: result of the last attempt to write a snapshot; `why` names the gate.
    """

    def __init__(self, log: SegmentLog | RaftLog, *, snapshots: SnapshotWriter | None = None,
                 executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                 every_seconds: float | None = PERIOD_SECONDS, clock: Clock | None = None) -> None:
        self._log = log
        self._writer = snapshots
        self._executor = executor
        self._budget = budget
        self._observer = Observers(observer)
        self._clock: Clock = SystemClock() if clock is None else clock
        self._policy: LogPolicy | None = None
        self._is_snapshot_asked = False
        # By kind of work: requested, and the budgets of the present turns.
        self._pending: set[str] = set()
        self._lent: dict[str, Budget] = {}
        self.last_report: LogCompactionReport | None = None
        self.last_snapshot: SnapshotReport = SnapshotReport(why="no attempt was made yet")
        self._services = {_COMPACTION: PeriodicService(
            partial(self._turn, _COMPACTION, self._compact), name=f"compactions of {log.folder}",
            every_seconds=every_seconds, clock=self._clock)}
        if snapshots is not None:
            self._services[_SNAPSHOT] = PeriodicService(
                partial(self._turn, _SNAPSHOT, partial(self._write_snapshot, snapshots)),
                name=f"snapshots of {log.folder}", every_seconds=snapshots.every_seconds, clock=self._clock)

    # -- requests

    def request(self, policy: LogPolicy | None = None) -> None:
        """Request a compaction; it runs after a running one.

        Args:
            policy: chooses the victims; the policy of the last request counts. `None`: the log's own rule.
        """
        if policy is not None:
            self._policy = policy
        self._request(_COMPACTION)

    def _request(self, work: str) -> None:
        self._pending.add(work)
        self._services[work].wake()

    def request_snapshot(self) -> None:
        """Request a snapshot; `last_snapshot` and the observer have its report.

        Raises:
            InvalidInput: the worker was made without `snapshots`.
        """
        if self._writer is None:
            raise InvalidInput("the worker writes no snapshots; make it with snapshots=SnapshotWriter(...), or call "
                               "RaftLog.snapshot")
        self._is_snapshot_asked = True
        self._request(_SNAPSHOT)

    def log_changed(self) -> None:
        """Request what a snapshot or a flush of the log may have made due; called by the log, and never blocks."""
        if self._log.state.index >= 0:
            self.request()
        if self._writer is not None:
            self._services[_SNAPSHOT].wake()

    # -- the service

    def start(self) -> None:
        """Start the threads; idempotent."""
        for service in self._services.values():
            service.start()

    def run_pending(self) -> bool:
        """Run the due work in the caller's thread; return whether any was due. For hosts without threads."""
        return max([service.run_pending() for service in self._services.values()])

    def stop(self, *, wait_seconds: float = 30.0) -> None:
        """Cancel the running work and wait for its end. Idempotent.

        Raises:
            Busy: the work has not ended in time, or the caller is part of it; the worker ends nevertheless.
        """
        for service in self._services.values():
            service.cancel()
        for lent in list(self._lent.values()):
            lent.cancel()
        for service in self._services.values():
            service.stop(wait_seconds=wait_seconds)

    def wait_until_idle(self, seconds: float = 60.0) -> LogCompactionReport | None:
        """Wait until no work runs or is requested; return the last compaction's report. Does not wait for a retry.

        Raises:
            Busy: there is still work after `seconds`.
        """
        end = SystemClock().monotonic() + seconds
        while self._pending or self._lent:
            if SystemClock().monotonic() > end:
                raise Busy(f"{self!r} has work left after {seconds:g} seconds; wait longer, or see last_error")
            SystemClock().sleep(0.01)
        return self.last_report

    @property
    def failures(self) -> int:
        """Count of failed compactions and snapshots."""
        return sum(service.failures for service in self._services.values())

    @property
    def last_error(self) -> BaseException | None:
        """The last error, `None` before the first."""
        return next((service.last_error for service in self._services.values() if service.last_error), None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<LogCompactionWorker of {self._log.folder!r}: {self.failures} failures>"

    # -- one turn of each

    def _compact(self, budget: Budget) -> None:
        policy = self._policy
        try:
            report = self._log.compact(policy=policy, executor=self._executor, budget=budget)
        except CompactionFailed as error:
            report = error.report
            if any(isinstance(each, TaskFailed | StorageError) for each in error.failures.values()):
                # A retry may find another executor, or free space; damage stays.
                self.last_report = report
                raise
        if self._policy is policy and _COMPACTION not in self._pending:
            self._policy = None
        if not report.is_empty or self.last_report is None:
            self.last_report = report

    def _write_snapshot(self, writer: SnapshotWriter, budget: Budget) -> None:
        is_asked, self._is_snapshot_asked = self._is_snapshot_asked, False
        try:
            self.last_snapshot = written = writer.write(self._clock.monotonic(), budget, is_asked=is_asked)
        except BaseException:
            self._is_snapshot_asked |= is_asked
            raise
        if not written.is_empty:
            self._observer.event(SNAPSHOT_WRITTEN, **written.to_dicts()[0])

    def _turn(self, work: str, turn: Callable[[Budget], None], service_budget: Budget) -> float | None:
        """Run a turn with its own budget; return the delay until the next turn, `None` for the period."""
        self._lent[work] = lent = service_budget if self._budget is None else self._budget.child()
        if service_budget.cancelled:
            lent.cancel()  # `stop` has cancelled the service before this budget existed
        self._pending.discard(work)
        try:
            turn(lent)
        except Exception as error:
            if isinstance(error, Busy) and not (isinstance(error, BudgetSpent) and error.reason == "bytes"):
                if not lent.cancelled:
                    self._pending.add(work)
                return _BUSY_SECONDS
            if isinstance(error, Closed) and self._is_log_closed():
                self._services[work].cancel()
                self._pending.clear()
                return None
            self._observer.event(WORKER_FAILED, work=work, error=type(error).__name__, message=str(error),
                                 failures=self.failures + 1)
            raise
        finally:
            del self._lent[work]
        return None

    def _is_log_closed(self) -> bool:
        """Whether the log is closed; a policy may raise `Closed` of another object."""
        try:
            self._log.status()
        except Closed:
            return True
        return False
