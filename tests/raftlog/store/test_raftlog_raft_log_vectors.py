# SPDX-License-Identifier: Apache-2.0
"""`RaftLog`: cases with known answers, and what goes wrong in Ra."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from compactlib.errors import InvalidInput, NotFound
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    DeadEntry,
    DropDead,
    Entry,
    LogOptions,
    RaftLog,
    SegmentLimits,
    SnapshotMeta,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.errors import GapDetected, LiveIndexMissing
from tests.raftlog.raft_host import SMALL, held, indexes, reopened, rows
from tests.raftlog.wrapped_files import WatchedFiles


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RaftLog]:
    with open_log(tmp_path / "store", SMALL) as opened:
        yield opened


def test_a_gap_in_the_log_and_a_reset(log: RaftLog) -> None:
    log.append(rows(0, 5))
    log.append_sparse([Entry(7, 1, b"seven")], previous_index=5)
    log.append_sparse([Entry(17, 1, b"seventeen")], previous_index=7)
    assert (log.first_index, log.last_index) == (0, 17)
    before = log.status()
    contiguous = []
    for index in range(1, 18):
        entry = log.read(index)
        if not isinstance(entry, Entry):
            break
        contiguous.append(entry.index)
    assert contiguous == [1, 2, 3, 4, 5]
    log = reopened(log)
    assert (log.first_index, log.last_index, log.last_term) == (before.first_index, 17, 1)
    assert indexes(log) == [0, 1, 2, 3, 4, 5, 7, 17]
    log.reset(3)
    log.append_sparse([Entry(7, 2, b"again")], previous_index=3)
    log.append_sparse([Entry(17, 2, b"again")], previous_index=7)
    log = reopened(log)
    assert indexes(log) == [0, 1, 2, 3, 7, 17]
    log.close()


def test_what_a_reset_takes_back_is_waited_for_no_more(log: RaftLog) -> None:
    log.append(rows(1, 5))
    log.sync()
    log.append(rows(6, 10))
    assert list(log.unconfirmed) == [6, 7, 8, 9, 10]
    log.reset(5)
    assert not log.unconfirmed
    log.append([(6, 2, b"six in term two")])
    assert list(log.unconfirmed) == [6]
    log.sync()
    assert not log.unconfirmed
    assert (log.last_index, log.last_term) == (6, 2)
    log = reopened(log)
    assert log.read(6) == Entry(6, 2, b"six in term two")
    log.close()


def test_a_snapshot_from_elsewhere(log: RaftLog) -> None:
    log.append(rows(1, 9, 2))
    log.append_sparse([Entry(14, 3, b"fourteen")], previous_index=9)
    meta = SnapshotMeta(15, 3, IndexSet.from_sorted([2, 9, 14]))
    log.install(meta)
    assert log.last_index + 1 == 16
    with pytest.raises(InvalidInput, match="lies at or below the snapshot 15"):
        log.append([(15, 3, b"")])
    log.append([(16, 3, b"sixteen")])
    for _ in range(2):
        assert indexes(log) == [2, 9, 14, 16]
        assert log.state == SnapshotMeta(15, 3, meta.live)
        assert log.term_of(15) == 3
        log.audit()
        log = reopened(log)
    log.close()


def test_a_sparse_log_and_a_snapshot(log: RaftLog) -> None:
    for index in (1, 3, 5, 7, 9):
        log.append_sparse([Entry(index, 1, b"%d" % index)])
    log.install(SnapshotMeta(15, 1, IndexSet.from_sorted([3, 5, 7, 9])))
    log.append([(16, 1, b"16")])
    for _ in range(2):
        assert [log.read(index) for index in (3, 5, 7, 9)] == [Entry(index, 1, b"%d" % index) for index in (3, 5, 7, 9)]
        assert log.read(1) == DeadEntry(1, 15)
        log = reopened(log)
    log.close()


def test_reading_across_a_segment_that_was_dropped(log: RaftLog) -> None:
    """300 live of 1..499; a dead index is an answer of its own, and hides none behind it."""
    log.append(rows(1, 499))
    log.flush()
    log.snapshot(400, [1, *range(200, 400), 400])
    log.compact(policy=DropDead())
    assert list(log.read_many([128, 301])) == [DeadEntry(128, 400), Entry(301, 1, b"301")]
    log.append(rows(500, 520))
    assert [type(each).__name__ for each in log.read_many([2, 399, 450, 510, 521, 999])] == [
        "DeadEntry", "Entry", "Entry", "Entry", "MissingEntry", "MissingEntry"]


def test_entries_of_no_bytes_and_live_indexes_in_no_segment(log: RaftLog) -> None:
    """Neither stops a compaction, nor everything after it."""
    log.append((index, 1, b"") for index in range(1, 41))
    log.flush()
    log.append(rows(41, 60))
    # 50 is live, and only in memory.
    log.snapshot(55, [3, 20, 50])
    outcome = log.compact(policy=log.policy)
    assert not outcome.is_empty
    assert not outcome.failed
    assert indexes(log) == [3, 20, 50, 56, 57, 58, 59, 60]
    log.flush()
    assert indexes(reopened(log)) == [3, 20, 50, 56, 57, 58, 59, 60]


def test_a_live_entry_in_memory_where_a_segment_holds_others_that_were_taken_back(log: RaftLog) -> None:
    """A transfer was given up and another begun: what segments held of the first one is gone."""
    log.append(rows(1, 6))
    log.append_sparse([Entry(index, 1, b"given up") for index in (20, 30, 31, 32)])
    log.flush()
    log.reset(6)
    log.append_sparse([Entry(25, 2, b"live")])
    log.install(SnapshotMeta(40, 2, IndexSet.from_sorted([3, 25])))
    assert [(ref.first, ref.last) for ref in log.refs] == [(1, 6)]
    log.compact(policy=log.policy)
    for _ in range(2):
        assert indexes(log) == [3, 25]
        assert log.read(25) == Entry(25, 2, b"live")
        log.flush()
    log = reopened(log)
    assert indexes(log) == [3, 25]
    log.append(rows(41, 42))
    log.close()


def test_as_many_entries_as_a_u16_cannot_count(tmp_path: Path) -> None:
    with open_log(tmp_path / "store", StoreOptions(background=False, log=LogOptions(
            limits=SegmentLimits(max_entries=1 << 16)))) as log:
        log.append_run(1, 1, [b""] * 65_537)
        log.flush()
        assert [(ref.first, ref.last) for ref in log.refs] == [(1, 65_536), (65_537, 65_537)]
        assert log.read(65_536) == Entry(65_536, 1, b"")


def test_an_old_pin_answers_what_has_died_since(log: RaftLog) -> None:
    log.append(rows(1, 40))
    log.flush()
    log.snapshot(30, [3, 7, 20])
    log.append(rows(41, 44))
    with log.pin(IndexSet.from_sorted([3, 20, 42])) as pin:
        log.snapshot(43, [7])
        log.flush()
        log.compact(policy=log.policy)
        assert log.read(3) == DeadEntry(3, 43)
        # Whoever works on the files is told too: a hole in one would not ask for its name.
        assert IndexSet.from_sorted([3, 20]).issubset(held(log))
        assert [entry.payload for entry in pin.entries()] == [b"3", b"20", b"42"]
        assert pin.read(20) == Entry(20, 1, b"20")
        with pytest.raises(NotFound, match="index 7 is not pinned"):
            pin.read(7)
        assert (log.status().pinned, log.status().pins) == (3, 1)
    with pytest.raises(NotFound):
        pin.read(3)
    # Now it may go.
    log.compact(policy=log.policy)
    assert held(log).between(1, 40) == IndexSet.from_sorted([7])
    assert log.status().pins == 0
    log.audit()


def test_a_pin_needs_what_is_alive(log: RaftLog) -> None:
    log.append(rows(1, 20))
    log.snapshot(10, [3])
    for wanted in ([3, 4], [3, 21]):
        with pytest.raises(LiveIndexMissing, match="1 of 2 indexes to be pinned are dead or not in the log"):
            log.pin(IndexSet.from_sorted(wanted))
    assert log.status().pins == 0


def test_items_10_and_11_what_a_flush_syncs_and_in_which_order(tmp_path: Path) -> None:
    """The names of new segments before the WAL file goes; one fsync for what was appended, however many entries."""
    done: list[str] = []
    files = WatchedFiles(lambda operation, path: done.append(f"{operation} {os.path.basename(path)}"))
    with open_log(tmp_path / "store", StoreOptions(background=False, log=LogOptions(files=files))) as log:
        log.append(rows(1, 3000))
        log.sync()
        done.clear()
        log.append(rows(3001, 3512))
        log.sync()
        assert [each for each in done if each.startswith("sync")] == ["sync 0000000000000001.wal"]
        done.clear()
        log.flush()
        removed = done.index("unlink 0000000000000001.wal")
        segment = done.index("sync 0000000000000001.segment")
        assert segment < removed
        assert done[removed + 1] == "sync folder wal"
        assert done.count("sync 0000000000000001.segment") == 1


def test_status_says_what_is_held(log: RaftLog) -> None:
    log.append(rows(1, 30))
    log.flush()
    log.append(rows(31, 33))
    log.snapshot(20, [5])
    log.append([(34, 4, b"")])
    with log.pin(IndexSet.range(21, 25)):
        status = log.status()
    assert status.to_dicts() == [{
        "log_id": "log", "first_index": 5, "last_index": 34, "last_term": 4, "durable_index": 33, "unconfirmed": 1,
        "snapshot_index": 20, "snapshot_term": 1, "smallest_live_index": 5, "live": 1, "memtable_entries": 4,
        "segments": 4, "pinned": 5, "pins": 1, "gap_after": None, "is_busy": False, "failures": 0,
        "last_error": ""}]
    assert "durable_index" in status._repr_html_()


def test_a_pin_needs_no_links_and_outlives_them(log: RaftLog) -> None:
    log.append(rows(1, 64))
    log.flush()
    log.snapshot(60, [2, 10, 20, 30, 40])
    with log.pin(IndexSet.from_sorted([10, 30])) as pin:
        for live in ([2, 20], [2]):
            log.snapshot(60, live)
            log.compact(policy=log.policy)
        links = [name for name in os.listdir(log.folder) if os.path.islink(
            os.path.join(log.folder, name))]
        for name in links:
            os.unlink(os.path.join(log.folder, name))
        assert [entry.payload for entry in pin.entries()] == [b"10", b"30"]


def reads_of_this_thread() -> int:
    """How many read calls this thread has made, as Linux counts them."""
    counted = re.search(r"syscr: (\d+)", Path("/proc/thread-self/io").read_text())
    assert counted is not None
    return int(counted[1])


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/io"), reason="the system does not count reads")
def test_what_lies_together_is_read_together_whatever_its_indexes(tmp_path: Path) -> None:
    """And with default settings a point read opens no file again."""
    with open_log(tmp_path / "store", StoreOptions(background=False, log=LogOptions(
            limits=SegmentLimits(max_entries=64)))) as log:
        log.append(rows(1, 1000))
        log.flush()
        live = list(range(5, 960, 10))
        log.snapshot(960, live)
        log.compact(policy=log.policy)
        assert [entry.index for entry in log.entries(0, 960)] == live
        before = reads_of_this_thread()
        answers = list(log.read_many(live))
        at_once = reads_of_this_thread() - before
        assert [answer.index for answer in answers if isinstance(answer, Entry)] == live
        # Ninety-six entries, none with a neighbouring index, in a few files.
        assert at_once <= 2 * len(log.refs) + 4 < 20
        before = reads_of_this_thread()
        for index in live:
            assert isinstance(log.read(index), Entry)
        assert reads_of_this_thread() - before <= len(live) + 4


def test_the_range_follows_a_compaction(log: RaftLog) -> None:
    log.append(rows(1, 40))
    log.flush()
    log.snapshot(33, [20])
    log.compact(policy=log.policy)
    assert log.first_index == 20
    log.snapshot(35)
    log.compact(policy=DropDead())
    assert log.first_index == 36
    log.snapshot(40)
    assert indexes(log) == []
    assert log.status().first_index is None


# -- history: what went wrong elsewhere


def test_a_truncated_log_does_not_remember_what_was_written_last(log: RaftLog) -> None:
    log.append(rows(1, 10))
    log.sync()
    log.reset(4)
    assert log.status().durable_index == 4
    with pytest.raises(GapDetected):
        log.append(rows(6, 6))
    log.append(rows(5, 6, 2))
    log = reopened(log)
    assert (log.last_index, log.last_term) == (6, 2)
    log.close()


def test_a_sparse_entry_is_not_wrapped_twice(log: RaftLog) -> None:
    log.append_sparse([Entry(5, 1, b"five")])
    log = reopened(log)
    log.flush()
    log = reopened(log)
    assert log.read(5) == Entry(5, 1, b"five")
    log.close()
