# SPDX-License-Identifier: Apache-2.0
"""What ends a compaction early, or one group of it: budgets, cancelling, damage, bugs. The rest stays and goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, CorruptData, TaskFailed
from compactlib.executors import LocalExecutor
from compactlib.outcome import Failed, Skipped
from compactlib.raftlog import EveryNMinors, SeedPolicy, SegmentLimits, SegmentLog
from compactlib.raftlog.compaction.report import CompactionFailed
from compactlib.raftlog.model.names import segment_name
from compactlib.runtime import Budget, Observer, Progress, RecordingObserver
from tests.raftlog.compaction_logs import (
    compact_to_rest,
    damaged,
    done,
    entry_of,
    filled,
    flip_byte,
    options,
    payload_of,
    payload_place,
    picture,
    strays,
    vector_45,
)
from tests.raftlog.wrapped_files import WatchedFiles

ONE, TWO = segment_name(1), segment_name(2)
PAIRS = SeedPolicy(max_sources=2)


def test_a_budget_in_bytes_ends_groups_and_the_next_run_goes_on(tmp_path: Path) -> None:
    expected = filled(tmp_path, last=97, snapshot=96, live=[1, 2, 24, 49, 50, 70, 91], policy=PAIRS)
    with SegmentLog(tmp_path, options(policy=PAIRS)) as log:
        groups = [group.numbers for group in log.plan(log.policy).groups]
        assert len(groups) == 3
        first = sum(len(payload_of(index)) for index in (1, 2, 24))
        budget = Budget(total_bytes=first)
        outcome = log.compact(policy=log.policy, budget=budget)
        assert isinstance(outcome, CompactionFailed)
        assert isinstance(outcome.error, BudgetSpent)
        assert outcome.changed == "partly"
        assert [group.members for group in outcome.report.done] == groups[:1]
        assert [group.members for group in outcome.report.failed] == groups[1:]
        for failed in outcome.report.failed:
            assert isinstance(failed.error, BudgetSpent)
            assert failed.error.reason == "bytes"
        assert budget.spent_bytes == first
        assert strays(tmp_path) == []
        expected.check(log)
        nothing = log.compact(policy=log.policy, budget=Budget(total_bytes=0))
        assert isinstance(nothing, Failed)
        assert isinstance(nothing.error, BudgetSpent)
        compact_to_rest(log)
        expected.check(log)


def test_a_major_that_was_cut_short_does_not_wait_for_its_turn_again(tmp_path: Path) -> None:
    filled(tmp_path, last=97, snapshot=96, live=[1, 2, 24, 49, 50, 70, 91], policy=PAIRS)
    with SegmentLog(tmp_path, options(policy=PAIRS, trigger=EveryNMinors(1))) as log:
        assert done(log.compact()).drops_only
        for _ in range(2):
            cut_short = log.compact(budget=Budget(total_bytes=0))
            assert isinstance(cut_short, Failed)
            assert isinstance(cut_short.error, BudgetSpent)
        assert not done(log.compact()).drops_only
        # That one counted: now it is a minor's turn.
        second = log.compact()
        assert isinstance(second, Skipped)
        assert second.reason.endswith("nothing is rewritten yet: 0 minors since the last major, below "
                                      "EveryNMinors(n=1); lower it, or wait")


def test_a_cancelled_run_keeps_what_was_committed(tmp_path: Path) -> None:
    expected = filled(tmp_path, last=97, snapshot=96, live=[1, 2, 24, 49, 50, 70, 91], policy=PAIRS)
    budget = Budget()

    class CancelsAfterOne(Observer):
        def progress(self, progress: Progress) -> None:
            if progress == Progress("compact", 1, 3, "groups"):
                budget.cancel()

    with SegmentLog(tmp_path, options(policy=PAIRS, observer=CancelsAfterOne())) as log:
        outcome = log.compact(policy=log.policy, budget=budget)
        assert isinstance(outcome, CompactionFailed)
        assert outcome.changed == "partly"
        assert [len(outcome.report.done), len(outcome.report.failed)] == [1, 2]
        assert {failed.error.reason for failed in outcome.report.failed if isinstance(failed.error, BudgetSpent)} == {
            "cancelled"}
        expected.check(log)
        again = log.compact(policy=log.policy, budget=budget)
        assert isinstance(again, Failed)
        assert isinstance(again.error, BudgetSpent)
        assert again.changed == "no"
        compact_to_rest(log)
        expected.check(log)


def test_a_deadline_ends_it_and_a_rate_makes_it_wait(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with SegmentLog(tmp_path, options(limits=SegmentLimits(max_entries=4), clock=clock)) as log:
        log.extend((index, 1, bytes(100_000)) for index in range(1, 34))
        log.record_snapshot(32, range(1, 33, 4))
        executor = LocalExecutor(clock=clock)
        late = Budget(bytes_per_second=100_000.0, deadline=1_000_002.0, clock=clock)
        outcome = log.compact(policy=log.policy, budget=late, executor=executor)
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, BudgetSpent)
        assert outcome.error.reason == "deadline"
        assert 1_000_002.0 <= clock.now() < 1_000_003.0
        before = clock.monotonic()
        report = done(log.compact(policy=log.policy, budget=Budget(bytes_per_second=100_000.0, clock=clock),
                                  executor=executor))
        assert clock.monotonic() - before == report.seconds
        # 800,000 bytes at 100,000 a second, a tenth of a second's worth saved up.
        assert 7.8 <= report.seconds <= 8.0


def test_damage_to_a_live_entry_stops_its_own_group(tmp_path: Path) -> None:
    """Two groups; the first one's second member is damaged."""
    live = [1, 2, 21, 49, 70]
    expected = filled(tmp_path, last=97, snapshot=96, live=live, policy=PAIRS)
    place = payload_place(tmp_path, 2, 21)
    flip_byte(tmp_path / TWO, place)
    before = picture(tmp_path)
    observer = RecordingObserver()
    with SegmentLog(tmp_path, options(policy=PAIRS, observer=observer)) as log:
        outcome = log.compact(policy=log.policy)
        assert isinstance(outcome, CompactionFailed)
        assert outcome.changed == "partly"
        (failed,) = outcome.report.failed
        assert failed.members == (1, 2)
        assert isinstance(failed.error, CorruptData)
        assert (failed.error.path, failed.error.offset, failed.error.index) == (str(tmp_path / TWO), place, 21)
        assert [group.members for group in outcome.report.done] == [(4, 5)]
        assert outcome.report.dropped == (3, 6)
        assert (tmp_path / ONE).read_bytes() == before[ONE]
        assert (tmp_path / TWO).read_bytes() == before[TWO]
        assert strays(tmp_path) == []
        assert ("raftlog_group_failed", {"members": (1, 2), "error": str(failed.error)}) in observer.events
        with pytest.raises(CorruptData, match="index 21"):
            log.read(21)
        for index in (1, 2, 49, 70):
            assert log.read(index) == entry_of(index)
        assert isinstance(log.compact(policy=log.policy), Failed)
        flip_byte(tmp_path / TWO, place)
        compact_to_rest(log)
        expected.check(log)


def test_damage_to_dead_entries_stops_nothing(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    for number, index in ((1, 3), (2, 18), (3, 47)):
        flip_byte(tmp_path / segment_name(number), payload_place(tmp_path, number, index))
    with SegmentLog(tmp_path, options()) as log:
        assert [error.index for error in damaged(log)] == [3, 18, 47]
        done(log.compact(policy=log.policy))
        expected.check(log)


def test_a_task_that_fails_in_its_own_way_is_told_by_name(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)

    def bug(operation: str, path: str) -> None:
        if operation == "create" and f"{ONE}." in path:
            raise ZeroDivisionError("a bug")

    with SegmentLog(tmp_path, options(WatchedFiles(bug))) as log:
        outcome = log.compact(policy=log.policy)
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, TaskFailed)
        assert (outcome.error.task, outcome.error.kind) == (ONE, "ZeroDivisionError")
        assert strays(tmp_path) == []
        expected.check(log)


