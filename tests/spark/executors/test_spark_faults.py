# SPDX-License-Identifier: Apache-2.0
"""What may go wrong around a compaction on Spark: nothing is lost, nothing visible twice, and the next run cleans up.

Killed workers are in `test_spark_raftlog_compaction.py`; lost executors, killed drivers and copies of slow tasks in
`test_spark_cluster.py`.
"""

from __future__ import annotations

import errno
import subprocess
import sys
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import attrs
import pytest
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.errors import CompactionFailed, DiskFull
from compactlib.executors import Executor, RewriteResult, RewriteTask
from compactlib.fences import FencedOff, FileFence, TokenFence
from compactlib.observer import Observer
from compactlib.raftlog import LogReader, SegmentLog
from compactlib.rewrite import RewriteOutcome
from compactlib.spark import SparkExecutor
from tests.spark.rewrite_tasks import FullDisk, WeightedTask
from tests.spark.store_jobs import LIMITS, build_logs, compact_log, contents, grow

pytestmark = [pytest.mark.spark, pytest.mark.cluster]

SECOND_DRIVER = """
import sys
from compactlib.fences import FileFence
FileFence(sys.argv[1]).admit(sys.argv[2], int(sys.argv[3]))
"""


def start_second_driver(fence: Path, resource: str, token: int) -> None:
    """Another process that was given the job: the first thing it does is to show its token."""
    subprocess.run([sys.executable, "-c", SECOND_DRIVER, str(fence), resource, str(token)], check=True, timeout=60)


def live(folder: str) -> list[Any]:
    with LogReader(folder) as log:
        return list(log.entries())


@attrs.frozen
class Interrupted:
    """Passes on outcomes; before the one of this number, something happens."""

    executor: Executor
    number: int
    happens: Any

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
        for number, outcome in enumerate(self.executor.run(tasks, budget=budget, observer=observer)):
            if number == self.number:
                self.happens()
            yield outcome


class TestFencing:
    def test_a_driver_that_lost_its_lease_cannot_commit(self, spark: SparkSession, tmp_path: Path) -> None:
        """Its rewrite is done when the second driver shows a higher token: the rest of its groups stay as they are."""
        (folder,) = build_logs(tmp_path / "logs", 1)
        (twin,) = build_logs(tmp_path / "twin", 1)
        # More groups than one: the first of them is committed before the lease is lost.
        for each in (folder, twin):
            grow(each)
        before = live(folder)
        fence = FileFence(tmp_path / "fence")
        rewritten = Interrupted(SparkExecutor(spark), 1, lambda: start_second_driver(tmp_path / "fence", "log", 8))
        with SegmentLog(folder, LIMITS) as log, pytest.raises(CompactionFailed) as refused:
            log.compact(policy=log.policy, executor=rewritten, fence=TokenFence(fence, "log", 7))
        report = refused.value.report
        others = report.failed
        assert len(report.done) == 1
        assert others
        assert all(isinstance(group.error, FencedOff) for group in others)
        assert live(folder) == before
        assert [path.name for path in Path(folder).iterdir() if path.is_dir()] == []
        # The second driver continues where the first had to stop.
        with SegmentLog(folder, LIMITS) as log:
            again = log.compact(policy=log.policy, executor=SparkExecutor(spark), fence=TokenFence(fence, "log", 8))
        assert not again.is_empty
        assert live(folder) == before
        compact_log(twin, SparkExecutor(spark), Budget())
        assert contents(folder) == contents(twin)


class TestTwoAttempts:
    def test_of_one_task_at_once(self, spark: SparkSession, tmp_path: Path) -> None:
        """As with speculation: each task runs twice at the same time, both end well, and one of them counts."""
        (folder,), (twin,) = build_logs(tmp_path / "logs", 1), build_logs(tmp_path / "twin", 1)

        class Twice:
            def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
                    observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
                doubled = [WeightedTask(f"{mark}:{task.name}", task) for task in tasks for mark in "ab"]
                outcomes = list(SparkExecutor(spark).run(doubled, budget=budget, observer=observer))
                paths = {outcome.files[0].path for outcome in outcomes if isinstance(outcome, RewriteResult)}
                assert len(paths) == len(doubled)
                assert all(Path(path).exists() for path in paths)
                yield from (attrs.evolve(outcome, task=outcome.task[2:]) for outcome in outcomes
                            if outcome.task.startswith("b:"))

        with SegmentLog(folder, LIMITS) as log:
            assert not log.compact(policy=log.policy, executor=Twice()).is_empty
        compact_log(twin, SparkExecutor(spark), Budget())
        assert contents(folder) == contents(twin)
        assert [path.name for path in Path(folder).iterdir() if path.is_dir()] == []


class TestFullDisk:
    def test_on_one_executor(self, spark: SparkSession, tmp_path: Path) -> None:
        """Its group stays as it was, the others are committed, and the next run finishes."""
        (folder,) = build_logs(tmp_path / "logs", 1)
        grow(folder)
        before = live(folder)

        class OneIsFull:
            def run(self, tasks: Iterable[Any], *, budget: Budget | None = None,
                    observer: Observer | None = None) -> Generator[RewriteOutcome, None, None]:
                first, *others = tasks
                given = [attrs.evolve(first, files=FullDisk()), *others]
                yield from SparkExecutor(spark).run(given, budget=budget, observer=observer)

        with SegmentLog(folder, LIMITS) as log:
            with pytest.raises(CompactionFailed) as full:
                log.compact(policy=log.policy, executor=OneIsFull())
            (failed,) = full.value.report.failed
            assert isinstance(failed.error, DiskFull)
            assert failed.error.errno == errno.ENOSPC
            assert len(full.value.report.done) >= 1
            assert [path.name for path in Path(folder).iterdir() if path.is_dir()] == []
            assert list(log.entries()) == before
            again = log.compact(policy=log.policy, executor=SparkExecutor(spark))
            assert failed.members in [group.members for group in again.done]
        assert live(folder) == before
