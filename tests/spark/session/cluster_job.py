# SPDX-License-Identifier: Apache-2.0
"""Run by test_spark_cluster.py in a process of its own: jobs on a standalone cluster. Prints outcomes as JSON.

Its workers have PySpark and its packages and nothing of this library but the shipped files: its sources for a
first session, its wheel for a second one, in which slow tasks are run twice. At the end it kills itself, while stores
are being compacted.

    python -m tests.spark.session.cluster_job MASTER_ADDRESS FOLDER
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import attrs
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.cli import main as console
from compactlib.clock import SystemClock
from compactlib.executors import RewriteResult, RewriteTask
from compactlib.observer import Observer
from compactlib.raftlog import SegmentLog
from compactlib.rewrite import RewriteOutcome
from compactlib.spark import SparkExecutor, ship_library
from tests.harness.recording import RecordingObserver
from tests.harness.spark_session import QUICK_JAVA, spark_session
from tests.spark import rewrite_tasks
from tests.spark.rewrite_tasks import CopyTask, ExecutorKilledOnceTask, KilledOnceTask, MeetingTask, StragglingFiles
from tests.spark.row_jobs import merged_block, merged_on_spark
from tests.spark.store_jobs import LIMITS, build_logs, compact_log, grow
from tests.spark.wheels import library_wheel, python_without_library, ship_wheel

SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.minTaskRuntime": "500ms",
    "spark.speculation.quantile": "0.5",
    # How long a superseded task may run.
    "spark.python.task.killTimeout": "60s",
}


def session(master: str, folder: Path, bare: dict[str, str], options: dict[str, str]) -> SparkSession:
    """A session on the cluster, whose workers run the given Python."""
    spark = spark_session("compactlib", java_options=QUICK_JAVA, options={
        "spark.master": master,
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": QUICK_JAVA,
        # Both workers have to be there before the first task is given out.
        "spark.cores.max": "2",
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "280s",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **{f"spark.executorEnv.{name}": value for name, value in bare.items()},
        **options,
    })
    spark.sparkContext.pythonExec = bare["PYSPARK_PYTHON"]
    return spark


def found(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """The cases of shipped sources, killed workers and lost executors."""
    archive = ship_library(spark)
    source, private = folder / "source", folder / "private"
    source.write_bytes(b"payload " * 1000)
    private.mkdir()
    tasks: list[RewriteTask] = [
        KilledOnceTask("killed", str(source), str(private), str(folder / "marker")),
        *(MeetingTask(f"copy-{number}", str(source), str(private), str(folder / "meeting")) for number in range(2)),
        *(CopyTask(f"copy-{number}", str(source), str(private)) for number in range(2, 5)),
    ]
    budget, observer = Budget(), RecordingObserver()
    # One job, so that both workers get a part of it.
    outcomes = list(SparkExecutor(spark).run(tasks, budget=budget, observer=observer))
    tasks = [ExecutorKilledOnceTask("lost", str(source), str(private), str(folder / "executor-marker")),
             *(CopyTask(f"beside-{number}", str(source), str(private)) for number in range(2))]
    lost = list(SparkExecutor(spark).run(tasks))
    results = {outcome.task: outcome.files[0].path for outcome in outcomes if isinstance(outcome, RewriteResult)}
    return {"archive": archive, "results": results, "outcomes": [repr(outcome) for outcome in outcomes],
            "copied": [fields for name, fields in observer.events if name == "copied"],
            "lost": {outcome.task: outcome.files[0].path for outcome in lost if isinstance(outcome, RewriteResult)},
            "spent": budget.spent_bytes, "private": sorted(path.name for path in private.iterdir()),
            "demo": console(["demo", "--executor", "both", "--input", str(Path(__file__).parents[1])]),
            "metarange": merged_on_spark(spark, folder / "objects"), "block": merged_block(spark, folder / "blocks")}


@attrs.define
class OneStraggles:
    """The first task's first attempt is very slow; notes whose file was used."""

    spark: SparkSession
    marker: str
    used: str = ""

    def run(self, tasks: Iterable[Any], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        first, *others = tasks
        given = [attrs.evolve(first, files=StragglingFiles(self.marker)), *others]
        for outcome in SparkExecutor(self.spark).run(given, budget=budget, observer=observer):
            assert isinstance(outcome, RewriteResult), outcome
            if outcome.task == first.name:
                self.used = outcome.files[0].path
            yield outcome


def straggled(spark: SparkSession, folder: Path) -> dict[str, Any]:
    """A log is compacted from the library's own wheel; its first task is so slow that Spark runs a copy of it."""
    shipped = ship_wheel(spark, library_wheel(folder))
    observer = RecordingObserver()
    list(SparkExecutor(spark).run([CopyTask("where", __file__, str(folder))], observer=observer))
    (log_folder,) = build_logs(folder / "slow", 1)
    grow(log_folder)
    straggling = OneStraggles(spark, str(folder / "straggler"))
    with SegmentLog(log_folder, LIMITS) as log:
        report = log.compact(policy=log.policy, executor=straggling)
        assert not report.is_empty, report
    Path(f"{straggling.marker}.published").touch()
    clock = SystemClock()
    for _ in range(500):
        if os.path.exists(f"{straggling.marker}.woke"):
            break
        clock.sleep(0.02)
    return {"wheel": shipped, "wheel library": observer.events[0][1]["library"], "groups": len(report.done),
            "straggler": Path(straggling.marker).read_text(), "used": straggling.used,
            "woke": os.path.exists(f"{straggling.marker}.woke")}


def die_between_commits(spark: SparkSession, folders: list[str]) -> None:
    """Compact logs on the cluster, and be killed when some are committed and files of others are written."""

    @attrs.define
    class Killed:
        outcomes: int = 0

        def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
                observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
            for outcome in SparkExecutor(spark).run(tasks, budget=budget, observer=observer):
                assert isinstance(outcome, RewriteResult), outcome
                self.outcomes += 1
                if self.outcomes == 3:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield outcome

    killed = Killed()
    for folder in folders:
        compact_log(folder, killed, Budget())


def main(master: str, folder: Path) -> None:
    """Both sessions, the answers, and the end."""
    cloudpickle.register_pickle_by_value(rewrite_tasks)  # type: ignore[no-untyped-call]
    bare = python_without_library(folder)
    spark = session(master, folder, bare, {})
    answers = found(spark, folder)
    spark.stop()
    spark = session(master, folder, bare, SPECULATION)
    answers |= straggled(spark, folder)
    sys.stdout.write(json.dumps(answers) + "\n")
    sys.stdout.flush()
    die_between_commits(spark, build_logs(folder / "logs", 4))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
