"""The Raft log's replay: the real log's own plans on the same history, and what is counted."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.lab import DELETE, PUT, HotCold, Operations, RaftLogReplay, RaftLogSettings, Uniform, replay_raftlog
from compactlib.raftlog import CompactionPolicy, CostPolicy, LogOptions, RaPolicy, SeedPolicy, SegmentLimits, SegmentLog

LIMITS = SegmentLimits(max_entries=6, max_bytes=4_000)


@pytest.mark.parametrize("policy", [SeedPolicy(), SeedPolicy(max_sources=3, reclaim_fraction=0.2), RaPolicy(),
                                    CostPolicy()], ids=str)
def test_a_plan_in_the_lab_is_the_logs_own(tmp_path: Path, policy: CompactionPolicy) -> None:
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
                log.extend([(replay.last_index, 1, bytes(16 if kind == DELETE else size))])
            log.record_snapshot(replay.last_index, live=replay.snapshot())
            replay.audit()
            major = round_ % 2 == 1
            mine = log.plan("major" if major else "minor", policy if major else None)
            log.compact("major" if major else "minor", policy=policy if major else None)
            theirs = replay.compact(major=major)
            assert (theirs.drops, theirs.groups) == (mine.drops, mine.groups)
            replay.audit()
            groups, drops = groups + len(mine.groups), drops + len(mine.drops)
    assert groups > 0
    assert drops > 0


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
    assert total.seconds_to_reclaim > 0


def test_a_log_of_which_everything_dies_is_dropped_without_copies() -> None:
    settings = RaftLogSettings(limits=SegmentLimits(max_entries=10), snapshot_every=100, major_every=1)
    total = replay_raftlog(Uniform(keys=1, writes=999), SeedPolicy(), settings).total
    assert total.copied_bytes == 0
    assert total.freed_segments == 99


def test_a_compaction_needs_a_snapshot() -> None:
    replay = RaftLogReplay(SeedPolicy(), RaftLogSettings())
    replay.feed(Operations(kinds=b"\0", keys=[1], sizes=[1], times_ms=[0]))
    with pytest.raises(CompactlibError, match="take one first"):
        replay.compact(major=True)
    with pytest.raises(InvalidInput, match="snapshot_every"):
        RaftLogSettings(snapshot_every=0)
