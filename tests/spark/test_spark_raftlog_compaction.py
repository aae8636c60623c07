"""A log compacted on Spark is, byte for byte, the log compacted here."""

from __future__ import annotations

import shutil
from collections.abc import Generator, Iterable
from pathlib import Path

import attrs
import pytest
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.observe import Observer
from compactlib.outcome import Done
from compactlib.raftlog import CompactionReport, LogOptions, LogReader, SegmentLimits, SegmentLog
from compactlib.rewrite import Executor, LocalExecutor, RewriteOutcome, RewriteTask
from compactlib.spark import SparkExecutor
from tests.spark.raftlogs import build_log
from tests.spark.rewrite_tasks import DiesFirstTask

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


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return build_log(tmp_path / "log", entries=130, max_entries=10, snapshot=110)


def compacted(log: Path, copy: Path, executor: Executor) -> CompactionReport:
    shutil.copytree(log, copy)
    with SegmentLog(copy, LogOptions(limits=SegmentLimits(max_entries=10), keep_links_seconds=0)) as writer:
        outcome = writer.compact("major", executor=executor)
        assert isinstance(outcome, Done), outcome
        writer.reclaim()
    return outcome.stats


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_bytes_and_nothing_else(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    ours = compacted(log, tmp_path / "spark", SparkExecutor(spark, max_tasks_per_job=3))
    theirs = compacted(log, tmp_path / "local", LocalExecutor())
    assert len(ours.groups) > 3
    assert contents(tmp_path / "spark") == contents(tmp_path / "local")
    assert [group.members for group in ours.groups] == [group.members for group in theirs.groups]
    with LogReader(log) as before, LogReader(tmp_path / "spark") as after:
        assert list(after.entries()) == list(before.entries())


def test_also_when_the_worker_of_every_first_attempt_is_killed(spark: SparkSession, log: Path,
                                                               tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    report = compacted(log, tmp_path / "spark", DyingExecutor(SparkExecutor(spark), marks))
    compacted(log, tmp_path / "local", LocalExecutor())
    assert len(list(marks.iterdir())) == len(report.groups)
    assert contents(tmp_path / "spark") == contents(tmp_path / "local")
