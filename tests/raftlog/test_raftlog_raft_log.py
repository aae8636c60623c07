"""The facade `RaftLog`: what a host may do, what it is told, and the cases of the notes with known answers."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from compactlib.errors import (
    Busy,
    Closed,
    CorruptData,
    DiskFull,
    InvalidInput,
    LiveAboveSnapshot,
    LiveIndexMissing,
    NotFound,
    Stale,
    StorageError,
    Unsorted,
)
from compactlib.files import LocalFiles
from compactlib.indexset import IndexSet
from compactlib.outcome import Done, Skipped
from compactlib.raftlog import (
    Confirmed,
    Dead,
    Entry,
    GapDetected,
    LogOptions,
    LogState,
    LogStates,
    LogStopped,
    MemtableFull,
    Overwriting,
    RaftLog,
    RaftLogStore,
    ReplicatedLog,
    SegmentLimits,
    SnapshotMeta,
    StoreOptions,
    open_log,
)
from compactlib.testing.faults import FailingFiles
from tests.raftlog.raft_world import check_log
from tests.raftlog.reading import PlainLog
from tests.raftlog.wrapped_files import WatchedFiles

SMALL = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=8), keep_links_seconds=0.0), background=False)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[RaftLog]:
    with open_log(tmp_path / "store", SMALL) as opened:
        yield opened


def rows(first: int, last: int, term: int = 1) -> list[tuple[int, int, bytes]]:
    return [(index, term, b"%d" % index) for index in range(first, last + 1)]


def indexes(log: RaftLog) -> list[int]:
    return [entry.index for entry in log.entries()]


def reopened(log: RaftLog) -> RaftLog:
    folder = Path(log.segments.folder).parents[1]
    log.close()
    return open_log(folder, SMALL)


# -- the cases of the notes


def test_vector_68_a_gap_in_the_log_and_a_reset(log: RaftLog) -> None:
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


def test_vector_69_what_a_reset_takes_back_is_waited_for_no_more(log: RaftLog) -> None:
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


def test_vector_72_a_snapshot_from_elsewhere(log: RaftLog) -> None:
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
        assert log.state == LogState(15, 3, meta.live)
        assert log.term_of(15) == 3
        log.audit()
        log = reopened(log)
    log.close()


def test_vector_73_a_sparse_log_and_a_snapshot(log: RaftLog) -> None:
    for index in (1, 3, 5, 7, 9):
        log.append_sparse([Entry(index, 1, b"%d" % index)])
    log.install(SnapshotMeta(15, 1, IndexSet.from_sorted([3, 5, 7, 9])))
    log.append([(16, 1, b"16")])
    for _ in range(2):
        assert [log.read(index) for index in (3, 5, 7, 9)] == [Entry(index, 1, b"%d" % index) for index in (3, 5, 7, 9)]
        assert log.read(1) == Dead(1, 15)
        log = reopened(log)
    log.close()


def test_vector_77_reading_across_a_segment_that_was_dropped(log: RaftLog) -> None:
    """300 live of 1..499; a dead index is an answer of its own, and hides none behind it (notes 5.1, item 9)."""
    log.append(rows(1, 499))
    log.flush()
    log.snapshot(400, [1, *range(200, 400), 400])
    log.compact("minor")
    assert list(log.read_many([128, 301])) == [Dead(128, 400), Entry(301, 1, b"301")]
    log.append(rows(500, 520))
    assert [type(each).__name__ for each in log.read_many([2, 399, 450, 510, 521, 999])] == [
        "Dead", "Entry", "Entry", "Entry", "Missing", "Missing"]


def test_item_8_entries_of_no_bytes_and_live_indexes_in_no_segment(log: RaftLog) -> None:
    """Notes 5.1, item 8: neither stops a compaction, nor everything after it."""
    log.append((index, 1, b"") for index in range(1, 41))
    log.flush()
    log.append(rows(41, 60))
    # 50 is live, and only in memory.
    log.snapshot(55, [3, 20, 50])
    outcome = log.compact("major")
    assert isinstance(outcome, Done), outcome
    assert not outcome.stats.failed
    assert indexes(log) == [3, 20, 50, 56, 57, 58, 59, 60]
    log.flush()
    assert indexes(reopened(log)) == [3, 20, 50, 56, 57, 58, 59, 60]


def test_item_8_a_live_entry_in_memory_where_a_segment_holds_others_that_were_taken_back(log: RaftLog) -> None:
    """A transfer was given up and another begun: segments still hold the first one's entries around a live one."""
    log.append(rows(1, 6))
    log.append_sparse([Entry(index, 1, b"given up") for index in (20, 30, 31, 32)])
    log.flush()
    log.reset(6)
    log.append_sparse([Entry(25, 2, b"live")])
    log.install(SnapshotMeta(40, 2, IndexSet.from_sorted([3, 25])))
    assert [(ref.first, ref.last) for ref in log.segments.refs] == [(1, 30), (31, 32)]
    outcome = log.compact("major")
    assert isinstance(outcome, Done), outcome
    assert not outcome.stats.failed, outcome
    for _ in range(2):
        assert indexes(log) == [3, 25]
        assert log.read(25) == Entry(25, 2, b"live")
        log.flush()
    log = reopened(log)
    assert indexes(log) == [3, 25]
    log.append(rows(41, 42))
    log.close()


def test_item_8_as_many_entries_as_a_u16_cannot_count(tmp_path: Path) -> None:
    with open_log(tmp_path / "store", StoreOptions(background=False, log=LogOptions(
            limits=SegmentLimits(max_entries=1 << 16)))) as log:
        log.append_run(1, 1, [b""] * 65_537)
        log.flush()
        assert [(ref.first, ref.last) for ref in log.segments.refs] == [(1, 65_536), (65_537, 65_537)]
        assert log.read(65_536) == Entry(65_536, 1, b"")


def test_item_9_an_old_pin_answers_what_has_died_since(log: RaftLog) -> None:
    log.append(rows(1, 40))
    log.flush()
    log.snapshot(30, [3, 7, 20])
    log.append(rows(41, 44))
    with log.pin(IndexSet.from_sorted([3, 20, 42])) as pin:
        log.snapshot(43, [7])
        log.flush()
        log.compact("major")
        assert log.read(3) == Dead(3, 43)
        # Whoever works on the files is told too: a hole in one would not ask for its name.
        assert IndexSet.from_sorted([3, 20]).issubset(log.segments.holding(IndexSet.range(1, 40)))
        assert [entry.payload for entry in pin.entries()] == [b"3", b"20", b"42"]
        assert pin.read(20) == Entry(20, 1, b"20")
        with pytest.raises(NotFound, match="index 7 is not pinned"):
            pin.read(7)
        assert (log.status().pinned, log.status().pins) == (3, 1)
    with pytest.raises(NotFound):
        pin.read(3)
    # Now it may go.
    log.compact("major")
    assert log.segments.holding(IndexSet.range(1, 40)) == IndexSet.from_sorted([7])
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


def test_item_12_the_row_is_one_value_and_is_not_copied(log: RaftLog) -> None:
    log.append(rows(1, 1000))
    live = IndexSet.from_sorted(range(1, 1000, 2))
    log.snapshot(999, live)
    row = log.state
    assert row is log.state
    assert row.live is live
    assert (row.snapshot_index, row.smallest_live_index) == (999, 1)


def test_item_16_status_says_what_is_held(log: RaftLog) -> None:
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
        "segments": 4, "pinned": 5, "pins": 1, "stopped": None}]
    assert "durable_index" in status._repr_html_()


def test_item_17_a_pin_needs_no_links_and_outlives_them(log: RaftLog) -> None:
    log.append(rows(1, 64))
    log.flush()
    log.snapshot(60, [2, 10, 20, 30, 40])
    with log.pin(IndexSet.from_sorted([10, 30])) as pin:
        for live in ([2, 20], [2]):
            log.snapshot(60, live)
            log.compact("major")
        links = [name for name in os.listdir(log.segments.folder) if os.path.islink(
            os.path.join(log.segments.folder, name))]
        for name in links:
            os.unlink(os.path.join(log.segments.folder, name))
        assert [entry.payload for entry in pin.entries()] == [b"10", b"30"]


def reads_of_this_thread() -> int:
    """How many read calls this thread has made, as Linux counts them."""
    counted = re.search(r"syscr: (\d+)", Path("/proc/thread-self/io").read_text())
    assert counted is not None
    return int(counted[1])


@pytest.mark.skipif(not os.path.exists("/proc/thread-self/io"), reason="the system does not count reads")
def test_item_18_what_lies_together_is_read_together_whatever_its_indexes(tmp_path: Path) -> None:
    """And with default settings a point read opens no file again."""
    with open_log(tmp_path / "store", StoreOptions(background=False, log=LogOptions(
            limits=SegmentLimits(max_entries=64)))) as log:
        log.append(rows(1, 1000))
        log.flush()
        live = list(range(5, 960, 10))
        log.snapshot(960, live)
        log.compact("major")
        assert [entry.index for entry in log.entries(0, 960)] == live
        before = reads_of_this_thread()
        answers = list(log.read_many(live))
        at_once = reads_of_this_thread() - before
        assert [answer.index for answer in answers if isinstance(answer, Entry)] == live
        # Ninety-six entries, none with a neighbouring index, in a few files.
        assert at_once <= 2 * len(log.segments.refs) + 4 < 20
        before = reads_of_this_thread()
        for index in live:
            assert isinstance(log.read(index), Entry)
        assert reads_of_this_thread() - before <= len(live) + 4


def test_item_20_the_range_follows_a_compaction(log: RaftLog) -> None:
    log.append(rows(1, 40))
    log.flush()
    log.snapshot(33, [20])
    log.compact("major")
    assert log.first_index == 20
    log.snapshot(35)
    log.compact("minor")
    assert log.first_index == 36
    log.snapshot(40)
    assert indexes(log) == []
    assert log.status().first_index is None


# -- history: what went wrong elsewhere


def test_a_row_is_never_seen_half_changed() -> None:
    """Notes 5.3: the index of one snapshot was read with the live set of another."""
    states, torn, done = LogStates(), [], threading.Event()

    def read() -> None:
        while not done.is_set():
            row = states.get("a")
            if row.snapshot_index >= 0 and list(row.live) != [row.snapshot_index]:
                torn.append(row)

    thread = threading.Thread(target=read)
    thread.start()
    for index in range(2000):
        states.put("a", LogState(index, 1, IndexSet.from_sorted([index])))
    done.set()
    thread.join()
    assert not torn
    states.audit()
    assert [log_id for log_id, _ in states] == ["a"]
    states.remove("a")
    assert states.get("a") == LogState()


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


# -- what a host may do


def test_a_log_is_a_replicated_log(log: RaftLog) -> None:
    checked: ReplicatedLog = log
    assert checked.last_index == -1


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
    log.append(rows(12, 13, 2))
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
    assert log.state == LogState(10, 1, IndexSet.from_sorted([3, 5]))
    assert log.compact() == Skipped("nothing to drop at snapshot 10")
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
    assert log.state.snapshot_index == 8


class NotingWorker:
    def __init__(self, log: ReplicatedLog) -> None:
        self.noted: list[object] = []

    def snapshot_recorded(self, row: LogState) -> None:
        self.noted.append(row.snapshot_index)

    def segments_flushed(self, last_index: int | None) -> None:
        self.noted.append(f"flushed {last_index}")

    def close(self) -> None:
        self.noted.append("closed")


def test_a_worker_is_told_what_has_changed(log: RaftLog) -> None:
    workers: list[NotingWorker] = []

    def make(checked: ReplicatedLog) -> NotingWorker:
        workers.append(NotingWorker(checked))
        return workers[-1]

    log.attach(worker=make)
    log.append(rows(1, 10))
    log.snapshot(8)
    log.flush()
    log.close()
    assert workers[0].noted == [8, "flushed 10", "closed"]


# -- many logs, one store


def test_many_logs_share_one_wal(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, SMALL) as store:
        for number in range(20):
            store.log(f"log-{number}").append(rows(1, number + 1))
        store.sync()
        assert store.status().wal_files == 1
        assert store.log_ids == tuple(sorted(f"log-{number}" for number in range(20)))
        assert store.log("log-3") is store.log("log-3")
        store.audit()
    with RaftLogStore(tmp_path, SMALL) as store:
        assert [store.log(f"log-{number}").last_index for number in range(20)] == list(range(1, 21))
        with pytest.raises(NotFound):
            store.log("log-20", create=False)
        for wrong in ("", "..", "a/b", "x" * 101, "-a"):
            with pytest.raises(InvalidInput):
                store.log(wrong)
        with pytest.raises(Busy):
            RaftLogStore(tmp_path, SMALL)
        assert repr(store).startswith("<RaftLogStore of ")
    with pytest.raises(Closed):
        store.log("log-3")
    with pytest.raises(Closed):
        store.sync()


def test_a_log_that_was_closed_is_opened_again_by_its_store(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, SMALL) as store:
        with store.log("a") as log:
            log.append(rows(1, 3))
        with pytest.raises(Closed):
            log.read(1)
        with pytest.raises(Closed):
            log.append(rows(4, 4))
        again = store.log("a")
        again.append(rows(4, 4))
        store.flush()
        check_log(again, PlainLog.of(rows(1, 4)))


def test_a_log_can_be_removed_and_begun_anew(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, SMALL) as store:
        store.log("a").append(rows(1, 30))
        store.log("b").append(rows(1, 5))
        store.log("a").snapshot(20, [3])
        store.remove("a")
        assert store.log_ids == ("b",)
        assert os.listdir(tmp_path / "logs") == ["b"]
        with pytest.raises(NotFound):
            store.remove("a")
        store.audit()
    with RaftLogStore(tmp_path, SMALL) as store:
        assert store.log_ids == ("b",)
        check_log(store.log("b"), PlainLog.of(rows(1, 5)))
        again = store.log("a")
        again.append(rows(1, 3, 7))
        store.remove("b")
        check_log(again, PlainLog.of(rows(1, 3, 7)))
        store.log("b").append(rows(4, 6))
        store.audit()
    with RaftLogStore(tmp_path, SMALL) as store:
        check_log(store.log("a"), PlainLog.of(rows(1, 3, 7)))
        check_log(store.log("b"), PlainLog.of(rows(4, 6)))


def test_a_disk_that_refuses_any_step_of_a_removal_leaves_the_log_whole_or_gone(tmp_path: Path) -> None:
    def remove(folder: Path, files: FailingFiles) -> None:
        with RaftLogStore(folder, StoreOptions(background=False, log=LogOptions(files=files))) as store:
            store.log("a").append(rows(1, 5))
            store.log("b").append(rows(1, 5))
            store.remove("a")

    counting = FailingFiles()
    remove(tmp_path / "count", counting)
    outcomes = set()
    for fail_at in range(15, counting.count + 1):
        with contextlib.suppress(StorageError, LogStopped):
            remove(tmp_path / str(fail_at), FailingFiles(fail_at=fail_at, sticky=True, errno=errno.EIO))
        with RaftLogStore(tmp_path / str(fail_at), SMALL) as store:
            for name in store.log_ids:
                assert indexes(store.log(name)) in ([], [1, 2, 3, 4, 5])
            outcomes.add("a" in store.log_ids)
    assert outcomes == {True, False}


@pytest.mark.parametrize("background", [False, True])
def test_opening_again_and_again_does_not_pile_up_wal_files(background: bool, tmp_path: Path) -> None:
    for number in range(12):
        with RaftLogStore(tmp_path, StoreOptions(background=background)) as store:
            store.log("a").append(rows(number + 1, number + 1))
            assert store.status().wal_files <= 6
    with RaftLogStore(tmp_path, SMALL) as store:
        check_log(store.log("a"), PlainLog.of(rows(1, 12)))


def test_threads_append_read_and_compact_at_once(tmp_path: Path) -> None:
    options = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=16), keep_links_seconds=0.0),
                           max_wal_bytes=4000)
    problems: list[BaseException] = []
    with RaftLogStore(tmp_path, options) as store:
        done = threading.Event()

        def write(name: str) -> None:
            log = store.log(name)
            for index in range(1, 301):
                log.append([(index, 1, b"%d" % index)])
                if index % 7 == 0:
                    log.sync()
                if index % 60 == 0:
                    log.snapshot(index - 5, range(10, index - 5, 10))

        def read() -> None:
            while not done.is_set():
                for log in (store.log("a"), store.log("b")):
                    for entry in log.entries():
                        assert entry.payload == b"%d" % entry.index
                    log.compact("major")
                    log.read(50)

        def guarded(work: object, *arguments: object) -> threading.Thread:
            def run() -> None:
                try:
                    work(*arguments)  # type: ignore[operator]
                except BaseException as error:
                    problems.append(error)
            return threading.Thread(target=run)

        writers = [guarded(write, "a"), guarded(write, "b")]
        reader = guarded(read)
        for thread in (*writers, reader):
            thread.start()
        for thread in writers:
            thread.join()
        done.set()
        reader.join()
        assert not problems, problems
        store.flush()
        store.audit()
    with RaftLogStore(tmp_path, options) as store:
        for name in ("a", "b"):
            assert indexes(store.log(name)) == [*range(10, 295, 10), *range(296, 301)]


def test_memory_is_bounded_by_flushing(tmp_path: Path) -> None:
    options = StoreOptions(background=False, max_memtable_entries=100, max_queued_bytes=2000)
    with open_log(tmp_path, options) as log:
        for first in range(1, 1000, 10):
            log.append(rows(first, first + 9))
            assert log.status().memtable_entries <= 100
        with pytest.raises(MemtableFull):
            log.append_run(log.last_index + 1, 1, [b""] * 101)
        check_log(log, PlainLog.of(rows(1, 1000)))


def test_what_cannot_be_flushed_does_not_pile_up_without_end(tmp_path: Path) -> None:
    """The disk under the segments is full, that under the WAL is not."""
    full = threading.Event()

    def look(operation: str, path: str) -> None:
        if full.is_set() and path.endswith(".segment"):
            raise DiskFull(operation=operation, path=path, errno=errno.ENOSPC)

    options = StoreOptions(background=False, max_wal_bytes=2000, max_unflushed_files=3,
                           log=LogOptions(files=WatchedFiles(look)))
    with RaftLogStore(tmp_path / "store", options) as store:
        log = store.log("a")
        full.set()
        last = 0

        def fill() -> None:
            nonlocal last
            while last < 1000:
                log.append([(last + 1, 1, bytes(500))])
                log.sync()
                last += 1

        with pytest.raises(DiskFull):
            fill()
        assert 10 < last < 40
        assert store.status().wal_files <= 6
        assert "No space left" in str(store.status().flush_error)
        full.clear()
        log.append([(last + 1, 1, b"room again")])
        store.sync()
        assert store.status().unflushed_files <= 1
        assert [entry.index for entry in log.entries()] == list(range(1, last + 2))


def test_a_log_whose_sync_failed_stops_and_says_so(tmp_path: Path) -> None:
    probe = FailingFiles()
    with RaftLogStore(tmp_path / "probe", StoreOptions(background=False, log=LogOptions(files=probe))) as store:
        store.log("a").append(rows(1, 5))
        store.sync()
        before = probe.count
    files = FailingFiles(fail_at=before + 2, errno=errno.EIO)
    with RaftLogStore(tmp_path / "store", StoreOptions(background=False, log=LogOptions(files=files))) as store:
        log = store.log("a")
        log.append(rows(1, 5))
        log.sync()
        log.append(rows(6, 9))
        with pytest.raises(LogStopped):
            log.sync()
        for refused in (log.sync, lambda: log.append(rows(10, 10)), lambda: log.snapshot(3), log.flush,
                        lambda: store.log("b").append(rows(1, 1))):
            with pytest.raises(LogStopped, match="close the store, see to the disk, and open it again"):
                refused()
        assert list(log.unconfirmed) == [6, 7, 8, 9]
        assert log.status().durable_index == 5
        assert "could not be made durable" in str(store.status().stopped)
        # What is there can still be read.
        assert log.read(5) == Entry(5, 1, b"5")
        log.audit()
        with pytest.raises(LogStopped):
            log.close()
    with RaftLogStore(tmp_path / "store") as store:
        assert store.log("a").last_index in (5, 9)


def test_a_disk_that_refuses_any_step_of_opening_leaves_all_as_it_was(tmp_path: Path) -> None:
    expected = PlainLog.of(rows(1, 30))
    with RaftLogStore(tmp_path / "store", SMALL) as store:
        store.log("a").append(rows(1, 20))
        store.flush()
        store.log("a").append(rows(21, 30))
    for fail_at in range(1, 12):
        files = FailingFiles(LocalFiles(), fail_at=fail_at, errno=errno.ENOSPC)
        with contextlib.suppress(StorageError):
            RaftLogStore(tmp_path / "store", StoreOptions(background=False, log=LogOptions(files=files))).close()
        with RaftLogStore(tmp_path / "store", SMALL) as store:
            check_log(store.log("a"), expected)


def test_a_wal_that_names_a_log_that_is_gone_is_not_opened(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, SMALL) as store:
        store.log("a").append(rows(1, 3))
    for name in os.listdir(tmp_path / "logs" / "a"):
        os.unlink(tmp_path / "logs" / "a" / name)
    os.rmdir(tmp_path / "logs" / "a")
    with pytest.raises(CorruptData, match="expected the segments of log 'a', which the WAL names"):
        RaftLogStore(tmp_path, SMALL)
