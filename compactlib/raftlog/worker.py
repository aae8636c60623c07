"""`CompactionWorker`: the thread that compacts a log, so that no thread of the server ever does. A `LogWorker`."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from compactlib.budget import Budget
from compactlib.errors import AuditFailed, Busy, CompactlibError, StorageError, TaskFailed
from compactlib.observe import Observer
from compactlib.outcome import Failed, Skipped
from compactlib.raftlog.log import SegmentLog
from compactlib.raftlog.log_state import LogState
from compactlib.raftlog.policies.drop import DropDead
from compactlib.raftlog.policy import CompactionPolicy
from compactlib.raftlog.result import report_of
from compactlib.raftlog.segment_set import Lease
from compactlib.raftlog.worker_core import (
    CancelCompaction,
    CompactionKind,
    RemoveFiles,
    ReportChanges,
    RunCompaction,
    SegmentChanges,
    WorkerCore,
    WorkerEffect,
    WorkerOutcome,
)
from compactlib.rewrite import Executor, foreign_error
from compactlib.runtime import Ownership, Turns

WORKER_FAILED = "raftlog_worker_failed"
"""Something was raised that nobody expects: `error`, `message`, `failures` in a row, `retry_in_seconds`."""

Server: TypeAlias = Callable[[SegmentChanges, WorkerOutcome], object]
"""Told of each compaction's end, in the worker's thread, before a file goes. It may use the log."""


class CompactionWorker:
    """See the module. Any thread may call any method; those of `LogWorker` never block.

    Whatever a compaction raises ends in a `Failed` outcome, is kept in `last_error`, and lets everything go that was
    held; what an executor's own error or the disk has kept from being done is tried again after a growing delay.

    Args:
        log: what is compacted; `RaftLog.segments`, or a `SegmentLog` of its own. Stays open when the worker is closed.
        server: told of what changed.
        executor: who copies; default the worker's thread.
        budget: what each compaction may use up, lent anew each time.
        observer: told `raftlog_worker_failed` when something was raised that nobody expects.
    """

    def __init__(self, log: SegmentLog, *, server: Server | None = None, executor: Executor | None = None,
                 budget: Budget | None = None, observer: Observer | None = None) -> None:
        self._log = log
        self._server: Server = _tell_nobody if server is None else server
        self._executor = executor
        self._budget: Budget = Budget() if budget is None else budget
        self._core: WorkerCore = WorkerCore()
        self._changed: threading.Condition = threading.Condition()
        self._effects: deque[WorkerEffect] = deque()
        self._lent: Budget | None = None
        self._lease: Lease | None = None
        self._last: WorkerOutcome = Skipped("nothing was asked for yet")
        self._retry: CompactionKind | None = None
        self._last_error: BaseException | None = None
        self._raised: Exception | None = None
        self._failures = 0
        self._has_ended = False
        self._owner = Ownership(f"the worker of the log in {log.folder}")
        self._turns = Turns(self._turn, name="raftlog-worker", event=WORKER_FAILED, observer=observer)
        self._turns.start()

    # -- told

    def snapshot_recorded(self, row: LogState) -> None:
        """See `LogWorker.snapshot_recorded`."""
        self._take(lambda: self._core.snapshot_recorded(row.snapshot_index))

    def segments_flushed(self, last_index: int | None) -> None:
        """See `LogWorker.segments_flushed`."""
        self._take(self._core.segments_flushed)

    def request(self, kind: CompactionKind = "auto") -> None:
        """Ask for a compaction; one that runs is followed by the strongest kind asked for meanwhile.

        Raises:
            InvalidInput: there is no such kind.
        """
        self._take(lambda: self._core.request(kind))

    # -- asked

    @property
    def last_outcome(self) -> WorkerOutcome:
        """How the last compaction ended."""
        return self._last

    @property
    def last_error(self) -> BaseException | None:
        """What a compaction or the server raised last that nobody expects, `None` if nothing ever was."""
        return self._last_error

    @property
    def failures(self) -> int:
        """How often that was."""
        return self._failures

    @property
    def is_mine(self) -> bool:
        """Whether the caller is a part of what the worker does: the server it tells, an observer or a task, say."""
        return self._owner.is_mine

    def wait_until_idle(self, seconds: float = 60.0) -> WorkerOutcome:
        """Return when nothing runs and nothing waits, with how the last compaction ended.

        What waits for its delay after a failure is not waited for.

        Raises:
            Busy: that has not come in `seconds`.
            AuditFailed: the thread has ended, as after `SystemExit`.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_at_rest() or self._has_ended, seconds):
                raise Busy(f"the worker is {self._core.stage} after {seconds} seconds, {self._core.wanted} waits; wait "
                           f"again")
        self._require_thread()
        return self._last

    def audit(self) -> None:
        """Check the worker's own invariants, and that its thread lives.

        Raises:
            AuditFailed: one is broken; says which.
        """
        with self._changed:
            self._core.audit()
        self._require_thread()

    def _require_thread(self) -> None:
        if self._has_ended and self._core.stage != "closed":
            raise AuditFailed(f"the worker's thread has ended while it was {self._core.stage}: {self._last_error!r}; "
                              f"make another worker")

    def close(self) -> None:
        """Cancel what runs, wait for its end, and begin nothing more; closing again does nothing.

        Raises:
            Busy: called from within a compaction, by an observer or the server for example.
        """
        if self._owner.is_mine:
            raise Busy("the worker cannot be closed from within its own compaction; close it from another thread")
        self._take(self._core.close)
        self._turns.stop()

    def __enter__(self) -> CompactionWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<CompactionWorker of {self._log.folder!r}: {self._core.stage}>"

    # -- inside

    def _is_at_rest(self) -> bool:
        return self._core.is_at_rest and not self._effects

    def _take(self, event: Callable[[], Sequence[WorkerEffect]]) -> None:
        with self._changed:
            for effect in event():
                # The one thing that cannot wait for its turn.
                if isinstance(effect, CancelCompaction):
                    if self._lent is not None:
                        self._lent.cancel()
                else:
                    self._effects.append(effect)
            self._changed.notify_all()
        # Its own events are seen by the turn that makes them, and must not cut short the delay behind it.
        if not self._turns.is_mine:
            self._turns.wake()

    def _turn(self) -> None:
        retry, self._retry = self._retry, None
        if retry is not None:
            self._take(lambda: self._core.request(retry))
        with self._owner.begin():
            while self._effects:
                try:
                    self._carry_out(self._effects[0])
                except BaseException as error:
                    self._note(error)
                    if not isinstance(error, Exception):
                        with self._changed:
                            self._has_ended = True
                            self._changed.notify_all()
                    raise
                with self._changed:
                    self._effects.popleft()
                    self._changed.notify_all()
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised

    def _note(self, error: BaseException) -> None:
        self._last_error, self._failures = error, self._failures + 1

    def _carry_out(self, effect: WorkerEffect) -> None:
        if isinstance(effect, RunCompaction):
            outcome, changes = self._run(effect.kind)
            self._take(lambda: self._core.ended(effect.job, outcome, changes))
        elif isinstance(effect, ReportChanges):
            self._last = effect.outcome
            self._tell_server(effect)
            self._take(lambda: self._core.reported(effect.job))
        elif isinstance(effect, RemoveFiles):
            self._remove()

    def _run(self, kind: CompactionKind) -> tuple[WorkerOutcome, SegmentChanges]:
        with self._changed:
            self._lent = self._budget.lend()
            if self._core.is_closing:
                self._lent.cancel()
        self._release()
        try:
            self._lease = self._log.lease()
            policies: dict[CompactionKind, CompactionPolicy] = {"minor": DropDead(), "major": self._log.policy}
            outcome: WorkerOutcome = self._log.compact(policy=policies.get(kind), executor=self._executor,
                                                       budget=self._lent)
            for error in _errors_of(outcome):
                # What is damaged stays so; another try may find another executor, or room.
                if isinstance(error, TaskFailed | StorageError):
                    self._failed(error, kind)
                    break
            report = report_of(outcome)
            return outcome, SegmentChanges() if report is None else SegmentChanges.of(report, self._log.refs)
        except CompactlibError as error:
            # The log was closed before its worker, or refused to begin.
            return Failed(error), SegmentChanges()
        except Exception as error:
            # A policy, say.
            self._failed(error, kind)
            return Failed(foreign_error("compaction", error)), SegmentChanges()
        except BaseException:
            self._release()
            raise
        finally:
            with self._changed:
                self._lent = None

    def _failed(self, error: Exception, kind: CompactionKind) -> None:
        """Note what was not expected, to be told, and tried again, by the next turn."""
        self._note(error)
        self._raised, self._retry = error, kind

    def _tell_server(self, effect: ReportChanges) -> None:
        try:
            self._server(effect.changes, effect.outcome)
        except Exception as error:
            # A server that fails must not keep the files for ever, nor end this thread.
            self._note(error)
            self._raised = error
            self._last = Failed(error if isinstance(error, CompactlibError) else TaskFailed(
                f"the server that was told of a compaction raised {error!r}; its list of segments may be out of date",
                task="report", kind=type(error).__name__, detail=foreign_error("report", error).detail))
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()

    def _remove(self) -> None:
        self._release()
        # What the disk refuses to remove is tried again by the next compaction; a closed log has done it or will.
        with contextlib.suppress(CompactlibError):
            self._log.reclaim()


def _errors_of(outcome: WorkerOutcome) -> Sequence[CompactlibError]:
    report = report_of(outcome)
    if report is not None:
        return [group.error for group in report.failed]
    return [outcome.error] if isinstance(outcome, Failed) else []


def _tell_nobody(changes: SegmentChanges, outcome: WorkerOutcome) -> None:
    """The server of a worker that was given none."""
