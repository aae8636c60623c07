# SPDX-License-Identifier: Apache-2.0
"""A log compacted on Spark is, byte for byte, the log compacted here."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from pathlib import Path

import attrs
import pytest
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.executors import Executor, LocalExecutor, RewriteTask
from compactlib.observer import Observer
from compactlib.rewrite import RewriteOutcome
from compactlib.spark import SparkExecutor
from tests.spark.rewrite_tasks import DiesFirstTask
from tests.spark.store_jobs import build_logs, compact_log, contents, grow

pytestmark = pytest.mark.spark


@attrs.frozen
class DyingExecutor:
    """Kills the worker of each task's first attempt, which has then written its whole file."""

    executor: Executor
    marks: Path

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        dying = [DiesFirstTask(task.name, task, str(self.marks / task.name)) for task in tasks]
        yield from self.executor.run(dying, budget=budget, observer=observer)


@pytest.mark.parametrize("dying", [False, True])
def test_the_same_bytes_and_nothing_else(spark: SparkSession, tmp_path: Path, dying: bool) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    [ours], [theirs] = build_logs(tmp_path / "ours", 1), build_logs(tmp_path / "theirs", 1)
    for folder in (ours, theirs):
        grow(folder)
    executor = DyingExecutor(SparkExecutor(spark), marks) if dying else SparkExecutor(spark)
    report = compact_log(ours, executor, Budget())
    compact_log(theirs, LocalExecutor(), Budget())
    assert len(report.done) > 1
    assert len(list(marks.iterdir())) == len(report.done) * dying
    assert contents(ours) == contents(theirs)
    assert [path.name for path in Path(ours).iterdir() if path.is_dir()] == []
