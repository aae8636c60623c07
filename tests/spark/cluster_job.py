"""Run by test_spark_cluster.py in a process of its own: jobs on a standalone cluster. Prints outcomes as JSON.

At the end it kills itself, between a rewrite and its commit.

    python -m tests.spark.cluster_job MASTER_ADDRESS FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from compactlib.budget import Budget
from compactlib.observe import Observer, RecordingObserver
from compactlib.raftlog import SegmentLog
from compactlib.rewrite import RewriteOutcome, RewriteResult, RewriteTask
from compactlib.spark import SparkExecutor, local_session, map_items, ship_library, ship_wheel
from tests.spark import rewrite_tasks
from tests.spark.jvm import QUICK_JAVA
from tests.spark.rewrite_tasks import CopyTask, ExecutorKilledOnceTask, KilledOnceTask
from tests.spark.store_jobs import LIMITS, build_logs
from tests.spark.wheels import wheel


def found(master: str, folder: Path) -> dict[str, Any]:
    """Everything the test asks about."""
    spark = local_session(java_options=QUICK_JAVA, options={
        "spark.master": master,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        # Both workers have to be there before the first task is given out.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    })
    archive = ship_library(spark)
    cloudpickle.register_pickle_by_value(rewrite_tasks)  # type: ignore[no-untyped-call]
    source, private = folder / "source", folder / "private"
    source.write_bytes(b"payload " * 1000)
    private.mkdir()
    tasks: list[RewriteTask] = [
        KilledOnceTask("killed", str(source), str(private), str(folder / "marker")),
        *(CopyTask(f"copy-{number}", str(source), str(private)) for number in range(5)),
    ]
    budget, observer = Budget(), RecordingObserver()
    # One job, so that both workers get a part of it.
    outcomes = list(SparkExecutor(spark, jobs_at_once=1).run(tasks, budget=budget, observer=observer))
    tasks = [ExecutorKilledOnceTask("lost", str(source), str(private), str(folder / "executor-marker")),
             *(CopyTask(f"beside-{number}", str(source), str(private)) for number in range(2))]
    lost = list(SparkExecutor(spark, jobs_at_once=1).run(tasks))
    greeting = ship_wheel(spark, wheel(folder))
    (greeted,) = map_items(spark, ["cluster"], import_greeting)
    results = {outcome.task: outcome.files[0].path for outcome in outcomes if isinstance(outcome, RewriteResult)}
    return {"archive": archive, "results": results, "outcomes": [repr(outcome) for outcome in outcomes],
            "copied": [fields for name, fields in observer.events if name == "copied"],
            "lost": {outcome.task: outcome.files[0].path for outcome in lost if isinstance(outcome, RewriteResult)},
            "greeting": [greeting, *(greeted.value or [repr(greeted.error)])],
            "spent": budget.spent_bytes, "private": sorted(path.name for path in private.iterdir())}


def import_greeting(who: str) -> list[str]:
    """Runs on a worker, where the shipped wheel is."""
    import greeting  # type: ignore[import-not-found]

    return [greeting.greet(who), greeting.__file__]


def die_before_the_commit(folder: str) -> None:
    """Compact a log on the cluster, and be killed when the first file is written and nothing is committed."""
    spark = local_session()

    class Killed:
        def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
                observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
            for outcome in SparkExecutor(spark).run(tasks, budget=budget, observer=observer):
                assert isinstance(outcome, RewriteResult), outcome
                os.kill(os.getpid(), signal.SIGKILL)
                yield outcome

    with SegmentLog(folder, LIMITS) as log:
        log.compact("major", executor=Killed())


if __name__ == "__main__":
    given = Path(sys.argv[2])
    sys.stdout.write(json.dumps(found(sys.argv[1], given)) + "\n")
    sys.stdout.flush()
    die_before_the_commit(*build_logs(given / "logs", 1))
