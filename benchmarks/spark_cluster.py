# SPDX-License-Identifier: Apache-2.0
"""How long rewrites would take on a cluster of many cores, simulated from the times of real tasks. A pure function.

The simulation follows `compactlib.spark.SparkExecutor`. All tasks are one job; Spark gives each partition to
the first free core (list scheduling); outcomes arrive when their partition has ended, and this process
commits them one after the other. The shared network and disks are left out: measure the times where the
tasks will run.

Source: R. L. Graham, "Bounds on multiprocessing timing anomalies" (1969), for list scheduling and its bounds.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import attrs

_MOST_SHARED = 64


@attrs.frozen(kw_only=True)
class SparkCosts:
    """The costs of a rewrite on Spark without its tasks, seconds, >= 0; `benchmarks/spark.py` measures all three.

    Attributes:
        job_seconds: the job, before its first task begins.
        task_seconds: each Spark task, on the core that runs it.
        commit_seconds: each rewrite's commit, in this process, one after the other.
    """

    job_seconds: float = 0.0
    task_seconds: float = 0.0
    commit_seconds: float = 0.0


@attrs.frozen(kw_only=True)
class SimulatedRun:
    """The result of a simulation.

    Attributes:
        executors: how many there were, of one core each.
        tasks_per_partition: rewrites that shared one Spark task.
        tasks: how many rewrites there were.
        seconds: from the job to the last commit.
        alone_seconds: the tasks alone, one after the other on one core.
        commit_seconds: the commits alone, one after the other.
    """

    executors: int
    tasks_per_partition: int
    tasks: int
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


def simulate(tasks: Sequence[float], executors: int, costs: SparkCosts, *,
             tasks_per_partition: int = 1) -> SimulatedRun:
    """Run tasks of these times through a `SparkExecutor`. O(n log n).

    Args:
        tasks: how long each rewrite takes on a worker, in seconds, in the order in which they are given.
        executors: how many there are, of one core each.
        costs: the costs besides the tasks.
        tasks_per_partition: see `SparkExecutor`.
    """
    parts = math.ceil(len(tasks) / tasks_per_partition)
    free = [costs.job_seconds] * min(executors, max(parts, 1))
    ends = []
    for part in range(parts):
        shared = tasks[part::parts]
        end = free[0] + costs.task_seconds + sum(shared)
        heapq.heapreplace(free, end)
        ends.append((end, len(shared)))
    now = 0.0
    for end, ended in sorted(ends):
        now = max(now, end) + costs.commit_seconds * ended
    return SimulatedRun(executors=executors, tasks_per_partition=tasks_per_partition, tasks=len(tasks), seconds=now,
                        alone_seconds=sum(tasks), commit_seconds=costs.commit_seconds * len(tasks))


def suggested_partitioning(tasks: Sequence[float], executors: int, costs: SparkCosts) -> SimulatedRun:
    """How many tasks should share a Spark task, among powers of two up to 64, by simulation. O(n log n).

    Of settings within one per cent of the best, the fewest tasks a partition: results arrive sooner, and a worker
    that dies repeats less.

    Args:
        tasks: how long each rewrite takes on a worker, in seconds.
        executors: how many there are, of one core each.
        costs: the costs besides the tasks.
    """
    runs = [simulate(tasks, executors, costs, tasks_per_partition=1 << power)
            for power in range(_MOST_SHARED.bit_length())]
    best = min(run.seconds for run in runs)
    return next(run for run in runs if run.seconds <= 1.01 * best)
