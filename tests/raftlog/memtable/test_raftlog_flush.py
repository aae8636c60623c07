# SPDX-License-Identifier: Apache-2.0
"""What a flush writes to segments, and what it leaves out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from compactlib.clock import ManualClock
from compactlib.errors import CorruptData, DiskFull
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    DropDead,
    Entry,
    LogOptions,
    RaftLogStore,
    SegmentLimits,
    SnapshotMeta,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.errors import LogStopped
from compactlib.raftlog.memtable.flush import FlushPlan, NewestStats, plan_flush
from compactlib.raftlog.memtable.table import Memtable, Slab
from compactlib.raftlog.store.log_segments import LogSegments
from tests.harness.plain_log import PlainLog
from tests.harness.raft_world import check_log
from tests.tools.faults.plan import FailingFiles

CAP_16 = LogOptions(limits=SegmentLimits(max_entries=16))


def filled(*runs: tuple[int, int], term: int = 1) -> Memtable:
    """A memtable with a frozen table for each run of indexes."""
    table = Memtable()
    for number, (first, last) in enumerate(runs, 1):
        table.insert_sparse(first, term, b"%d" % first, None)
        if first < last:
            table.insert_run(first + 1, term, [b"%d" % index for index in range(first + 1, last + 1)])
        table.freeze(number)
    return table


def state(snapshot: int, *live: int) -> SnapshotMeta:
    return SnapshotMeta(snapshot, 1, IndexSet.from_sorted(live))


def test_live_entries_below_the_snapshot_and_everything_above(tmp_path: Path) -> None:
    plan = plan_flush(filled((1, 6)).tables, state(4, 2, 4))
    assert list(plan.indexes) == [2, 4, 5, 6]
    assert plan.dead == 2
    with LogSegments(tmp_path / "log", CAP_16) as log:
        log.write(plan)
        (ref,) = log.log.refs
        assert (ref.first, ref.last) == (2, 6)
        assert log.term_of(3) is None
        assert [entry.index for entry in log.log.entries()] == [2, 4, 5, 6]


def test_tables_below_the_snapshot_give_live_entries_only_or_no_file_at_all() -> None:
    assert list(plan_flush(filled((5, 5), (7, 9)).tables, state(40, 1, 7, 8, 9)).indexes) == [7, 8, 9]
    nothing = plan_flush(filled((1, 64)).tables, state(64), NewestStats(10, 5000))
    assert (nothing.slabs, nothing.successor, nothing.dead) == ((), False, 64)


def test_nothing_alive_makes_no_file_but_the_wal_file_goes(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        log = store.log("a")
        log.append((index, 1, b"") for index in range(1, 65))
        log.snapshot(64)
        store.flush()
        assert log.segments.refs == ()
        assert (log.status().memtable_entries, store.status().wal_files) == (0, 1)


def test_full_segments_are_sealed_and_the_next_begun(tmp_path: Path) -> None:
    with LogSegments(tmp_path / "log", CAP_16) as log:
        for first in (1, 33):
            log.write(plan_flush(filled((first, first + 31)).tables, SnapshotMeta()))
        assert [(ref.first, ref.last) for ref in log.log.refs] == [(1, 16), (17, 32), (33, 48), (49, 64)]


@pytest.mark.parametrize(("newest", "row", "successor"), [
    # Stale: it ends below everything that is live, and is worth giving to the compaction.
    (NewestStats(10, 1025), state(20, 15), True),
    (NewestStats(10, 1025), state(20), True),
    (NewestStats(10, 1024), state(20, 15), False),
    (NewestStats(15, 5000), state(20, 15), False),
    (NewestStats(10, 5000), SnapshotMeta(), False),
    (NewestStats(), state(20, 15), False),
])
def test_a_stale_newest_segment_gets_a_successor(newest: NewestStats, row: SnapshotMeta, successor: bool) -> None:
    assert plan_flush(filled((15, 25)).tables, row, newest).successor == successor


def test_a_segment_that_has_gone_stale_is_dropped_after_the_flush_that_replaced_it(tmp_path: Path) -> None:
    """It was pinned for ever, because the newest segment is never compacted."""
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        log = store.log("a")
        log.append((index, 1, bytes(300)) for index in range(1, 11))
        store.flush()
        log.append([(11, 1, b"x")])
        log.snapshot(10)
        log.compact(policy=DropDead())
        assert [ref.number for ref in log.segments.refs] == [1]
        store.flush()
        assert [ref.number for ref in log.segments.refs] == [1, 2]
        log.compact(policy=DropDead())
        assert [ref.number for ref in log.segments.refs] == [2]


def test_older_tables_are_shortened_by_newer_ones() -> None:
    table = filled((1, 9))
    table.insert_run(5, 2, [b"five", b"six"])
    table.freeze(2)
    plan = plan_flush(table.tables, SnapshotMeta())
    assert plan.slabs[-1] == Slab(5, 2, [b"five", b"six"])
    assert [(slab.first, slab.last, slab.term) for slab in plan.slabs] == [(1, 1, 1), (2, 4, 1), (5, 6, 2)] or \
        [(slab.first, slab.last, slab.term) for slab in plan.slabs] == [(1, 4, 1), (5, 6, 2)]


def test_a_plan_prints_itself() -> None:
    plan = FlushPlan(True, (Slab(5, 2, [b"five", b"six"]),), 3)
    assert repr(plan) == "FlushPlan(2 entries in 1 runs, 3 dead left out, in a new segment)"
    assert plan.to_dicts() == [{"first": 5, "last": 6, "term": 2, "bytes": 7}]
    assert "five" not in plan._repr_html_()
    assert plan.entries == 2


# -- what is taken back


def segments_with(folder: Path, *indexes: int) -> LogSegments:
    log = LogSegments(folder, CAP_16)
    log.write(FlushPlan(False, tuple(Slab(index, 1, [b"%d" % index]) for index in indexes), 0))
    return log


@pytest.mark.parametrize(("held", "after", "left"), [
    (range(1, 40), 20, range(1, 21)),
    (range(1, 40), 32, range(1, 33)),
    ((1, 5, 9), 7, (1, 5)),
    ((5, 9), 3, ()),
    (range(30, 70), 3, ()),
    ((5, 9), 9, (5, 9)),
])
def test_taking_back_is_durable_by_itself(held: range, after: int, left: range, tmp_path: Path) -> None:
    with segments_with(tmp_path / "log", *held) as log:
        log.cut(after)
        assert [entry.index for entry in log.log.entries()] == list(left)
        log.log.audit()
    with LogSegments(tmp_path / "log", CAP_16) as log:
        assert [(entry.index, entry.payload) for entry in log.log.entries()] == [
            (index, b"%d" % index) for index in left]


# -- through the store


def test_a_flush_that_fails_keeps_the_wal_and_is_tried_again(tmp_path: Path) -> None:
    probe = FailingFiles()
    with RaftLogStore(tmp_path / "probe", StoreOptions(background=False, log=LogOptions(files=probe))) as store:
        store.log("a").append((index, 1, b"x" * 50) for index in range(1, 11))
        store.sync()
        before = probe.count
        store.flush()
        after = probe.count
    plain = PlainLog.of((index, 1, b"x" * 50) for index in range(1, 11))
    for fail_at in range(before + 1, after + 1):
        folder = tmp_path / str(fail_at)
        files = FailingFiles(fail_at=fail_at)
        with RaftLogStore(folder, StoreOptions(background=False, log=LogOptions(files=files))) as store:
            log = store.log("a")
            log.append((index, 1, b"x" * 50) for index in range(1, 11))
            store.sync()
            try:
                store.flush()
            except (DiskFull, LogStopped):
                assert store.status().unflushed_files in (0, 1)
            check_log(log, plain)
            if log.stopped is None:
                store.flush()
                assert store.status().flush_error is None
                check_log(log, plain)
        with RaftLogStore(folder) as store:
            check_log(store.log("a"), plain)


def test_entries_that_a_damaged_segment_hides_are_not_taken_for_flushed(tmp_path: Path) -> None:
    with open_log(tmp_path, StoreOptions(background=False)) as log:
        log.append([(1, 1, b"one"), (2, 1, b"two")])
        log.flush()
        log.append([(3, 1, b"three")])
    path = tmp_path / "logs" / "log" / "0000000000000001.segment"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with open_log(tmp_path) as log:
        with pytest.raises(CorruptData):
            log.read(2)
        assert log.read(3) == Entry(3, 1, b"three")


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(1, 4)), min_size=1, max_size=8), st.integers(-1, 35),
       st.sets(st.integers(0, 35)))
def test_a_plan_writes_what_is_needed_and_nothing_else(runs: list[tuple[int, int]], snapshot: int,
                                                       live: set[int]) -> None:
    table, plain = Memtable(), PlainLog()
    for term, (first, count) in enumerate(runs, 1):
        table.replay_run(first, term, [b"%d" % index for index in range(first, first + count)])
        for index in range(first, first + count):
            plain.append(index, term, b"%d" % index)
    row = SnapshotMeta(snapshot, 1, IndexSet.from_iterable(each for each in live if each <= snapshot))
    plan = plan_flush(table.tables, row)
    wanted = {index: entry for index, entry in copy.copy(plain).entries.items() if not row.is_dead(index)}
    written = [Entry(slab.first + place, slab.term, payload) for slab in plan.slabs
               for place, payload in enumerate(slab.payloads)]
    assert written == list(wanted.values())
    assert plan.dead == len(plain.entries) - len(wanted)


class TurnForOthers(ManualClock):
    """Is asked by a flush that breathes, in which others have their turn."""

    others: Callable[[], object] | None = None

    def monotonic(self) -> float:
        if self.others is not None:
            self.others()
        return super().monotonic()
