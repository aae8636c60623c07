# SPDX-License-Identifier: Apache-2.0
"""What is special in how logs offer the contract: forecasts to the byte, outdated plans, room, fences, gates, reports.

What holds for every store is in `tests/promises/contract`.
"""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import attrs
import pytest

from compactlib.contract import Compaction, Policy
from compactlib.errors import BudgetSpent, Busy, Closed, CorruptData, DiskFull, InvalidInput, Stale, StorageError
from compactlib.executors import LocalExecutor
from compactlib.files import LocalFiles
from compactlib.files.disk import StrPath
from compactlib.indexset import IndexSet
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import (
    CostPolicy,
    DeadRatio,
    DropDead,
    EveryNMinors,
    LogChoice,
    LogOptions,
    LogPlan,
    LogReader,
    LogView,
    RaftLogStore,
    RaPolicy,
    SeedPolicy,
    SegmentLimits,
    SegmentLog,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.compaction.plan.plan import PlannedGroup
from compactlib.raftlog.compaction.report import CompactionFailed, LogCompactionReport, LogReclaimReport, report_of
from compactlib.raftlog.compaction.sense.trigger import DeadBytes, Elapsed, Manual, Trigger
from compactlib.raftlog.errors import PlanOutdated
from compactlib.raftlog.model.names import segment_name
from compactlib.runtime import Budget, Observer, Progress, RecordingObserver
from tests.raftlog.compaction_logs import (
    Expected,
    chained,
    compact_to_rest,
    done,
    entries_of,
    filled,
    flip_byte,
    options,
    overwritten,
    payload_place,
    picture,
    ra_log,
    strays,
    vector_45,
)
from tests.raftlog.wrapped_files import WatchedFiles

OffersLog: TypeAlias = Compaction[LogView, LogChoice, LogPlan, LogCompactionReport, LogReclaimReport]
PAIRS = SeedPolicy(max_sources=2)
LIVE = [1, 2, 24, 49, 50, 70, 91]


def three_groups(folder: Path) -> Expected:
    """Three groups to rewrite, and one segment to drop."""
    return filled(folder, last=97, snapshot=96, live=LIVE, policy=PAIRS)


def group_and_drops(folder: Path) -> Expected:
    """One group to rewrite, and two segments to drop."""
    return filled(folder, last=65, snapshot=64, live=[1, 2, 40])


def file_bytes(folder: Path) -> int:
    """The sizes of the segments' files together, old names of merged ones aside."""
    return sum(path.stat().st_size for path in folder.rglob("*.segment") if not path.is_symlink())


class Room(LocalFiles):
    """A disk that says how much room it has."""

    def __init__(self, available: int | None = None) -> None:
        self.available = available

    def available_bytes(self, path: StrPath) -> int | None:
        return self.available


def test_both_logs_offer_the_contract(tmp_path: Path) -> None:
    """By their types; that they keep it is shown in `tests/promises/contract`."""
    with SegmentLog(tmp_path / "a", options()) as log, open_log(tmp_path / "b") as whole:
        offered: list[OffersLog] = [log, whole]
        policies: list[Policy[LogView, LogChoice]] = [DropDead(), SeedPolicy(), RaPolicy(), CostPolicy()]
        for each in offered:
            assert [each.plan(policy).is_empty for policy in policies] == [True] * 4


# -- forecasts


@pytest.mark.parametrize("policy", [DropDead(), SeedPolicy(), PAIRS, RaPolicy(), CostPolicy()], ids=str)
@pytest.mark.parametrize("build", [vector_45, three_groups, group_and_drops, chained, overwritten, ra_log],
                         ids=lambda build: build.__name__)
def test_a_forecast_holds_to_the_byte(tmp_path: Path, build: Callable[[Path], Expected], policy: Any) -> None:
    expected = build(tmp_path)
    with SegmentLog(tmp_path, options(keep_links_seconds=0.0)) as log:
        plan = log.plan(policy)
        before = file_bytes(tmp_path)
        with contextlib.ExitStack() as held:
            # Held open, so that no new file gets the number of one that was removed.
            old = [held.enter_context(path.open("rb")) for path in tmp_path.glob("*.segment")]
            numbers = {os.fstat(file.fileno()).st_ino for file in old}
            outcome = log.compact(plan)
            written = sum(path.stat().st_size for path in tmp_path.glob("*.segment")
                          if not path.is_symlink() and path.stat().st_ino not in numbers)
        if plan.is_empty:
            assert outcome == Skipped(plan.why)
            return
        report = done(outcome)
        assert plan.is_exact
        assert plan.bytes_to_copy == report.bytes_written == written
        assert plan.bytes_freed == report.bytes_freed == before - file_bytes(tmp_path)
        assert plan.bytes_needed <= plan.bytes_to_copy
        assert [group.members for group in report.done] == [group.numbers for group in plan.groups]
        expected.check(log)


def test_a_forecast_of_a_log_of_a_store_holds_to_the_byte(tmp_path: Path) -> None:
    kept = LogOptions(limits=SegmentLimits(max_entries=16), keep_links_seconds=0.0)
    with open_log(tmp_path, StoreOptions(log=kept, background=False)) as log:
        log.append(entries_of(1, 100))
        log.flush()
        log.append(entries_of(101, 110))
        log.snapshot(90, [1, 20, 40, 60])
        with log.pin(IndexSet.range(1, 1)):
            log.snapshot(96, [20, 60])
            # What is pinned is copied like what is alive.
            plan = log.plan(log.policy)
            before = file_bytes(tmp_path)
            report = done(log.compact(plan))
        assert sum(group.entries_after for group in report.done) == 3
        assert plan.bytes_to_copy == report.bytes_written
        assert plan.bytes_freed == report.bytes_freed == before - file_bytes(tmp_path)


def test_the_room_that_is_needed_is_that_of_the_largest_group_not_of_all(tmp_path: Path) -> None:
    three_groups(tmp_path)
    with SegmentLog(tmp_path, options(policy=PAIRS)) as log:
        plan = log.plan(log.policy)
    assert len(plan.groups) == 3
    assert plan.bytes_needed == max(group.bytes_to_copy for group in plan.groups) < plan.bytes_to_copy


def test_outputs_that_grow_need_room_for_what_they_have_grown(tmp_path: Path) -> None:
    """Ra's index records are smaller than ours: what is wholly alive takes more room afterwards."""
    ra_log(tmp_path)
    with SegmentLog(tmp_path, options()) as log:
        plan, view = log.plan(log.policy), log.view()
    alive = [attrs.evolve(each, live_entries=each.entries, live_bytes=each.data_bytes) for each in view.segments[:2]]
    first, second = (PlannedGroup((each,)) for each in alive)
    grown = attrs.evolve(plan, groups=(first, second))
    assert first.bytes_freed < 0
    assert grown.bytes_needed == second.bytes_to_copy - first.bytes_freed > first.bytes_to_copy


# -- the log's own rule


@pytest.mark.parametrize("trigger", [EveryNMinors(2), EveryNMinors(0), DeadRatio(2.0), DeadBytes(500), Elapsed(1e9),
                                     Manual(), EveryNMinors(2) | DeadBytes(400), EveryNMinors(1) & DeadRatio(0.5)],
                         ids=str)
def test_plan_shows_what_compact_does_now_by_the_log_s_own_rule(tmp_path: Path, trigger: Trigger) -> None:
    seen = set()
    with SegmentLog(tmp_path, options(trigger=trigger)) as log:
        for turn in range(6):
            first = turn * 32 + 1
            log.extend(entries_of(first, first + 31))
            log.record_snapshot(first + 31, sorted({first, first + 5, first + 31}))
            log.sync()
            plan = log.plan()
            assert plan == log.plan()
            outcome = log.compact()
            if plan.is_empty:
                assert outcome == Skipped(plan.why)
                continue
            report = done(outcome)
            seen.add(report.policy.name)
            assert (report.policy, report.why) == (plan.policy, plan.why)
            assert report.dropped == tuple(drop.number for drop in plan.drops)
            assert [group.members for group in report.done] == [group.numbers for group in plan.groups]
            assert (report.bytes_written, report.bytes_freed) == (plan.bytes_to_copy, plan.bytes_freed)
    assert seen <= {"drop", "seed"}


class _NoReason:
    """A host's trigger that says nothing of why not."""

    def wants_major(self, state: object) -> str | None:
        return None

    def __repr__(self) -> str:
        return "_NoReason()"


@pytest.mark.parametrize(("trigger", "why"), [
    (EveryNMinors(3), "0 minors since the last major, below EveryNMinors(n=3); lower it, or wait"),
    (DeadRatio(40.0), "bytes dead beside"), (DeadRatio(40.0, "entries"), "below DeadRatio(dead_per_live=40)"),
    (DeadBytes(10**9), "bytes dead, below DeadBytes(min_bytes=1000000000)"),
    (Elapsed(1e6), "0 seconds since the last major, below Elapsed(seconds=1e+06)"),
    (Manual(), "the trigger Manual() never asks for it; give a policy, or another trigger"),
    (EveryNMinors(3) | Manual(), "below EveryNMinors(n=3); lower it, or wait; the trigger Manual()"),
    (EveryNMinors(0) & DeadBytes(10**9), "below DeadBytes(min_bytes=1000000000)"),
    (_NoReason(), "the trigger _NoReason() does not ask for it")], ids=str)
def test_an_empty_plan_names_the_trigger_that_held_it_back(tmp_path: Path, trigger: Trigger, why: str) -> None:
    filled(tmp_path, last=97, snapshot=96, live=sorted([*LIVE, 40]))
    with SegmentLog(tmp_path, options(trigger=trigger)) as log:
        plan = log.plan()
        assert plan.is_empty
        assert plan.why.startswith("none of the 6 segments up to snapshot 96 is wholly dead; nothing is rewritten yet")
        assert why in plan.why
        assert log.compact() == Skipped(plan.why)
        assert plan.why in repr(plan)


def test_an_empty_plan_names_the_gate(tmp_path: Path) -> None:
    with SegmentLog(tmp_path, options()) as log:
        assert log.plan().why.startswith("no snapshot was recorded yet, so nothing in 0 segments is dead")
        log.extend(entries_of(1, 10))
        log.record_snapshot(8, range(1, 9))
        assert log.plan(log.policy).why == (
            "the log has 1 segment, and the newest is never touched; it ends at max_entries=16 or max_bytes=64000000, "
            "smaller limits end it sooner")
        log.extend(entries_of(11, 40))
        assert log.plan(log.policy).why == (
            "all 2 segments but the newest end above snapshot 8 (the first at 16); record a later snapshot")
        log.record_snapshot(38, range(1, 39))
        for policy, why in ((DropDead(), "this policy rewrites nothing"),
                            (SeedPolicy(), "nothing in them is dead; take a snapshot with fewer live indexes"),
                            (RaPolicy(), "none is under half live"),
                            (CostPolicy(), "nothing in them is dead; take a snapshot with fewer live indexes")):
            assert why in log.plan(policy).why
        log.record_snapshot(38, [1, 20, 38])
        assert "max_bytes_copied=1; raise it" in log.plan(CostPolicy(max_bytes_copied=1)).why
    with SegmentLog(tmp_path, options(policy=DropDead(), trigger=EveryNMinors(0))) as log:
        assert "this policy rewrites nothing; give one that does" in log.plan().why


# -- plans of others, and of yesterday


def test_a_plan_of_another_log_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        vector_45(tmp_path / name)
    with SegmentLog(tmp_path / "a", options()) as log, SegmentLog(tmp_path / "b", options()) as other:
        with pytest.raises(InvalidInput, match=r"the plan is of the log in .*/b, and this is the one in .*/a"):
            log.compact(other.plan(other.policy))
        with pytest.raises(InvalidInput, match=r"the view is of the log in .*/b"):
            log.plan(view=other.view())
        by_hand = attrs.evolve(log.view(), folder="")
        with pytest.raises(InvalidInput, match="of no log, but of a view made by hand"):
            log.compact(log.plan(log.policy, view=by_hand))
        with pytest.raises(InvalidInput, match="a plan and a policy"):
            log.compact(log.plan(), policy=log.policy)


def test_a_plan_travels_and_may_come_from_a_reader_or_through_another_name(tmp_path: Path) -> None:
    expected = vector_45(tmp_path / "log")
    (tmp_path / "name").symlink_to("log")
    with LogReader(tmp_path / "name") as reader:
        plan = pickle.loads(pickle.dumps(reader.plan()))
    with SegmentLog(tmp_path / "log", options()) as log:
        assert done(log.compact(plan)).bytes_written == plan.bytes_to_copy
        expected.check(log)


def snapshot_moved(log: SegmentLog) -> None:
    log.record_snapshot(96, [1, 2, 24, 70])


def compacted(log: SegmentLog) -> None:
    done(log.compact(policy=RaPolicy()))


def everything_died(log: SegmentLog) -> None:
    log.record_snapshot(97, [])
    done(log.compact(policy=DropDead()))


@pytest.mark.parametrize("change", [snapshot_moved, compacted, everything_died])
def test_an_outdated_plan_changes_nothing(tmp_path: Path, change: Callable[[SegmentLog], None]) -> None:
    three_groups(tmp_path)
    with SegmentLog(tmp_path, options(policy=PAIRS)) as log:
        plan = log.plan(log.policy)
        change(log)
        before, refs = picture(tmp_path), log.refs
        outcome = log.compact(plan)
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, PlanOutdated)
        assert isinstance(outcome.error, Stale)
        assert outcome.changed == "no"
        assert str(outcome.error).startswith("the plan is outdated: segment ")
        assert (picture(tmp_path), log.refs) == (before, refs)


def test_a_plan_that_still_fits_is_carried_out_whatever_came_after_it(tmp_path: Path) -> None:
    three_groups(tmp_path)
    with SegmentLog(tmp_path, options(policy=PAIRS)) as log:
        plan = log.plan(log.policy)
        log.extend(entries_of(98, 160))
        log.record_snapshot(128, [*LIVE, 100])
        report = done(log.compact(plan))
        assert [group.members for group in report.done] == [group.numbers for group in plan.groups]
        Expected.of(entries_of(1, 160), 128, [*LIVE, 100]).check(log)


def test_a_plan_made_by_hand_that_would_lose_what_is_alive_is_refused(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)
    with SegmentLog(tmp_path, options()) as log:
        plan = log.plan(log.policy)
        wrong = attrs.evolve(plan, groups=(), drops=plan.groups[0].members)
        twice = attrs.evolve(plan, groups=plan.groups * 2)
        backwards = attrs.evolve(plan, groups=(PlannedGroup(plan.groups[0].members[::-1]),))
        for each in (wrong, twice, backwards):
            outcome = log.compact(each)
            assert isinstance(outcome, Failed)
            assert isinstance(outcome.error, PlanOutdated)
        expected.check(log)


def test_a_drop_that_has_come_to_hide_something_is_outdated(tmp_path: Path) -> None:
    """A new leader took back what an older file still holds; without the drop's segment that would count again."""
    with SegmentLog(tmp_path, options(limits=SegmentLimits(max_entries=4))) as log:
        log.extend(entries_of(1, 17))
        log.sync()
        log.record_snapshot(8, [2])
        plan = log.plan(DropDead())
        assert [drop.number for drop in plan.drops] == [2]
        assert not isinstance(log.compact(plan), Failed)


# -- leases


def test_without_room_nothing_begins(tmp_path: Path) -> None:
    expected = group_and_drops(tmp_path)
    files = Room()
    with SegmentLog(tmp_path, options(files)) as log:
        plan = log.plan(log.policy)
        assert plan.bytes_available is None
        files.available = plan.bytes_needed - 1
        assert log.plan(log.policy).bytes_available == files.available
        before = picture(tmp_path)
        for outcome in (log.compact(plan), log.compact(policy=log.policy)):
            assert isinstance(outcome, Skipped)
            assert f"{plan.bytes_needed:,} bytes are needed and {files.available:,} are available" in outcome.reason
        assert picture(tmp_path) == before
        files.available += 1
        done(log.compact(plan))
        expected.check(log)


def test_without_room_the_log_s_own_rule_drops_what_is_dead_and_says_what_it_left(tmp_path: Path) -> None:
    expected = group_and_drops(tmp_path)
    files = Room(10)
    with SegmentLog(tmp_path, options(files, trigger=EveryNMinors(0))) as log:
        plan = log.plan()
        assert plan.drops_only
        assert (plan.bytes_needed, plan.bytes_available) == (0, 10)
        assert "for want of room: " in plan.why
        assert done(log.compact()).dropped == (2, 4)
        empty = log.plan()
        assert empty.is_empty
        assert "bytes are needed and 10 are available" in empty.why
        files.available = 1 << 20
        assert done(log.compact()).done
        expected.check(log)


def test_others_than_this_thread_need_room_for_all_groups_at_once(tmp_path: Path) -> None:
    three_groups(tmp_path)
    files = Room()
    with SegmentLog(tmp_path, options(files, policy=PAIRS)) as log:
        plan = log.plan(log.policy)
        files.available = plan.bytes_to_copy - 1
        outcome = log.compact(plan, executor=LocalExecutor(workers=2))
        assert isinstance(outcome, Skipped)
        assert f"{plan.bytes_to_copy:,} bytes are needed" in outcome.reason
        done(log.compact(plan))


# -- fences and observers


@attrs.define
class _Fence:
    """Lets `good` commits happen; then `error` is raised on entering, or on leaving."""

    good: int
    error: BaseException | None = None
    on_leaving: bool = False
    entered: int = 0
    inside: bool = False

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        if self.entered >= self.good and self.error is not None and not self.on_leaving:
            raise self.error
        self.entered += 1
        self.inside = True
        try:
            yield
        finally:
            self.inside = False
        if self.entered > self.good and self.error is not None:
            raise self.error


class _Foreign(Exception):
    """Somebody else's."""


def test_every_change_that_others_see_is_made_inside_the_fence(tmp_path: Path) -> None:
    fence = _Fence(9)
    outside: list[tuple[str, str]] = []

    def look(operation: str, path: str) -> None:
        name = os.path.basename(path)
        if not fence.inside and "rewrite-" not in path and name.endswith((".segment", ".compacting")):
            outside.append((operation, name))

    expected = filled(tmp_path, last=97, snapshot=96, live=[1, 2, 4, 40, 49, 50, 70], policy=PAIRS)
    files = WatchedFiles(lambda operation, path: None)
    with SegmentLog(tmp_path, options(files, policy=PAIRS)) as log:
        plan = log.plan(log.policy)
        files.look = look
        done(log.compact(plan, fence=fence))
        files.look = lambda operation, path: None
        assert outside == []
        # One for the drops, and one a group.
        assert fence.entered == bool(plan.drops) + len(plan.groups)
        expected.check(log)


@pytest.mark.parametrize("is_fenced", [False, True])
def test_one_sync_makes_the_links_of_all_groups_durable_but_inside_a_fence(tmp_path: Path, is_fenced: bool) -> None:
    expected = three_groups(tmp_path)
    steps: list[str] = []
    files = WatchedFiles(lambda operation, path: None)
    with SegmentLog(tmp_path, options(files, policy=PAIRS)) as log:
        plan = log.plan(log.policy)
        assert len(plan.groups) == 3
        files.look = lambda operation, path: steps.append(operation) if path == os.fspath(tmp_path) else None
        done(log.compact(plan, fence=_Fence(9) if is_fenced else None))
        files.look = lambda operation, path: None
        assert steps.count("sync folder") == (6 if is_fenced else 4)
        assert strays(tmp_path) == []
        expected.check(log)


@pytest.mark.parametrize("good", [0, 1, 2])
def test_what_a_fence_refuses_is_not_done_and_nothing_after_it(tmp_path: Path, good: int) -> None:
    expected = filled(tmp_path, last=97, snapshot=96, live=[1, 2, 4, 40, 49, 50, 70], policy=PAIRS)
    error = Stale("somebody else has it")
    with SegmentLog(tmp_path, options(policy=PAIRS)) as log:
        plan = log.plan(log.policy)
        before = picture(tmp_path)
        outcome = log.compact(plan, fence=_Fence(good, error))
        assert isinstance(outcome, CompactionFailed)
        assert outcome.error is error
        assert outcome.changed == ("partly" if good else "no")
        assert outcome.report.dropped == (tuple(drop.number for drop in plan.drops) if good else ())
        assert len(outcome.report.done) == max(good - 1, 0)
        assert (picture(tmp_path) == before) is (good == 0)
        assert strays(tmp_path) == []
        assert report_of(outcome) is outcome.report
        compact_to_rest(log)
        expected.check(log)


@pytest.mark.parametrize("good", [0, 1, 2])
@pytest.mark.parametrize("on_leaving", [False, True])
def test_what_else_a_fence_raises_comes_through_and_the_log_goes_on(tmp_path: Path, good: int,
                                                                   on_leaving: bool) -> None:
    expected = filled(tmp_path, last=97, snapshot=96, live=[1, 2, 4, 40, 49, 50, 70], policy=PAIRS)
    with SegmentLog(tmp_path, options(policy=PAIRS)) as log:
        with pytest.raises(_Foreign):
            log.compact(policy=log.policy, fence=_Fence(good, _Foreign(), on_leaving))
        assert strays(tmp_path) == []
        expected.check(log)
        compact_to_rest(log)
        expected.check(log)


@pytest.mark.parametrize("good", [0, 1])
def test_a_fence_that_fails_on_leaving_says_that_something_has_changed(tmp_path: Path, good: int) -> None:
    expected = three_groups(tmp_path)
    with SegmentLog(tmp_path, options(policy=PAIRS)) as log:
        outcome = log.compact(policy=log.policy, fence=_Fence(good, Busy("the lock is gone"), on_leaving=True))
        assert isinstance(outcome, CompactionFailed)
        assert outcome.changed == "partly"
        # The drops come first.
        assert outcome.report.dropped
        assert len(outcome.report.done) == good
        compact_to_rest(log)
        expected.check(log)


def test_an_observer_given_is_told_besides_the_log_s_own(tmp_path: Path) -> None:
    three_groups(tmp_path)
    own, given = RecordingObserver(), RecordingObserver()
    with SegmentLog(tmp_path, options(policy=PAIRS, observer=own)) as log:
        report = done(log.compact(policy=log.policy, observer=given))
    assert given.progresses == own.progresses
    assert given.counters == own.counters
    assert given.counters["store_copied_bytes", (("kind", "raftlog"), ("store", tmp_path.name))] == report.bytes_written


# -- failures


def test_a_commit_without_an_answer_leaves_it_unknown_whether_anything_has_changed(tmp_path: Path) -> None:
    """The leader was replaced, and the sync that makes that durable was refused."""
    expected = vector_45(tmp_path)
    replaced: list[str] = []

    def look(operation: str, path: str) -> None:
        if operation == "rename" and path.endswith(segment_name(1)):
            replaced.append(path)
        if operation == "sync folder" and replaced:
            raise StorageError(operation=operation, path=path, errno=5)

    files = WatchedFiles(lambda operation, path: None)
    with SegmentLog(tmp_path, options(files)) as log:
        files.look = look
        outcome = log.compact(policy=log.policy)
        assert isinstance(outcome, CompactionFailed)
        assert (type(outcome.error), outcome.changed) == (StorageError, "unknown")
        told = pickle.loads(pickle.dumps(outcome))
        assert (str(told.error), told.changed, told.report.failed) == (
            str(outcome.error), outcome.changed, outcome.report.failed)
        rows = outcome.to_dicts()
        assert (rows[0]["outcome"], rows[0]["changed"], len(rows)) == ("failed", "unknown", 3)
        files.look = lambda operation, path: None
        with pytest.raises(Closed, match="in the middle of a commit"):
            log.compact(policy=log.policy)
    # Opening finishes it.
    with SegmentLog(tmp_path, options(files)) as log:
        compact_to_rest(log)
        expected.check(log)


def test_links_that_are_refused_after_the_commit_leave_it_partly_done(tmp_path: Path) -> None:
    expected = vector_45(tmp_path)

    def look(operation: str, path: str) -> None:
        if operation == "symlink":
            raise StorageError(operation=operation, path=path, errno=5)

    files = WatchedFiles(lambda operation, path: None)
    with SegmentLog(tmp_path, options(files)) as log:
        files.look = look
        outcome = log.compact(policy=log.policy)
        assert isinstance(outcome, Failed)
        assert outcome.changed == "partly"
        files.look = lambda operation, path: None
        reclaimed = log.reclaim()
        assert isinstance(reclaimed, Done)
        assert reclaimed.stats.leftovers
        assert strays(tmp_path) == []
        expected.check(log)


def test_a_spent_budget_is_told_whatever_else_went_wrong(tmp_path: Path) -> None:
    three_groups(tmp_path)
    flip_byte(tmp_path / segment_name(1), payload_place(tmp_path, 1, 1))
    with SegmentLog(tmp_path, options(policy=PAIRS)) as log:
        outcome = log.compact(policy=log.policy, budget=Budget(total_bytes=0))
        assert isinstance(outcome, CompactionFailed)
        assert {type(failed.error) for failed in outcome.report.failed} == {CorruptData, BudgetSpent}
        assert isinstance(outcome.error, BudgetSpent)
        cancelled = Budget()
        cancelled.cancel()
        for call in (log.compact, log.reclaim):
            answer: Any = call(budget=cancelled)
            assert isinstance(answer, Failed)
            assert isinstance(answer.error, BudgetSpent)
        for ask in (log.view, log.verify):
            with pytest.raises(BudgetSpent):
                ask(budget=cancelled)


def test_damage_is_in_the_view_and_in_the_plan(tmp_path: Path) -> None:
    three_groups(tmp_path)
    with SegmentLog(tmp_path, options(policy=PAIRS)):
        pass
    with SegmentLog(tmp_path, options(policy=PAIRS, max_open_segments=1)) as log:
        flip_byte(tmp_path / segment_name(2), 0)
        view = log.view()
        assert [each.number for each in view.damaged] == [2]
        assert view == log.view()
        assert hash(view) == hash(log.view())
        plan = log.plan(log.policy)
        assert [each.members for each in plan.damaged] == [(2,)]
        assert ("damaged", [2]) in [(row["action"], row["members"]) for row in plan.to_dicts()]
        assert pickle.loads(pickle.dumps(plan)) == plan
        outcome = log.compact(plan)
        assert isinstance(outcome, CompactionFailed)
        assert isinstance(outcome.error, CorruptData)
        assert len(outcome.report.done) == len(plan.groups) >= 1
        # With nothing else left to do it is no silent success.
        answers = [log.compact(policy=log.policy) for _ in range(3)]
        assert all(isinstance(answer, Failed) and isinstance(answer.error, CorruptData) for answer in answers)
        assert isinstance(answers[-1], Failed)
        assert answers[-1].changed == "no"


# -- verify, status, close


def test_verify_tells_damage_from_what_is_missing_and_from_what_is_harmless(tmp_path: Path) -> None:
    vector_45(tmp_path)
    with SegmentLog(tmp_path, options()) as log:
        whole = log.verify()
        assert (whole.findings, whole.is_sound, whole.records) == ((), True, 49)
        assert whole.bytes_read == file_bytes(tmp_path)
    (tmp_path / "rewrite-1").mkdir()
    with LogReader(tmp_path) as reader:
        report = reader.verify()
        assert report.is_sound
        assert [(each.kind, Path(each.place).name) for each in report.findings] == [("leftover", "rewrite-1")]
    place = payload_place(tmp_path, 2, 18)
    flip_byte(tmp_path / segment_name(2), place)
    os.unlink(tmp_path / segment_name(3))
    with LogReader(tmp_path) as reader:
        report = reader.verify()
    assert not report.is_sound
    assert [(each.kind, each.is_harmless) for each in report.findings] == [
        ("damage", False), ("missing", False), ("leftover", True)]
    assert report.findings[0].place == f"{tmp_path / segment_name(2)} at offset {place} (index 18)"
    assert "(index 40)" in report.findings[1].place


def test_verify_of_a_log_and_of_a_store_reads_the_wal_too(tmp_path: Path) -> None:
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        for name in ("a", "b"):
            store.log(name).append(entries_of(1, 20))
        store.sync()
        log = store.log("a")
        assert (log.verify().is_sound, log.verify().records) == (True, 20)
        assert (store.verify().is_sound, store.verify().records) == (True, 40)
        (wal,) = (tmp_path / "wal").glob("*.wal")
        flip_byte(wal, 100)
        for each in (log, store):
            (found,) = each.verify().findings
            assert (found.kind, str(wal) in found.place) == ("damage", True)
        flip_byte(wal, 100)
        log.flush()
        flip_byte(tmp_path / "logs" / "b" / segment_name(1), payload_place(tmp_path / "logs" / "b", 1, 7))
        assert log.verify().is_sound
        (found,) = store.verify().findings
        assert "(index 7)" in found.place
    flip_byte(tmp_path / "logs" / "a" / segment_name(1), 0)
    with RaftLogStore(tmp_path, StoreOptions(background=False)) as store:
        assert store.status().damaged == ("a",)
        assert len(store.verify().findings) == 2


def test_status_of_a_log_in_segments(tmp_path: Path) -> None:
    seen: list[bool] = []

    class Looks(Observer):
        def progress(self, progress: Progress) -> None:
            seen.append(log.status().is_busy)

    with SegmentLog(tmp_path / "orders", options(observer=Looks())) as log:
        empty = log.status()
        assert (empty.log_id, empty.first_index, empty.last_index, empty.durable_index) == ("orders", None, -1, -1)
        log.extend(entries_of(1, 33))
        log.sync()
        log.extend(entries_of(34, 36, term=3))
        status = log.status()
        assert (status.first_index, status.last_index, status.last_term) == (1, 36, 3)
        assert (status.durable_index, status.unconfirmed, status.segments) == (33, 3, 3)
        log.record_snapshot(32, [4, 20])
        status = log.status()
        assert (status.snapshot_index, status.smallest_live_index, status.live) == (32, 4, 2)
        assert (status.durable_index, status.unconfirmed) == (36, 0)
        assert (status.is_busy, status.failures, status.last_error) == (False, 0, "")
        done(log.compact(policy=log.policy))
        assert "\n" not in repr(status)
        assert "<table" in status._repr_html_()
    assert seen
    assert all(seen)


def test_closing_a_log_of_a_store_ends_its_compaction_and_the_store_goes_on(tmp_path: Path) -> None:
    options_ = StoreOptions(log=LogOptions(limits=SegmentLimits(max_entries=16)), background=False)
    with RaftLogStore(tmp_path, options_) as store:
        log = store.log("a")
        log.append(entries_of(1, 97))
        log.flush()
        log.snapshot(96, LIVE)
        refused: list[BaseException] = []

        class Closes(Observer):
            def progress(self, progress: Progress) -> None:
                try:
                    log.close()
                except Busy as error:
                    refused.append(error)

        done(log.compact(policy=PAIRS, observer=Closes()))
        assert refused
        log.close()
        for call in (log.view, log.plan, log.compact, log.reclaim, log.verify):
            with pytest.raises(Closed):
                call()
        again = store.log("a")
        compact_to_rest(again.segments)
        assert again.verify().is_sound


def test_a_reclaim_on_a_full_disk_is_told(tmp_path: Path) -> None:
    filled(tmp_path, last=49, snapshot=48, live=[40])

    def refuse(operation: str, path: str) -> None:
        raise DiskFull(operation=operation, path=path, errno=28)

    files = WatchedFiles(lambda operation, path: None)
    with SegmentLog(tmp_path, options(files)) as log:
        with log.lease():
            done(log.compact(policy=DropDead()))
        files.look = refuse
        outcome = log.reclaim()
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, DiskFull)
        files.look = lambda operation, path: None
        reclaimed = log.reclaim()
        assert isinstance(reclaimed, Done)
        assert reclaimed.stats.segments == (1, 2)
        assert len(reclaimed.stats.to_dicts()) == 2
        assert "2 segments" in repr(reclaimed.stats)
