# SPDX-License-Identifier: Apache-2.0
"""Comparisons and sweeps: in this process, in others and in Spark, with the same results."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest

from compactlib.blobstore import BlobChoice, BlobPolicy, BlobView, Greedy, StatsBased
from compactlib.errors import CompactlibError, InvalidInput, TaskFailed
from compactlib.executors import LocalExecutor, ProcessExecutor
from compactlib.lab import BlobSettings, HotCold, Uniform, compare, replay_blobs, run_experiments, sweep
from compactlib.lab.results.experiments import Comparison
from compactlib.testing.stand_ins import ExecutorBy
from tests.harness.recording import RecordingObserver

SETTINGS = BlobSettings.of_slots(60, 16)
POLICIES: list[BlobPolicy] = [Greedy(min_used_fraction=0.5, min_reclaimed_segments=2),
                          StatsBased(min_used_fraction=0.5)]
WORKLOADS = [Uniform(keys=500, writes=2_000), HotCold(keys=500, writes=2_000)]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    return run_experiments(compare(POLICIES, WORKLOADS, SETTINGS, seeds=(1, 2)), tmp_path_factory.mktemp("here"))


def test_an_executor_that_forgets_an_experiment_is_named(tmp_path: Path) -> None:
    forgets = ExecutorBy(lambda tasks, budget, observer: LocalExecutor().run(list(tasks)[1:]))
    table = run_experiments(compare(POLICIES, WORKLOADS[:1], SETTINGS), tmp_path, executor=forgets)
    (experiment, error), = table.failures
    assert experiment.policy == POLICIES[0]
    assert "gave no outcome for the task 'experiment 00000'" in str(error)
    assert len(table.reports) == 1


def test_every_pair_is_run_and_leaves_no_file(tmp_path: Path) -> None:
    observer = RecordingObserver()
    table = run_experiments(compare(POLICIES, WORKLOADS, SETTINGS), tmp_path, observer=observer)
    assert [(row["policy"], row["workload"]) for row in table.to_dicts()] == [
        ("greedy", "uniform"), ("stats_based", "uniform"), ("greedy", "hot_cold"), ("stats_based", "hot_cold")]
    assert list(tmp_path.iterdir()) == []
    assert ("experiments", 4, 4) in [(each.work, each.done, each.total) for each in observer.progresses]
    least = min(table.to_dicts(), key=lambda row: row["write_amplification"])
    assert (table.best().policy.name, table.best().workload.name) == (least["policy"], least["workload"])
    assert "4 experiments" in repr(table)
    assert "<table>" in table._repr_html_()


def test_all_cores_give_the_same_results(here: Comparison, tmp_path: Path) -> None:
    with nullcontext(ProcessExecutor(2)) as executor:
        there = run_experiments(here.experiments, tmp_path, executor=executor)
    assert there.reports == here.reports


def test_a_sweep_tries_every_combination(tmp_path: Path) -> None:
    experiments = sweep(Greedy, {"min_reclaimed_segments": [1, 3], "min_used_fraction": [0.0, 0.8]}, WORKLOADS[0],
                        SETTINGS)
    table = run_experiments(experiments, tmp_path)
    assert [(row["min_reclaimed_segments"], row["min_used_fraction"]) for row in table.to_dicts()] == [
        (1, 0.0), (1, 0.8), (3, 0.0), (3, 0.8)]
    with pytest.raises(InvalidInput, match="no best"):
        table.best("beauty")


@pytest.mark.parametrize("name", ["seed", "settings", "refused"])
def test_a_parameter_that_a_column_of_every_table_would_hide_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        sweep(lambda **_: Greedy(), {"min_reclaimed_segments": [1], name: [1, 2]}, WORKLOADS[0], SETTINGS)


class BadPolicy(Greedy):
    def choose(self, view: BlobView, now: float) -> BlobChoice:
        raise CompactlibError("planted")


def test_an_experiment_that_fails_says_why(tmp_path: Path) -> None:
    with pytest.raises(CompactlibError, match="planted"):
        run_experiments(compare([BadPolicy(min_used_fraction=0)], WORKLOADS, SETTINGS), tmp_path)


class Raising:
    """A policy with a bug."""

    name = "raising"

    def choose(self, view: object, now: float) -> BlobChoice:
        raise ZeroDivisionError("the policy's bug")


def test_what_fails_keeps_nothing_of_the_others(tmp_path: Path) -> None:
    settings = BlobSettings.of_slots(20, 16)
    policies: list[BlobPolicy] = [Greedy(min_used_fraction=0.0), Raising()]
    experiments = compare(policies, [Uniform(keys=200, writes=400)], settings)
    for found in (run_experiments(experiments), run_experiments(experiments, tmp_path)):
        assert [experiment.policy.name for experiment, _ in found.failures] == ["raising"]
        assert "the policy's bug" in str(found.failures[0][1])
        [report] = found.reports
        assert report == replay_blobs(Uniform(keys=200, writes=400), Greedy(min_used_fraction=0.0), settings)
        good, bad = found.to_dicts()
        assert (good["error"], bad["write_amplification"]) == (None, None)
        assert "the policy's bug" in bad["error"]
        assert set(good) == set(bad)
        assert found.best().policy.name == "greedy"
        assert "1 failed" in str(found)
    with pytest.raises(TaskFailed, match="the policy's bug"):
        run_experiments(experiments[1:])
    with pytest.raises(InvalidInput, match="no folder"):
        run_experiments(experiments, executor=LocalExecutor(workers=2))
