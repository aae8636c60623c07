# SPDX-License-Identifier: Apache-2.0
"""A disk that does not let a log look at its files for a moment: told by name, and nothing is lost or forgotten."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from compactlib.errors import CompactlibError
from compactlib.raftlog import LogOptions, SeedPolicy, SegmentLog
from compactlib.raftlog.model.names import segment_number
from tests.harness.unseen import Unseen
from tests.raftlog.compaction_logs import SMALL, entries_of, entry_of

LIVE = [1, 2, 40, 50, 51, 70]
OPTIONS = LogOptions(limits=SMALL, keep_links_seconds=0.0)


def compacted(folder: Path, refused: int) -> int:
    """How many looks a compaction took, the one of this number refused; the log is whole whatever became of that."""
    with SegmentLog(folder, OPTIONS) as log:
        log.extend(entries_of(1, 81))
        log.record_snapshot(80, LIVE)
        unseen = Unseen(folder, refused)
        with unseen.in_force(), contextlib.suppress(CompactlibError):
            log.compact(policy=SeedPolicy())
        log.audit()
        assert [log.read(index) for index in LIVE] == [entry_of(index) for index in LIVE]
        log.compact(policy=SeedPolicy())
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
