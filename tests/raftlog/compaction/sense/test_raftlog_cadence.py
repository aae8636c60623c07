# SPDX-License-Identifier: Apache-2.0
"""When the last major compaction was, kept over restarts in the `CADENCE` file (`docs/formats/raftlog-snapshot.md`)."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from compactlib.clock import Clock, ManualClock
from compactlib.errors import DiskFull, Unsupported
from compactlib.files import Files
from compactlib.files.checksum import crc32
from compactlib.observer import Observer, Observers
from compactlib.raftlog import EveryNMinors, LogReader, SegmentLog
from compactlib.raftlog.compaction.sense.trigger import Elapsed, Manual, Trigger
from compactlib.raftlog.model.names import is_temporary
from tests.harness.recording import RecordingObserver
from tests.raftlog.compaction_logs import entries_of, options
from tests.raftlog.wrapped_files import UnsyncedFiles, WatchedFiles

GOLDEN = Path(__file__).parents[3] / "promises" / "golden" / "raftlog" / "CADENCE"
PAGE = Path(__file__).parents[4] / "docs" / "formats" / "raftlog-snapshot.md"


def opened(folder: Path, trigger: Trigger, clock: Clock | None = None, *, files: Files | None = None,
           observer: Observer | None = None) -> SegmentLog:
    return SegmentLog(folder, options(UnsyncedFiles() if files is None else files, trigger=trigger,
                                      clock=ManualClock(1000.0) if clock is None else clock,
                                      observer=observer or Observers()))


def one_round(log: SegmentLog) -> bool:
    """Forty entries, a snapshot that leaves one alive in ten, and a compaction; whether that was a major one."""
    first = (log.last_index or 0) + 1
    log.extend(entries_of(first, first + 39))
    log.record_snapshot(first + 34, [index for index in range(1, first + 35) if index % 10 == 5])
    due = "minors since the last major, at least" in log.plan().why
    log.compact()
    return due


def test_restarts_keep_no_major_back(tmp_path: Path) -> None:
    """Two compactions a life, and every fourth is a major one."""
    majors = []
    for _ in range(5):
        with opened(tmp_path, EveryNMinors(3)) as log:
            majors += [one_round(log) for _ in range(2)]
    assert majors == [False, False, False, True, False, False, False, True, False, False]


def test_the_time_since_the_last_major_goes_on_over_restarts(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    with opened(tmp_path, Elapsed(100.0), clock) as log:
        one_round(log)
    for _ in range(2):
        clock.advance(60.0)
        with opened(tmp_path, Elapsed(100.0), clock) as log:
            why = log.plan().why
    assert "120 seconds since the last major, at least 100" in why
    with opened(tmp_path, Elapsed(100.0), clock) as log:
        assert not log.compact().is_empty
        assert "0 seconds since the last major, below" in log.plan().why
    # Set back: the time that has passed is not known, so it begins anew.
    with opened(tmp_path, Elapsed(100.0), ManualClock(10.0)) as log:
        assert "0 seconds since the last major, below" in log.plan().why


def test_a_disk_that_refuses_the_file_keeps_no_compaction_back(tmp_path: Path) -> None:
    def refuse(operation: str, path: str) -> None:
        if path.endswith("CADENCE.tmp"):
            raise DiskFull.from_os(OSError(errno.ENOSPC, "no room"), "write", path)

    with opened(tmp_path, EveryNMinors(3), files=WatchedFiles(refuse)) as log:
        assert [one_round(log) for _ in range(4)] == [False, False, False, True]
    assert not (tmp_path / "CADENCE").exists()


def kept(folder: Path) -> bytes:
    """What a log keeps that has seen 3 minors since it was made at 1000 seconds."""
    with opened(folder, Manual()) as log:
        for _ in range(3):
            one_round(log)
    return (folder / "CADENCE").read_bytes()


def test_the_bytes_are_those_of_the_page_and_of_every_release(tmp_path: Path) -> None:
    assert kept(tmp_path) == GOLDEN.read_bytes()
    after = PAGE.read_text().partition("test_raftlog_cadence.py reads this block -->\n```hex\n")[2]
    block = after.partition("```")[0]
    assert bytes.fromhex("".join(line[4:] for line in block.splitlines())) == GOLDEN.read_bytes()
    with LogReader(tmp_path) as reader:
        assert reader.verify().is_sound
    assert is_temporary("CADENCE.tmp")


def test_damage_costs_a_later_major_and_is_told(tmp_path: Path) -> None:
    whole = kept(tmp_path)
    damaged = [bytes(byte ^ (1 << bit if number == place else 0) for number, byte in enumerate(whole))
               for place in range(len(whole)) for bit in (0, 7)]
    damaged += [whole[:size] for size in range(len(whole))]
    for data in damaged:
        (tmp_path / "CADENCE").write_bytes(data)
        told = RecordingObserver()
        with opened(tmp_path, EveryNMinors(3), observer=told) as log:
            assert "0 minors since the last major, below" in log.plan().why
        assert "raftlog_cadence_lost" in [name for name, _ in told.events]
    (tmp_path / "CADENCE").unlink()
    os.symlink(GOLDEN, tmp_path / "CADENCE")
    with opened(tmp_path, EveryNMinors(3)) as log:
        one_round(log)
    assert GOLDEN.read_bytes() == whole
    assert not (tmp_path / "CADENCE").is_symlink()


def test_a_later_version_is_refused_by_name(tmp_path: Path) -> None:
    whole = kept(tmp_path)
    later = whole[:8] + b"\x02" + whole[9:-4]
    (tmp_path / "CADENCE").write_bytes(later + crc32(later).to_bytes(4, "little"))
    with pytest.raises(Unsupported, match="cadence version 2; this release reads 1: upgrade"):
        opened(tmp_path, EveryNMinors(3))
