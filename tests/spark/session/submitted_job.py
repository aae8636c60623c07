# SPDX-License-Identifier: Apache-2.0
"""Run by test_spark_submit.py through spark-submit: a cluster that grows while stores wait, and shrinks. Prints JSON.

    spark-submit ... tests/spark/session/submitted_job.py MARKER LOG...
"""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from functools import partial
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

from compactlib.clock import SystemClock
from compactlib.raftlog import LogOptions, SeedPolicy, SegmentLog
from compactlib.spark import compact_on_workers, ship_library

CLOCK = SystemClock()


def executors(context: SparkContext) -> int:
    """How many there are now, by what Spark says on its page."""
    url = f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}/executors"
    with urllib.request.urlopen(url) as answer:
        return sum(each["id"] != "driver" for each in json.load(answer))


def until(context: SparkContext, wanted: int) -> int:
    """Wait until there are so many executors; gives their number."""
    while (found := executors(context)) != wanted:
        CLOCK.sleep(0.2)
    return found


def open_waiting(folder: str, marker: str) -> SegmentLog:
    """A log, once the driver has seen the cluster grow. Runs on a worker."""
    while not Path(marker).exists():
        SystemClock().sleep(0.05)
    return SegmentLog(folder, LogOptions())


def main(marker: str, folders: list[str]) -> None:
    """Nothing, as many as there are workers, nothing."""
    spark = SparkSession.builder.getOrCreate()
    context = spark.sparkContext
    ship_library(spark)
    seen = [executors(context)]

    def let_go() -> None:
        seen.append(until(context, 2))
        Path(marker).touch()

    thread = threading.Thread(target=let_go)
    thread.start()
    outcomes = compact_on_workers(spark, folders, partial(open_waiting, marker=marker), policy=SeedPolicy())
    thread.join()
    seen.append(until(context, 0))
    # And again, when all workers have gone.
    again = compact_on_workers(spark, folders, partial(open_waiting, marker=marker), policy=SeedPolicy())
    sys.stdout.write(json.dumps({"executors": seen, "outcomes": [row.outcome for row in outcomes.collect()],
                                 "again": [row.outcome for row in again.collect()]}) + "\n")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
