# SPDX-License-Identifier: Apache-2.0
"""A disk that does not let a log look at its files for a moment: told by name, and nothing is lost or forgotten."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compactlib.errors import CompactlibError
from compactlib.outcome import Failed, Outcome
from compactlib.raftlog import LogOptions, SeedPolicy, SegmentLog
from compactlib.raftlog.model.names import segment_number
from tests.raftlog.compaction_logs import SMALL, entries_of, entry_of

LIVE = [1, 2, 40, 50, 51, 70]
OPTIONS = LogOptions(limits=SMALL, keep_links_seconds=0.0)


class Unseen:
    """The look of a number at a name in the log's folder is refused, all the others are not."""

    def __init__(self, folder: Path, refused: int) -> None:
        self.looks = 0
        self._folder = str(folder)
        self._refused = refused
        self._lstat = os.lstat

    def lstat(self, path: Any, **more: Any) -> os.stat_result:
        """As `os.lstat`."""
        if isinstance(path, str) and path.startswith(self._folder):
            self.looks += 1
            if self.looks == self._refused:
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return self._lstat(path, **more)

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """In the body."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "lstat", self.lstat)
            yield


def compacted(folder: Path, refused: int) -> int:
    """How many looks a compaction took, the one of this number refused; the log is whole whatever became of that."""
    with SegmentLog(folder, OPTIONS) as log:
        log.extend(entries_of(1, 81))
        log.record_snapshot(80, LIVE)
        unseen = Unseen(folder, refused)
        outcome: Outcome[object] | None = None
        with unseen.in_force():
            outcome = log.compact(policy=SeedPolicy())
        if isinstance(outcome, Failed):
            assert isinstance(outcome.error, CompactlibError)
        log.audit()
        assert [log.read(index) for index in LIVE] == [entry_of(index) for index in LIVE]
        again = log.compact(policy=SeedPolicy())
        assert not isinstance(again, Failed), again
        log.reclaim()
        files = {segment_number(name) for name in os.listdir(folder)} - {None}
        assert files == {ref.number for ref in log.refs}, "what was not seen once is forgotten"
    with SegmentLog(folder, OPTIONS) as log:
        assert not log.recovery
        assert [log.read(index) for index in LIVE] == [entry_of(index) for index in LIVE]
    return unseen.looks


def test_a_look_that_the_disk_refuses_is_told_by_name_and_made_again(tmp_path: Path) -> None:
    looks = compacted(tmp_path / "0", 0)
    assert looks > 20
    for number in range(1, looks + 1):
        compacted(tmp_path / str(number), number)
