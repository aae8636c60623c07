# SPDX-License-Identifier: Apache-2.0
"""Raft logs of very different sizes, and jobs that compact them."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compactlib.budget import Budget
from compactlib.executors import Executor
from compactlib.raftlog import (
    LogCompactionReport,
    LogOptions,
    LogPlan,
    LogReader,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.spark import plan_many
from tests.raftlog.wrapped_files import WatchedFiles

# Old names are kept for a run of any length: logs are compared file by file.
LIMITS = LogOptions(limits=SegmentLimits(max_entries=10), keep_links_seconds=86_400.0)


def build_logs(base: Path, count: int) -> list[str]:
    """Logs `log-0`, `log-1`, ...: number n has n % 5 + 2 full segments, of which every third entry is live."""
    base.mkdir()
    folders = []
    for number in range(count):
        folder = base / f"log-{number}"
        with SegmentLog(folder, LIMITS) as log:
            last = 10 * (number % 5 + 2)
            log.append((index, 1, f"{number}:{index}".encode() * 9) for index in range(1, last + 2))
            log.snapshot(last, live=range(1, last + 1, 3))
        folders.append(str(folder))
    return folders


def grow(folder: str) -> None:
    """Enough segments for several groups."""
    with SegmentLog(folder, LIMITS) as log:
        last = max(log.last_index, 0)
        log.append((index, 1, f"more {index}".encode() * 7) for index in range(last + 1, last + 100))
        log.snapshot(last + 98, live=range(1, last + 98, 3))


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


def open_log(folder: str) -> SegmentLog:
    """One of these logs. Runs on a worker."""
    return SegmentLog(folder, LIMITS)


def open_noted(folder: str, notes: str) -> SegmentLog:
    """As `open_log`; leaves a file in the folder `notes` each time. Runs on a worker."""
    Path(notes, os.urandom(8).hex()).touch()
    return open_log(folder)


def open_deadly(folder: str, deadly: str) -> SegmentLog:
    """As `open_log`, but for this log, which no process survives. Runs on a worker."""
    if folder == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    return open_log(folder)


def open_mortal(folder: str, deaths: Mapping[str, int], notes: str) -> SegmentLog:
    """As `open_log`; the first that opens one of `deaths` dies at a given change of the disk. Runs on a worker."""
    numbers = itertools.count()

    def look(operation: str, path: str) -> None:
        if next(numbers) == deaths.get(folder):
            # The creator of the file is the first.
            with contextlib.suppress(FileExistsError):
                os.close(os.open(os.path.join(notes, os.path.basename(folder)), os.O_CREAT | os.O_EXCL))
                os.kill(os.getpid(), signal.SIGKILL)

    return SegmentLog(folder, attrs.evolve(LIMITS, files=WatchedFiles(look)))


def plan_log(folder: str) -> LogPlan:
    """Return the plan of a major compaction of one of these logs."""
    with LogReader(folder) as log:
        return log.plan(SeedPolicy())


def work_of(folders: Iterable[str]) -> list[str]:
    """The logs that have something to compact, or that cannot be planned."""
    return [row["store"] for row in plan_many(folders, plan_log).to_dicts() if row["plan"] != "nothing"]


def contents(folder: str) -> dict[str, Any]:
    """Every file of a log, and where its links lead."""
    return {path.name: path.readlink() if path.is_symlink() else path.read_bytes()
            for path in Path(folder).iterdir() if path.is_file() and path.name != "LOCK"}


def groups_of(report: LogCompactionReport) -> int:
    """How many groups of segments a log's compaction has merged."""
    return len(report.done)
