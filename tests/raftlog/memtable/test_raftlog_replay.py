# SPDX-License-Identifier: Apache-2.0
"""Replaying the WAL on top of what segments hold already."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.indexset import IndexSet
from compactlib.raftlog import LogOptions, SegmentLimits, SnapshotMeta
from compactlib.raftlog.memtable.flush import FlushPlan
from compactlib.raftlog.memtable.replay import replay
from compactlib.raftlog.memtable.table import Memtable, Slab
from compactlib.raftlog.store.log_segments import LogSegments
from compactlib.raftlog.wal.frames import Frame, FrameKind

OPTIONS = LogOptions(limits=SegmentLimits(max_entries=4))


def run(first: int, term: int, count: int, *, previous: int | None = None, cuts: bool = False) -> Frame:
    return Frame(FrameKind.RUN, 0, previous, cuts, first, term, (), (), [b"%d" % term] * count, 64)


def cut(after: int | None) -> Frame:
    return Frame(FrameKind.CUT, 0, after, True, 0, 0, (), (), (), 64)


def sparse(*rows: tuple[int, int]) -> Frame:
    return Frame(FrameKind.SPARSE, 0, None, False, rows[0][0], rows[-1][1], [index for index, _ in rows],
                 [term for _, term in rows], [b"sparse"] * len(rows), 64)


def segments(folder: Path, *slabs: tuple[int, int, int]) -> LogSegments:
    """Segments that hold (first, term, count)."""
    log = LogSegments(folder / "log", OPTIONS)
    log.write(FlushPlan(False, tuple(Slab(first, term, [b"%d" % term] * count) for first, term, count in slabs),
                        0))
    return log


def replayed(log: LogSegments, *frames: Frame, row: SnapshotMeta | None = None) -> Memtable:
    last = log.log.last_index
    memtable = Memtable(-1 if last is None else last)
    for frame in frames:
        replay(frame, memtable, SnapshotMeta() if row is None else row, log.matching)
    memtable.audit()
    return memtable


def held(memtable: Memtable) -> list[tuple[int, int]]:
    return [(index, memtable.term_of(index) or 0) for index in memtable.indexes()]


def test_what_segments_hold_with_the_same_term_is_left_out(tmp_path: Path) -> None:
    with segments(tmp_path, (1, 1, 10)) as log:
        assert held(replayed(log, run(1, 1, 10))) == []
        assert held(replayed(log, run(1, 1, 6), run(7, 1, 4), run(11, 1, 2))) == [(11, 1), (12, 1)]


def test_a_flush_that_was_interrupted_goes_on_where_it_stopped(tmp_path: Path) -> None:
    with segments(tmp_path, (1, 1, 6)) as log:
        memtable = replayed(log, run(1, 1, 10))
        assert held(memtable) == [(index, 1) for index in range(7, 11)]
        assert [table.cuts for table in memtable.tables] == [False]


def test_an_entry_of_another_term_is_another_entry(tmp_path: Path) -> None:
    """Segments hold what was never confirmed: it was in memory when another thread's sync closed the WAL file."""
    with segments(tmp_path, (1, 1, 4), (5, 2, 4)) as log:
        memtable = replayed(log, run(1, 1, 10))
        assert held(memtable) == [(index, 1) for index in range(5, 11)]
        assert memtable.tables[0].cuts
        assert memtable.base == 5


def test_what_was_taken_back_is_taken_back_again(tmp_path: Path) -> None:
    with segments(tmp_path, (1, 1, 10)) as log:
        memtable = replayed(log, run(1, 1, 10), cut(4))
        assert (held(memtable), memtable.last, memtable.base) == ([], 4, 5)
        memtable = replayed(log, run(1, 1, 10), run(5, 1, 2, previous=4, cuts=True))
        assert (held(memtable), memtable.last) == ([(5, 1), (6, 1)], 6)
        memtable = replayed(log, cut(None))
        assert (memtable.last, memtable.base) == (-1, 0)


def test_dead_entries_need_not_be_held(tmp_path: Path) -> None:
    row = SnapshotMeta(8, 1, IndexSet.from_sorted([2, 5]))
    with segments(tmp_path, (2, 1, 1), (5, 1, 1), (9, 1, 2)) as log:
        assert held(replayed(log, run(1, 1, 10), row=row)) == []
        # What is written again from the first live entry on that is missing takes the rest of segments back.
        memtable = replayed(log, run(1, 1, 12), row=row)
        assert held(memtable) == [(11, 1), (12, 1)]


def test_sparse_entries(tmp_path: Path) -> None:
    with segments(tmp_path, (3, 1, 1)) as log:
        memtable = replayed(log, sparse((3, 1), (7, 1)), sparse((9, 2)))
        assert held(memtable) == [(7, 1), (9, 2)]


@pytest.mark.parametrize(("first", "last", "term", "count"), [
    (1, 10, 1, 9), (1, 3, 1, 3), (4, 5, 1, 2), (9, 10, 1, 1), (10, 11, 1, 0), (10, 11, 2, 2), (10, 14, 2, 2),
    (20, 20, 2, 1), (19, 20, 2, 0), (13, 13, 2, 0),
])
def test_how_much_of_a_run_segments_hold(first: int, last: int, term: int, count: int, tmp_path: Path) -> None:
    with segments(tmp_path, (1, 1, 9), (10, 2, 2), (20, 2, 1)) as log:
        assert log.matching(first, last, term) == count
