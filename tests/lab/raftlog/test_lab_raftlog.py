# SPDX-License-Identifier: Apache-2.0
"""The Raft log's replay: the real log's own plans on the same history, and what is counted."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.lab import HotCold, Operations, RaftLogSettings, Uniform, replay_raftlog
from compactlib.lab.operations import DELETE, PUT
from compactlib.lab.raftlog import RaftLogReplay
from compactlib.raftlog import (
    CostPolicy,
    DeadRatio,
    DropDead,
    EveryNMinors,
    LogOptions,
    LogPolicy,
    RaPolicy,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.raftlog.compaction.triggers import DeadBytes, Elapsed, Trigger

LIMITS = SegmentLimits(max_entries=6, max_bytes=4_000)


@pytest.mark.parametrize("policy", [SeedPolicy(), SeedPolicy(max_sources=3, reclaim_fraction=0.2), RaPolicy(),
                                    CostPolicy()], ids=str)
def test_a_plan_in_the_lab_is_the_logs_own(tmp_path: Path, policy: LogPolicy) -> None:
    random = Random(str(policy))
    settings = RaftLogSettings(limits=LIMITS, snapshot_every=1 << 30)
    replay = RaftLogReplay(policy, settings)
    groups = drops = 0
    with SegmentLog(tmp_path / "log", LogOptions(limits=LIMITS)) as log:
        for round_ in range(14):
            for _ in range(random.randrange(20, 120)):
                key, size = int(random.random() ** 2 * 150), random.randrange(0, 300)
                kind = DELETE if random.random() < 0.2 else PUT
                replay.feed(Operations(kinds=bytes([kind]), keys=[key], sizes=[size], times_ms=[replay.operations]))
                log.append([(replay.last_index, 1, bytes(16 if kind == DELETE else size))])
            log.snapshot(replay.last_index, live=replay.snapshot())
            replay.audit()
            by = policy if round_ % 2 == 1 else DropDead()
            mine = log.plan(by)
            log.compact(mine)
            theirs = replay.compact(by)
            assert (theirs.drops, theirs.groups) == (mine.drops, mine.groups)
            replay.audit()
            groups, drops = groups + len(mine.groups), drops + len(mine.drops)
    assert groups > 0
    assert drops > 0


@pytest.mark.parametrize("trigger", [EveryNMinors(2), DeadRatio(2.0), DeadBytes(8_000), Elapsed(100.0),
                                     EveryNMinors(4) | (Elapsed(50.0) & DeadRatio(0.5, "entries"))], ids=str)
def test_a_trigger_in_the_lab_is_the_logs_own(tmp_path: Path, trigger: Trigger) -> None:
    """Both are told to compact; each decides by its trigger whether that is a major compaction."""
    random = Random(str(trigger))
    clock = ManualClock(1_700_000_000.0)
    replay = RaftLogReplay(CostPolicy(), RaftLogSettings(limits=LIMITS, snapshot_every=1 << 30, trigger=trigger))
    majors = 0
    with SegmentLog(tmp_path / "log", LogOptions(limits=LIMITS, clock=clock, trigger=trigger,
                                                 policy=CostPolicy())) as log:
        for _ in range(12):
            for _ in range(random.randrange(10, 80)):
                key, size = int(random.random() ** 2 * 100), random.randrange(0, 300)
                replay.feed(Operations(kinds=bytes([PUT]), keys=[key], sizes=[size],
                                       times_ms=[round(clock.now() * 1000)]))
                log.append([(replay.last_index, 1, bytes(size))])
                clock.advance(random.choice((0.0, 0.5, 1.0)))
            replay.wait_until(round(clock.now() * 1000))
            log.snapshot(replay.last_index, live=replay.snapshot())
            report, mine = log.compact(), replay.compact_when_due()
            if not report.is_empty:
                assert (report.policy, report.dropped) == (mine.policy, tuple(drop.number for drop in mine.drops))
            else:
                assert mine.is_empty
                assert ("nothing is rewritten yet" in report.why) == mine.drops_only
            majors += not mine.drops_only
    assert 0 < majors < 12


def test_a_real_clock_set_by_operations_and_a_capacity_are_reported() -> None:
    settings = RaftLogSettings(limits=SegmentLimits(max_entries=50), snapshot_every=100, trigger=Elapsed(1.0),
                               capacity_bytes=1_000_000)
    total = replay_raftlog(Uniform(keys=50, writes=3_950, record_bytes=10), CostPolicy(), settings).total
    assert 0 < total.peak_fill < 1
    assert total.peak_fill == total.peak_used_bytes / 1_000_000


@pytest.mark.parametrize("workload", [Uniform(keys=300, writes=4_000, record_bytes=50),
                                      HotCold(keys=300, writes=4_000, record_bytes=50)], ids=str)
def test_equal_arguments_give_equal_reports_that_add_up(workload: Uniform) -> None:
    settings = RaftLogSettings(limits=SegmentLimits(max_entries=64), snapshot_every=500, major_every=2)
    report = replay_raftlog(workload, SeedPolicy(), settings, seed=3)
    assert replay_raftlog(workload, SeedPolicy(), settings, seed=3) == report
    total = report.total
    assert total.user_bytes == 4_300 * 90
    assert total.live_bytes == 300 * 90
    assert total.user_bytes - total.reclaimed_bytes == total.used_bytes
    assert total.write_amplification > 1
    # From its death a byte waits for the next snapshot at least, half of 0.5 s on average; in each stretch.
    for each in report.intervals:
        assert not each.reclaimed_bytes or each.seconds_to_reclaim > 0.1
    assert total.seconds_to_reclaim > 0.25


def test_a_log_of_which_everything_dies_is_dropped_without_copies() -> None:
    settings = RaftLogSettings(limits=SegmentLimits(max_entries=10), snapshot_every=100, major_every=1)
    total = replay_raftlog(Uniform(keys=1, writes=999), SeedPolicy(), settings).total
    assert total.copied_bytes == 0
    assert total.freed_segments == 99
    # One of 100 entries a snapshot dies at each millisecond before it; the last one of each is alive until the next.
    assert total.seconds_to_reclaim == pytest.approx(0.0495 + 0.1 * 9 / 990, rel=0.2)


def test_a_compaction_needs_a_snapshot() -> None:
    replay = RaftLogReplay(SeedPolicy(), RaftLogSettings())
    replay.feed(Operations(kinds=b"\0", keys=[1], sizes=[1], times_ms=[0]))
    with pytest.raises(CompactlibError, match="take one first"):
        replay.compact(SeedPolicy())
    with pytest.raises(InvalidInput, match="snapshot_every"):
        RaftLogSettings(snapshot_every=0)
