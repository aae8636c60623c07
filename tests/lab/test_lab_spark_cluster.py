# SPDX-License-Identifier: Apache-2.0
"""The simulation of many executors: against the best schedule there is, Graham's bounds, and cases done by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from hypothesis import given, strategies as st

from benchmarks.spark_cluster import SparkCosts, simulate

FREE = SparkCosts()


def best_of_all(tasks: Sequence[float], executors: int) -> float:
    """The shortest schedule of all."""
    return min(max(math.fsum(time for time, chosen in zip(tasks, places, strict=True) if chosen == place)
                   for place in range(executors))
               for places in itertools.product(range(executors), repeat=len(tasks)))


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=7), st.integers(1, 3))
def test_without_costs_a_job_stays_within_grahams_bounds_of_the_best(tasks: list[float], executors: int) -> None:
    best = best_of_all(tasks, executors)
    slack = 1e-9 * (1 + best)
    in_any_order = simulate(tasks, executors, FREE).seconds
    longest_first = simulate(sorted(tasks, reverse=True), executors, FREE).seconds
    assert best - slack <= in_any_order <= (2 - 1 / executors) * best + slack
    assert best - slack <= longest_first <= (4 / 3 - 1 / (3 * executors)) * best + slack


def test_grahams_worst_case_for_longest_first() -> None:
    assert simulate([5, 5, 4, 4, 3, 3, 3], 3, FREE).seconds == 11.0
    assert best_of_all([5, 5, 4, 4, 3, 3, 3], 3) == 9.0


def test_commits_go_beside_the_tasks() -> None:
    costs = SparkCosts(job_seconds=1.0, task_seconds=0.5, commit_seconds=2.0)
    # Four tasks of 3 s on one core end at 4.5, 8, 11.5 and 15; each is committed while the next runs, the last then.
    run = simulate([3.0] * 4, 1, costs)
    assert (run.seconds, run.alone_seconds, run.commit_seconds) == (17.0, 12.0, 8.0)
    # Two to a partition: they end at 7.5 and 14, and two commits follow each.
    assert simulate([3.0] * 4, 1, costs, tasks_per_partition=2).seconds == 18.0
