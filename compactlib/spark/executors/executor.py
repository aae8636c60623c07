# SPDX-License-Identifier: Apache-2.0
"""`SparkExecutor`: rewrite tasks as DataFrame jobs, over a classic session or Spark Connect.

A task reads and writes its files itself, on the worker; only its pickled self and its report pass through Spark.
Nothing is published here: the caller commits, after the outcome has come back.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from compactlib._arguments import require_whole
from compactlib.errors import BudgetSpent
from compactlib.executors import checked_names, least_bytes
from compactlib.rewrite import RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask
from compactlib.runtime import Budget, BudgetLimits, Observer, Progress, telling
from compactlib.spark.executors.jobs import Piece, SparkJobs, default_parallelism, packed, require_spark, weight_of
from compactlib.spark.executors.reports import Matching, Report, TaskRunner, condensed, died, job_failure, packed_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_MOST_JOB_BYTES = 32 << 20
_MOST_DEADLY_JOBS = 32
"""So many jobs of a run may fail because their workers die before what is left is given up."""


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
      total is too, by jobs that have no more tasks than that: a task larger than its part is refused, or tried again
      alone if it wrote more at once than that. What tasks report as spent is charged, also by those that failed.
    * **observer**: counters and events of a task are passed on with its outcome, and its written bytes as its progress.
    * **errors** come back with all their fields; one that cannot be pickled comes as `TaskFailed` with its text.

    Args:
        tasks_per_partition: how many tasks share one Spark task on average, one after the other, >= 1: a Spark task
            costs 20 to 60 ms of a core whatever it does, but a killed worker repeats all that share it. Tasks that have
            a number `weight` are packed by it.
    """

    def __init__(self, spark: SparkSession, *, tasks_per_partition: int = 1) -> None:
        require_whole("tasks_per_partition", tasks_per_partition, 1)
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
        jobs = _in_jobs(tasks)
        again: list[list[Piece]] = []
        undone = dict.fromkeys(task.name for task in tasks)
        deadly = 0
        stopped = False

        def told(report: Report) -> RewriteOutcome:
            outcome = report.outcome
            del undone[outcome.task]
            report.told.replay(observer)
            if report.told.dropped:
                observer.event("spark_observations_dropped", {"task": outcome.task, "dropped": report.told.dropped})
            if isinstance(outcome, RewriteResult):
                observer.progress(Progress(outcome.task, outcome.bytes_written, outcome.bytes_written))
            observer.progress(Progress("rewrite", len(tasks) - len(undone), len(tasks), "groups"))
            return outcome

        def stop() -> bool:
            nonlocal stopped
            stopped = budget.cancelled or budget.paused
            return stopped
        while waiting := again.pop() if again else next(jobs, None):
            try:
                budget.check()
            except BudgetSpent as spent:
                # Each gets an error of its own.
                yield from [RewriteFailure(name, budget.refusal or spent) for name in undone]
                return
            size, limits = self._next_job(budget.remaining, len(waiting))
            pieces = dict(waiting[:size])
            matching = Matching({number: tasks[number].name for number in pieces})
            weights = [weight_of(tasks[number]) for number in pieces]
            parts = [[waiting[place] for place in group]
                     for group in packed(weights, -(-len(pieces) // self._tasks_per_partition))]
            failed: Exception | None = None
            stopped = False
            with contextlib.closing(self._jobs.answers(TaskRunner(limits), parts, stop)) as answers:
                try:
                    for answer in answers:
                        if (report := matching.hear(*answer)) is not None:
                            budget.charge(report.spent_bytes)
                            yield told(report)
                except Exception as error:
                    # PySpark fails in many ways: its own errors, py4j's, gRPC's.
                    failed = error
            for report in matching.rest(is_whole=not stopped and failed is None):
                budget.charge(report.spent_bytes)
                if least_bytes(report.outcome, limits.total_bytes, budget.remaining.total_bytes):
                    # It has what is left of the whole next.
                    again.append([each for each in pieces.items() if tasks[each[0]].name == report.outcome.task])
                else:
                    yield told(report)
            for name, reports in matching.unused():
                budget.charge(sum(report.spent_bytes for report in reports))
                observer.event("spark_extra_attempts", {"task": name, "attempts": [each.attempt for each in reports]})
            left = [(number, pieces[number]) for number in matching.silent()]
            if size < len(waiting):
                again.append(waiting[size:])
            if failed is None:
                if stopped and left:
                    again.append(left)
                continue
            observer.event("spark_job_failed", {"tasks": len(left), "error": condensed(str(failed))})
            deadly += died(str(failed))
            if died(str(failed)) and len(left) > 1 and deadly < _MOST_DEADLY_JOBS:
                half = len(left) // 2
                again.extend([left[half:], left[:half]])
                continue
            for number, _ in left:
                name = tasks[number].name
                yield told(Report(RewriteFailure(name, job_failure(name, failed, len(left)))))

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


def _in_jobs(tasks: Iterable[RewriteTask]) -> Iterator[list[Piece]]:
    """The tasks as they travel, by their numbers; as many together as one job may carry."""
    pieces: list[Piece] = []
    size = 0
    for number, task in enumerate(tasks):
        data = packed_task(task)
        size += len(data)
        if pieces and size > _MOST_JOB_BYTES:
            yield pieces
            pieces, size = [], len(data)
        pieces.append((number, data))
    yield pieces
