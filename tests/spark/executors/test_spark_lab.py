# SPDX-License-Identifier: Apache-2.0
"""A comparison as a DataFrame job gives what it gives in one process, whatever is replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactlib.blobstore import BlobPolicy, BlobView, CostBenefit, Greedy, StatsBased
from compactlib.lab import (
    BlobSettings,
    Experiment,
    HotCold,
    RaftLogSettings,
    SchedulerLoad,
    SchedulerSettings,
    SensorSettings,
    Uniform,
    compare,
    run_experiments,
    sweep,
)
from compactlib.lab.results.experiments import grid
from compactlib.lab.tuning import tune
from compactlib.raftlog import DeadRatio, SeedPolicy
from compactlib.scheduler import SchedulerConfig
from compactlib.spark import SparkExecutor
from compactlib.staging import DeletesPolicy


@pytest.mark.spark
def test_a_data_frame_job_gives_the_same_results(spark: SparkSession, tmp_path: Path) -> None:
    workloads = [Uniform(keys=300, writes=900), HotCold(keys=300, writes=900)]
    policies: list[BlobPolicy] = [Greedy(min_used_fraction=0.5), StatsBased(min_used_fraction=0.5)]
    experiments = [
        *compare(policies, workloads, BlobSettings.of_slots(40, 16), seeds=(1, 2)),
        *compare([SeedPolicy()], workloads, RaftLogSettings(snapshot_every=200, trigger=DeadRatio(1.0))),
        *compare([DeletesPolicy(10)], workloads, SensorSettings(base_keys=300)),
        *sweep(SchedulerConfig, {"lease_seconds": [10.0, 20.0]}, SchedulerLoad(blocks=50, hang_rate=0.3),
               SchedulerSettings())]
    here = run_experiments(experiments, tmp_path)
    there = run_experiments(experiments, tmp_path, executor=SparkExecutor(spark))
    assert there.reports == here.reports
    assert list(tmp_path.iterdir()) == []


@pytest.mark.spark
@pytest.mark.cluster
def test_tuning_on_spark_chooses_what_it_chooses_here(spark: SparkSession, tmp_path: Path) -> None:
    class Broken:
        name = "broken"

        def choose(self, view: BlobView, now: float) -> BlobView:
            raise ValueError("no choice today")

    load = HotCold(keys=700, writes=6_000)

    def experiment(aged: int, freed: int) -> Experiment:
        policy: BlobPolicy = (CostBenefit if aged else Greedy)(min_used_fraction=0.0, min_reclaimed_segments=freed)
        return Experiment(policy=policy, workload=load, settings=BlobSettings.of_slots(60, 16))

    candidates = grid(experiment, {"aged": [0, 1], "freed": [1, 4]})
    broken = Experiment(policy=Broken(), workload=load, settings=candidates[0].settings)
    limits = {"space_amplification": 2.0}
    here = tune(candidates, today=candidates[0], limits=limits)
    there = tune([*candidates, broken], today=candidates[0], limits=limits, folder=tmp_path,
                 executor=SparkExecutor(spark))
    assert (there.chosen, there.figures, there.is_worth_it) == (here.chosen, here.figures, here.is_worth_it)
    assert there.first.reports == here.first.reports
    [(failed, error)] = there.first.failures
    assert (failed.policy.name, "no choice today" in str(error)) == ("broken", True)
    assert list(tmp_path.iterdir()) == []
