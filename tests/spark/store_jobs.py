# SPDX-License-Identifier: Apache-2.0
"""Raft logs of very different sizes, and jobs that compact them."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from compactlib.executors import Executor
from compactlib.outcome import Done
from compactlib.raftlog import LogOptions, LogReader, SeedPolicy, SegmentLimits, SegmentLog
from compactlib.raftlog.compaction.plan.plan import plan_for
from compactlib.runtime.budget import Budget
from compactlib.spark.stores.many_stores import StoreJob
from compactlib.spark.stores.store_plans import PlanLog

# Old names are kept however long the run takes: what a log holds is compared file by file.
LIMITS = LogOptions(limits=SegmentLimits(max_entries=10), keep_links_seconds=86_400.0)
PLAN_LOG = PlanLog(limits=LIMITS.limits)


def build_logs(base: Path, count: int) -> list[str]:
    """Logs `log-0`, `log-1`, ...: number n has n % 5 + 2 full segments, of which every third entry is live."""
    base.mkdir()
    folders = []
    for number in range(count):
        folder = base / f"log-{number}"
        with SegmentLog(folder, LIMITS) as log:
            last = 10 * (number % 5 + 2)
            log.extend((index, 1, f"{number}:{index}".encode() * 9) for index in range(1, last + 2))
            log.record_snapshot(last, live=range(1, last + 1, 3))
        folders.append(str(folder))
    return folders


def grow(folder: str) -> None:
    """Enough segments for several groups."""
    with SegmentLog(folder, LIMITS) as log:
        last = log.last_index or 0
        log.extend((index, 1, f"more {index}".encode() * 7) for index in range(last + 1, last + 100))
        log.record_snapshot(last + 98, live=range(1, last + 98, 3))


def copied_logs(base: Path, templates: Sequence[str], count: int) -> list[str]:
    """Copies of these logs in turn, `copy-0`, `copy-1`, ...; far quicker than writing each."""
    base.mkdir()
    folders = [str(base / f"copy-{number}") for number in range(count)]
    for number, folder in enumerate(folders):
        shutil.copytree(templates[number % len(templates)], folder, symlinks=True)
    return folders


def compact_log(folder: str, executor: Executor, budget: Budget) -> Any:
    """A major compaction of one of these logs."""
    with SegmentLog(folder, LIMITS) as log:
        return log.compact(policy=log.policy, executor=executor, budget=budget)


def planned_bytes(folder: str) -> int:
    """How many bytes a major compaction of a log would copy; 0 if there is nothing to do. Runs on a worker."""
    with LogReader(folder) as log:
        # A reader does not know the limits that the log is written with.
        view = attrs.evolve(log.view(), limits=SegmentLimits(max_entries=10))
        return plan_for(view, SeedPolicy()).bytes_to_copy


def job(folder: str, weight: float = 0.0) -> StoreJob:
    """Opens the log, compacts it, closes it."""
    return StoreJob(folder, functools.partial(compact_log, folder), weight)


def contents(folder: str) -> dict[str, Any]:
    """Every file of a log, and where its links lead."""
    return {path.name: path.readlink() if path.is_symlink() else path.read_bytes()
            for path in Path(folder).iterdir() if path.is_file() and path.name != "LOCK"}


def groups_of(outcome: Any) -> int:
    """How many groups of segments a log's compaction has merged."""
    return len(outcome.stats.done) if isinstance(outcome, Done) else 0
