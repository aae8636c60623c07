# SPDX-License-Identifier: Apache-2.0
"""A compaction of a log does what its plan forecasts, and a pin keeps its segments and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.clock import ManualClock
from compactlib.indexset import IndexSet
from compactlib.raftlog import (
    DeadEntry,
    DropDead,
    Entry,
    EveryNMinors,
    LogOptions,
    LogPolicy,
    RaftLog,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.policy import MajorCadence

OPTIONS = LogOptions(limits=SegmentLimits(max_entries=16), keep_links_seconds=0.0)
LAST = 160


def payload(index: int) -> bytes:
    return b"%d;" % index * 50


def in_segments(folder: Path, live: range) -> SegmentLog:
    log = SegmentLog(folder, OPTIONS)
    for index in range(1, LAST + 1):
        log.append([(index, 1, payload(index))])
    log.sync()
    log.snapshot(LAST, live)
    return log


def in_a_store(folder: Path) -> RaftLog:
    log = open_log(folder, StoreOptions(log=OPTIONS, background=False))
    log.append([Entry(index, 1, payload(index)) for index in range(1, LAST + 1)])
    log.flush()
    return log


def bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*.segment") if not path.is_symlink())


@pytest.mark.parametrize("live", [range(1, LAST, 4), range(100, 101), range(1, LAST, 40), range(1, 40)], ids=str)
@pytest.mark.parametrize("policy", [DropDead(), SeedPolicy()], ids=str)
def test_forecast_holds_to_the_byte(policy: LogPolicy, live: range, tmp_path: Path) -> None:
    with in_segments(tmp_path, live) as log:
        plan, before = log.plan(policy), bytes_of(tmp_path)
        report = log.compact(plan)
        assert report.is_empty == plan.is_empty
        assert (report.bytes_written, report.bytes_freed) == (plan.bytes_to_copy, plan.bytes_freed)
        assert bytes_of(tmp_path) == before - plan.bytes_freed
        assert all(log.read(index) == Entry(index, 1, payload(index)) for index in live)


def test_rewrites_without_room_leave_the_drops(tmp_path: Path) -> None:
    """Each group frees more than it takes, so that the room of the largest output is enough for all, one by one."""
    with in_segments(tmp_path, range(1, 100, 4)) as log:
        view, cadence, policy = log.view(), MajorCadence(EveryNMinors(0), ManualClock()), SeedPolicy(max_sources=2)
        needed = max(group.output.file_bytes for group in cadence.plan(view, policy).groups)
        enough = cadence.plan(view, policy, bytes_available=needed)
        assert enough.bytes_needed == needed < enough.bytes_to_copy
        assert len(enough.groups) > 1
        short = cadence.plan(view, policy, bytes_available=needed - 1)
        assert short.drops == enough.drops != ()
        assert short.groups == ()
        assert f"{needed:,} bytes are needed and {needed - 1:,} are available" in short.why


def test_pin_keeps_its_segments_and_no_others(tmp_path: Path) -> None:
    """A follower reads the entries it lacks during a compaction; all other dead entries are freed."""
    with in_a_store(tmp_path) as log:
        before = bytes_of(tmp_path)
        log.snapshot(100, range(1, 20))
        with log.pin(IndexSet.range(17, 19)) as pin:
            log.snapshot(150, [1])
            assert not log.compact(policy=SeedPolicy()).is_empty
            log.reclaim()
            assert [pin.read(index) for index in (17, 18, 19)] == [Entry(index, 1, payload(index))
                                                                   for index in (17, 18, 19)]
            assert isinstance(log.read(40), DeadEntry)
            assert bytes_of(tmp_path) < before / 3
        log.compact(policy=SeedPolicy())
        log.reclaim()
        assert isinstance(log.read(18), DeadEntry)
        assert log.read(1) == Entry(1, 1, payload(1))


def test_pin_keeps_entries_in_memory_through_a_flush(tmp_path: Path) -> None:
    with in_a_store(tmp_path) as log:
        first = log.last_index + 1
        log.append_run(first, 1, [payload(index) for index in range(first, first + 9)])
        with log.pin(IndexSet.range(first + 2, first + 3)) as pin:
            log.snapshot(first + 8, [1])
            log.flush()
            log.compact(policy=SeedPolicy())
            assert [pin.read(index) for index in pin.indexes] == [Entry(index, 1, payload(index))
                                                                  for index in (first + 2, first + 3)]
        assert isinstance(log.read(first + 2), DeadEntry)
