# SPDX-License-Identifier: Apache-2.0
"""A log compacted on Spark is, byte for byte, the log compacted here."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Generator, Iterable
from pathlib import Path

import attrs
import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st
from pyspark.sql import SparkSession

from compactlib.budget import Budget
from compactlib.executors import Executor, LocalExecutor, RewriteTask
from compactlib.observer import Observer
from compactlib.raftlog import LogOptions, LogReader, SegmentLimits, SegmentLog
from compactlib.raftlog.compaction.report import LogCompactionReport
from compactlib.rewrite import RewriteOutcome
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


def compacted(log: Path, copy: Path, executor: Executor) -> LogCompactionReport:
    shutil.copytree(log, copy)
    with SegmentLog(copy, LogOptions(limits=SegmentLimits(max_entries=10), keep_links_seconds=0)) as writer:
        report = writer.compact(policy=writer.policy, executor=executor)
        assert not report.is_empty, report
        writer.reclaim()
    return report


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_bytes_and_nothing_else(spark: SparkSession, log: Path, tmp_path: Path) -> None:
    ours = compacted(log, tmp_path / "spark", SparkExecutor(spark))
    theirs = compacted(log, tmp_path / "local", LocalExecutor())
    assert len(ours.groups) > 3
    assert contents(tmp_path / "spark") == contents(tmp_path / "local")
    assert sorted(group.members for group in ours.groups) == sorted(group.members for group in theirs.groups)
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


@attrs.frozen
class Layout:
    """A log to build.

    Attributes:
        sizes: the payloads' sizes, entry by entry.
        max_entries: how many entries a segment takes.
        live: which of them are live, by place.
    """

    sizes: tuple[int, ...]
    max_entries: int
    live: frozenset[int]

    def build(self, folder: Path) -> Path:
        """The log, with a snapshot of all but its last entry."""
        with SegmentLog(folder, self.options) as log:
            log.append((number + 1, 1 + number // 7, bytes([number % 251]) * size)
                       for number, size in enumerate(self.sizes))
            if len(self.sizes) > 1:
                log.snapshot(len(self.sizes) - 1, live=sorted(
                    place + 1 for place in self.live if place + 1 < len(self.sizes)))
        return folder

    @property
    def options(self) -> LogOptions:
        return LogOptions(limits=SegmentLimits(max_entries=self.max_entries), keep_links_seconds=0)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    sizes = draw(st.lists(st.integers(0, 120), min_size=1, max_size=60))
    return Layout(tuple(sizes), draw(st.integers(1, 12)), draw(st.frozensets(st.integers(0, len(sizes)))))


HUGE = Layout((300_000,) * 12, 4, frozenset(range(0, 12, 2)))
TINY = Layout((1,) * 21, 10, frozenset({3, 15}))
ALL_DEAD = Layout((50,) * 30, 5, frozenset())
ALL_LIVE = Layout((50,) * 30, 5, frozenset(range(30)))
ONE_ENTRY = Layout((5,), 1, frozenset())
_folders = itertools.count()


@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(logs=st.lists(layouts(), min_size=6, max_size=12), together=st.integers(1, 8))
@example(logs=[HUGE, *[TINY] * 8, ALL_DEAD, ALL_LIVE, ONE_ENTRY], together=5)
def test_any_logs_in_common_jobs_of_shared_tasks_come_out_the_same(
        spark: SparkSession, tmp_path: Path, logs: list[Layout], together: int) -> None:
    """One huge rewrite beside many tiny ones, logs of which all or nothing is dead, and whatever Hypothesis finds."""
    base = tmp_path / str(next(_folders))
    base.mkdir()
    executor = SparkExecutor(spark, tasks_per_partition=together)
    theirs, ours = {}, {}
    for number, layout in enumerate(logs):
        source = layout.build(base / f"log{number}")
        shutil.copytree(source, base / f"local{number}")
        theirs[str(source)] = _compact(str(base / f"local{number}"), layout.options, LocalExecutor())
        ours[str(source)] = _compact(str(source), layout.options, executor)
    assert {name: _numbers(report) for name, report in ours.items()} == {
        name: _numbers(report) for name, report in theirs.items()}
    for number in range(len(logs)):
        assert contents(base / f"log{number}") == contents(base / f"local{number}")


def _compact(folder: str, options: LogOptions, executor: Executor) -> LogCompactionReport:
    with SegmentLog(folder, options) as log:
        report = log.compact(policy=log.policy, executor=executor)
        log.reclaim()
        return report


def _numbers(report: LogCompactionReport) -> object:
    """What a report says, without times and paths."""
    return sorted((group.members, group.entries_after) for group in report.done), report.bytes_freed, report.why
