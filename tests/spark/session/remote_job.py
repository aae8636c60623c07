# SPDX-License-Identifier: Apache-2.0
"""Run by test_spark_submit.py: a client of a Spark Connect server whose executors are a cluster's. Prints JSON.

    python -m tests.spark.session.remote_job sc://ADDRESS FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from compactlib.budget import Budget
from compactlib.raftlog import SeedPolicy
from compactlib.spark import SparkExecutor, compact_on_workers, register, ship_library
from tests.raftlog import wrapped_files
from tests.spark import store_jobs
from tests.spark.store_jobs import build_logs, compact_log, groups_of, open_log, work_of


def found(address: str, folder: Path) -> dict[str, Any]:
    """What the test asks about."""
    spark = SparkSession.builder.remote(address).getOrCreate()
    ship_library(spark)
    for module in (store_jobs, wrapped_files):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    register(spark)
    (single,) = build_logs(folder / "single", 1)
    many = build_logs(folder / "many", 6)
    outcome = compact_log(single, SparkExecutor(spark), Budget())
    planned = work_of(many)
    outcomes = compact_on_workers(spark, planned, open_log, policy=SeedPolicy())
    entries = spark.read.format("compactlib.raftlog").load(single)
    answers = {"session": type(spark).__module__, "master": spark.conf.get("spark.master"),
               "groups": groups_of(outcome), "live": entries.where("live").count(), "planned": len(planned),
               "outcomes": [row.outcome for row in outcomes.collect()],
               "again": bool(work_of(many)),
               "streamed": streamed(spark, folder)}
    spark.stop()
    return answers


def streamed(spark: SparkSession, folder: Path) -> list[str]:
    """The logs that a stream has compacted; its function runs in a process of the server's."""
    folders, told = build_logs(folder / "streamed", 3), folder / "told"

    def compact(batch: DataFrame, number: int) -> None:
        work = work_of(folders)
        outcomes = compact_on_workers(batch.sparkSession, work, open_log, policy=SeedPolicy()).collect()
        told.write_text("\n".join(f"{Path(row.store).name} {row.outcome}" for row in outcomes))

    clock = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = clock.writeStream.foreachBatch(compact).trigger(availableNow=True).start()
    assert query.awaitTermination(200)
    return sorted(told.read_text().splitlines())


if __name__ == "__main__":
    sys.stdout.write(json.dumps(found(sys.argv[1], Path(sys.argv[2]))) + "\n")
