# SPDX-License-Identifier: Apache-2.0
"""A disk that refuses each single operation of a compaction: once, or from there on until it is healed."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest

from compactlib.errors import Closed, CompactionFailed, CompactlibError, DiskFull, StorageError
from compactlib.files import Files
from compactlib.raftlog import SeedPolicy, SegmentLog
from compactlib.testing import Request
from tests.harness.failing_files import FailingFiles
from tests.raftlog.compaction_logs import (
    Expected,
    compact_to_rest,
    entries_of,
    failed,
    filled,
    options,
    resolved,
    strays,
    vector_45,
)

PAIRS = SeedPolicy(max_sources=2)


class HealingFiles:
    """Passes everything on to `FailingFiles`, until it is healed: then to the disk as it is."""

    def __init__(self, failing: FailingFiles) -> None:
        self.files: Files = failing

    def __getattr__(self, name: str) -> object:
        return getattr(self.files, name)


def pairs(folder: Path) -> Expected:
    """Two groups, and two segments to drop, one of them between the members of a group."""
    return filled(folder, last=97, snapshot=96, live=[1, 2, 4, 40, 49, 51, 70], policy=PAIRS)


def errors_of(log: SegmentLog) -> list[CompactlibError]:
    """Whatever goes wrong in a compaction."""
    try:
        report = log.compact(policy=log.policy)
    except CompactionFailed as error:
        return list(error.failures.values())
    except CompactlibError as error:
        return [error]
    return [] if report.unreclaimed is None else [report.unreclaimed]


def compact_refused(folder: Path, build: Callable[[Path], Expected], fail_at: int, *, sticky: bool, number: int,
                    final: dict[str, bytes | str]) -> bool:
    """Compact while operation `fail_at` is refused; whether it came to that."""
    expected = build(folder)
    with SegmentLog(folder, options(policy=PAIRS)):
        pass
    failing = FailingFiles(fail_at=None)
    healing = HealingFiles(failing)
    files: Files = healing  # type: ignore[assignment] # every method is there, by __getattr__
    with SegmentLog(folder, options(files, policy=PAIRS)) as log:
        healing.files = failing = FailingFiles(fail_at=fail_at, sticky=sticky, errno=number, short_write=True)
        errors = errors_of(log)
        reached = failing.count >= fail_at
        wanted = DiskFull if number == errno.ENOSPC else StorageError
        assert all(isinstance(error, wanted) for error in errors), errors
        # What failed is told, unless it was the removal of something that goes with the next run anyway.
        assert not errors or reached
        healing.files = FailingFiles()
        if _is_open(log):
            expected.check_live(log)
    with SegmentLog(folder, options(policy=PAIRS)) as log:
        compact_to_rest(log)
        assert strays(folder) == []
        expected.check(log)
    with SegmentLog(folder, options(policy=PAIRS)) as log:
        expected.check_live(log)
    # The names of merged segments are a courtesy to others, for a while; a full disk may have taken them.
    assert {name: data for name, data in resolved(folder).items() if not isinstance(data, str)} == {
        name: data for name, data in final.items() if not isinstance(data, str)}
    return reached


def _is_open(log: SegmentLog) -> bool:
    """Whether it has not closed itself in the middle of a commit."""
    try:
        log.status()
    except Closed:
        return False
    return True


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO], ids=["full", "broken"])
@pytest.mark.parametrize("sticky", [False, True], ids=["once", "sticky"])
def test_every_operation_of_a_compaction_refused(sticky: bool, number: int, tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    pairs(tmp_path / "whole")
    with SegmentLog(tmp_path / "whole", options(policy=PAIRS)) as log:
        compact_to_rest(log)
    final = resolved(tmp_path / "whole")
    fail_at, reached = 0, True
    while reached:
        fail_at += 1
        folder = tmp_path / str(fail_at)
        folder.mkdir()
        reached = compact_refused(folder, pairs, fail_at, sticky=sticky, number=number, final=final)
    assert fail_at > 25


@pytest.mark.parametrize("fail_at", range(1, 25))
def test_a_log_reopens_while_the_disk_still_refuses_what_needs_space(fail_at: int, tmp_path: Path) -> None:
    """The compaction runs into a full disk, and the process ends; the next one finds the disk as full as before."""
    expected = vector_45(tmp_path)
    failing = FailingFiles(fail_at=None)
    healing = HealingFiles(failing)
    files: Files = healing  # type: ignore[assignment] # every method is there, by __getattr__
    with SegmentLog(tmp_path, options(files)) as log:
        healing.files = FailingFiles(fail_at=fail_at, sticky=True)
        errors_of(log)
        if _is_open(log):
            expected.check(log)
    with SegmentLog(tmp_path, options(_NoSpaceForNames())) as log:
        assert strays(tmp_path) == []
        expected.check(log)
    with SegmentLog(tmp_path, options()) as log:
        compact_to_rest(log)
        expected.check(log)


class _NoSpaceForNames(FailingFiles):
    """A disk without room for another name or block; what is there can be overwritten."""

    def _refuses(self, request: Request, number: int) -> bool:
        return request.kind in {"create", "link", "symlink", "make folder"}


def test_groups_that_cannot_begin_do_not_hide_what_was_dropped(tmp_path: Path) -> None:
    """Not even a private folder can be made; the segments that were dropped before are dropped all the same."""
    expected = pairs(tmp_path)
    healing = HealingFiles(FailingFiles())
    files: Files = healing  # type: ignore[assignment] # every method is there, by __getattr__
    with SegmentLog(tmp_path, options(files, policy=PAIRS)) as log:
        healing.files = _NoSpaceForNames()
        report, errors = failed(log)
        assert report.dropped == (2, 6)
        assert report.dropped_bytes > 0
        assert [each.members for each in report.failed] == [(1, 3), (4, 5)]
        assert set(map(type, errors)) == {DiskFull}
        expected.check(log)


def test_a_full_disk_does_not_keep_a_compaction_from_freeing_what_is_dead(tmp_path: Path) -> None:
    """A group finds no room; segments are dropped all the same, which makes some."""
    filled(tmp_path, last=97, snapshot=96, live=[1, 20, 90])
    healing = HealingFiles(FailingFiles())
    files: Files = healing  # type: ignore[assignment] # every method is there, by __getattr__
    with SegmentLog(tmp_path, options(files, policy=PAIRS)) as log:
        healing.files = _NoSpaceForNames()
        for _ in range(2):
            assert all(isinstance(error, DiskFull) for error in errors_of(log))
        assert [ref.number for ref in log.refs] == [1, 2, 6, 7]
        Expected.of(entries_of(1, 97), 96, [1, 20, 90]).check(log)
