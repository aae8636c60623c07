# SPDX-License-Identifier: Apache-2.0
"""The facade `RaftLog`: what a host may do, and what it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from compactlib.errors import InvalidInput, Stale, Unsorted
from compactlib.indexset import IndexSet
from compactlib.raftlog import Entry, RaftLog, SnapshotMeta, StoreOptions, open_log
from compactlib.raftlog.errors import GapDetected, LiveAboveSnapshot, LiveIndexMissing, Overwriting
from compactlib.raftlog.wal.wal import Confirmed
from tests.harness.plain_log import PlainLog
from tests.harness.raft_world import check_log
from tests.raftlog.raft_host import SMALL, indexes, reopened, rows


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RaftLog]:
    with open_log(tmp_path / "store", SMALL) as opened:
        yield opened


def test_appends_are_checked_before_anything_happens(log: RaftLog) -> None:
    log.append(rows(1, 5))
    with pytest.raises(GapDetected, match="append from 6 on"):
        log.append(rows(8, 9))
    with pytest.raises(InvalidInput, match="index 9 follows 7 in one call"):
        log.append([(6, 1, b""), (7, 1, b""), (9, 1, b"")])
    with pytest.raises(InvalidInput, match="index and term are 0 to"):
        log.append([(6, -1, b"")])
    with pytest.raises(InvalidInput):
        log.append_run(2**64, 1, [b""])
    with pytest.raises(Overwriting):
        log.append_sparse([Entry(9, 1, b""), Entry(9, 1, b"")])
    with pytest.raises(Overwriting):
        log.append_sparse([Entry(3, 1, b"")])
    with pytest.raises(GapDetected):
        log.append_sparse([Entry(9, 1, b"")], previous_index=4)
    log.append_sparse([])
    assert log.append([]) == 5
    assert log.append([Entry(6, 2, b"six"), (7, 2, memoryview(b"seven")), (8, 3, bytearray(b"eight"))]) == 8
    assert [log.term_of(index) for index in range(9)] == [None, 1, 1, 1, 1, 1, 2, 2, 3]
    assert log.read(7) == Entry(7, 2, b"seven")
    check_log(log, PlainLog.of([*rows(1, 5), (6, 2, b"six"), (7, 2, b"seven"), (8, 3, b"eight")]))


def test_a_payload_is_copied_when_it_can_change(log: RaftLog) -> None:
    buffer = bytearray(b"before")
    log.append([(1, 1, buffer)])
    buffer[:] = b"after!"
    assert log.read(1) == Entry(1, 1, b"before")


def test_an_overwrite_takes_back_what_follows_also_from_segments(log: RaftLog) -> None:
    log.append(rows(1, 30))
    log.flush()
    log.append_entries(11, 1, rows(12, 13, 2))
    expected = PlainLog.of([*rows(1, 11), *rows(12, 13, 2)])
    for _ in range(3):
        check_log(log, expected)
        log.flush()
    log = reopened(log)
    check_log(log, expected)
    log.close()


def test_snapshots_are_checked_before_anything_happens(log: RaftLog) -> None:
    log.append(rows(1, 20))
    log.snapshot(10, [3, 5])
    with pytest.raises(Stale):
        log.snapshot(9)
    with pytest.raises(InvalidInput, match="lies above the last index 20"):
        log.snapshot(21)
    with pytest.raises(LiveAboveSnapshot):
        log.snapshot(12, [13])
    with pytest.raises(LiveIndexMissing, match="1 of 2 live indexes are in no segment"):
        log.snapshot(12, [4, 5])
    with pytest.raises(Unsorted):
        log.snapshot(12, [5, 3])
    with pytest.raises(InvalidInput, match="a state is given"):
        log.snapshot(12, [], [b"state"])
    with pytest.raises(InvalidInput, match="would take back what the snapshot 10 covers"):
        log.reset(9)
    with pytest.raises(Stale):
        log.install(SnapshotMeta(10, 1))
    with pytest.raises(LiveIndexMissing):
        log.install(SnapshotMeta(40, 1, IndexSet.from_sorted([30])))
    assert log.state == SnapshotMeta(10, 1, IndexSet.from_sorted([3, 5]))
    skipped = log.compact()
    assert skipped.is_empty
    assert skipped.why == log.plan().why
    log.audit()


def test_installing_keeps_what_follows_only_if_it_is_of_the_same_history(log: RaftLog) -> None:
    log.append(rows(1, 20, 3))
    log.install(SnapshotMeta(10, 3, IndexSet.from_sorted([4])))
    assert indexes(log) == [4, *range(11, 21)]
    log.install(SnapshotMeta(15, 4, IndexSet.from_sorted([4])))
    assert indexes(log) == [4]
    assert log.last_index == 15
    log = reopened(log)
    assert indexes(log) == [4]
    log.append(rows(16, 17, 4))
    log.close()


def test_the_host_is_told_what_became_durable(log: RaftLog) -> None:
    told: list[Confirmed] = []
    log.attach(on_confirmed=told.append)
    log.append(rows(1, 3))
    log.append(rows(4, 4, 2))
    assert told == []
    log.sync()
    assert told == [Confirmed("log", 1, IndexSet.range(1, 3)), Confirmed("log", 2, IndexSet.range(4, 4))]


def test_a_store_that_syncs_by_itself_tells_the_host(tmp_path: Path) -> None:
    with open_log(tmp_path, StoreOptions(sync_by_itself=True)) as log:
        durable: list[int] = []
        all_there = threading.Event()

        def told(confirmed: Confirmed) -> None:
            durable.extend(confirmed.indexes)
            if len(durable) == 100:
                all_there.set()

        log.attach(on_confirmed=told)
        for index in range(1, 101):
            log.append(rows(index, index))
        assert all_there.wait(60)
        assert durable == list(range(1, 101))
        assert not log.unconfirmed


class MemorySnapshots:
    """A snapshot store that a crash does not reach, and that notes the order of calls."""

    def __init__(self, found: SnapshotMeta | None = None) -> None:
        self.found = found
        self.calls: list[str] = []
        self.state = b""

    def latest(self) -> SnapshotMeta | None:
        return self.found

    def write(self, meta: SnapshotMeta, state: Iterable[object]) -> None:
        self.calls.append(f"write {meta.index}")
        self.found, self.state = meta, b"".join(state)  # type: ignore[arg-type]

    def remove_older(self) -> None:
        self.calls.append("remove_older")


def test_a_snapshot_goes_to_its_store_before_the_row_names_it(log: RaftLog) -> None:
    store = MemorySnapshots()
    log.attach(store)
    log.append(rows(1, 10))
    store.calls.clear()
    log.snapshot(8, [2], [b"st", b"ate"])
    assert store.calls == ["write 8", "remove_older"]
    assert (store.state, store.found) == (b"state", SnapshotMeta(8, 1, IndexSet.from_sorted([2])))
    with pytest.raises(InvalidInput, match="a state is given"):
        log.snapshot(9, [2])


def test_a_snapshot_store_that_is_ahead_brings_the_row_up_to_it(log: RaftLog) -> None:
    """A crash came between the snapshot and the row."""
    log.append(rows(1, 10))
    log.snapshot(3)
    log.attach(MemorySnapshots(SnapshotMeta(8, 1, IndexSet.from_sorted([5]))))
    assert indexes(log) == [5, 9, 10]
    log.attach(MemorySnapshots(SnapshotMeta(2, 1)))
    assert log.state.index == 8


class NotingWorker:
    def __init__(self, log: RaftLog) -> None:
        self.noted: list[object] = []

    def snapshot_recorded(self, row: SnapshotMeta) -> None:
        self.noted.append(row.index)

    def segments_flushed(self, last_index: int | None) -> None:
        self.noted.append(f"flushed {last_index}")

    def start(self) -> None:
        self.noted.append("started")

    def stop(self, *, wait_seconds: float = 30.0) -> None:
        self.noted.append("stopped")


def test_a_worker_is_told_what_has_changed(log: RaftLog) -> None:
    workers: list[NotingWorker] = []

    def make(checked: RaftLog) -> NotingWorker:
        workers.append(NotingWorker(checked))
        return workers[-1]

    log.attach(worker=make)
    log.append(rows(1, 10))
    log.snapshot(8)
    log.flush()
    log.close()
    assert workers[0].noted == ["started", 8, "flushed 10", "stopped"]


def test_a_worker_that_cannot_be_started_is_stopped_and_let_go(log: RaftLog) -> None:
    class Unwilling(NotingWorker):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    made: list[Unwilling] = []

    def make(checked: RaftLog) -> Unwilling:
        made.append(Unwilling(checked))
        return made[-1]

    with pytest.raises(RuntimeError, match="can't start"):
        log.attach(worker=make)
    log.append(rows(1, 10))
    log.snapshot(8)
    log.flush()
    assert made[0].noted == ["stopped"]


def test_a_snapshot_ends_neither_in_a_gap_nor_behind_one(tmp_path: Path) -> None:
    """Nobody has applied what is missing, and a snapshot would be sent to others as the truth."""
    with open_log(tmp_path, SMALL) as log:
        log.append(rows(1, 3, 2))
        log.snapshot(2, [1])
        log.append_sparse([Entry(7, 5, b"7"), Entry(9, 6, b"9")])
        for index in (4, 7, 8, 9):
            with pytest.raises(InvalidInput, match=f"snapshot {index} lies behind a gap"):
                log.snapshot(index, [1])
        assert (log.state.index, log.state.term) == (2, 2)
        log.snapshot(3, [1])
        log.append(rows(4, 7, 5))
        log.snapshot(7, [1])
        log.snapshot(7)
        assert (log.state.index, log.state.term, log.state.live.count) == (7, 5, 0)
        log.audit()


# -- gaps, as a transfer leaves them that a crash has cut short


def broken_transfer(folder: Path) -> RaftLog:
    """Entries 1 to 110, then live entries of a snapshot that never came, in memory or in segments."""
    log = open_log(folder, SMALL)
    log.append_run(1, 1, [b"old"] * 110)
    log.append_sparse([Entry(120, 2, b"live"), Entry(177, 3, b"live")], previous_index=110)
    log.sync()
    return log


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("opened_again", [False, True])
def test_nothing_is_appended_and_no_snapshot_taken_over_a_gap(flushed: bool, opened_again: bool,
                                                             tmp_path: Path) -> None:
    log = broken_transfer(tmp_path)
    if flushed:
        log.flush()
    if opened_again:
        log = reopened(log)
    with log:
        assert (log.last_index, log.contiguous_through, log.status().gap_after) == (177, 110, 110)
        assert "with a gap behind 110" in repr(log.status())
        for first in (178, 177, 121, 112):
            with pytest.raises(GapDetected, match="gap behind 110, below its highest index 177") as caught:
                log.append_run(first, 3, [b"next"])
            assert (caught.value.previous, caught.value.last, caught.value.highest) == (first - 1, 110, 177)
        for index in (177, 120):
            with pytest.raises(InvalidInput, match=r"behind a gap: .* up to 110 only"):
                log.snapshot(index, [])
        log.snapshot(100, [7])
        # The advice can be followed.
        log.append_run(111, 3, [b"next"] * 2)
        assert (log.last_index, log.contiguous_through, log.status().gap_after) == (112, 112, None)
        assert log.term_of(log.contiguous_through) == 3
        log.append_run(113, 3, [b"next"])
        log.audit()


@pytest.mark.parametrize("flushed", [False, True])
def test_a_host_that_starts_anew_gets_its_log_without_what_a_transfer_has_left(flushed: bool, tmp_path: Path) -> None:
    log = broken_transfer(tmp_path)
    if flushed:
        log.flush()
    log = reopened(log)
    with pytest.raises(InvalidInput, match="has applied 111, and the log holds everything up to 110 only"):
        log.attach(applied=111)
    with pytest.raises(InvalidInput, match="is -2"):
        log.attach(applied=-2)
    log.attach(applied=90)
    # Durably: what was committed behind 90 is still there to be applied.
    log = reopened(log)
    with log:
        assert (log.last_index, log.contiguous_through) == (110, 110)
        log.append_run(111, 3, [b"next"])


def test_live_entries_alone_follow_nothing(tmp_path: Path) -> None:
    """A new member: the transfer of its first snapshot was cut short before the snapshot came."""
    with open_log(tmp_path / "new", SMALL) as log:
        log.append_sparse([Entry(100, 2, b"live"), Entry(101, 2, b"live"), Entry(600, 2, b"live")])
        log.attach(applied=-1)
        assert (log.last_index, log.contiguous_through) == (-1, -1)
        log.append_run(1, 2, [b"first"] * 5)
        log.attach(applied=0)
        assert log.last_index == 5
    with open_log(tmp_path / "moved", SMALL) as log:
        # A log may begin where another has ended.
        log.attach(applied=4999)
        log.append_run(5000, 7, [b"first"] * 5)
        log.attach(applied=4999)
        assert log.contiguous_through == 5004
        log.attach(applied=4000)
        assert log.last_index == -1


def test_a_gap_ends_where_a_snapshot_covers_it(tmp_path: Path) -> None:
    with broken_transfer(tmp_path) as log:
        assert log.contiguous_through == 110
        log.install(SnapshotMeta(180, 3, IndexSet.from_sorted([7, 120, 177])))
        assert (log.last_index, log.contiguous_through, log.status().gap_after) == (180, 180, None)
        log.append_run(181, 3, [b"next"])
        log.append_sparse([Entry(182, 3, b"next"), Entry(183, 3, b"next")])
        assert log.contiguous_through == 183
