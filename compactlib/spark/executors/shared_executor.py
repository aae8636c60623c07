# SPDX-License-Identifier: Apache-2.0
"""One executor shared by many callers: their tasks run in common batches, the heaviest first, and each gets its own
back.

Compactions of many stores each ask an executor for their few tasks, and commit when these are done. Here they ask a
executor of its own (a lane); the tasks of all lanes make up the batches that the real executor runs, so that thousands
of small stores fill few large jobs, while each store commits for itself as soon as its own tasks are back.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import TypeAlias

import attrs

from compactlib.errors import AuditFailed, BudgetSpent, Closed, CompactlibError, InvalidInput
from compactlib.executors.tasks import checked_names, foreign_error
from compactlib.rewrite import Attempt, Executor, RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, Progress, telling

Weigh: TypeAlias = Callable[[RewriteTask], float]
"""How heavy a task is, in any unit; heavier ones begin earlier."""


@attrs.frozen
class LanedTask:
    """A task under a name that no other caller's task has.

    Attributes:
        name: the caller's lane's, a colon, and the task's own.
        task: the task.
        weight: how heavy it is, in any unit; `SparkExecutor` packs tasks by it.
    """

    name: str
    task: RewriteTask
    weight: float = 0.0

    def run(self, attempt: Attempt) -> RewriteResult:
        """See `RewriteTask.run`."""
        result = self.task.run(attempt)
        return attrs.evolve(result, task=self.name) if result.task == self.task.name else result


@attrs.define(eq=False)
class _Waiting:
    task: LanedTask
    answers: queue.SimpleQueue[RewriteOutcome]
    budget: Budget


class SharedExecutor:
    """Runs the tasks of many callers in batches on one executor; each caller has a lane, an `Executor` of its own.

    A batch takes what waits when the one before has been handed over, so the first may be small. Two batches are under
    way at once, so that one begins while the other ends. What a lane's own budget allows is asked before its task
    begins, and what its tasks write is charged to it; the bytes they may write are those of the shared one.

    Args:
        executor: who runs the batches; for a `SparkExecutor` give `jobs_at_once=1`, since batches overlap already.
        weigh: how heavy a task is; if not given, a lane's weight is divided among its tasks.
        max_batch: the most tasks in one batch, >= 1.
        budget: shared by all lanes.
        observer: notified of what the executor reports, with the names of lanes.

    Raises:
        InvalidInput: `max_batch` is less than 1.
    """

    def __init__(self, executor: Executor, *, weigh: Weigh | None = None, max_batch: int = 256,
                 budget: Budget | None = None, observer: Observer | None = None) -> None:
        if max_batch < 1:
            raise InvalidInput(f"max_batch is {max_batch}; a batch needs at least one task")
        self._executor = executor
        self._weigh = weigh
        self._max_batch = max_batch
        self._budget = (Budget() if budget is None else budget).lend()
        self._observer = telling(observer)
        self._changed = threading.Condition()
        self._heap: list[tuple[float, int, _Waiting]] = []
        self._order = itertools.count()
        self._closed = False
        self._pumps = [threading.Thread(target=self._pump, name="compactlib-batches", daemon=True) for _ in range(2)]
        for pump in self._pumps:
            pump.start()

    def lane(self, name: str, weight: float = 0.0) -> Lane:
        """An executor for one caller; names of lanes in use at the same time differ.

        Args:
            name: stands in front of the names of its tasks.
            weight: how heavy all tasks of one of its runs are together, in any unit.
        """
        return Lane(self, name, weight)

    @property
    def waiting(self) -> int:
        """How many tasks wait for the next batch."""
        with self._changed:
            return len(self._heap)

    def close(self) -> None:
        """End what runs at its next question to the budget, refuse what waits, and wait until nothing runs."""
        self._budget.cancel()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for pump in self._pumps:
            pump.join()

    def _laned(self, lane: Lane, tasks: Sequence[RewriteTask]) -> list[LanedTask]:
        shares = (map(self._weigh, tasks) if self._weigh is not None
                  else [lane.weight / max(len(tasks), 1)] * len(tasks))
        return [LanedTask(f"{lane.name}:{task.name}", task, share)
                for task, share in zip(tasks, shares, strict=True)]

    def _put(self, waiting: Iterable[_Waiting]) -> None:
        with self._changed:
            if self._closed:
                raise Closed("the shared executor was closed; nothing more is begun")
            for each in waiting:
                heapq.heappush(self._heap, (-each.task.weight, next(self._order), each))
            self._changed.notify()

    def _next_batch(self) -> list[_Waiting] | None:
        with self._changed:
            while not self._heap and not self._closed:
                self._changed.wait()
            if not self._heap:
                return None
            return [heapq.heappop(self._heap)[2] for _ in range(min(self._max_batch, len(self._heap)))]

    def _pump(self) -> None:
        while (batch := self._next_batch()) is not None:
            begun = []
            for each in batch:
                refusal = self._budget.refusal or each.budget.refusal
                if refusal is None:
                    begun.append(each)
                else:
                    each.answers.put(RewriteFailure(each.task.task.name, refusal))
            self._run(begun)

    def _run(self, batch: list[_Waiting]) -> None:
        owners = {each.task.name: each for each in batch}
        try:
            for outcome in self._executor.run([each.task for each in batch], budget=self._budget,
                                              observer=self._observer):
                each = owners.pop(outcome.task)
                if isinstance(outcome, RewriteResult):
                    each.budget.charge(outcome.bytes_written)
                each.answers.put(attrs.evolve(outcome, task=each.task.task.name))
            error: BaseException = CompactlibError(f"{self._executor!r} ended without an outcome for it")
        except BaseException as raised:
            # Also what ends a process elsewhere: this is no thread of a host's, and callers wait for it.
            error = raised
        # Whatever an executor raises or leaves out must not keep the callers waiting for good.
        for each in owners.values():
            own = error if isinstance(error, CompactlibError) else foreign_error(each.task.task.name, error)
            each.answers.put(RewriteFailure(each.task.task.name, own))

    def audit(self) -> None:
        """Check that whatever waits is going to be looked at.

        Raises:
            AuditFailed: tasks wait, and no thread is there to run them.
        """
        with self._changed:
            if self._heap and not any(pump.is_alive() for pump in self._pumps):
                raise AuditFailed(f"{len(self._heap)} tasks wait for a shared executor whose threads are gone")

    def __enter__(self) -> SharedExecutor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"SharedExecutor({self._executor!r}, max_batch={self._max_batch})"


@attrs.frozen(eq=False)
class Lane:
    """An `Executor` whose tasks run among those of others; made by `SharedExecutor.lane`."""

    _shared: SharedExecutor
    name: str
    weight: float = 0.0

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        """See `Executor.run`. The observer is notified of finished tasks; counters and events go to the shared one."""
        listed = checked_names(tasks)
        lent = (Budget() if budget is None else budget).lend()
        return self._run(listed, lent, telling(observer))

    def _run(self, tasks: Sequence[RewriteTask], budget: Budget,
             observer: Observer) -> Generator[RewriteOutcome, None, None]:
        answers: queue.SimpleQueue[RewriteOutcome] = queue.SimpleQueue()
        waiting = [_Waiting(task, answers, budget) for task in self._shared._laned(self, tasks)]
        try:
            self._shared._put(waiting)
        except Closed:
            spent = BudgetSpent("the work was cancelled; call again with a new budget to go on", reason="cancelled",
                                spent_bytes=budget.spent_bytes)
            yield from (RewriteFailure(each.task.task.name, spent) for each in waiting)
            return
        try:
            for _ in waiting:
                outcome = answers.get()
                if isinstance(outcome, RewriteResult):
                    observer.progress(Progress(outcome.task, outcome.bytes_written, outcome.bytes_written))
                yield outcome
        finally:
            budget.cancel()
