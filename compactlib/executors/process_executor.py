# SPDX-License-Identifier: Apache-2.0
"""`ProcessExecutor`: runs rewrite tasks in worker processes on this machine, for more than one processor.

When a worker dies, the standard library's pool ends all workers and cannot name the task. So each task that was running
is run again, alone in a pool of one worker: the task that kills its worker fails alone, and the others succeed.

Workers are *spawned*, not forked: hosts have threads, locks and sockets (a JVM gateway among them), which a fork copies
in an arbitrary state. A script that uses this executor keeps its start under `if __name__ == "__main__":`, and the
classes of its tasks are in modules that workers can import.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.synchronize import Event

from compactlib._arguments import require_seconds, require_whole
from compactlib.budget import Budget, BudgetLimits
from compactlib.errors import TaskFailed
from compactlib.executors.tasks import (
    CarriedEvents,
    attempt_task,
    checked_names,
    foreign_error,
    new_attempt_id,
    own_error,
    portable,
)
from compactlib.observer import Observer, Observers
from compactlib.rewrite import Attempt, RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask

_POLL_SECONDS = 0.1
"""How often a waiting caller passes a cancel on to the workers."""


class ProcessExecutor:
    """Runs tasks in `workers` processes, which begin and end with each run.

    Between the processes:

    * **budget**: a rate is divided among the workers. Under a total, tasks run in sequence, each with the remaining
      bytes; its bytes are charged when it ends. A cancel ends running tasks within about a tenth of a second, while the
      caller waits for an outcome; a pause holds back new tasks.
    * **observer**: a task's counters and events are emitted when it ends, together with its written bytes as progress.
      Then the progress of `rewrite` advances by one group.
    * **errors** return with all their fields; an error that cannot be pickled returns as `TaskFailed` with its text.

    Threads may share one executor.

    Args:
        workers: the number of processes, >= 1.
        grace_seconds: how long workers may take to end after a cancel, >= 0; then they are killed.

    Raises:
        InvalidInput: `workers` is less than 1, or `grace_seconds` is negative or too long to wait for.
    """

    def __init__(self, workers: int, *, grace_seconds: float = 5.0) -> None:
        require_seconds("grace_seconds", grace_seconds)
        self._workers: int = require_whole("workers", workers, 1)
        self._grace_seconds = grace_seconds

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        """Run the tasks; yield an outcome for each, in any order. Workers start with the first `next`.

        While the caller handles an outcome, each worker does at most one further task. The iterator is a generator;
        closing it cancels the running tasks, kills workers that do not end within `grace_seconds`, and returns when all
        workers of the run have ended.

        A task that ends its process twice fails with a `TaskFailed` of kind `WorkerDied`. If no worker can be started,
        the kind is `WorkerNotStarted`.
        """
        return _Run(checked_names(tasks), self._workers, self._grace_seconds, Budget() if budget is None else budget,
                    Observers(observer)).outcomes()

    def __repr__(self) -> str:
        return f"ProcessExecutor(workers={self._workers})"


class _NotStarted(Exception):
    """No process can be started; the text is the reason."""


class _Run:
    """One call of `ProcessExecutor.run`."""

    def __init__(self, tasks: Sequence[RewriteTask], workers: int, grace_seconds: float, budget: Budget,
                 observer: Observer) -> None:
        self._tasks = tasks
        self._workers = min(workers, max(1, len(tasks))) if budget.remaining.total_bytes is None else 1
        self._grace_seconds = grace_seconds
        self._budget = budget
        self._observer = observer
        self._context = multiprocessing.get_context("spawn")
        self._done = 0

    def outcomes(self) -> Generator[RewriteOutcome, None, None]:
        waiting, suspects = deque(self._tasks), deque[RewriteTask]()
        try:
            while waiting:
                suspects.extend((yield from self._pool(waiting, self._workers)))
            while suspects:
                if (yield from self._pool(deque([suspects[0]]), 1)):
                    yield self._failed(suspects[0], "WorkerDied", "ended the process that it ran in, twice, the second "
                                       "time alone; nothing that it was to replace has changed")
                suspects.popleft()
        except _NotStarted as error:
            for task in (*suspects, *waiting):
                yield self._failed(task, "WorkerNotStarted", f"was not begun: no worker process could be started "
                                   f"({error}); the main module must be importable and keep its start under "
                                   f"if __name__ == '__main__'")

    def _pool(self, waiting: deque[RewriteTask],
              workers: int) -> Generator[RewriteOutcome, None, list[RewriteTask]]:
        """Run tasks in one pool until all are done or a worker dies; return the tasks that were running then."""
        stop, begun = self._context.Event(), self._context.Event()
        pool = ProcessPoolExecutor(workers, self._context, _begin, (stop, begun))
        running: dict[Future[bytes], RewriteTask] = {}
        try:
            while waiting or running:
                yield from self._submit(pool, waiting, workers, running)
                wait(running, _POLL_SECONDS, FIRST_COMPLETED)
                if self._budget.cancelled:
                    stop.set()
                for future in [future for future in running if future.done()]:
                    content = future.result()
                    yield self._finished(self._revived(running.pop(future), content))
        except (BrokenProcessPool, _NotStarted) as error:
            if begun.is_set() and isinstance(error, BrokenProcessPool):
                return list(running.values())
            waiting.extendleft(running.values())
            raise _NotStarted(str(error)) from error
        finally:
            stop.set()
            self._end(pool, list(running))
        return []

    def _submit(self, pool: ProcessPoolExecutor, waiting: deque[RewriteTask], workers: int,
                running: dict[Future[bytes], RewriteTask]) -> Generator[RewriteOutcome, None, None]:
        while waiting and len(running) < workers:
            if self._budget.paused and running:
                return
            task = waiting[0]
            try:
                self._budget.check()
                data = pickle.dumps(task)
            except Exception as error:  # pickling runs foreign code
                yield self._finished(RewriteFailure(waiting.popleft().name, own_error(task.name, error)))
                continue
            try:
                future = pool.submit(_attempt, task.name, data, self._budget.remaining.share(workers))
            except (OSError, AssertionError) as error:
                # `multiprocessing` raises AssertionError in a process that may have no children.
                raise _NotStarted(str(error)) from error
            running[future] = waiting.popleft()

    def _revived(self, task: RewriteTask, content: bytes) -> RewriteOutcome:
        spent, inner = pickle.loads(content)
        self._budget.charge(spent)
        try:
            outcome: RewriteOutcome
            outcome, events = pickle.loads(inner)
        except Exception as error:  # of foreign code, which unpickling runs
            return RewriteFailure(task.name, foreign_error(task.name, error))
        for name, fields in events:
            self._observer.event(name, **fields)
        return outcome

    def _failed(self, task: RewriteTask, kind: str, why: str) -> RewriteOutcome:
        return self._finished(RewriteFailure(
            task.name, TaskFailed(f"task {task.name!r} {why}", task=task.name, kind=kind, detail="")))

    def _finished(self, outcome: RewriteOutcome) -> RewriteOutcome:
        self._done += 1
        if isinstance(outcome, RewriteResult):
            self._observer.event("progress", work=outcome.task, done=outcome.bytes_written, total=outcome.bytes_written,
                                 unit="bytes")
        self._observer.event("progress", work="rewrite", done=self._done, total=len(self._tasks), unit="groups")
        return outcome

    def _end(self, pool: ProcessPoolExecutor, running: list[Future[bytes]]) -> None:
        for future in running:
            future.cancel()
        if wait(running, self._grace_seconds).not_done:
            # Private, and the only way to end a worker that ignores the cancel.
            for process in list((getattr(pool, "_processes", None) or {}).values()):
                process.kill()
        pool.shutdown()


# In a worker: set when the run is cancelled.
_stop: Event | None = None


def _begin(stop: Event, begun: Event) -> None:
    global _stop
    _stop = stop
    # Ctrl-C reaches every process of the terminal; only the parent handles it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, name="compactlib-parent", daemon=True).start()
    begun.set()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _attempt(name: str, data: bytes, limits: BudgetLimits) -> bytes:
    budget = Budget.from_limits(limits, is_ended=None if _stop is None else _stop.is_set)
    events = CarriedEvents(pickle.dumps)
    outcome: RewriteOutcome
    try:
        task: RewriteTask = pickle.loads(data)
        outcome = portable(attempt_task(task, Attempt(new_attempt_id(), budget, events)))
    except BaseException as error:  # unpickling runs foreign code, and `sys.exit()` in a task must end no worker
        outcome = RewriteFailure(name, foreign_error(name, error))
    return pickle.dumps((budget.spent_bytes, pickle.dumps((outcome, events.kept))))
