# SPDX-License-Identifier: Apache-2.0
"""The same log compacted again gives the same bytes and the same operations, whoever does the copying."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from compactlib.executors import Executor, LocalExecutor, ProcessExecutor
from compactlib.raftlog import LogOptions, SeedPolicy, SegmentLog
from compactlib.testing import record
from tests.raftlog.compaction_logs import (
    Expected,
    chained,
    compact_to_rest,
    counted,
    done,
    filled,
    options,
    overwritten,
    picture,
    resolved,
    vector_45,
)

PAIRS = SeedPolicy(max_sources=2)


def six_groups(folder: Path) -> Expected:
    """Twelve segments that become six."""
    return filled(folder, last=193, snapshot=192, live=range(1, 193, 7), policy=PAIRS)


LOGS: dict[str, Callable[[Path], Expected]] = {
    "three segments": vector_45, "chained links": chained, "overwritten tails": overwritten,
    "six groups": six_groups,
}


def compacted(source: Path, folder: Path, executor: Executor) -> tuple[list[str], dict[str, bytes | str]]:
    """A copy of a log, compacted once: the operations in order, and what is there then."""
    shutil.copytree(source, folder, symlinks=True)
    recording = record(folder, lambda path, files: _compact(path, options(files, policy=PAIRS), executor))
    return [str(operation) for operation in recording.operations], picture(folder)


def _compact(folder: Path, chosen: LogOptions, executor: Executor) -> None:
    with SegmentLog(folder, chosen) as log:
        done(log.compact(policy=log.policy, executor=executor))


@pytest.mark.parametrize("name", LOGS)
def test_ten_times_the_same_operations_and_the_same_bytes(name: str, tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    LOGS[name](tmp_path / "log")
    runs = [compacted(tmp_path / "log", tmp_path / f"run-{number}", LocalExecutor(attempt_id=counted("try")))
            for number in range(10)]
    assert all(run == runs[0] for run in runs[1:])
    assert any("rename" in operation for operation in runs[0][0])
    assert any("rewrite-run-1/0000000000000001.segment.try-1" in operation for operation in runs[0][0])


def test_every_executor_gives_the_same_segments(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    expected = six_groups(tmp_path / "log")
    executors: dict[str, Executor] = {"one": LocalExecutor(), "two threads": LocalExecutor(2),
                                      "two processes": ProcessExecutor(2)}
    pictures: dict[str, dict[str, bytes | str]] = {}
    for name, executor in executors.items():
        folder = tmp_path / name
        shutil.copytree(tmp_path / "log", folder, symlinks=True)
        with SegmentLog(folder, options(policy=PAIRS)) as log:
            report = done(log.compact(policy=log.policy, executor=executor))
            assert sorted(group.members for group in report.done) == [(first, first + 1) for first in range(1, 12, 2)]
            expected.check(log)
            compact_to_rest(log)
            expected.check(log)
        pictures[name] = resolved(folder)
    assert pictures["two threads"] == pictures["one"]
    assert pictures["two processes"] == pictures["one"]
