# SPDX-License-Identifier: Apache-2.0
"""A comparison as a DataFrame job gives what it gives in one process, whatever is replayed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from compactlib.blobstore import BlobPolicy, Greedy, StatsBased
from compactlib.lab import (
    Arrivals,
    BlobLogModel,
    BranchModel,
    HotCold,
    RaftLogModel,
    SchedulerModel,
    Uniform,
    compare,
)
from compactlib.raftlog import DeadRatio, SeedPolicy
from compactlib.scheduler import ByPriority
from compactlib.spark import SparkExecutor
from compactlib.staging import PressurePolicy


@pytest.mark.spark
def test_a_data_frame_job_gives_the_same_results(spark: SparkSession, tmp_path: Path) -> None:
    workloads = [Uniform(keys=300, writes=900), HotCold(keys=300, writes=900)]
    policies: list[BlobPolicy] = [Greedy(min_used_fraction=0.5), StatsBased(min_used_fraction=0.5)]
    kinds: list[Any] = [
        (policies, workloads, BlobLogModel.of_slots(40, 16)),
        ([SeedPolicy()], workloads, RaftLogModel(snapshot_every=200, trigger=DeadRatio(1.0))),
        ([PressurePolicy(deletes=10)], workloads, BranchModel(base_keys=300)),
        ([ByPriority()], [Arrivals(blocks=50)], SchedulerModel(hang_rate=0.3))]
    for chosen, loads, model in kinds:
        here = compare(chosen, loads, model, seeds=(1, 2))
        there = compare(chosen, loads, model, seeds=(1, 2), executor=SparkExecutor(spark), folder=tmp_path)
        assert there.reports == here.reports
    assert list(tmp_path.iterdir()) == []
