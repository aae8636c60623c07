"""A comparison of policies as a DataFrame job gives what it gives in one process."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from compactlib.blobstore import Greedy, StatsBased
from compactlib.lab import BlobSettings, HotCold, Uniform, compare, run_experiments
from compactlib.spark import SparkExecutor


def test_a_data_frame_job_gives_the_same_results(spark: SparkSession, tmp_path: Path) -> None:
    experiments = compare([Greedy(min_used_fraction=0.5), StatsBased(min_used_fraction=0.5)],
                          [Uniform(keys=300, writes=900), HotCold(keys=300, writes=900)],
                          BlobSettings.of_slots(40, 16), seeds=(1, 2))
    here = run_experiments(experiments, tmp_path)
    there = run_experiments(experiments, tmp_path, executor=SparkExecutor(spark))
    assert there.reports == here.reports
    assert list(tmp_path.iterdir()) == []
