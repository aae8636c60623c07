"""`CompactionWorker`: the thread that compacts a log, so that no thread of the server ever does. A `LogWorker`."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from compactlib.budget import Budget
from compactlib.errors import Busy, CompactlibError, TaskFailed
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog.log import CompactionKind, SegmentLog
from compactlib.raftlog.log_state import LogState
from compactlib.raftlog.segment_set import Lease
from compactlib.raftlog.worker_core import (
    CancelCompaction,
    RemoveFiles,
    ReportChanges,
    RunCompaction,
    SegmentChanges,
    WorkerCore,
    WorkerEffect,
    WorkerOutcome,
)
from compactlib.rewrite import Executor

Server: TypeAlias = Callable[[SegmentChanges, WorkerOutcome], object]
"""Told of each compaction's end, in the worker's thread, before a file goes. It may use the log."""


class CompactionWorker:
    """See the module. Any thread may call any method; those of `LogWorker` never block.

    Args:
        log: what is compacted; `RaftLog.segments`, or a `SegmentLog` of its own. Stays open when the worker is closed.
        server: told of what changed.
        executor: who copies; default the worker's thread.
        budget: what each compaction may use up, lent anew each time.
    """

    def __init__(self, log: SegmentLog, *, server: Server | None = None, executor: Executor | None = None,
                 budget: Budget | None = None) -> None:
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
        self._thread = threading.Thread(target=self._work, name="raftlog-worker", daemon=True)
        self._thread.start()

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

    def wait_until_idle(self, seconds: float = 60.0) -> WorkerOutcome:
        """Return when nothing runs and nothing waits, with how the last compaction ended.

        Raises:
            Busy: that has not come in `seconds`.
        """
        with self._changed:
            if not self._changed.wait_for(self._is_at_rest, seconds):
                raise Busy(f"the worker is {self._core.stage} after {seconds} seconds, {self._core.wanted} waits; wait "
                           f"again")
            return self._last

    def audit(self) -> None:
        """Check the worker's own invariants.

        Raises:
            CompactlibError: one is broken; says which.
        """
        with self._changed:
            self._core.audit()
            if not self._thread.is_alive() and self._core.stage != "closed":
                raise CompactlibError(f"the worker's thread has ended while it is {self._core.stage}")

    def close(self) -> None:
        """Cancel what runs, wait for its end, and begin nothing more; closing again does nothing.

        Raises:
            Busy: called from within a compaction, by an observer or the server for example.
        """
        if threading.current_thread() is self._thread:
            raise Busy("the worker cannot be closed from within its own compaction; close it from another thread")
        self._take(self._core.close)
        self._thread.join()

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

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bool(self._effects) or self._core.stage == "closed")
                if not self._effects:
                    return
                effect = self._effects[0]
            self._carry_out(effect)
            with self._changed:
                self._effects.popleft()
                self._changed.notify_all()

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
        try:
            self._lease = self._log.lease()
            outcome: WorkerOutcome = self._log.compact(kind, executor=self._executor, budget=self._lent)
            if isinstance(outcome, Done):
                return outcome, SegmentChanges.of(outcome.stats, self._log.refs)
            return outcome, SegmentChanges()
        except CompactlibError as error:
            # The log was closed before its worker, or refused to begin.
            return Failed(error), SegmentChanges()
        finally:
            with self._changed:
                self._lent = None

    def _tell_server(self, effect: ReportChanges) -> None:
        try:
            self._server(effect.changes, effect.outcome)
        except CompactlibError as error:
            self._last = Failed(error)
        except Exception as error:
            # A server that fails must not keep the files for ever, nor end this thread.
            self._last = Failed(TaskFailed(f"the server that was told of a compaction raised {error!r}; its list of "
                                           f"segments may be out of date", task="report", kind=type(error).__name__,
                                           detail=traceback.format_exc()))

    def _remove(self) -> None:
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.release()
        # What the disk refuses to remove is tried again by the next compaction; a closed log has done it or will.
        with contextlib.suppress(CompactlibError):
            self._log.reclaim()


def _tell_nobody(changes: SegmentChanges, outcome: WorkerOutcome) -> None:
    """The server of a worker that was given none."""
