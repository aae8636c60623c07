# SPDX-License-Identifier: Apache-2.0
"""The workers of a log, each in a thread of its own: `LogCompactionWorker` compacts, `SnapshotWriter` takes snapshots.

A turn is requested by a snapshot, by a flush and by the host, and comes once in a period. A snapshot does not wait for
a compaction, which may run for hours at a low rate. The clock and the observer are the log's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import attrs

from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, Busy, Closed, CompactionFailed, Stale, StorageError, TaskFailed
from compactlib.indexset import IndexSet
from compactlib.raftlog.compaction.policy import LogPolicy
from compactlib.raftlog.compaction.report import LogCompactionReport
from compactlib.rewrite import Executor
from compactlib.service import PeriodicService

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from compactlib.raftlog.log.segment_log import SegmentLog
    from compactlib.raftlog.raft_log import RaftLog

_BUSY_SECONDS = 1.0


class _LogWorker(PeriodicService):
    """Works on a log in a thread of its own: at start, once in a period, and when woken. Ends when the log is closed.

    Args:
        log: stays open when the worker is stopped.
        work: does what is due.
        kind: of the work, for names and events.
        budget: the budget of each turn.
        every_seconds: the period; `None`: only at the start and when the log has changed.
    """

    def __init__(self, log: SegmentLog | RaftLog, work: Callable[[Budget], None], kind: str, budget: Budget | None,
                 every_seconds: float | None) -> None:
        self._status = log.status
        self._work = work
        self._kind = kind
        self._given = budget
        self._observer = log._observer
        self._lent: Budget | None = None
        super().__init__(self._turn, name=f"{kind}s of {log.folder}", every_seconds=every_seconds, clock=log._clock)

    def cancel(self) -> None:
        super().cancel()
        if self._lent is not None:
            self._lent.cancel()

    def _turn(self, budget: Budget) -> float | None:
        """Work once. Returns the delay until the next turn, `None` for the period."""
        self._lent = lent = (budget if self._given is None else self._given).child()
        if budget.cancelled:
            return None  # `stop` was called before it could see this budget
        try:
            self._work(lent)
        except Exception as error:
            if isinstance(error, Busy) and not (isinstance(error, BudgetSpent) and error.reason == "bytes"):
                return _BUSY_SECONDS
            if isinstance(error, Closed) and self._is_log_closed():
                self.cancel()
                return None
            self._observer.event("raftlog_worker_failed", work=self._kind, error=type(error).__name__,
                                 message=str(error), failures=self.failures + 1)
            raise
        return None

    def _is_log_closed(self) -> bool:
        """Whether the log is closed; a policy may raise `Closed` of another object."""
        try:
            self._status()
        except Closed:
            return True
        return False


class LogCompactionWorker(_LogWorker):
    """Compacts a log in a thread of its own: at start, once in a period, and when woken.

    Thread-safe. Damage is no error of the worker, but in the `last_report` of each compaction that meets it. The worker
    ends when its log is closed.

    Args:
        log: the log to compact; stays open when the worker is stopped.
        executor: runs the copying; default the worker's thread.
        budget: the budget of each compaction.
        every_seconds: period in which the triggers are evaluated and leftovers are reclaimed; `None`: only at the start
            and when the log has changed.

    Attributes:
        last_report: the report of the last compaction that ended; `None` before the first.
    """

    def __init__(self, log: SegmentLog | RaftLog, *, executor: Executor | None = None, budget: Budget | None = None,
                 every_seconds: float | None = 60.0) -> None:
        self._log = log
        self._executor = executor
        # Each use is a single call of C, so that no request of another thread is lost.
        self._requested: dict[str, LogPolicy | None] = {}
        self.last_report: LogCompactionReport | None = None
        super().__init__(log, self._compact, "compaction", budget, every_seconds)

    def request(self, policy: LogPolicy | None = None) -> None:
        """Request a compaction; it runs after a running one.

        Args:
            policy: chooses the victims; the policy of the last request counts. `None`: the log's own rule.
        """
        if policy is not None:
            self._requested["policy"] = policy
        self.wake()

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


class SnapshotWriter(_LogWorker):
    """Writes snapshots and checkpoints of the host's machine in a thread of its own, when enough was applied.

    Thread-safe. The host may also take snapshots itself: both counts begin at the newest snapshot. The writer ends when
    its log is closed.

    Args:
        log: the machine's log; stays open when the writer is stopped.
        applied: returns the last index that the machine has applied, -1 before the first; called in the writer's
            thread.
        copy: makes a copy of the machine; called in the writer's thread. It holds the lock that excludes `apply` only
            while it copies.
        when: count of applied entries after which a snapshot is due; `None`: only `request`.
        checkpoint_when: count of entries applied since the last snapshot or checkpoint after which a checkpoint is due;
            `None`: never.
        budget: the budget of each state, charged for each piece.
        every_seconds: period in which `applied` is called; `None`: only at the start and when the log has changed.

    Attributes:
        why: the trigger of the last snapshot or checkpoint, or the gate that held it back.
    """

    def __init__(self, log: RaftLog, *, applied: Callable[[], int], copy: Callable[[], MachineCopy],
                 when: int | None = 10_000, checkpoint_when: int | None = None, budget: Budget | None = None,
                 every_seconds: float | None = 60.0) -> None:
        self._log = log
        self._applied = applied
        self._copy = copy
        self._when = when
        self._checkpoint_when = checkpoint_when
        self._last_checkpoint = -1
        # As in `LogCompactionWorker`.
        self._requested: dict[str, bool] = {}
        self.why: str = "no attempt was made yet"
        super().__init__(log, self.write, "snapshot", budget, every_seconds)

    def request(self) -> None:
        """Request a snapshot, also if it is not due."""
        self._requested["snapshot"] = True
        self.wake()

    def write(self, budget: Budget) -> None:
        """Write the snapshot or checkpoint that is due or was requested; the writer's thread calls it.

        Args:
            budget: charged for each piece of the state.

        Raises:
            BudgetSpent: the budget is spent; nothing has changed.
            InvalidInput, LiveIndexMissing, StorageError, Closed: as `RaftLog.snapshot`.
            Exception: of `applied` or `copy`.
        """
        is_requested = self._requested.pop("snapshot", False)
        try:
            self._write(budget, is_requested)
        except BaseException:
            if is_requested:
                self._requested["snapshot"] = True
            raise

    def _write(self, budget: Budget, is_requested: bool) -> None:
        self._log._require_open()
        applied, row = self._applied(), self._log.state.index
        checkpoint = max(row, self._last_checkpoint)
        why = f"{applied - row} entries were applied since snapshot {row}, when={self._when}"
        if applied > row and (is_requested or (self._when is not None and applied - row >= self._when)):
            kind, why = "snapshot", "the host requested it" if is_requested else why
        elif self._checkpoint_when is not None and applied - checkpoint >= max(self._checkpoint_when, 1):
            kind, why = "checkpoint", (f"{applied - checkpoint} entries were applied since {checkpoint}, "
                                       f"checkpoint_when={self._checkpoint_when}")
        else:
            self.why = f"no snapshot is due: {why}"
            return
        copied = self._copy()

        def paced() -> Iterator[Buffer]:
            for piece in copied.pieces:
                budget.spend(memoryview(piece).nbytes)
                yield piece

        try:
            (self._log.snapshot if kind == "snapshot" else self._log.checkpoint)(copied.index, copied.live, paced())
        except Stale as error:
            # The host has taken a newer snapshot, or an earlier process a newer checkpoint.
            self._last_checkpoint, self.why = max(checkpoint, copied.index), str(error)
            return
        self._last_checkpoint, self.why = copied.index, why
        self._observer.event("raftlog_snapshot_written", kind=kind, index=copied.index, why=why)
