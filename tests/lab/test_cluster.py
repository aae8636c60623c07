# SPDX-License-Identifier: Apache-2.0
"""The simulation of many executors: against the best schedule there is, Graham's bounds, and cases done by hand."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from compactlib.errors import InvalidInput
from compactlib.lab.cluster import SimulatedRun, SparkCosts, simulate, suggested_partitioning

FREE = SparkCosts()
TIMES = st.lists(st.floats(0.0, 100.0), min_size=1, max_size=40)
SOME_COSTS = st.builds(SparkCosts, job_seconds=st.floats(0, 1), task_seconds=st.floats(0, 1),
                       commit_seconds=st.floats(0, 1))


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


@given(TIMES, st.integers(1, 12), SOME_COSTS, st.integers(1, 5))
def test_it_takes_no_less_than_the_cores_the_longest_task_and_the_commits_need(
        tasks: list[float], executors: int, costs: SparkCosts, shared: int) -> None:
    run = simulate(tasks, executors, costs, tasks_per_partition=shared)
    count = len(tasks)
    in_parts = math.fsum(tasks) + costs.task_seconds * -(-count // shared)
    slack = 1e-9 * (1 + run.seconds)
    assert run.seconds >= costs.job_seconds + max(tasks) + costs.task_seconds + costs.commit_seconds - slack
    assert run.seconds >= costs.job_seconds + in_parts / executors - slack
    assert run.seconds >= costs.job_seconds + costs.commit_seconds * count - slack
    assert run.seconds <= costs.job_seconds + in_parts + costs.commit_seconds * count + slack
    assert 0 <= run.busy_share <= 1 + 1e-9
    assert 0 <= run.commit_share <= 1 + 1e-9


def test_commits_go_beside_the_tasks() -> None:
    costs = SparkCosts(job_seconds=1.0, task_seconds=0.5, commit_seconds=2.0)
    # Four tasks of 3 s on one core end at 4.5, 8, 11.5 and 15; each is committed while the next runs, the last then.
    run = simulate([3.0] * 4, 1, costs)
    assert (run.seconds, run.alone_seconds, run.commit_seconds) == (17.0, 12.0, 8.0)
    # Two to a partition: they end at 7.5 and 14, and two commits follow each.
    assert simulate([3.0] * 4, 1, costs, tasks_per_partition=2).seconds == 18.0


def test_small_tasks_are_suggested_to_share_and_large_ones_not() -> None:
    costs = SparkCosts(job_seconds=0.1, task_seconds=0.05)
    small, large = (suggested_partitioning([seconds] * 2000, 50, costs) for seconds in (0.001, 20.0))
    assert small.tasks_per_partition > 8
    assert large.tasks_per_partition == 1
    assert small.seconds < simulate([0.001] * 2000, 50, costs).seconds / 2


@given(TIMES, st.integers(1, 8), SOME_COSTS)
def test_what_is_suggested_is_no_worse_than_the_defaults(tasks: list[float], executors: int,
                                                         costs: SparkCosts) -> None:
    assert suggested_partitioning(tasks, executors, costs).seconds <= 1.01 * simulate(tasks, executors, costs).seconds


def test_beyond_what_the_commits_allow_more_executors_give_nothing() -> None:
    costs = SparkCosts(commit_seconds=0.01)
    run = suggested_partitioning([0.1] * 1000, 1000, costs)
    assert run.commit_share > 0.9
    assert 10 <= run.seconds < 11


def test_it_prints_itself() -> None:
    run = simulate([1.0] * 10, 5, FREE)
    assert repr(run) == ("<SimulatedRun: 10 tasks on 5 executors take 2.0 s, 5.0 times as fast as one core>")
    assert run.to_dicts() == [{"executors": 5, "tasks_per_partition": 1, "seconds": 2.0, "speedup": 5.0,
                               "busy_share": 1.0, "commit_share": 0.0}]
    assert "<table>" in run._repr_html_()


def test_nothing_to_do_takes_no_time() -> None:
    run: SimulatedRun = simulate([], 5, SparkCosts(job_seconds=1.0))
    assert (run.seconds, run.speedup, run.busy_share, run.commit_share) == (0.0, 0.0, 0.0, 0.0)
    assert suggested_partitioning([], 5, FREE).seconds == 0.0


@pytest.mark.parametrize(("tasks", "executors"), [([1.0], 0), ([-1.0], 1), ([math.nan], 1)])
def test_bad_input(tasks: list[float], executors: int) -> None:
    with pytest.raises(InvalidInput):
        simulate(tasks, executors, FREE)


def test_bad_costs_and_settings() -> None:
    with pytest.raises(InvalidInput, match="job_seconds is -1"):
        SparkCosts(job_seconds=-1)
    with pytest.raises(InvalidInput, match="0 tasks_per_partition"):
        simulate([1.0], 1, FREE, tasks_per_partition=0)
