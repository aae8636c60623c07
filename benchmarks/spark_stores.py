# SPDX-License-Identifier: Apache-2.0
"""Thousands of small Raft logs, planned and compacted on Spark and in this process.

    python benchmarks/spark_stores.py [--quick] [--stores N] [--runs N] [--json FILE] [--folder FOLDER]

Some ten minutes for 2,000 stores, two for `--quick`. Each figure measures ours and the reference in turn in one run, on
`local[2,4]`: one machine, on which Spark cannot be faster. Commits are fenced, here and there, by tokens in files. It
shows the cost of a run without its compactions, and the cost of finding the stores that are left. Needs Java.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from local_spark import spark_session
from measure import Figure, alternate, report

from compactlib.raftlog import (
    LogCompactionReport,
    LogOptions,
    LogPlan,
    LogReader,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.spark import compact_on_workers, plan_many

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OPTIONS = LogOptions(limits=SegmentLimits(max_entries=64))
POLICY = SeedPolicy()
HERE_AT_ONCE = 64
"""Stores that are open in this process at the same time, which mostly wait for the disk."""
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
            log.append((index, 1, b"%d:%d " % (number, index) * 20) for index in range(1, last + 2))
            log.snapshot(last, live=range(1, last + 1, 3))
        templates.append(folder)
    return templates


class Stores:
    """The logs of one run, created before each measurement."""

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


def open_log(folder: str) -> SegmentLog:
    """One log. Runs on a worker."""
    return SegmentLog(folder, OPTIONS, create=False)


def compact_here(folder: str) -> LogCompactionReport:
    """Compact one log in this process."""
    with open_log(folder) as log:
        return log.compact(policy=POLICY)


def plan_log(folder: str) -> LogPlan:
    """What there is to do in one log."""
    with LogReader(folder) as log:
        return log.plan(POLICY)


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


def rate_here(stores: Stores, watch: Watch) -> float:
    """Stores a second."""
    folders = stores.fresh()
    began = time.perf_counter()
    with ThreadPoolExecutor(HERE_AT_ONCE) as pool:
        for number, report in enumerate(pool.map(compact_here, folders)):
            assert not report.is_empty
            if number % 50 == 0:
                watch.look()
    return len(folders) / (time.perf_counter() - began)


def rate_on_workers(stores: Stores, spark: SparkSession) -> float:
    """Stores a second, from the call to the table."""
    folders = stores.fresh()
    began = time.perf_counter()
    outcomes = compact_on_workers(spark, folders, open_log, policy=POLICY)
    rate = len(folders) / (time.perf_counter() - began)
    assert {row.outcome for row in outcomes.collect()} == {"done"}
    return rate


def plan_rate(call: Callable[[], object], stores: Stores) -> float:
    """Stores a second."""
    began = time.perf_counter()
    call()
    return stores.count / (time.perf_counter() - began)


def figures(spark: SparkSession, stores: Stores, runs: int) -> Iterator[Figure]:
    """Compacting, planning, and finding out that nothing is left."""
    watch = Watch()
    on_workers_rate, here = partial(rate_on_workers, stores, spark), partial(rate_here, stores, watch)
    # Workers that are started and modules that are loaded belong to the session.
    on_workers_rate()
    values, references = alternate(runs, on_workers_rate, here)
    yield Figure(figure="stores.compact_local", unit="stores/s", values=tuple(values),
                 reference="64 threads here", reference_values=tuple(references), goal=">= 0.8")
    print(watch)

    stores.fresh()
    values, references = alternate(runs, lambda: plan_rate(lambda: plan_many(stores.folders, plan_log), stores),
                                   lambda: plan_rate(lambda: list(map(plan_log, stores.folders)), stores))
    yield Figure(figure="stores.plan", unit="stores/s", values=tuple(values), reference="a loop in this process",
                 reference_values=tuple(references), goal="")


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
        spark = spark_session("benchmark", cores=2)
        report(list(figures(spark, Stores(base, count), runs)), given.json)
        spark.stop()
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
