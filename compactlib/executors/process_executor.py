# SPDX-License-Identifier: Apache-2.0
"""Runs rewrite tasks in worker processes on this machine: for rewrites that keep more than one processor busy.

Each worker is one process with a pipe of its own and one task at a time, so a worker that dies says exactly which
task it died of and takes no other task with it. (A `ProcessPoolExecutor` would not do: when one of its workers
dies it ends them all, and the pool cannot say whose fault it was; nor can it be stopped in mid-task.)

Workers are *spawned*, not forked: hosts of this library have threads, locks and sockets (a JVM gateway among them)
that a fork copies in whatever state they are in. A fork server would start workers faster, but is one for the whole
host process, with the environment of its first use. So the first run pays the start of one interpreter a worker, and
each further one too, unless the executor is held open by a `with`. A script that uses this executor keeps its own
start under `if __name__ == "__main__":`, and the classes of its tasks live in modules that workers can import.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from multiprocessing import connection
from typing import Self

import attrs

from compactlib._arguments import require_seconds, require_whole
from compactlib.errors import BudgetSpent, TaskFailed
from compactlib.executors.process_worker import READY, Order, Report, Steering
from compactlib.executors.process_workers import Job, KeptWorkers, Worker, exit_text
from compactlib.executors.tasks import checked_names, foreign_error, least_bytes, new_attempt_id
from compactlib.rewrite import RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask
from compactlib.runtime.budget import Budget, BudgetLimits
from compactlib.runtime.observe import Observer, Progress, telling

_LOOK_AGAIN_SECONDS = 0.1
"""How soon a pause or a cancel reaches the workers while the caller waits for an outcome."""


class ProcessExecutor:
    """Runs tasks in `workers` processes; a task whose worker dies is tried again in a fresh one.

    What reaches the other side:

    * **budget**: each running task gets a part of what remains (the rate divided by the workers; of the total a
      part that keeps the sum of all parts within it, a larger one in a further attempt if one piece is larger than
      that; the deadline as it is, on the workers' system clock). What tasks report as spent is charged to the caller's
      budget; an attempt that died is charged nothing, since it is unknown what it wrote. Pause, resume and cancel hold
      back new tasks at once, and reach running ones within about a tenth of a second, but only while the caller waits
      for an outcome.
    * **observer**: a task's counters and events are passed on when it ends; progress within a task is not visible.
      Instead, as each task ends, its written bytes are reported as done under its name, and `rewrite` advances by
      one group.
    * **errors** come back with all their fields; one that cannot be pickled comes as `TaskFailed` with its text.

    Used as a context manager, it keeps its workers from one run to the next, and ends them when the `with` is left;
    otherwise each run starts its own. Threads may use one executor at once. A fork of the process has its own workers.

    Args:
        workers: how many processes run at once, >= 1.
        max_attempts: how many workers a task may cost before it is given up, >= 1.
        grace_seconds: how long workers may take to end by themselves when the run is left, >= 0; then they are
            killed.
        attempt_id: gives each attempt its id; for tests that need names to repeat.

    Raises:
        InvalidInput: `workers` or `max_attempts` is no number from 1 on, or `grace_seconds` no time to wait.
    """

    def __init__(self, workers: int, *, max_attempts: int = 3, grace_seconds: float = 5.0,
                 attempt_id: Callable[[], str] = new_attempt_id) -> None:
        require_whole("workers", workers, 1)
        require_whole("max_attempts", max_attempts, 1)
        require_seconds("grace_seconds", grace_seconds)
        self._workers = workers
        self._max_attempts = max_attempts
        self._grace_seconds = grace_seconds
        self._attempt_id = attempt_id
        self._kept = KeptWorkers()

    def __enter__(self) -> Self:
        self._kept.keep(self._workers)
        return self

    def __exit__(self, *_: object) -> None:
        self._kept.end(self._grace_seconds)

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        """See `Executor.run`. Workers start with the first outcome that is asked for; see the class for their end.

        While the caller deals with one outcome, each worker does at most one further task. The iterator is a
        generator; closing it, or leaving a `for` over it, cancels the running tasks, kills what does not end within
        `grace_seconds`, and returns when no worker of this run is left.

        A task that ends its process (a signal, `sys.exit`, a `KeyboardInterrupt` of its own) counts as a worker
        that died. After `max_attempts` of those its outcome is a `TaskFailed` of kind `WorkerDied`. If no worker
        can be started at all, it is of kind `WorkerNotStarted`.
        """
        listed = checked_names(tasks)
        lent_budget = Budget() if budget is None else budget
        parallel = min(self._workers, max(1, len(listed)))
        return _Run(listed, parallel, self._max_attempts, self._grace_seconds, self._attempt_id, lent_budget,
                    telling(observer), self._kept).outcomes()

    def __repr__(self) -> str:
        return f"ProcessExecutor(workers={self._workers}, max_attempts={self._max_attempts})"


class _Run:
    """One call of `ProcessExecutor.run`: hands out tasks, listens to workers, and collects outcomes."""

    def __init__(self, tasks: Sequence[RewriteTask], parallel: int, max_attempts: int, grace_seconds: float,
                 attempt_id: Callable[[], str], budget: Budget, observer: Observer,
                 kept: KeptWorkers) -> None:
        self._kept = kept
        self._context = multiprocessing.get_context("spawn")
        self._waiting = deque(Job(task) for task in tasks)
        self._finished: deque[RewriteOutcome] = deque()
        self._workers: list[Worker] = []
        self._parallel = parallel
        self._max_attempts = max_attempts
        self._grace_seconds = grace_seconds
        self._attempt_id = attempt_id
        self._budget = budget
        self._observer = observer
        self._failed_starts = 0
        self._total, self._done = len(tasks), 0

    def outcomes(self) -> Generator[RewriteOutcome, None, None]:
        try:
            while self._waiting or self._finished or self._busy():
                self._hand_out()
                if self._finished:
                    yield self._finished.popleft()
                else:
                    self._listen()
        finally:
            self._end()

    def _busy(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.task is not None]

    def _hand_out(self) -> None:
        """Give every idle worker a task, as far as the budget goes; what it no longer lets begin is refused."""
        while self._waiting:
            refusal = self._budget.refusal
            if refusal is not None:
                self._finish(RewriteFailure(self._waiting.popleft().task.name, refusal))
                continue
            if self._budget.paused:
                return
            limits = self._granted(self._waiting[0])
            worker = None if limits is None else self._idle_worker()
            if limits is None or worker is None:
                return
            self._give(worker, self._waiting.popleft(), limits)

    def _give(self, worker: Worker, job: Job, limits: BudgetLimits) -> None:
        name = job.task.name
        try:
            data = pickle.dumps(job.task)
        except Exception as error:  # pickling runs foreign code, which may raise anything
            self._finish(RewriteFailure(name, foreign_error(name, error)))
        else:
            worker.give(job, Order(name, data, self._attempt_id(), limits))

    def _granted(self, job: Job) -> BudgetLimits | None:
        """The limits of one more task, such that all that run stay within the total; `None` to wait for a report."""
        remaining = self._budget.remaining
        share = remaining.share(self._parallel)
        if remaining.total_bytes is None:
            return share
        busy = self._busy()
        promised = sum(worker.task[1].limits.total_bytes or 0 for worker in busy if worker.task is not None)
        unpromised = max(0, remaining.total_bytes - promised)
        if promised and unpromised < max(1, job.least_bytes):
            return None
        others = max(1, min(self._parallel - len(busy), len(self._waiting)))
        return attrs.evolve(share, total_bytes=min(unpromised, max(unpromised // others, job.least_bytes)))

    def _idle_worker(self) -> Worker | None:
        """A worker without a task, started if there may be one more; `None` if all are busy or none can start."""
        for worker in list(self._workers):
            if worker.task is None:
                if worker.process.is_alive():
                    return worker
                self._discard(worker)
        while len(self._workers) < self._parallel:
            try:
                worker = self._kept.take() or Worker(self._context)
            except (OSError, AssertionError) as error:
                # The latter is what `multiprocessing` raises in a process that may have no children.
                self._not_started(str(error))
            else:
                self._workers.append(worker)
                return worker
        return None

    def _listen(self) -> None:
        """Wait for news from a worker, and pass on the host's pause, resume or cancel meanwhile."""
        busy = self._busy()
        if not busy:
            # Everything waits for the host, so wait with it; a refusal is dealt with when tasks are handed out.
            with contextlib.suppress(BudgetSpent):
                self._budget.check()
            return
        budget = self._budget
        wish: Steering = "cancel" if budget.cancelled else "pause" if budget.paused else "resume"
        for worker in busy:
            worker.steer(wish)
        connection.wait([handle for worker in busy for handle in (worker.pipe, worker.process.sentinel)],
                        _LOOK_AGAIN_SECONDS)
        for worker in busy:
            self._hear(worker)

    def _hear(self, worker: Worker) -> None:
        # Asked before reading: once it is dead it says no more, and what it had said before still counts.
        was_alive = worker.process.is_alive()
        message = worker.message()
        if isinstance(message, Report):
            self._reported(worker, message)
        elif message == READY:
            worker.is_ready, self._failed_starts = True, 0
        elif not was_alive:
            self._died(worker)

    def _reported(self, worker: Worker, report: Report) -> None:
        job, order = worker.take_back()
        name = order.name
        self._budget.charge(report.spent_bytes)
        try:
            outcome, told = report.revive()
        except Exception as error:  # unpickling runs foreign code, which may raise anything
            self._finish(RewriteFailure(name, foreign_error(name, error)))
        else:
            job.least_bytes = least_bytes(outcome, order.limits.total_bytes, self._budget.remaining.total_bytes)
            if job.least_bytes:
                self._waiting.append(job)
                return
            told.replay(self._observer)
            self._finish(outcome)

    def _died(self, worker: Worker) -> None:
        job, order = worker.take_back()
        how = self._discard(worker)
        if not worker.is_ready:
            self._waiting.appendleft(job)
            self._not_started(how)
            return
        job.deaths.append(f"attempt {order.attempt}: {how}")
        if len(job.deaths) < self._max_attempts:
            self._waiting.appendleft(job)
            return
        error = TaskFailed(f"task {order.name!r} ended the process it ran in {len(job.deaths)} times, the last time "
                           f"with {how}; nothing it was to replace has changed", task=order.name, kind="WorkerDied",
                           detail="\n".join(job.deaths))
        self._finish(RewriteFailure(order.name, error))

    def _discard(self, worker: Worker) -> str:
        """Forget a dead worker; what it died of."""
        self._workers.remove(worker)
        worker.end(0)
        return exit_text(worker.process.exitcode)

    def _not_started(self, how: str) -> None:
        """Go on with the workers there are once starting has failed often; without any, give up what waits."""
        self._failed_starts += 1
        if self._failed_starts < self._max_attempts:
            return
        self._parallel = len(self._workers)
        while self._waiting and not self._workers:
            name = self._waiting.popleft().task.name
            error = TaskFailed(f"task {name!r} was not begun: no worker process could be started ({how}); the main "
                               f"module must be importable and keep its start under if __name__ == '__main__'",
                               task=name, kind="WorkerNotStarted", detail=how)
            self._finish(RewriteFailure(name, error))

    def _finish(self, outcome: RewriteOutcome) -> None:
        self._finished.append(outcome)
        self._done += 1
        if isinstance(outcome, RewriteResult):
            self._observer.progress(Progress(outcome.task, outcome.bytes_written, outcome.bytes_written))
        self._observer.progress(Progress("rewrite", self._done, self._total, "groups"))

    def _end(self) -> None:
        """Stop every worker at once, but for idle ones to be kept; those that do not stop in time are killed."""
        self._workers = [worker for worker in self._workers if worker.task is not None or not self._kept.put(worker)]
        for worker in self._workers:
            worker.pipe.close()
        patience = self._grace_seconds
        for worker in self._workers:
            if not worker.end(patience):
                patience = 0.0
        self._workers.clear()
