# SPDX-License-Identifier: Apache-2.0
"""A plan of a replayed Raft log is the real log's own on the same history."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from compactlib.clock import ManualClock
from compactlib.lab import RaftLogModel
from compactlib.raftlog import (
    DeadRatio,
    DropDead,
    EveryNMinors,
    LogOptions,
    LogPolicy,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
)
from compactlib.raftlog.policies import DeadBytes, Elapsed
from compactlib.raftlog.policy import Trigger

PUT, DELETE, FOREVER = 0, 1, -1

LIMITS = SegmentLimits(max_entries=6, max_bytes=4_000)


@pytest.mark.parametrize("policy", [SeedPolicy(), SeedPolicy(max_sources=3, reclaim_fraction=0.2)], ids=str)
def test_a_plan_in_the_lab_equals_the_logs(tmp_path: Path, policy: LogPolicy) -> None:
    random = Random(str(policy))
    lab = RaftLogModel(limits=LIMITS, snapshot_every=1 << 30, trigger=EveryNMinors(1)).start(policy)
    groups = drops = 0
    with SegmentLog(tmp_path / "log", LogOptions(limits=LIMITS)) as log:
        for _ in range(14):
            for _ in range(random.randrange(20, 120)):
                key, size = int(random.random() ** 2 * 150), random.randrange(0, 300)
                kind = DELETE if random.random() < 0.2 else PUT
                lab.apply([(kind, key, size, FOREVER, lab.last_index)])
                log.append([(lab.last_index, 1, bytes(16 if kind == DELETE else size))])
            log.snapshot(lab.last_index, live=lab.snapshot())
            theirs = lab.compact()
            mine = log.plan(DropDead() if theirs.drops_only else policy)
            log.compact(mine)
            assert (theirs.drops, theirs.groups) == (mine.drops, mine.groups)
            groups, drops = groups + len(mine.groups), drops + len(mine.drops)
    assert groups > 0
    assert drops > 0


@pytest.mark.parametrize("trigger", [EveryNMinors(2), DeadRatio(2.0), DeadBytes(8_000), Elapsed(100.0),
                                     EveryNMinors(4) | (Elapsed(50.0) & DeadRatio(0.5))], ids=str)
def test_a_trigger_in_the_lab_equals_the_logs(tmp_path: Path, trigger: Trigger) -> None:
    """Compact both; each decides by its trigger whether that is a major compaction."""
    random = Random(str(trigger))
    clock = ManualClock(1_700_000_000.0)
    lab = RaftLogModel(limits=LIMITS, snapshot_every=1 << 30, trigger=trigger).start(SeedPolicy())
    majors = 0
    with SegmentLog(tmp_path / "log", LogOptions(limits=LIMITS, clock=clock, trigger=trigger)) as log:
        for _ in range(12):
            for _ in range(random.randrange(10, 80)):
                key, size = int(random.random() ** 2 * 100), random.randrange(0, 300)
                lab.apply([(PUT, key, size, FOREVER, round(clock.now() * 1000))])
                log.append([(lab.last_index, 1, bytes(size))])
                clock.advance(random.choice((0.0, 0.5, 1.0)))
            lab.now_ms = round(clock.now() * 1000)
            log.snapshot(lab.last_index, live=lab.snapshot())
            report, mine = log.compact(), lab.compact()
            if not report.is_empty:
                assert (report.policy, report.dropped) == (mine.policy, tuple(drop.number for drop in mine.drops))
            else:
                assert mine.is_empty
                assert ("nothing is rewritten yet" in report.why) == mine.drops_only
            majors += not mine.drops_only
    assert 0 < majors < 12
