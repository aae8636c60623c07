# SPDX-License-Identifier: Apache-2.0
"""Run by test_spark_connect.py in a process of its own: the executor over Spark Connect. Prints its results as JSON.

    python -m tests.spark.session.connect_job EMPTY_FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.executors import RewriteFailure, RewriteTask
from compactlib.raftlog import LogReader
from compactlib.spark import SparkExecutor, register, ship_library
from compactlib.testing import ExecutorConformance
from tests.harness.recording import RecordingObserver
from tests.harness.spark_session import QUICK_JAVA
from tests.raftlog import wrapped_files
from tests.spark import rewrite_tasks, store_jobs
from tests.spark.rewrite_tasks import AlwaysKilledTask, CopyTask, WaitingTask
from tests.spark.row_jobs import merged_block, merged_on_spark
from tests.spark.store_jobs import build_logs, compact_log, groups_of
from tests.spark.wheels import library_wheel, python_without_library, ship_wheel


def session(folder: Path) -> SparkSession:
    """A Connect client with its own server, on loopback and a free port, for workers without this library."""
    # Read by the server, which is this process's child; with the last one it takes any free port and we learn which.
    os.environ |= {**python_without_library(folder), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_TESTING": "1"}
    options: dict[str, bool | float | int | str | None] = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.extraJavaOptions": QUICK_JAVA,
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": 2,
        "spark.ui.enabled": False,
    }
    return SparkSession.builder.remote("local[2]").config(map=options).getOrCreate()


def found(folder: Path) -> dict[str, Any]:
    """Everything the test asks about."""
    spark = session(folder)
    answers: dict[str, Any] = {"archive": ship_library(spark)}
    for module in (rewrite_tasks, store_jobs, wrapped_files):
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    # local[2] does not retry, so nothing may die in it.
    answers["passed"] = ExecutorConformance.check(folder, make_executor=lambda: SparkExecutor(spark))
    observer = RecordingObserver()
    list(SparkExecutor(spark).run([CopyTask("where", __file__, str(folder))], observer=observer))
    answers["library"] = observer.events[0][1]["library"]
    answers |= told_while_a_task_waits(spark, folder)
    register(spark)
    (log,) = build_logs(folder / "read", 1)
    frame = spark.read.format("compactlib.raftlog").load(log).where("live")
    with LogReader(log) as reader:
        answers["rows equal"] = sorted((row["index"], row["payload"]) for row in frame.collect()) == [
            (entry.index, entry.payload) for entry in reader.entries()]
    answers["metarange"] = merged_on_spark(spark, folder / "objects")
    answers["block"] = merged_block(spark, folder / "blocks")
    answers |= from_wheel(spark.newSession(), folder)
    (killed,) = SparkExecutor(spark).run([AlwaysKilledTask("deadly")])
    assert isinstance(killed, RewriteFailure)
    answers["killed"] = [type(killed.error).__name__, str(killed.error)]
    spark.stop()
    (stopped,) = SparkExecutor(spark).run([AlwaysKilledTask("late")])
    assert isinstance(stopped, RewriteFailure)
    answers["stopped"] = [type(stopped.error).__name__, str(stopped.error)]
    return answers


def told_while_a_task_waits(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """The outcomes of a run whose second job waits for those of the first, and of one that is then cancelled."""
    # On two cores a job has eight tasks.
    first: list[RewriteTask] = [CopyTask(f"first {number}", __file__, str(folder)) for number in range(8)]
    tasks = [*first, WaitingTask("late", str(folder / "go"))]
    budget = Budget()
    cancelled = SparkExecutor(spark).run(tasks, budget=budget)
    known = [next(cancelled) for _ in first]
    budget.cancel()
    ended = [*known, *cancelled]
    streamed = SparkExecutor(spark).run(tasks)
    known = [next(streamed) for _ in first]
    (folder / "go").touch()
    return {"cancelled": list(map(repr, ended)), "streamed": [outcome.task for outcome in [*known, *streamed]]}


def from_wheel(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """A session to which only the library's wheel is shipped: where a rewrite finds it, and a log that it compacts."""
    observer = RecordingObserver()
    name = ship_wheel(spark, library_wheel(folder))
    list(SparkExecutor(spark).run([CopyTask("wheel", __file__, str(folder))], observer=observer))
    (compacted,) = build_logs(folder / "logs", 1)
    outcome = compact_log(compacted, SparkExecutor(spark), Budget())
    return {"library wheel": name, "wheel library": observer.events[0][1]["library"], "compacted": groups_of(outcome)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(found(Path(sys.argv[1]))))
