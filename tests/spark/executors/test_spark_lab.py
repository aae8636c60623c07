# SPDX-License-Identifier: Apache-2.0
"""A comparison as a DataFrame job gives what it gives in one process, whatever is replayed."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from compactlib.blobstore import BlobPolicy, Greedy, StatsBased
from compactlib.lab import (
    BlobSettings,
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
from compactlib.raftlog import DeadRatio, SeedPolicy
from compactlib.scheduler import SchedulerConfig
from compactlib.spark import SparkExecutor
from compactlib.staging import PressurePolicy


@pytest.mark.spark
def test_a_data_frame_job_gives_the_same_results(spark: SparkSession, tmp_path: Path) -> None:
    workloads = [Uniform(keys=300, writes=900), HotCold(keys=300, writes=900)]
    policies: list[BlobPolicy] = [Greedy(min_used_fraction=0.5), StatsBased(min_used_fraction=0.5)]
    experiments = [
        *compare(policies, workloads, BlobSettings.of_slots(40, 16), seeds=(1, 2)),
        *compare([SeedPolicy()], workloads, RaftLogSettings(snapshot_every=200, trigger=DeadRatio(1.0))),
        *compare([PressurePolicy(deletes=10)], workloads, SensorSettings(base_keys=300)),
        *sweep(SchedulerConfig, {"lease_seconds": [10.0, 20.0]}, SchedulerLoad(blocks=50, hang_rate=0.3),
               SchedulerSettings())]
    here = run_experiments(experiments, tmp_path)
    there = run_experiments(experiments, tmp_path, executor=SparkExecutor(spark))
    assert there.reports == here.reports
    assert list(tmp_path.iterdir()) == []
