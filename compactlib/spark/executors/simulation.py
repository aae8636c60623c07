# SPDX-License-Identifier: Apache-2.0
"""How long a rewrite would take on many executors, simulated from the times of real tasks. A pure function.

What is simulated is what `SparkExecutor` does. Jobs are begun ahead of need, a few at once; Spark gives each task to
the first core that is free, those of older jobs first (list scheduling); a job's outcomes come back when all of its
tasks have ended; this process commits them one after the other, and begins the next job when it has. Network and disks
that the workers share are not in it: measure the times where the tasks will run.

Source: R. L. Graham, "Bounds on multiprocessing timing anomalies" (1969), for list scheduling and its bounds.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from compactlib.errors import InvalidInput
from compactlib.report import Printed

_DOUBLE_BELOW_SECONDS = 1.0
"""As in `SparkExecutor`: jobs that keep the cores busy for less than this are followed by larger ones."""


@attrs.frozen(kw_only=True)
class SparkCosts:
    """What a rewrite on Spark costs besides its tasks; `benchmarks/spark.py` measures all three. In seconds, >= 0.

    Attributes:
        job_seconds: each job, before its first task begins.
        task_seconds: each Spark task, on the core that runs it.
        commit_seconds: each rewrite's commit, in this process, one after the other.
    """

    job_seconds: float = 0.0
    task_seconds: float = 0.0
    commit_seconds: float = 0.0

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            if not value >= 0:
                raise InvalidInput(f"{name} is {value}; give a number of seconds that is not negative")


@attrs.frozen(kw_only=True, repr=False)
class SimulatedRun(Printed):
    """What a simulation gave.

    Attributes:
        executors: how many there were, of one core each.
        tasks_per_partition: rewrites that shared one Spark task.
        max_tasks_per_job: the most rewrites in one job.
        tasks: how many rewrites there were.
        jobs: how many jobs they took.
        seconds: from the first job to the last commit.
        alone_seconds: the tasks alone, one after the other on one core.
        commit_seconds: the commits alone, one after the other.
    """

    executors: int
    tasks_per_partition: int
    max_tasks_per_job: int
    tasks: int
    jobs: int
    seconds: float
    alone_seconds: float
    commit_seconds: float

    @property
    def speedup(self) -> float:
        """How many times as fast as the tasks alone on one core; 0.0 where nothing was to be done."""
        return self.alone_seconds / self.seconds if self.seconds else 0.0

    @property
    def busy_share(self) -> float:
        """Which part of the cores' time went into the tasks themselves, 0 to 1."""
        return self.speedup / self.executors

    @property
    def commit_share(self) -> float:
        """Which part of the whole time this process was committing, 0 to 1; near 1 it is the limit."""
        return self.commit_seconds / self.seconds if self.seconds else 0.0

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: the settings and what they gave."""
        return [{"executors": self.executors, "tasks_per_partition": self.tasks_per_partition,
                 "max_tasks_per_job": self.max_tasks_per_job, "jobs": self.jobs, "seconds": round(self.seconds, 3),
                 "speedup": round(self.speedup, 1), "busy_share": round(self.busy_share, 3),
                 "commit_share": round(self.commit_share, 3)}]

    def _summary(self) -> str:
        return (f"{self.tasks:,} tasks on {self.executors:,} executors take {self.seconds:,.1f} s, "
                f"{self.speedup:,.1f} times as fast as one core")


def simulate(tasks: Sequence[float], executors: int, costs: SparkCosts, *, tasks_per_partition: int = 1,
             max_tasks_per_job: int = 64, jobs_at_once: int = 3) -> SimulatedRun:
    """Run tasks of these times through a `SparkExecutor` of these settings. O(n log executors).

    Args:
        tasks: how long each rewrite takes on a worker, in seconds, in the order in which they are given.
        executors: how many there are, of one core each.
        costs: what is to be paid besides.
        tasks_per_partition: see `SparkExecutor`.
        max_tasks_per_job: see `SparkExecutor`.
        jobs_at_once: see `SparkExecutor`.

    Raises:
        InvalidInput: a number is less than 1, or a time is negative or not a number.
    """
    if min(executors, tasks_per_partition, max_tasks_per_job, jobs_at_once) < 1:
        raise InvalidInput(f"{executors} executors, {tasks_per_partition} tasks_per_partition, {max_tasks_per_job} "
                           f"max_tasks_per_job and {jobs_at_once} jobs_at_once were given; each is at least 1")
    if not all(each >= 0 for each in tasks):
        raise InvalidInput("a task's time is negative or not a number")
    waiting = deque(tasks)
    free = [0.0] * min(executors, max(len(tasks), 1))
    ends: deque[tuple[float, Sequence[float]]] = deque()
    size = 2 * executors * tasks_per_partition if jobs_at_once > 1 and len(tasks) > 1 else max_tasks_per_job
    now, jobs = 0.0, 0
    while waiting or ends:
        while waiting and len(ends) < jobs_at_once:
            job = [waiting.popleft() for _ in range(min(size, max_tasks_per_job, len(waiting)))]
            ends.append((_end_of_job(job, tasks_per_partition, free, now + costs.job_seconds, costs.task_seconds), job))
            jobs += 1
        end, ended = ends.popleft()
        now = max(now, end) + costs.commit_seconds * len(ended)
        if sum(ended) < _DOUBLE_BELOW_SECONDS * executors:
            size *= 2
    return SimulatedRun(executors=executors, tasks_per_partition=tasks_per_partition,
                        max_tasks_per_job=max_tasks_per_job, tasks=len(tasks), jobs=jobs, seconds=now,
                        alone_seconds=sum(tasks), commit_seconds=costs.commit_seconds * len(tasks))


def _end_of_job(job: Sequence[float], shared: int, free: list[float], begin: float, cost: float) -> float:
    """When the last of a job's Spark tasks ends; `free` is a heap of the times at which the cores are free."""
    last = begin
    for start in range(0, len(job), shared):
        end = max(free[0], begin) + cost + sum(job[start:start + shared])
        heapq.heapreplace(free, end)
        last = max(last, end)
    return last


def suggested_partitioning(tasks: Sequence[float], executors: int, costs: SparkCosts) -> SimulatedRun:
    """The settings of a `SparkExecutor` that are best for these tasks, among powers of two, by simulation.

    Of settings within one per cent of the best, the smallest jobs are taken, and of those the fewest tasks a partition:
    results come back, and pause and cancel act, sooner. O(n log² n log executors).

    Args:
        tasks: how long each rewrite takes on a worker, in seconds.
        executors: how many there are, of one core each.
        costs: what is to be paid besides.

    Raises:
        InvalidInput: as for `simulate`.
    """
    runs = [simulate(tasks, executors, costs, tasks_per_partition=shared, max_tasks_per_job=most)
            for most in _powers_of_two(64, max(len(tasks), 64)) for shared in _powers_of_two(1, 64)]
    best = min(run.seconds for run in runs)
    return next(run for run in runs if run.seconds <= 1.01 * best)


def _powers_of_two(first: int, last: int) -> Iterator[int]:
    """From `first` on, up to the first that is `last` or more."""
    yield first
    while first < last:
        first *= 2
        yield first
