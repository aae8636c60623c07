# SPDX-License-Identifier: Apache-2.0
"""A compaction leaves no file of an attempt whose result was not used, as of a speculative copy of a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from compactlib.budget import Budget
from compactlib.executors import LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.observer import Observer
from compactlib.raftlog import LogOptions, SegmentLimits, SegmentLog


class Twice:
    """Runs every task twice; the second attempts count."""

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteResult | RewriteFailure]:
        listed = list(tasks)
        list(LocalExecutor().run(listed, budget=budget, observer=observer))
        yield from LocalExecutor().run(listed, budget=budget, observer=observer)


def test_files_of_unused_attempts_are_removed(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, LogOptions(limits=SegmentLimits(max_entries=10))) as log:
        log.append([(index, 1, b"entry %d" % index) for index in range(1, 101)])
        log.snapshot(95, live=range(1, 96, 7))
        assert log.compact(policy=log.policy, executor=Twice()).done
        assert [path.name for path in tmp_path.iterdir() if "rewrite" in path.name] == []
