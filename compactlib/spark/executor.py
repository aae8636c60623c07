"""Runs rewrite tasks as DataFrame jobs, over a classic session or Spark Connect.

A job is: one row per task (its pickled self) in a partition of its own, `mapInArrow`, `collect`. The task reads and
writes its files itself, on the worker; only plans and results pass through Spark. Spark retries a worker that dies;
an error that a task raises is caught on the worker and comes back as its outcome. Nothing is published here: the
caller commits, after the outcome has come back.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from compactlib.budget import Budget, BudgetLimits
from compactlib.errors import BudgetSpent, InvalidInput
from compactlib.observe import Observer, Progress
from compactlib.rewrite import (
    RewriteFailure,
    RewriteOutcome,
    RewriteResult,
    RewriteTask,
    checked_names,
    foreign_error,
)
from compactlib.spark.dependencies import require_spark
from compactlib.spark.failure import condensed, job_failure
from compactlib.spark.outcomes import Matched, match_outcomes
from compactlib.spark.rows import RESULT_COLUMNS, RESULT_DDL, PlanRow, ResultRow, plan_table, printable
from compactlib.spark.worker import PlanRunner, packed_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MAX_TASKS_PER_JOB = 64
"""A job costs about a third of a second whatever it does. With 64 tasks of a second or more that is lost in the noise
on up to 16 cores, while progress, pause and cancel still come every few seconds, and the plan stays small."""

_PROBE_ROWS = 4096


class SparkExecutor:
    """A `compactlib.rewrite.Executor` whose tasks run on Spark's workers.

    Tasks and their results are pickled by value where they come from a notebook, by reference where they come from a
    module; such modules (compactlib among them) must be importable on the workers: see `ship_library`. Folders named
    in tasks must be reachable under the same path from every worker and from this process.

    Tasks run in jobs of at most `max_tasks_per_job`, one after the other. What reaches the other side:

    * **budget**: it is asked between jobs, so pause, cancel and deadline act there (the deadline also within tasks,
      by the workers' system clocks). A byte rate is divided among the tasks that run at once. A total is divided
      among the tasks of a job, which then holds no more than run at once: attempts that report never exceed it, but
      a task larger than its part is refused. What tasks report as spent is charged, also by those that failed; what
      a killed attempt wrote nobody knows.
    * **observer**: counters and events of tasks are passed on when their job ends; progress within a task is not
      visible. Instead, each finished task's written bytes are reported as done under its name, and `rewrite`
      advances by groups, job by job.
    * **errors** come back with all their fields; one that cannot be pickled comes as `TaskFailed` with its text.

    Args:
        spark: a classic or a Spark Connect session.
        max_tasks_per_job: tasks in one job, >= 1.
        tasks_per_partition: tasks that share one Spark task, one after the other, >= 1. A Spark task costs some 25 ms
            of two cores whatever it does, so little rewrites gain by sharing; a killed worker then repeats all of them.
        parallel_tasks: how many tasks the session runs at once, to divide budgets by; default: Spark is asked, when
            a budget limits rate or total.
        check_files: compare each new file's size on disk with what the worker reported, so that a folder which is
            not shared between worker and driver shows at once. Turn it off only if a task's paths mean something else.

    Raises:
        InvalidInput: a number is less than 1.
        MissingDependency: PySpark or one of its packages is not installed.
    """

    def __init__(self, spark: SparkSession, *, max_tasks_per_job: int = DEFAULT_MAX_TASKS_PER_JOB,
                 tasks_per_partition: int = 1, parallel_tasks: int | None = None, check_files: bool = True) -> None:
        if max_tasks_per_job < 1:
            raise InvalidInput(f"max_tasks_per_job is {max_tasks_per_job}; a job needs at least one task")
        if tasks_per_partition < 1:
            raise InvalidInput(f"tasks_per_partition is {tasks_per_partition}; a partition needs at least one task")
        if parallel_tasks is not None and parallel_tasks < 1:
            raise InvalidInput(f"parallel_tasks is {parallel_tasks}; at least one task runs at once")
        require_spark("SparkExecutor")
        self._spark = spark
        self._max_tasks_per_job = max_tasks_per_job
        self._tasks_per_partition = tasks_per_partition
        self._parallel_tasks = parallel_tasks
        self._check_files = check_files

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        """See `Executor.run`. Nothing starts before the first outcome is asked for.

        A job that fails as a whole (a worker killed in every attempt, a session that was stopped) gives a failure for
        each of its tasks, with Spark's message; the next job is tried all the same.
        """
        listed = checked_names(tasks)
        return self._run_jobs(listed, Budget() if budget is None else budget,
                              Observer() if observer is None else observer)

    def _run_jobs(self, tasks: Sequence[RewriteTask], budget: Budget,
                  observer: Observer) -> Generator[RewriteOutcome, None, None]:
        begun = 0
        while begun < len(tasks):
            try:
                budget.check()
            except BudgetSpent as spent:
                for task in tasks[begun:]:
                    yield RewriteFailure(task.name, budget.refusal or spent)
                return
            size, limits = self._next_job(budget.remaining, len(tasks) - begun)
            outcomes = []
            for matched in self._run_job(tasks[begun:begun + size], limits, observer):
                budget.charge(matched.spent_bytes)
                _tell(matched, observer)
                outcomes.append(matched.outcome)
            begun += size
            observer.progress(Progress("rewrite", begun, len(tasks), "groups"))
            yield from outcomes

    def _next_job(self, remaining: BudgetLimits, waiting: int) -> tuple[int, BudgetLimits]:
        """How many tasks the next job takes, and the limits of each."""
        size = min(self._max_tasks_per_job, waiting)
        if remaining.bytes_per_second is None and not remaining.total_bytes:
            # Nothing to divide: no limit, or a total that is spent and refuses every byte.
            return size, remaining
        at_once = min(self._slots(), size)
        if remaining.total_bytes is not None:
            size = at_once
        return size, remaining.share(at_once)

    def _slots(self) -> int:
        """How many tasks this session runs at once; asks Spark the first time, with a job of its own."""
        if self._parallel_tasks is None:
            from pyspark.sql import functions

            # The default number of partitions is the number of cores, and unlike sparkContext it exists in Connect.
            parts = self._spark.range(0, _PROBE_ROWS).select(functions.spark_partition_id().alias("part"))
            self._parallel_tasks = 1 + int(parts.agg(functions.max("part")).collect()[0][0])
        return self._parallel_tasks

    def _run_job(self, tasks: Sequence[RewriteTask], limits: BudgetLimits, observer: Observer) -> Iterator[Matched]:
        plan: list[PlanRow] = []
        names: dict[int, str] = {}
        for task in tasks:
            try:
                packed = packed_task(task)
            except Exception as error:  # pickling runs foreign code, which may raise anything
                yield Matched(RewriteFailure(task.name, foreign_error(task.name, error)))
                continue
            names[len(plan)] = task.name
            plan.append(PlanRow(len(plan), printable(task.name), packed))
        if not plan:
            return
        try:
            rows = self._collect(plan, limits)
        except Exception as error:
            # PySpark fails in many ways (its own errors, py4j's, gRPC's); all mean that no task of the job reported.
            observer.event("spark_job_failed", {"tasks": len(plan), "error": condensed(str(error))})
            master = self._master()
            for name in names.values():
                yield Matched(RewriteFailure(name, job_failure(name, error, master, len(plan))))
            return
        yield from match_outcomes(names, rows, check_files=self._check_files)

    def _collect(self, plan: Sequence[PlanRow], limits: BudgetLimits) -> list[ResultRow]:
        from pyspark.sql import functions

        # The range gives each task (or few) a partition of its own; the broadcast brings it its row without a shuffle,
        # which neither repartition() (tasks share partitions) nor a closure (every worker reads every task) would do.
        partitions = -(-len(plan) // self._tasks_per_partition)
        numbers = self._spark.range(0, len(plan), 1, partitions).withColumnRenamed("id", "number")
        tasks = functions.broadcast(self._spark.createDataFrame(plan_table(plan)))
        rows = numbers.join(tasks, "number").mapInArrow(PlanRunner(limits), RESULT_DDL).collect()
        return [ResultRow(**{name: row[name] for name, _ in RESULT_COLUMNS}) for row in rows]

    def _master(self) -> str | None:
        try:
            return self._spark.conf.get("spark.master", None)
        except Exception:
            # The session is gone; the job's own error says so.
            return None

    def __repr__(self) -> str:
        shared = f", tasks_per_partition={self._tasks_per_partition}" if self._tasks_per_partition > 1 else ""
        return f"SparkExecutor(max_tasks_per_job={self._max_tasks_per_job}{shared})"


def _tell(matched: Matched, observer: Observer) -> None:
    outcome, told = matched.outcome, matched.told
    if told is not None:
        told.replay(observer)
        if told.dropped:
            observer.event("spark_observations_dropped", {"task": outcome.task, "dropped": told.dropped})
    if matched.extra_attempts:
        observer.event("spark_extra_attempts", {"task": outcome.task, "attempts": matched.extra_attempts})
    if isinstance(outcome, RewriteResult):
        observer.progress(Progress(outcome.task, outcome.bytes_written, outcome.bytes_written))
