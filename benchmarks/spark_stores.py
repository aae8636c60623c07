# SPDX-License-Identifier: Apache-2.0
"""Thousands of small Raft logs, planned and compacted on Spark and in this process.

    python benchmarks/spark_stores.py [--quick] [--stores N] [--runs N] [--json FILE] [--folder FOLDER]

Some ten minutes for 2,000 stores, two for `--quick`. Each figure measures ours and the reference in turn in one run, on
`local[2,4]`: one machine, on which Spark cannot be faster. What it shows is what the run costs besides the rewrites,
and what finding out what is left costs. Needs Java.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from measure import Figure, alternate, report

from compactlib.executors import Executor, LocalExecutor
from compactlib.outcome import Done, Skipped
from compactlib.raftlog import LogOptions, SegmentLimits, SegmentLog
from compactlib.runtime.budget import Budget
from compactlib.spark import SparkExecutor, StoreJob, compact_stores, local_session, plan_stores
from compactlib.spark.stores.store_plans import PlanLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = LogOptions(limits=SegmentLimits(max_entries=64))
PLAN = PlanLog(limits=OPTIONS.limits)
SHAPES = 50
"""Different logs; one in fifty is some twenty times as large as the others."""


def build_templates(base: Path) -> list[Path]:
    """Logs of 2 to 6 segments of which every third entry is live, and a large one."""
    templates = []
    for number in range(SHAPES):
        folder = base / f"template-{number}"
        segments = 80 if number == 0 else number % 5 + 2
        with SegmentLog(folder, OPTIONS) as log:
            last = 64 * segments
            log.extend((index, 1, b"%d:%d " % (number, index) * 20) for index in range(1, last + 2))
            log.record_snapshot(last, live=range(1, last + 1, 3))
        templates.append(folder)
    return templates


class Stores:
    """The logs of one run, made anew before each measurement."""

    def __init__(self, base: Path, count: int) -> None:
        self._base = base
        self._templates = build_templates(base)
        self.count = count
        self.folders: list[str] = []

    def fresh(self) -> list[str]:
        """Logs that were never compacted."""
        shutil.rmtree(self._base / "logs", ignore_errors=True)
        self.folders = [str(self._base / "logs" / str(number)) for number in range(self.count)]
        for number, folder in enumerate(self.folders):
            shutil.copytree(self._templates[number % SHAPES], folder, symlinks=True)
        os.sync()
        return self.folders


def compact_log(folder: str, executor: Executor, budget: Budget) -> Any:
    """One log's compaction."""
    with SegmentLog(folder, OPTIONS) as log:
        return log.compact(policy=log.policy, executor=executor, budget=budget)


def every_job(folders: Sequence[str]) -> list[StoreJob]:
    """A job for every log, planned or not."""
    return [StoreJob(folder, partial(compact_log, folder)) for folder in folders]


class Watch:
    """The most open files and threads that were seen."""

    def __init__(self) -> None:
        self.files = self.threads = 0

    def look(self) -> None:
        """Look now."""
        self.files = max(self.files, len(os.listdir("/proc/self/fd")))
        self.threads = max(self.threads, threading.active_count())

    def __str__(self) -> str:
        mebibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        return f"{self.files} open files, {self.threads} threads and {mebibytes:.0f} MiB at most in this process"


def compact_rate(stores: Stores, executor: Executor, watch: Watch | None = None) -> float:
    """Stores a second."""
    folders = stores.fresh()
    began = time.perf_counter()
    for number, each in enumerate(compact_stores(every_job(folders), executor)):
        assert isinstance(each.outcome, Done), each
        if watch is not None and number % 50 == 0:
            watch.look()
    return len(folders) / (time.perf_counter() - began)


def plan_rate(call: Callable[[], object], stores: Stores) -> float:
    """Stores a second."""
    began = time.perf_counter()
    call()
    return stores.count / (time.perf_counter() - began)


def figures(spark: SparkSession, stores: Stores, runs: int) -> Iterator[Figure]:
    """Compacting, planning, and finding out that nothing is left."""
    watch = Watch()
    on_spark = partial(compact_rate, stores, SparkExecutor(spark, jobs_at_once=1, tasks_per_partition=None), watch)
    alone = partial(compact_rate, stores, SparkExecutor(spark, jobs_at_once=1))
    for name, reference, told, goal in (
            ("local", partial(compact_rate, stores, LocalExecutor(2)), "LocalExecutor(workers=2)", ""),
            ("packed", alone, "a Spark task for each rewrite", ">= 1")):
        values, references = alternate(runs, on_spark, reference)
        yield Figure(figure=f"stores.compact_{name}", unit="stores/s", values=tuple(values), reference=told,
                     reference_values=tuple(references), goal=goal)
    print(watch)

    def on_workers() -> object:
        return plan_stores(spark, stores.folders, PLAN)

    stores.fresh()
    values, references = alternate(runs, lambda: plan_rate(on_workers, stores),
                                   lambda: plan_rate(lambda: [PLAN(folder) for folder in stores.folders], stores))
    yield Figure(figure="stores.plan", unit="stores/s", values=tuple(values), reference="a loop in this process",
                 reference_values=tuple(references), goal="")
    list(compact_stores(every_job(stores.folders), LocalExecutor(2)))

    def opened() -> object:
        outcomes = list(compact_stores(every_job(stores.folders), LocalExecutor(2)))
        assert all(isinstance(each.outcome, Skipped) for each in outcomes)
        return outcomes

    values, references = alternate(runs, lambda: plan_rate(on_workers, stores), lambda: plan_rate(opened, stores))
    yield Figure(figure="stores.restart", unit="stores/s", values=tuple(values),
                 reference="opening each, 64 at a time", reference_values=tuple(references), goal="")


def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="200 stores, one run")
    parser.add_argument("--stores", type=int, default=2000)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--json")
    parser.add_argument("--folder", help="where to make the stores; default a temporary one")
    given = parser.parse_args()
    count, runs = (200, 1) if given.quick else (given.stores, given.runs)
    base = Path(tempfile.mkdtemp(prefix="compactlib-stores-", dir=given.folder))
    try:
        spark = local_session("benchmark", cores=2)
        report(list(figures(spark, Stores(base, count), runs)), given.json)
        spark.stop()
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
