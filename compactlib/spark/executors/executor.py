# SPDX-License-Identifier: Apache-2.0
"""Runs rewrite tasks as DataFrame jobs, over a classic session or Spark Connect.

A task reads and writes its files itself, on the worker; only its pickled self and its report pass through Spark, which
schedules and retries. An error that a task raises is caught on the worker and comes back as its outcome. Nothing is
published here: the caller commits, after the outcome has come back.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from compactlib.errors import BudgetSpent, InvalidInput
from compactlib.executors.tasks import checked_names, foreign_error
from compactlib.rewrite import RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask
from compactlib.runtime.budget import Budget, BudgetLimits
from compactlib.runtime.observe import Observer, Progress, telling
from compactlib.spark.dependencies import require_spark
from compactlib.spark.executors.jobs import MOST_JOB_BYTES, Piece, SparkJobs, classic_context
from compactlib.spark.executors.outcomes import Matched, Matching, condensed, died, job_failure
from compactlib.spark.executors.packing import packed, weight_of
from compactlib.spark.executors.worker import TaskRunner, packed_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# So many jobs of a run may fail because their workers die before what is left is given up.
_MOST_DEADLY_JOBS = 32

_PROBE_ROWS = 4096


class SparkExecutor:
    """A `compactlib.executors.Executor` whose tasks run on Spark's workers.

    Tasks and their results are pickled by value where they come from a notebook, by reference where they come from a
    module, which the workers must have: see `ship_library`. Folders named in tasks must be reachable under the same
    path from every worker and from this process; a result whose files this process does not see is a failure.

    All tasks of a run are one job (up to some ten thousand); outcomes come as its tasks end, over Connect in order.
    Where the workers of a job die in every attempt, the tasks that it leaves are tried again in halves, until the one
    that kills them is alone. What reaches the other side:

    * **budget**: cancel and pause end the job, and what it had not done is begun anew after a pause. Tasks check the
      deadline by the workers' system clocks. A byte rate is divided among as many tasks as the session runs at once. A
      total is too, by jobs that have no more tasks than that: it is never exceeded by attempts that report, but a task
      larger than its part is refused. What tasks report as spent is charged, also by those that failed.
    * **observer**: counters and events of a task are passed on with its outcome. Instead of its progress, its written
      bytes are reported as done under its name, and `rewrite` advances.
    * **errors** come back with all their fields; one that cannot be pickled comes as `TaskFailed` with its text.

    Args:
        spark: a classic or a Spark Connect session.
        tasks_per_partition: how many tasks share one Spark task on average, one after the other, >= 1: a Spark task
            costs some 35 ms of a core whatever it does, but a killed worker repeats all that share it. Tasks that have
            a number `weight` are packed by it.

    Raises:
        InvalidInput: `tasks_per_partition` is less than 1.
        MissingDependency: PySpark or one of its packages is not installed.
    """

    def __init__(self, spark: SparkSession, *, tasks_per_partition: int = 1) -> None:
        if tasks_per_partition < 1:
            raise InvalidInput(f"tasks_per_partition is {tasks_per_partition}; a partition needs at least one task")
        require_spark("SparkExecutor")
        self._spark = spark
        self._tasks_per_partition = tasks_per_partition
        self._jobs = SparkJobs(spark)

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        """See `Executor.run`. Nothing starts before the first outcome is asked for.

        A job that fails as a whole (a session that was stopped) gives a failure for each of its tasks that has not
        reported, with Spark's message. Leaving the iterator early has Spark end the job, and waits for that.
        """
        return self._run(checked_names(tasks), Budget() if budget is None else budget, telling(observer))

    def _run(self, tasks: Sequence[RewriteTask], budget: Budget,
             observer: Observer) -> Generator[RewriteOutcome, None, None]:
        waiting = deque([tasks] if tasks else [])
        done = deadly = 0

        def told(matched: Matched) -> RewriteOutcome:
            nonlocal done
            done += 1
            _tell(matched, budget, observer)
            observer.progress(Progress("rewrite", done, len(tasks), "groups"))
            return matched.outcome

        while waiting:
            try:
                budget.check()
            except BudgetSpent as spent:
                for task in chain.from_iterable(waiting):
                    # Each gets an error of its own.
                    yield RewriteFailure(task.name, budget.refusal or spent)
                return
            listed = waiting.popleft()
            size, limits = self._next_job(budget.remaining, len(listed))
            unsent, left, error = yield from self._job(listed[:size], limits, budget, observer, told)
            waiting.extendleft(more for more in (listed[size:], unsent, left if error is None else ()) if more)
            if error is None:
                continue
            observer.event("spark_job_failed", {"tasks": len(left), "error": condensed(str(error))})
            deadly += died(str(error))
            if died(str(error)) and len(left) > 1 and deadly < _MOST_DEADLY_JOBS:
                half = len(left) // 2
                waiting.extendleft([left[half:], left[:half]])
                continue
            master: str | None = None
            with contextlib.suppress(Exception):
                # Where the session is gone, the job's own error says so.
                master = self._spark.conf.get("spark.master", None)
            for task in left:
                yield told(Matched(RewriteFailure(task.name, job_failure(task.name, error, master, len(left)))))

    def _job(self, tasks: Sequence[RewriteTask], limits: BudgetLimits, budget: Budget, observer: Observer,
             told: Callable[[Matched], RewriteOutcome]
             ) -> Generator[RewriteOutcome, None, tuple[Sequence[RewriteTask], list[RewriteTask], Exception | None]]:
        """Outcomes as they come, until the job has ended or the budget stops it. Returns the tasks that are too much
        for one job with the others, those that were left without an outcome, and why the job failed as a whole."""
        pieces: list[Piece] = []
        weights: list[float] = []
        unsent: Sequence[RewriteTask] = ()
        sent, stopped, failed = 0, False, None
        for number, task in enumerate(tasks):
            try:
                data, weight = packed_task(task), weight_of(task)
            except Exception as error:  # pickling runs foreign code, which may raise anything
                yield told(Matched(RewriteFailure(task.name, foreign_error(task.name, error))))
                continue
            if pieces and sent + len(data) > MOST_JOB_BYTES:
                unsent = tasks[number:]
                break
            pieces.append((number, data))
            weights.append(weight)
            sent += len(data)
        if not pieces:
            return unsent, [], None

        def stop() -> bool:
            nonlocal stopped
            stopped = budget.cancelled or budget.paused
            return stopped

        matching = Matching({number: tasks[number].name for number, _ in pieces})
        groups = packed(weights, -(-len(pieces) // self._tasks_per_partition))
        parts = [[pieces[place] for place in group] for group in groups]
        with contextlib.closing(self._jobs.answers(TaskRunner(limits), parts, stop)) as answers:
            try:
                for answer in answers:
                    matched = matching.hear(*answer)
                    if matched is not None:
                        yield told(matched)
            except Exception as error:
                # PySpark fails in many ways: its own errors, py4j's, gRPC's.
                failed = error
        is_whole = not stopped and failed is None
        yield from map(told, matching.rest(is_whole=is_whole))
        for name, reports in matching.unused():
            budget.charge(sum(report.spent_bytes for report in reports))
            observer.event("spark_extra_attempts", {"task": name, "attempts": [each.attempt for each in reports]})
        return unsent, [] if is_whole else [tasks[number] for number in matching.silent()], failed

    def _next_job(self, remaining: BudgetLimits, waiting: int) -> tuple[int, BudgetLimits]:
        """How many tasks the next job takes, and the limits of each."""
        if remaining.bytes_per_second is None and not remaining.total_bytes:
            # Nothing to divide: no limit, or a total that is spent and refuses every byte.
            return waiting, remaining
        at_once = 1
        with contextlib.suppress(Exception):
            # Where the session is gone, the job's own error will say so.
            at_once = min(default_parallelism(self._spark), waiting)
        return waiting if remaining.total_bytes is None else at_once, remaining.share(at_once)

    def __repr__(self) -> str:
        return f"SparkExecutor(tasks_per_partition={self._tasks_per_partition})"


def default_parallelism(spark: SparkSession) -> int:
    """How many tasks the session runs at once, as it is now; over Spark Connect a small job finds out."""
    context = classic_context(spark)
    if context is not None:
        return context.defaultParallelism
    from pyspark.sql import functions

    # Collected as they are: an aggregate would cost a second stage.
    parts = spark.range(0, _PROBE_ROWS).select(functions.spark_partition_id()).collect()
    return 1 + max(int(row[0]) for row in parts)


def _tell(matched: Matched, budget: Budget, observer: Observer) -> None:
    outcome, report = matched.outcome, matched.report
    if report is not None:
        budget.charge(report.spent_bytes)
        report.told.replay(observer)
        if report.told.dropped:
            observer.event("spark_observations_dropped", {"task": outcome.task, "dropped": report.told.dropped})
    if isinstance(outcome, RewriteResult):
        observer.progress(Progress(outcome.task, outcome.bytes_written, outcome.bytes_written))
