# SPDX-License-Identifier: Apache-2.0
"""Followers of a Raft log catch up with entries of the leader's log, and triggers decide when a log is compacted."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from compactlib.raftlog import (
    DeadRatio,
    DropDead,
    Entry,
    EveryNMinors,
    LogOptions,
    RaftLog,
    SegmentLimits,
    SegmentLog,
    StoreOptions,
    open_log,
)

OPTIONS = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=16)), background=False)


def entry(index: int, term: int = 1) -> Entry:
    return Entry(index, term, b"%d in %d" % (index, term))


HAD = {
    "nothing": [],
    "a part": [entry(index) for index in range(1, 31)],
    "more, of an older term": [entry(index, 1 if index < 31 else 2) for index in range(1, 99)],
    "another beginning": [entry(index, 2) for index in range(1, 80)],
}


@pytest.mark.parametrize("had", HAD)
def test_follower_catches_up(had: str, tmp_path: Path) -> None:
    whole = [*(entry(index) for index in range(1, 41)), *(entry(index, 3) for index in range(41, 91))]
    with open_log(tmp_path / "leader", OPTIONS) as leader, open_log(tmp_path / "follower", OPTIONS) as follower:
        leader.append(whole)
        follower.append(HAD[had])
        follower.sync()
        follower.flush()
        follow(leader, follower)
        assert list(follower.entries()) == whole
    with open_log(tmp_path / "follower", OPTIONS) as follower:
        assert list(follower.entries()) == whole


def follow(leader: RaftLog, follower: RaftLog) -> None:
    """Send the missing entries, a few at a time, from the index at which both agree by the follower's answer."""
    after = leader.last_index
    for _ in range(1_000):
        sent = leader.entries_after(after, max_bytes=100)
        assert sent is not None
        answer = follower.append_entries(sent.prev_index, sent.prev_term, sent.entries)
        if not answer.success:
            after = leader.next_index(answer) - 1
        elif sent.entries:
            after = sent.entries[-1].index
        else:
            follower.sync()
            return
    raise AssertionError("the follower never agrees")


def test_follower_that_is_too_far_behind_needs_the_snapshot(tmp_path: Path) -> None:
    with open_log(tmp_path, OPTIONS) as leader:
        leader.append([entry(index) for index in range(1, 91)])
        leader.sync()
        leader.snapshot(60, [3])
        assert leader.entries_after(10) is None
        sent = leader.entries_after(60)
        assert sent is not None
        assert [each.index for each in sent.entries] == list(range(61, 91))


TRIGGERS = {
    "dead ratio": DeadRatio(2.0),
    "either": DeadRatio(2.0) | EveryNMinors(1_000),
    "both": DeadRatio(2.0) & EveryNMinors(1),
}


@pytest.mark.parametrize("name", TRIGGERS)
def test_trigger_holds_back_work_of_little_gain(name: str, tmp_path: Path) -> None:
    """Until twice as much is dead as alive nothing is rewritten, and the empty plan says why."""
    for step, worth_it in ((10, True), (2, False)):
        with SegmentLog(tmp_path / str(step), attrs.evolve(OPTIONS.log, trigger=TRIGGERS[name])) as log:
            log.append((index, 1, b"payload" * 10) for index in range(1, 301))
            log.sync()
            log.snapshot(290, range(1, 291, step))
            log.compact(policy=DropDead())
            plan = log.plan()
            assert bool(plan.groups) == worth_it, plan.why
            assert plan.why
