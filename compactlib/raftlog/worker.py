# SPDX-License-Identifier: Apache-2.0
"""`LogCompactionWorker`: compacts a log and writes its snapshots in a thread of its own.

A turn is requested by a snapshot, by a flush and by the host, and comes once in a period. `SnapshotWriter` decides
whether a snapshot or a checkpoint is due, the log what a compaction does; the worker runs both, one after the other,
and retries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.clock import Clock
from compactlib.errors import BudgetSpent, Busy, Closed, CompactionFailed, InvalidInput, Stale, StorageError, TaskFailed
from compactlib.indexset import IndexSet
from compactlib.observer import Observer, Observers
from compactlib.raftlog.compaction.policy import LogPolicy
from compactlib.raftlog.compaction.report import LogCompactionReport
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

_BUSY_SECONDS = 1.0

SnapshotKind: TypeAlias = Literal["snapshot", "checkpoint"]


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
class SnapshotReport:
    """The result of an attempt to write a snapshot.

    Attributes:
        kind: `"snapshot"` or `"checkpoint"`; `None` if nothing was written.
        index: its last entry, -1 if nothing was written.
        why: the trigger, or the gate that held the snapshot back.
    """

    kind: SnapshotKind | None = None
    index: int = -1
    why: str

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written."""
        return self.kind is None


class SnapshotWriter:
    """Writes snapshots and checkpoints of the host's machine, for a single `LogCompactionWorker`.

    The worker calls it after each flush and once in its period. The host may also take snapshots itself: both counts
    begin at the newest snapshot.

    Args:
        log: the machine's log.
        applied: returns the last index that the machine has applied, -1 before the first; called in the worker's
            thread.
        copy: makes a copy of the machine; called in the worker's thread. It holds the lock that excludes `apply` only
            while it copies.
        when: count of applied entries after which a snapshot is due; `None`: only `request_snapshot`.
        checkpoint_when: count of entries applied since the last snapshot or checkpoint after which a checkpoint is due;
            `None`: never.
    """

    def __init__(self, log: RaftLog, *, applied: Callable[[], int], copy: Callable[[], MachineCopy],
                 when: int | None = 10_000, checkpoint_when: int | None = None) -> None:
        self._log = log
        self._applied = applied
        self._copy = copy
        self._when = when
        self._checkpoint_when = checkpoint_when
        self._last_checkpoint = -1

    def write(self, budget: Budget, *, is_asked: bool = False) -> SnapshotReport:
        """Write the snapshot or checkpoint that is due.

        Args:
            budget: charged for each piece of the state.
            is_asked: write a snapshot also if it is not due.

        Raises:
            BudgetSpent: the budget is spent; nothing has changed.
            InvalidInput, LiveIndexMissing, StorageError, Closed: as `RaftLog.snapshot`.
            Exception: of `applied` or `copy`.
        """
        applied, row = self._applied(), self._log.state.index
        checkpoint = max(row, self._last_checkpoint)
        why = f"{applied - row} entries were applied since snapshot {row}, when={self._when}"
        kind: SnapshotKind
        if applied > row and (is_asked or (self._when is not None and applied - row >= self._when)):
            kind, why = "snapshot", "the host requested it" if is_asked else why
        elif self._checkpoint_when is not None and applied - checkpoint >= max(self._checkpoint_when, 1):
            kind, why = "checkpoint", (f"{applied - checkpoint} entries were applied since {checkpoint}, "
                                       f"checkpoint_when={self._checkpoint_when}")
        else:
            return SnapshotReport(why=f"no snapshot is due: {why}")
        copied = self._copy()

        def paced() -> Iterator[Buffer]:
            for piece in copied.pieces:
                budget.spend(memoryview(piece).nbytes)
                yield piece

        try:
            (self._log.snapshot if kind == "snapshot" else self._log.checkpoint)(copied.index, copied.live, paced())
        except Stale as error:
            # The host has taken a newer snapshot, or an earlier process a newer checkpoint.
            self._last_checkpoint = max(checkpoint, copied.index)
            return SnapshotReport(why=str(error))
        self._last_checkpoint = copied.index
        return SnapshotReport(kind=kind, index=copied.index, why=why)


class LogCompactionWorker(PeriodicService):
    """Compacts a log and writes its snapshots in a thread of its own: at start, once in a period, and when woken.

    Thread-safe. Damage is no error of the worker, but in the `last_report` of each compaction that meets it. The worker
    ends when its log is closed.

    Args:
        log: the log to compact; stays open when the worker is stopped.
        snapshots: writes snapshots and checkpoints; without it the host takes them.
        executor: runs the copying; default the worker's thread.
        budget: the budget of each compaction, and of the state of each snapshot.
        observer: receives `raftlog_worker_failed` and `raftlog_snapshot_written`.
        every_seconds: period in which the triggers are evaluated and leftovers are reclaimed; `None`: only at the start
            and when the log has changed.
        clock: for this period.

    Attributes:
        last_report: the report of the last compaction that ended; `None` before the first.
        last_snapshot: result of the last attempt to write a snapshot; `why` names the gate.
    """

    def __init__(self, log: SegmentLog | RaftLog, *, snapshots: SnapshotWriter | None = None,
                 executor: Executor | None = None, budget: Budget | None = None, observer: Observer | None = None,
                 every_seconds: float | None = 60.0, clock: Clock | None = None) -> None:
        self._log = log
        self._writer = snapshots
        self._executor = executor
        self._given = budget
        self._observer = Observers(observer)
        # Each use is a single call of C, so that no request of another thread is lost.
        self._requested: dict[str, Any] = {}
        self._lent: Budget | None = None
        self.last_report: LogCompactionReport | None = None
        self.last_snapshot: SnapshotReport = SnapshotReport(why="no attempt was made yet")
        super().__init__(self._turn, name=f"compactions of {log.folder}", every_seconds=every_seconds, clock=clock)

    # -- requests

    def request(self, policy: LogPolicy | None = None) -> None:
        """Request a compaction; it runs after a running one.

        Args:
            policy: chooses the victims; the policy of the last request counts. `None`: the log's own rule.
        """
        if policy is not None:
            self._requested["policy"] = policy
        self.wake()

    def request_snapshot(self) -> None:
        """Request a snapshot; `last_snapshot` and the observer have its report.

        Raises:
            InvalidInput: the worker was made without `snapshots`.
        """
        if self._writer is None:
            raise InvalidInput("the worker writes no snapshots; make it with snapshots=SnapshotWriter(...), or call "
                               "RaftLog.snapshot")
        self._requested["snapshot"] = True
        self.wake()

    def cancel(self) -> None:
        super().cancel()
        if self._lent is not None:
            self._lent.cancel()

    # -- a turn

    def _turn(self, budget: Budget) -> float | None:
        """Write the snapshot that is due, then compact; a failure of one does not stop the other.

        Returns the delay until the next turn, `None` for the period.
        """
        self._lent = lent = (budget if self._given is None else self._given).child()
        if budget.cancelled:
            return None  # `stop` was called before it could see this budget
        failed: Exception | None = None
        delay: float | None = None
        for name, work in (("snapshot", self._write_snapshot), ("compaction", self._compact)):
            try:
                work(lent)
            except Exception as error:
                if isinstance(error, Busy) and not (isinstance(error, BudgetSpent) and error.reason == "bytes"):
                    delay = _BUSY_SECONDS
                elif isinstance(error, Closed) and self._is_log_closed():
                    self.cancel()
                    return None
                else:
                    self._observer.event(WORKER_FAILED, work=name, error=type(error).__name__, message=str(error),
                                         failures=self.failures + 1)
                    failed = failed or error
        if failed is not None:
            raise failed
        return delay

    def _write_snapshot(self, budget: Budget) -> None:
        if self._writer is None:
            return
        is_asked = self._requested.pop("snapshot", False)
        try:
            self.last_snapshot = written = self._writer.write(budget, is_asked=is_asked)
        except BaseException:
            if is_asked:
                self._requested["snapshot"] = True
            raise
        if not written.is_empty:
            self._observer.event(SNAPSHOT_WRITTEN, **attrs.asdict(written))

    def _compact(self, budget: Budget) -> None:
        policy = self._requested.pop("policy", None)
        if policy is None and self.last_report is not None and self._log.state.index < 0:
            return  # before the first snapshot nothing is dead; each flush would look at all segments
        try:
            report = self._log.compact(policy=policy, executor=self._executor, budget=budget)
        except BaseException as error:
            if isinstance(error, CompactionFailed):
                self.last_report = error.report
                if not any(isinstance(each, TaskFailed | StorageError) for each in error.failures.values()):
                    # A retry may find another executor, or free space; damage stays.
                    return
            # A request during the compaction counts more.
            self._requested.setdefault("policy", policy)
            raise
        if not report.is_empty or self.last_report is None:
            self.last_report = report

    def _is_log_closed(self) -> bool:
        """Whether the log is closed; a policy may raise `Closed` of another object."""
        try:
            self._log.status()
        except Closed:
            return True
        return False
