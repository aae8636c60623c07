"""Run by test_spark_cluster.py in a process of its own: one job on a standalone cluster. Prints outcomes as JSON.

    python -m tests.spark.cluster_job MASTER_ADDRESS FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from compactlib.budget import Budget
from compactlib.observe import RecordingObserver
from compactlib.rewrite import RewriteResult, RewriteTask
from compactlib.spark import SparkExecutor, local_session, ship_library
from tests.spark import rewrite_tasks
from tests.spark.jvm import QUICK_JAVA
from tests.spark.rewrite_tasks import CopyTask, KilledOnceTask


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
    outcomes = list(SparkExecutor(spark).run(tasks, budget=budget, observer=observer))
    spark.stop()
    results = {outcome.task: outcome.files[0].path for outcome in outcomes if isinstance(outcome, RewriteResult)}
    return {"archive": archive, "results": results, "outcomes": [repr(outcome) for outcome in outcomes],
            "copied": [fields for name, fields in observer.events if name == "copied"],
            "spent": budget.spent_bytes, "private": sorted(path.name for path in private.iterdir())}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(found(sys.argv[1], Path(sys.argv[2]))))
