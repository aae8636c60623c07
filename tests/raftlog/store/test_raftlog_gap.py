# SPDX-License-Identifier: Apache-2.0
"""A gap in which no index is missing: noted before anything lies above it, and forgotten before anything follows."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest

from compactlib.errors import CorruptData, StorageError, Unsupported
from compactlib.files.checksum import crc32
from compactlib.raftlog import Entry, LogReader, RaftLogStore, open_log
from compactlib.raftlog.errors import GapDetected
from compactlib.raftlog.model.gap import KeptGap, read_gap
from tests.raftlog.raft_host import SMALL, reopened, rows

GOLDEN = Path(__file__).parents[2] / "promises" / "golden" / "raftlog" / "GAP"
PAGE = Path(__file__).parents[3] / "docs" / "formats" / "raftlog-snapshot.md"


def test_what_is_appended_apart_does_not_follow(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    log.append(rows(1, 24))
    log.append_sparse([Entry(25, 3, b"live"), Entry(26, 3, b"live")], apart=True)
    log.append_sparse([Entry(27, 3, b"live")], apart=True)
    for _ in range(2):
        assert (log.last_index, log.contiguous_through, log.status().gap_after) == (27, 24, 24)
        with pytest.raises(GapDetected, match="append from 25 on"):
            log.append(rows(28, 28, 3))
        assert not log.append_entries(25, 3, rows(26, 28, 3)).success
        log.flush()
        log = reopened(log)
    assert log.append_entries(24, 1, rows(25, 26, 3)).match_index == 26
    assert not (Path(log.folder) / "GAP").exists()
    log = reopened(log)
    assert (log.last_index, log.contiguous_through, log.status().gap_after) == (26, 26, None)
    log.close()


def test_an_empty_log_and_one_with_missing_indexes_need_no_note(tmp_path: Path) -> None:
    with open_log(tmp_path, SMALL) as log:
        log.append_sparse([Entry(0, 1, b"first")], apart=True)
        assert log.contiguous_through == 0
        log.append_sparse([Entry(2, 1, b"behind a gap")], apart=True)
        log.append_sparse([Entry(3, 1, b"behind the same")], apart=True)
        assert log.contiguous_through == 0
        assert not (Path(log.folder) / "GAP").exists()


def test_a_snapshot_above_it_ends_it(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    log.append(rows(1, 24))
    log.append_sparse([Entry(25, 3, b"live")], apart=True)
    log.snapshot(22)
    assert (log.contiguous_through, read_gap(log.folder)) == (24, 24)
    log.reset(24)
    assert log.append(rows(25, 30)) == 30
    log.snapshot(30, [25])
    assert (log.contiguous_through, read_gap(log.folder)) == (30, None)
    log.close()


def test_it_is_noted_once_what_was_taken_back_is_gone_from_the_disk(tmp_path: Path) -> None:
    """A crash right behind the note found a gap in the middle of what had been there before."""
    seen: list[int] = []

    def look(after: int) -> None:
        with LogReader(log.folder) as reader:
            seen.extend([entry.index for entry in reader.entries()][-1:])

    with open_log(tmp_path, SMALL) as log:
        log.append(rows(1, 30))
        log.sync()
        log.reset(24)
        with mock.patch.object(KeptGap, "note", side_effect=look):
            log.append_sparse([Entry(25, 3, b"live")], apart=True)
    assert seen == [24]


def test_a_disk_that_refuses_to_forget_it_takes_nothing_that_follows(tmp_path: Path) -> None:
    log = open_log(tmp_path, SMALL)
    log.append(rows(1, 24))
    log.append_sparse([Entry(25, 3, b"live")], apart=True)
    refused = StorageError(operation="unlink", path="GAP", errno=5)
    with mock.patch.object(KeptGap, "forget", side_effect=refused):
        for _ in range(2):
            with pytest.raises(StorageError, match="GAP"):
                log.append_entries(24, 1, rows(25, 26, 4))
    log = reopened(log)
    assert (log.last_index, log.contiguous_through) == (24, 24)
    assert log.append_entries(24, 1, rows(25, 26, 4)).match_index == 26
    assert reopened(log).contiguous_through == 26


def test_the_bytes_are_those_of_the_page_and_of_every_release(tmp_path: Path) -> None:
    with open_log(tmp_path, SMALL) as log:
        log.append(rows(1, 24))
        log.append_sparse([Entry(25, 3, b"live")], apart=True)
    assert (tmp_path / "logs/log/GAP").read_bytes() == GOLDEN.read_bytes()
    block = PAGE.read_text().partition("test_raftlog_gap.py reads this block -->\n```hex\n")[2].partition("```")[0]
    assert bytes.fromhex("".join(line[4:] for line in block.splitlines())) == GOLDEN.read_bytes()
    assert read_gap(GOLDEN.parent) == 24


def test_damage_anywhere_is_refused_by_name(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, SMALL) as store:
        store.log("a").append(rows(1, 5))
    path, whole = tmp_path / "logs/a/GAP", GOLDEN.read_bytes()
    damaged = [bytes(byte ^ (1 << bit if number == place else 0) for number, byte in enumerate(whole))
               for place in range(len(whole)) for bit in range(8)]
    for data in [*damaged, *(whole[:size] for size in range(len(whole)))]:
        path.write_bytes(data)
        with pytest.raises(CorruptData, match="GAP"):
            read_gap(path.parent)
    with LogReader(path.parent) as reader:
        assert [finding.kind for finding in reader.verify().findings] == ["damage"]
    with RaftLogStore(tmp_path, SMALL) as store, pytest.raises(CorruptData, match="GAP"):
        store.log("a")
    later = whole[:8] + b"\x02" + whole[9:-4]
    path.write_bytes(later + crc32(later).to_bytes(4, "little"))
    with RaftLogStore(tmp_path, SMALL) as store, pytest.raises(Unsupported, match="gap version 2"):
        store.log("a")


def test_what_a_crash_has_left_of_it_goes_when_the_log_is_opened(tmp_path: Path) -> None:
    open_log(tmp_path, SMALL).close()
    left = tmp_path / "logs/log/GAP.tmp"
    left.write_bytes(GOLDEN.read_bytes()[:10])
    with open_log(tmp_path, SMALL) as log:
        assert not left.exists()
        assert log.contiguous_through == -1
