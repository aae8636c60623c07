# SPDX-License-Identifier: Apache-2.0
"""Runs rewrite tasks as DataFrame jobs, over a classic session or Spark Connect.

A job is: one row per task (its pickled self) in a partition of its own, `mapInArrow`, `collect`. The task reads and
writes its files itself, on the worker; only plans and results pass through Spark. Spark retries a worker that dies;
an error that a task raises is caught on the worker and comes back as its outcome. Nothing is published here: the
caller commits, after the outcome has come back.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import TYPE_CHECKING

import attrs

from compactlib.errors import BudgetSpent, InvalidInput
from compactlib.executors.tasks import checked_names, foreign_error
from compactlib.rewrite import RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask
from compactlib.runtime.budget import Budget, BudgetLimits
from compactlib.runtime.observe import Observer, Progress, telling
from compactlib.spark.dependencies import require_spark
from compactlib.spark.executors.job_threads import JobThreads
from compactlib.spark.executors.outcomes import Matched, condensed, job_failure, match_outcomes
from compactlib.spark.executors.packing import packed, weight_of, worthwhile_parts
from compactlib.spark.executors.rows import RESULT_COLUMNS, RESULT_DDL, PlanRow, ResultRow, plan_table, printable
from compactlib.spark.executors.worker import PlanRunner, packed_task

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEFAULT_MAX_TASKS_PER_JOB = 64
"""A job costs about a third of a second whatever it does. With 64 tasks of a second or more that is lost in the noise
on up to 16 cores, while progress, pause and cancel still come every few seconds, and the plan stays small."""

DEFAULT_JOBS_AT_ONCE = 3
"""While the results of one job are committed, the next runs, and one more stands ready for the cores that it leaves."""

_SHORT_JOB_SECONDS = 1.0
"""A job whose attempts keep the cores busy for less than this is small beside what it costs itself."""

_TELL_SECONDS = 0.5
"""How often Spark is asked how far its tasks are."""

_PROBE_ROWS = 4096


class SparkExecutor:
    """A `compactlib.executors.Executor` whose tasks run on Spark's workers.

    Tasks and their results are pickled by value where they come from a notebook, by reference where they come from a
    module; such modules (compactlib among them) must be importable on the workers: see `ship_library`. Folders named
    in tasks must be reachable under the same path from every worker and from this process.

    Tasks run in jobs; `jobs_at_once` of them are under way while the caller uses (commits) the outcomes of those that
    have ended. The first take twice as many tasks as the session runs at once; where these are done in less than a
    second, later ones take more, up to `max_tasks_per_job`. Leaving the
    iterator early asks Spark to end the jobs that run. What reaches the other side:

    * **budget**: it is asked before each job, so pause, cancel and deadline act there (the deadline also within tasks,
      by the workers' system clocks); jobs that run already go on to their end. A byte rate is divided among the tasks
      that run at once. A total is divided among the tasks of a job, which then holds no more than run at once, and is
      the only one: attempts that report never exceed it, but a task larger than its part is refused. What tasks
      report as spent is charged, also by those that failed; what a killed attempt wrote is unknown.
    * **observer**: counters and events of tasks are passed on when their job ends; progress within a task is not
      visible. Instead, each finished task's written bytes are reported as done under its name, `rewrite` advances by
      groups, job by job, and `spark tasks` twice a second by what Spark says of the jobs that run (not over Connect).
    * **errors** come back with all their fields; one that cannot be pickled comes as `TaskFailed` with its text.

    Args:
        spark: a classic or a Spark Connect session.
        max_tasks_per_job: the most tasks in one job, >= 1.
        jobs_at_once: how many jobs are under way at the same time, >= 1. With 1 they run one after the other, of
            `max_tasks_per_job` each, and nothing runs while the caller commits.
        tasks_per_partition: how many tasks share one Spark task on average, one after the other, >= 1. A Spark task
            costs some 25 ms of two cores whatever it does, so little rewrites gain by sharing; a killed worker then
            repeats all of them. Tasks that have a number `weight` are packed by it: heavy ones alone, light ones
            together. `None`: as many as take a quarter of a second, going by the tasks before; at first one.
        parallel_tasks: how many tasks the session runs at once, to divide jobs and budgets by; default: Spark is
            asked.
        check_files: compare each new file's size on disk with what the worker reported, so that a folder which is
            not shared between worker and driver shows at once. Turn it off only if a task's paths mean something else.

    Raises:
        InvalidInput: a number is less than 1.
        MissingDependency: PySpark or one of its packages is not installed.
    """

    def __init__(self, spark: SparkSession, *, max_tasks_per_job: int = DEFAULT_MAX_TASKS_PER_JOB,
                 jobs_at_once: int = DEFAULT_JOBS_AT_ONCE, tasks_per_partition: int | None = 1,
                 parallel_tasks: int | None = None, check_files: bool = True) -> None:
        if max_tasks_per_job < 1:
            raise InvalidInput(f"max_tasks_per_job is {max_tasks_per_job}; a job needs at least one task")
        if jobs_at_once < 1:
            raise InvalidInput(f"jobs_at_once is {jobs_at_once}; a run needs at least one job at a time")
        if tasks_per_partition is not None and tasks_per_partition < 1:
            raise InvalidInput(f"tasks_per_partition is {tasks_per_partition}; a partition needs at least one task")
        if parallel_tasks is not None and parallel_tasks < 1:
            raise InvalidInput(f"parallel_tasks is {parallel_tasks}; at least one task runs at once")
        require_spark("SparkExecutor")
        self._spark = spark
        self._max_tasks_per_job = max_tasks_per_job
        self._jobs_at_once = jobs_at_once
        self._tasks_per_partition = tasks_per_partition
        self._task_seconds: float | None = None
        self._parallel_tasks = parallel_tasks
        self._check_files = check_files

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        """See `Executor.run`. Nothing starts before the first outcome is asked for.

        A job that fails as a whole (a worker killed in every attempt, a session that was stopped) gives a failure for
        each of its tasks, with Spark's message; the next job is tried all the same.
        """
        listed = checked_names(tasks)
        return self._run_jobs(listed, Budget() if budget is None else budget, telling(observer))

    def _run_jobs(self, tasks: Sequence[RewriteTask], budget: Budget,
                  observer: Observer) -> Generator[RewriteOutcome, None, None]:
        jobs = _Jobs(self, tasks, budget, observer)
        done = 0
        with contextlib.closing(jobs):
            while (ended := jobs.next_ended()) is not None:
                for matched in ended.matched:
                    budget.charge(matched.spent_bytes)
                    _tell(matched, observer)
                if ended.error is not None:
                    observer.event("spark_job_failed", {"tasks": ended.tasks, "error": ended.error})
                done += ended.tasks
                observer.progress(Progress("rewrite", done, len(tasks), "groups"))
                yield from (matched.outcome for matched in ended.matched)
            for task in jobs.refused:
                yield RewriteFailure(task.name, jobs.refusal)

    def _next_job(self, remaining: BudgetLimits, waiting: int, wanted: int) -> tuple[int, BudgetLimits]:
        """How many tasks the next job takes, and the limits of each."""
        size = min(self._max_tasks_per_job, waiting, wanted)
        if remaining.bytes_per_second is None and not remaining.total_bytes:
            # Nothing to divide: no limit, or a total that is spent and refuses every byte.
            return size, remaining
        at_once = min(self._slots(), size if remaining.total_bytes is not None else waiting)
        if remaining.total_bytes is not None:
            size = at_once
        return size, remaining.share(at_once)

    def _slots(self) -> int:
        """How many tasks this session runs at once; asks Spark the first time, with a job of its own if need be."""
        if self._parallel_tasks is None:
            try:
                self._parallel_tasks = default_parallelism(self._spark)
            except Exception:
                # The session is gone: the job's own error will say so.
                return 1
        return self._parallel_tasks

    def _run_job(self, tasks: Sequence[RewriteTask], limits: BudgetLimits) -> _Ended:
        matched: list[Matched] = []
        plan: list[PlanRow] = []
        weights: list[float] = []
        names: dict[int, str] = {}
        for task in tasks:
            try:
                data, weight = packed_task(task), weight_of(task)
            except Exception as error:  # pickling runs foreign code, which may raise anything
                matched.append(Matched(RewriteFailure(task.name, foreign_error(task.name, error))))
                continue
            names[len(plan)] = task.name
            plan.append(PlanRow(len(plan), printable(task.name), data))
            weights.append(weight)
        try:
            rows = self._collect(plan, weights, limits) if plan else []
        except Exception as error:
            # PySpark fails in many ways (its own errors, py4j's, gRPC's); all mean that no task of the job reported.
            master = self._master()
            matched += [Matched(RewriteFailure(name, job_failure(name, error, master, len(plan))))
                        for name in names.values()]
            return _Ended(len(tasks), matched, condensed(str(error)))
        matched += match_outcomes(names, rows, check_files=self._check_files)
        seconds = sum(row.seconds for row in rows)
        if rows:
            self._task_seconds = seconds / len(rows)
        return _Ended(len(tasks), matched, seconds=seconds)

    def _collect(self, plan: Sequence[PlanRow], weights: Sequence[float], limits: BudgetLimits) -> list[ResultRow]:
        import pyarrow as pa
        from pyspark.sql import functions

        # The range gives each task (or few) a partition of its own; the broadcast brings it its row without a shuffle,
        # which neither repartition() (tasks share partitions) nor a closure (every worker reads every task) would do.
        groups = packed(weights, self._partitions(len(plan)))
        part_of = {place: part for part, group in enumerate(groups) for place in group}
        table = plan_table(plan).append_column("part", pa.array([part_of[row.number] for row in plan], pa.int64()))
        parts = self._spark.range(0, len(groups), 1, len(groups)).withColumnRenamed("id", "part")
        tasks = functions.broadcast(self._spark.createDataFrame(table))
        rows = parts.join(tasks, "part").mapInArrow(PlanRunner(limits), RESULT_DDL).collect()
        return [ResultRow(**{name: row[name] for name, _ in RESULT_COLUMNS}) for row in rows]

    def _partitions(self, tasks: int) -> int:
        """How many Spark tasks these tasks make."""
        if self._tasks_per_partition is not None:
            return -(-tasks // self._tasks_per_partition)
        if self._task_seconds is None:
            return tasks
        return worthwhile_parts(tasks, self._task_seconds, self._slots())

    def _master(self) -> str | None:
        try:
            return self._spark.conf.get("spark.master", None)
        except Exception:
            # The session is gone; the job's own error says so.
            return None

    def __repr__(self) -> str:
        shared = "" if self._tasks_per_partition == 1 else f", tasks_per_partition={self._tasks_per_partition}"
        return f"SparkExecutor(max_tasks_per_job={self._max_tasks_per_job}{shared})"


def default_parallelism(spark: SparkSession) -> int:
    """How many partitions Spark makes by default: the number of cores."""
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:
        # Spark Connect has no context, and says so in an error of its own; a job shows it there.
        from pyspark.sql import functions

        # Collected as they are: an aggregate would cost a second stage.
        parts = spark.range(0, _PROBE_ROWS).select(functions.spark_partition_id()).collect()
        return 1 + max(int(row[0]) for row in parts)


@attrs.frozen
class _Ended:
    """A job that has ended.

    Attributes:
        tasks: how many it had.
        matched: the outcome of each.
        error: why it failed as a whole, in one line.
        seconds: how long its attempts took, one after the other.
    """

    tasks: int
    matched: Sequence[Matched]
    error: str | None = None
    seconds: float = 0.0


class _Jobs:
    """The jobs of one run: begun in order and ahead of need, as far as the budget lets them; ended in order."""

    def __init__(self, executor: SparkExecutor, tasks: Sequence[RewriteTask], budget: Budget,
                 observer: Observer) -> None:
        self._executor = executor
        self._budget = budget
        self._waiting = deque(tasks)
        self._running: deque[Future[_Ended]] = deque()
        self._threads = JobThreads(executor._spark, executor._jobs_at_once)
        self._size = self._first_size()
        self._refused: BudgetSpent | None = None
        self._observer = observer
        self._told = (0, 0)

    @property
    def refusal(self) -> BudgetSpent:
        """Why the budget lets nothing begin any more; a new one each time."""
        assert self._refused is not None
        return self._budget.refusal or self._refused

    @property
    def refused(self) -> Sequence[RewriteTask]:
        """What the budget did not let begin."""
        return tuple(self._waiting)

    def next_ended(self) -> _Ended | None:
        """Wait for the oldest job that runs; `None` once there is none, and none can begin."""
        while self._waiting and self._may_begin():
            size, limits = self._executor._next_job(self._budget.remaining, len(self._waiting), self._size)
            tasks = [self._waiting.popleft() for _ in range(size)]
            self._running.append(self._threads.submit(partial(self._executor._run_job, tasks, limits)))
        if not self._running:
            return None
        job = self._running.popleft()
        while not job.done():
            wait([job], timeout=_TELL_SECONDS)
            self._tell_tasks()
        ended = job.result()
        if ended.seconds < _SHORT_JOB_SECONDS * self._executor._slots():
            self._size *= 2
        return ended

    def _tell_tasks(self) -> None:
        told = self._threads.tasks()
        if told is not None and told[1] and told != self._told:
            self._told = told
            self._observer.progress(Progress("spark tasks", told[0], told[1], "tasks"))

    def _first_size(self) -> int:
        """Two rounds of the cores: enough to keep them busy while one job begins and another ends, and small enough
        that results come back while others run. Jobs of little tasks grow from there."""
        executor = self._executor
        if executor._jobs_at_once == 1 or len(self._waiting) <= 1:
            return executor._max_tasks_per_job
        return 2 * executor._slots() * (executor._tasks_per_partition or 1)

    def _may_begin(self) -> bool:
        # A total is divided among the tasks of one job; what they leave is known when it has ended.
        at_once = 1 if self._budget.remaining.total_bytes is not None else self._executor._jobs_at_once
        # While a job runs, a paused budget is no reason to keep its results waiting.
        if len(self._running) >= at_once or (self._running and self._budget.paused) or self._refused is not None:
            return False
        try:
            self._budget.check()
        except BudgetSpent as spent:
            self._refused = spent
            return False
        return True

    def close(self) -> None:
        """Abandon what has not begun, and end what runs."""
        self._threads.close()


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
