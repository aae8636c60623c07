# SPDX-License-Identifier: Apache-2.0
"""Holes in segments that are too dense to rewrite: room is given back, and nothing else changes."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from compactlib.errors import BudgetSpent, CompactlibError, InvalidInput, StorageError, Unsupported
from compactlib.files import LocalFiles, OutFile
from compactlib.files.disk import LocalOutFile, StrPath
from compactlib.indexset import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import DeadEntry, Entry, LogReader, SegmentLimits, SegmentLog, SnapshotMeta
from compactlib.raftlog.compaction.holes import BLOCK_BYTES, HoleReport, plan_holes
from compactlib.raftlog.segment.index import SegmentIndex
from compactlib.runtime import Budget
from compactlib.testing import RecordingFiles, explore_crashes, record
from tests.raftlog.compaction_logs import damaged, flip_byte, options, payload_place
from tests.tools.faults.plan import FailingFiles

LARGE = SegmentLimits(max_entries=16, max_bytes=1 << 30)
SIZE = 3 * BLOCK_BYTES


def payload(index: int, size: int = SIZE) -> bytes:
    return bytes([index % 255 + 1]) * size


def dense(folder: Path, *, files: Any = None, size: int = SIZE) -> SegmentLog:
    """Two sealed segments of 16 entries and a newest one; three quarters of both are alive, in a lump each."""
    log = SegmentLog(folder, options(files, limits=LARGE))
    log.extend(Entry(index, 1, payload(index, size)) for index in range(1, 41))
    log.record_snapshot(40, IndexSet.from_runs([(1, 5), (10, 16), (17, 28), (33, 34)]))
    return log


def blocks(folder: Path) -> int:
    return sum(path.stat().st_blocks for path in folder.glob("*.segment")) * 512


def done(outcome: Done[HoleReport] | Skipped | Failed) -> HoleReport:
    assert isinstance(outcome, Done), outcome
    return outcome.stats


def check(log: LogReader | SegmentLog, live: IndexSet, *, torn: bool = False) -> None:
    for index in range(1, 41):
        answer = log.read(index)
        assert answer == (Entry(index, 1, payload(index)) if index in live else DeadEntry(index, 40)), index
    assert [entry.index for entry in log.entries()] == list(live)
    # A disk changes whole sectors, of which a hole's are found by their zeros; the harness also tears single bytes off.
    assert [error for error in damaged(log) if not torn or error.index in live] == []


LIVE = IndexSet.from_runs([(1, 5), (10, 16), (17, 28), (33, 34)])


def test_holes_give_room_back_and_live_entries_read_as_before(tmp_path: Path) -> None:
    with dense(tmp_path) as log:
        assert isinstance(log.compact(policy=log.policy), Skipped)
        before = blocks(tmp_path)
        report = done(log.punch_holes(min_bytes=BLOCK_BYTES))
        assert [(each.number, each.holes, each.hole_bytes) for each in report.segments] == [
            (1, 1, 4 * SIZE), (2, 1, 4 * SIZE)]
        assert before - blocks(tmp_path) == report.bytes_freed >= 2 * (4 * SIZE - 2 * BLOCK_BYTES)
        check(log, LIVE)
        assert "bytes freed by holes" in str(report)
        assert report.to_dicts()[0]["number"] == 1
        assert "<table>" in report._repr_html_()
        # A second run with nothing new to do does nothing.
        assert isinstance(log.punch_holes(min_bytes=BLOCK_BYTES), Skipped)
    for opened in (LogReader(tmp_path), SegmentLog(tmp_path, options(limits=LARGE))):
        with opened as again:
            check(again, LIVE)


def test_a_segment_with_holes_can_still_be_compacted(tmp_path: Path) -> None:
    with dense(tmp_path) as log:
        done(log.punch_holes(min_bytes=BLOCK_BYTES))
        live = IndexSet.from_sorted([2, 14, 20, 33])
        log.record_snapshot(40, live)
        assert isinstance(log.compact(policy=log.policy), Done)
        check(log, live)


def test_only_what_the_policy_leaves_alone_is_punched_and_never_the_newest(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options(limits=LARGE)) as log:
        log.extend(Entry(index, 1, payload(index)) for index in range(1, 49))
        assert isinstance(log.punch_holes(), Skipped)
        # 1 will be rewritten, 2 is dense, 3 is the newest and wholly dead.
        log.record_snapshot(48, IndexSet.from_runs([(1, 5), (17, 28)]))
        assert [each.number for each in done(log.punch_holes(min_bytes=BLOCK_BYTES)).segments] == [2]
        newest = tmp_path / f"{3:016d}.segment"
        assert payload(48) in newest.read_bytes()


def test_a_lease_a_running_compaction_and_small_ranges_are_reasons_to_wait(tmp_path: Path) -> None:
    with dense(tmp_path) as log:
        with log.lease():
            outcome = log.punch_holes(min_bytes=BLOCK_BYTES)
            assert isinstance(outcome, Skipped)
            assert "lease" in outcome.reason
        outcome = log.punch_holes(min_bytes=5 * SIZE)
        assert isinstance(outcome, Skipped)
        assert "dead bytes on end" in outcome.reason
        with pytest.raises(InvalidInput, match="min_bytes is 0"):
            log.punch_holes(min_bytes=0)
        spent = log.punch_holes(min_bytes=BLOCK_BYTES, budget=Budget(total_bytes=5 * SIZE))
        assert isinstance(spent, Failed)
        assert isinstance(spent.error, BudgetSpent)
        assert spent.changed == "partly"
        # The next call goes on with the rest.
        report = done(log.punch_holes(min_bytes=BLOCK_BYTES))
        assert 1 not in [each.number for each in report.segments]


class NoHoles(LocalFiles):
    """A disk without holes."""

    def open(self, path: StrPath) -> OutFile:
        return _NoHolesOut(path, 0)


class _NoHolesOut(LocalOutFile):
    def punch_hole(self, offset: int, length: int) -> None:
        raise Unsupported("no holes here")


def test_where_there_are_no_holes_the_outcome_says_so(tmp_path: Path) -> None:
    with dense(tmp_path, files=NoHoles()) as log:
        outcome = log.punch_holes(min_bytes=BLOCK_BYTES)
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, Unsupported)
        check(log, LIVE)


def test_the_local_disk_punches_or_says_why_not(tmp_path: Path) -> None:
    out = LocalFiles().create(tmp_path / "file")
    out.write_at(0, [b"x" * 3 * BLOCK_BYTES])
    out.punch_hole(100, 2 * BLOCK_BYTES)
    out.sync()
    data = (tmp_path / "file").read_bytes()
    assert data == b"x" * 100 + bytes(2 * BLOCK_BYTES) + b"x" * (BLOCK_BYTES - 100)
    out.close()
    pipe, other = os.pipe()
    try:
        from compactlib.files.disk import punch_range
        with pytest.raises((StorageError, Unsupported)):
            punch_range(pipe, 0, 10, "a pipe")
    finally:
        os.close(pipe)
        os.close(other)


def test_a_disk_that_refuses_fails_one_segment_and_harms_none(tmp_path: Path) -> None:
    files = FailingFiles()
    with dense(tmp_path, files=files) as log:
        files._fail_at, files._errno = files.count + 1, errno.EIO  # noqa: SLF001
        report = done(log.punch_holes(min_bytes=BLOCK_BYTES))
        assert [number for number, _ in report.failed] == [1]
        assert [each.number for each in report.segments] == [2]
        check(log, LIVE)


def test_real_damage_is_still_damage(tmp_path: Path) -> None:
    with dense(tmp_path) as log:
        done(log.punch_holes(min_bytes=BLOCK_BYTES))
    flip_byte(tmp_path / f"{1:016d}.segment", payload_place(tmp_path, 1, 3))
    with LogReader(tmp_path) as log:
        assert [error.index for error in damaged(log)] == [3]
    # A live payload that reads as zeros is damage too: only what is dead can be a hole.
    out = LocalFiles().open(tmp_path / f"{1:016d}.segment")
    out.punch_hole(payload_place(tmp_path, 1, 3), SIZE)
    out.close()
    with LogReader(tmp_path) as log:
        assert [error.index for error in damaged(log)] == [3]
        with pytest.raises(CompactlibError):
            log.read(3)


def test_a_reader_of_another_process_that_is_behind_answers_dead_not_damaged(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options(limits=LARGE)) as log:
        log.extend(Entry(index, 1, payload(index)) for index in range(1, 41))
        log.record_snapshot(30, IndexSet.range(1, 30))
        with (LogReader(tmp_path) as other, LogReader(tmp_path) as behind,
              behind.plan_read(range(1, 17)) as plan):
            scan = behind.entries()
            assert next(scan).index == 1
            log.record_snapshot(40, LIVE)
            done(log.punch_holes(min_bytes=BLOCK_BYTES))
            assert [answer for answer in plan.answers() if isinstance(answer, DeadEntry)] == [
                DeadEntry(index, 40) for index in range(6, 10)]
            # What it had read already it gives; nothing is damaged, and nothing alive is missing.
            assert LIVE.issubset(IndexSet.from_iterable([1, *(entry.index for entry in scan)]))
            assert other.read(7) == DeadEntry(7, 40)


@settings(max_examples=60)
@given(st.lists(st.integers(0, 3 * BLOCK_BYTES), max_size=10), st.data())
def test_holes_lie_between_what_stays_and_are_as_large_as_they_can_be(sizes: list[int], data: st.DataObject) -> None:
    index = SegmentIndex.empty()
    offset = 1000
    for number, size in enumerate(sizes, 1):
        index.append(number, 1, offset, size, 0, 0)
        offset += size
    live = data.draw(st.sets(st.integers(1, max(len(sizes), 1)))) & set(range(1, len(sizes) + 1))
    snapshot = data.draw(st.integers(max(live, default=0), len(sizes)))
    holes = plan_holes(index, 1000, offset, SnapshotMeta(snapshot, live=IndexSet.from_iterable(live)), min_bytes=1)
    dead = [number for number in range(1, len(sizes) + 1) if number <= snapshot and number not in live]
    punched = {place for hole in holes for place in range(hole.offset, hole.offset + hole.length)}
    lost = {place for number in dead for place in range(index.columns.offsets[number - 1],
                                                        index.columns.offsets[number - 1] + sizes[number - 1])}
    assert punched <= lost
    stretches = sorted(lost - punched)
    run = 0
    for before, place in zip([None, *stretches], stretches, strict=False):
        run = run + 1 if before is not None and place == before + 1 else 1
        assert run < BLOCK_BYTES
    assert all(hole.length >= BLOCK_BYTES for hole in holes)


def test_a_crash_at_any_moment_of_punching_loses_nothing(tmp_path: Path) -> None:
    dense(tmp_path, size=SIZE).close()

    def work(folder: Path, files: RecordingFiles) -> None:
        with SegmentLog(folder, options(files, limits=LARGE)) as log:
            done(log.punch_holes(min_bytes=BLOCK_BYTES))

    def after(folder: Path, _: Sequence[Any]) -> None:
        with LogReader(folder) as reader:
            check(reader, LIVE, torn=True)
        with SegmentLog(folder, options(limits=LARGE)) as log:
            log.punch_holes(min_bytes=BLOCK_BYTES)
            check(log, LIVE)

    assert explore_crashes(record(tmp_path, work), after, seed=1, limit_per_point=8) > 3
