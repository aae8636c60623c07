# SPDX-License-Identifier: Apache-2.0
"""The log's worker: what it does next, and that a result is merged whatever has happened meanwhile."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from compactlib.clock import ManualClock
from compactlib.errors import Busy, CompactlibError, NotFound, TaskFailed
from compactlib.executors import LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.indexset import IndexSet
from compactlib.manager import disk_of
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import (
    CostPolicy,
    DeadRatio,
    DropDead,
    LogChoice,
    LogCompactionWorker,
    LogPolicy,
    LogView,
    SeedPolicy,
    SegmentLog,
    SnapshotMeta,
    StoreOptions,
    open_log,
)
from compactlib.raftlog.compaction.report import LogCompactionReport, report_of
from compactlib.raftlog.compaction.sense.trigger import Elapsed
from compactlib.raftlog.log.worker import MergedSegments, SegmentChanges, WorkerOutcome
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.store.protocols import LogWorker
from compactlib.report import PolicyRecord
from compactlib.runtime import Budget, CompactionManager, Observer
from tests.raftlog.compaction_logs import entries_of, entry_of, filled, flip_byte, options, payload_place
from tests.raftlog.wrapped_files import UnsyncedFiles

# -- what it does, and in which order


class FakeLog:
    """A log that notes what is done to it, and drops what it is told to."""

    folder = "/log"
    refs: tuple[SegmentRef, ...] = ()
    policy = SeedPolicy()

    def __init__(self) -> None:
        self.done: list[str] = []
        self.drops: list[tuple[int, ...]] = []
        self.meanwhile: Callable[[], object] | None = None

    def lease(self) -> Any:
        self.done.append("lease")
        log = self

        class Held:
            def release(self) -> None:
                log.done.append("release")

        return Held()

    def compact(self, *, policy: LogPolicy | None, **_: object) -> Any:
        self.done.append(f"compact {'as the log says' if policy is None else policy.name}")
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        dropped = self.drops.pop(0) if self.drops else ()
        if not dropped:
            return Skipped("nothing to do")
        return Done(LogCompactionReport(policy=PolicyRecord.of(policy or self.policy), why="", snapshot_index=1,
                                     dropped=dropped, dropped_bytes=0, groups=(), left_out=(), purged_links=(),
                                     unreclaimed=None, seconds=0.0))

    def reclaim(self) -> Any:
        self.done.append("reclaim")
        return Skipped("nothing to do")


class Quiet:
    """A worker over such a log, without a thread."""

    def __init__(self) -> None:
        self.log = FakeLog()
        self.worker = LogCompactionWorker(self.log, server=self.told, every_seconds=None)  # type: ignore[arg-type]

    def told(self, changes: SegmentChanges, outcome: object) -> None:
        self.log.done.append(f"tell {changes.dropped}" if changes else "tell")

    def run(self) -> list[str]:
        """What is done when it is let go, without the steps of each compaction that found nothing."""
        self.log.done.clear()
        self.worker.run_pending()
        return self.log.done

    def compactions(self) -> list[str]:
        return [step.removeprefix("compact ") for step in self.run() if step.startswith("compact ")]


def test_one_at_a_time_and_the_server_hears_before_a_file_goes() -> None:
    quiet = Quiet()
    quiet.log.drops = [(1,)]
    quiet.worker.request(DropDead())
    quiet.worker.request(DropDead())
    assert quiet.run() == ["lease", "compact drop", "tell (1,)", "release", "reclaim"]
    assert quiet.run() == []


def test_requests_during_one_are_coalesced_to_the_strongest_not_dropped() -> None:
    """Ra drops a second major request while the first runs; here it runs afterwards."""
    seed, cost = SeedPolicy(), CostPolicy()
    asked: list[tuple[tuple[LogPolicy | None, ...], str]] = [
        ((seed,), "seed"), ((DropDead(),), "drop"), ((DropDead(), None), "as the log says"),
        ((seed, DropDead(), None), "seed"), ((seed, cost, None), cost.name)]
    for policies, expected in asked:
        quiet = Quiet()
        quiet.worker.request(seed)
        quiet.log.meanwhile = lambda quiet=quiet, policies=policies: [
            quiet.worker.request(policy) for policy in policies]
        assert quiet.compactions() == ["seed", expected]
        assert quiet.compactions() == []


def test_a_snapshot_or_new_segments_during_a_run_lead_to_another() -> None:
    quiet = Quiet()
    row = SnapshotMeta(10, 1, IndexSet.from_sorted([]))
    quiet.worker.segments_flushed(5)
    assert quiet.compactions() == []
    quiet.worker.snapshot_recorded(row)
    quiet.log.meanwhile = lambda: quiet.worker.segments_flushed(9)
    assert quiet.compactions() == ["as the log says", "as the log says"]
    quiet.worker.segments_flushed(12)
    quiet.log.meanwhile = lambda: quiet.worker.snapshot_recorded(row)
    assert quiet.compactions() == ["as the log says", "as the log says"]


class WorkerMachine(RuleBasedStateMachine):
    """The worker against a plain model: what is owed, and that nothing is done twice or forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet = Quiet()
        self.owed: set[str] = set()
        self.has_snapshot = self.is_stopped = False
        self.during: list[Callable[[], object]] = []

    def owe(self, what: str) -> None:
        if not self.is_stopped:
            self.owed.add(what)

    @rule(kind=st.sampled_from(["drop", "rule", "seed"]), during=st.booleans())
    def request(self, kind: str, during: bool) -> None:
        policy = {"drop": DropDead(), "rule": None, "seed": SeedPolicy()}[kind]
        if during:
            self.during.append(lambda: self.quiet.worker.request(policy))
        else:
            self.owe(kind)
            self.quiet.worker.request(policy)

    @rule()
    def flushed(self) -> None:
        if self.has_snapshot:
            self.owe("rule")
        self.quiet.worker.segments_flushed(1)

    @rule()
    def snapshot(self) -> None:
        self.has_snapshot = True
        self.owe("rule")
        self.quiet.worker.snapshot_recorded(SnapshotMeta(1, 1, IndexSet.from_sorted([])))

    @rule()
    def stop(self) -> None:
        self.is_stopped = True
        self.owed.clear()
        assert isinstance(self.quiet.worker.stop(), Done)

    @precondition(lambda self: not self.is_stopped)
    @rule(dropped=st.booleans())
    def run(self, dropped: bool) -> None:
        self.quiet.log.drops = [(1,)] if dropped else []
        during, self.during = self.during, []
        asked_meanwhile = bool(during) and bool(self.owed)
        self.quiet.log.meanwhile = lambda: [act() for act in during]
        compactions = self.quiet.compactions()
        names = {"drop": "drop", "rule": "as the log says", "seed": "seed"}
        if not self.owed:
            assert compactions == []
            return
        strongest = max(self.owed, key=["drop", "rule", "seed"].index)
        assert compactions[0] == names[strongest]
        assert len(compactions) == 1 + asked_meanwhile
        self.owed.clear()


TestWorker = WorkerMachine.TestCase
TestWorker.settings = settings(max_examples=60, deadline=None)


# -- merging a result into a list that has moved on


def ref(number: int, first: int, last: int) -> SegmentRef:
    return SegmentRef(number, first, last)


def appended(refs: Sequence[SegmentRef], new: Sequence[SegmentRef]) -> tuple[SegmentRef, ...]:
    """A list with newer segments, which a truncation comes before."""
    first = new[0].first
    kept = [attrs.evolve(each, last=min(each.last, first - 1)) for each in refs
            if each.first < first and each.number not in {other.number for other in new}]
    return (*kept, *new)


@given(st.integers(1, 6), st.data())
def test_a_result_is_merged_in_every_order_with_what_else_comes(count: int, data: st.DataObject) -> None:
    """New segments, an overwrite in a newer term (above the snapshot), the result: any order gives one list."""
    refs = [ref(number, number * 10, number * 10 + 9) for number in range(1, count + 1)]
    compactable = refs[:-1]
    gone = data.draw(st.sets(st.sampled_from([each.number for each in compactable]) if compactable else st.nothing()))
    rest = [each for each in compactable if each.number not in gone]
    size = data.draw(st.integers(0, len(rest)))
    members = tuple(each.number for each in rest[:size])
    merged = (MergedSegments(members, ref(members[0], rest[0].first + 2, rest[size - 1].last - 1)),) if members else ()
    changes = SegmentChanges(tuple(sorted(gone)), merged)
    newer = [ref(count + 1, (count + 1) * 10, (count + 1) * 10 + 9)]
    overwrite = [ref(count + 2, count * 10 + data.draw(st.integers(0, 25)), count * 10 + 40)]
    results = set()
    for order in itertools.permutations(("result", "newer", "overwrite")):
        if order.index("overwrite") < order.index("newer"):
            continue
        found: Sequence[SegmentRef] = refs
        for step in order:
            if step == "result":
                found = changes.applied_to(found)
            else:
                found = appended(found, newer if step == "newer" else overwrite)
        results.add(tuple(found))
    assert len(results) == 1
    (final,) = results
    assert changes.applied_to(final) == final


# -- a real log: every order of events at every moment of a run


class Moments:
    """An executor that lets things happen before and between the groups of a run."""

    def __init__(self, act: Callable[[str], object]) -> None:
        self.act = act
        self.calls = 0

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None, observer: Observer | None = None
            ) -> Iterator[RewriteResult | RewriteFailure]:
        self.calls += 1
        self.act("copying")
        for result in LocalExecutor().run(tasks, budget=budget, observer=observer):
            yield result
            self.act("committed")


MOMENTS = ("copying", "committed", "reported")
EVENTS = ("new segments", "overwrite", "newer snapshot")
ORDERS = [tuple(zip(order, moments, strict=True))
          for order in itertools.permutations(EVENTS)
          for moments in itertools.combinations_with_replacement(MOMENTS, 3)]


class OrderedRun:
    """One compaction during which the three events come in a given order, each at its moment."""

    def __init__(self, folder: Path, order: Sequence[tuple[str, str]]) -> None:
        self.waiting = list(order)
        self.expected = filled(folder, last=120, snapshot=96, live=[1, 2, 20, 40, 50, 70], files=UnsyncedFiles())
        self.log = SegmentLog(folder, options(UnsyncedFiles(), keep_links_seconds=0.0))
        self.refs: tuple[SegmentRef, ...] = self.log.refs
        self.newest = self.refs[-1].number
        self.term = 1
        self.entries = {entry.index: entry for entry in entries_of(97, 120)}
        self.live = IndexSet.from_sorted([1, 2, 20, 40, 50, 70])
        self.snapshot = 96
        self.old_reads = self.log.plan_read(list(self.live))

    def act(self, moment: str) -> None:
        while self.waiting and MOMENTS.index(self.waiting[0][1]) <= MOMENTS.index(moment):
            event, _ = self.waiting.pop(0)
            getattr(self, event.replace(" ", "_"))()

    def write(self, first: int, last: int) -> None:
        before = self.log.refs[-1].number
        written = entries_of(first, last, self.term)
        self.log.extend(written)
        self.log.sync()
        self.entries = {index: entry for index, entry in self.entries.items() if index < first}
        self.entries.update((entry.index, entry) for entry in written)
        # As the segment writer tells the server: what it has written to, oldest first.
        listed = self.log.refs
        self.refs = appended(self.refs, [each for each in listed if each.number >= min(before, listed[-1].number)])

    def new_segments(self) -> None:
        self.write(max(self.entries) + 1, max(self.entries) + 40)

    def overwrite(self) -> None:
        self.term += 1
        self.write(max(self.snapshot + 3, 101), 130)

    def newer_snapshot(self) -> None:
        self.snapshot = 98
        self.live = IndexSet.from_sorted([2, 40, 70, 97])
        self.log.record_snapshot(self.snapshot, self.live)

    def told(self, changes: SegmentChanges, outcome: WorkerOutcome) -> None:
        touched = {*changes.dropped, *(number for each in changes.merged for number in each.members)}
        # The newest segment of the moment when it was planned is never among them.
        assert all(number < self.newest for number in touched)
        self.newest = self.log.refs[-1].number
        for index in self.live:
            assert self.log.read(index) == entry_of(index)
        self.refs = changes.applied_to(self.refs)
        self.act("reported")

    def check(self) -> None:
        assert not self.waiting
        self.check_reads(self.log)
        assert self.refs == self.log.refs
        folder = self.log.folder
        self.log.close()
        with SegmentLog(folder, options(UnsyncedFiles())) as again:
            self.check_reads(again)
            assert not again.recovery
            assert again.refs[-1] == self.refs[-1]

    def check_reads(self, log: SegmentLog) -> None:
        for index in self.live:
            assert log.read(index) == (self.entries.get(index) or entry_of(index))
        for index, entry in self.entries.items():
            if index > self.snapshot:
                assert log.read(index) == entry
        log.audit()


@pytest.mark.parametrize("first", range(0, len(ORDERS), 15))
def test_every_order_of_events_during_a_major(first: int, tmp_path: Path) -> None:
    for number, order in enumerate(ORDERS[first:first + 15]):
        run = OrderedRun(tmp_path / str(number), order)
        moments = Moments(run.act)
        with LogCompactionWorker(run.log, server=run.told, executor=moments, every_seconds=None) as worker:
            worker.request(run.log.policy)
            worker.wait_until_idle()
            run.act("reported")
            assert moments.calls
        run.old_reads.close()
        run.check()


# -- the thread


def test_a_manager_knows_the_disk_of_a_whole_log(tmp_path: Path) -> None:
    with open_log(tmp_path, StoreOptions(background=False)) as log, CompactionManager() as manager:
        manager.add("log", log)
        assert [row["disk"] for row in manager.report().to_dicts()] == [disk_of(tmp_path)]


def test_it_is_a_log_worker_and_compacts_after_snapshots(tmp_path: Path) -> None:
    filled(tmp_path, last=120, snapshot=0, live=[])
    with SegmentLog(tmp_path, options()) as log:
        worker: LogWorker = LogCompactionWorker(log)
        worker.start()
        assert isinstance(worker, LogCompactionWorker)
        log.record_snapshot(96, [20])
        worker.snapshot_recorded(SnapshotMeta(96, 1, IndexSet.from_sorted([20])))
        outcome = worker.wait_until_idle()
        assert isinstance(outcome, Done)
        assert log.refs[0].number == 2
        log.extend(entries_of(121, 150))
        log.record_snapshot(140, [])
        worker.segments_flushed(150)
        worker.wait_until_idle()
        assert [each.first for each in log.refs] == [129, 145]
        assert isinstance(worker.stop(), Done)
        assert isinstance(worker.stop(), Done)
        worker.request(log.policy)
        worker.wait_until_idle()


def test_new_segments_ask_the_trigger(tmp_path: Path) -> None:
    """At the snapshot the segment was the newest one; what makes it an older one is the flush."""
    chosen = options(trigger=DeadRatio(0.1))
    with SegmentLog(tmp_path, chosen) as log, LogCompactionWorker(log, every_seconds=None) as worker:
        log.extend(entries_of(1, 16))
        log.record_snapshot(16, [3])
        worker.snapshot_recorded(SnapshotMeta(16, 1, IndexSet.from_sorted([3])))
        assert isinstance(worker.wait_until_idle(), Skipped)
        log.extend(entries_of(17, 40))
        log.sync()
        worker.segments_flushed(40)
        outcome = worker.wait_until_idle()
        assert isinstance(outcome, Done)
        assert (log.stats()[0].live_entries, log.stats()[0].entries) == (1, 1)


def test_once_in_a_period_the_trigger_is_asked_and_old_names_go(tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    expected = filled(tmp_path, last=49, snapshot=48, live=[1, 40])
    told: list[WorkerOutcome] = []
    chosen = options(trigger=Elapsed(3600.0), keep_links_seconds=60.0, clock=clock)  # the names' own times are today's
    with SegmentLog(tmp_path, chosen) as log:
        worker = LogCompactionWorker(log, server=lambda changes, outcome: told.append(outcome), every_seconds=60.0,
                                     clock=clock)
        for _ in range(60):
            # What holds nothing alive goes at once; a look that finds nothing due tells nobody.
            worker.run_pending()
            clock.advance(60.0)
        assert ([type(outcome) for outcome in told], len(log.refs)) == ([Done], 3)
        worker.run_pending()
        assert ([type(outcome) for outcome in told], len(log.refs)) == ([Done, Done], 2)
        assert [path for path in tmp_path.iterdir() if path.is_symlink()]
        clock.advance(9e9)
        worker.run_pending()
        assert not [path for path in tmp_path.iterdir() if path.is_symlink()]
        assert len(told) == 2
        expected.check_live(log)
        log.close()
        clock.advance(60.0)
        assert [type(outcome) for outcome in worker.run_pending()] == [Failed]
        clock.advance(60.0)
        assert worker.run_pending() == []
        assert worker.last_error is None


def test_files_go_only_when_the_server_knows(tmp_path: Path) -> None:
    filled(tmp_path, last=120, snapshot=96, live=[20])
    told = threading.Event()
    answer = threading.Event()

    def server(changes: SegmentChanges, outcome: WorkerOutcome) -> None:
        assert changes.dropped == (1, 3, 4, 5, 6)
        told.set()
        assert answer.wait(30)

    with SegmentLog(tmp_path, options()) as log, LogCompactionWorker(log, server=server) as worker:
        worker.request(DropDead())
        assert told.wait(30)
        # The list has moved on, the files are there.
        assert [each.number for each in log.refs] == [2, 7, 8]
        assert all((tmp_path / f"{number:016d}.segment").exists() for number in range(1, 9))
        with pytest.raises(Busy, match="compaction runs"):
            worker.wait_until_idle(0.0)
        answer.set()
        worker.wait_until_idle()
        assert sorted(path.name[:16] for path in tmp_path.glob("*.segment")) == [f"{n:016d}" for n in (2, 7, 8)]


def test_a_major_also_merges_across_what_it_dropped(tmp_path: Path) -> None:
    """Under a lease 1 and 3 wait for the file of 2; the worker looks again once the server knows that 2 is gone."""
    expected = filled(tmp_path, last=49, snapshot=48, live=[1, 2, 40])
    with SegmentLog(tmp_path, options()) as log, LogCompactionWorker(log) as worker:
        worker.request(log.policy)
        worker.wait_until_idle()
        assert [(each.number, each.last) for each in log.refs] == [(1, 40), (4, 49)]
        expected.check_live(log)


def test_the_server_is_told_of_a_policy_that_raises(tmp_path: Path) -> None:
    @attrs.frozen
    class Raising:
        name: ClassVar[str] = "raising"

        def choose(self, view: LogView, now: float) -> LogChoice:
            raise RuntimeError("no segment")

    filled(tmp_path, last=49, snapshot=48, live=[1, 2, 40])
    told: list[object] = []
    with SegmentLog(tmp_path, options()) as log, \
            LogCompactionWorker(log, server=lambda changes, outcome: told.append(outcome),
                                every_seconds=None) as worker:
        worker.request(Raising())
        outcome = worker.wait_until_idle()
        assert isinstance(outcome, Failed)
        assert "no segment" in str(outcome.error)
        assert isinstance(worker.last_error, RuntimeError)
        assert told[0] == outcome
        worker.request(DropDead())


def test_a_failed_group_does_not_discard_the_others_and_is_tried_again(tmp_path: Path) -> None:
    expected = filled(tmp_path, last=97, snapshot=96, live=[1, 2, *range(21, 34), 49, 70, 71, 72, 91])
    path, place = tmp_path / f"{2:016d}.segment", payload_place(tmp_path, 2, 21)
    flip_byte(path, place)
    seen: list[SegmentChanges] = []
    with SegmentLog(tmp_path, options()) as log, \
            LogCompactionWorker(log, server=lambda changes, outcome: seen.append(changes),
                                every_seconds=None) as worker:
        worker.request(log.policy)
        report = report_of(worker.wait_until_idle())
        assert report is not None
        assert [failed.members for failed in report.failed] == [(1, 2, 3, 4)]
        assert [each.members for each in seen[0].merged] == [(5, 6)]
        flip_byte(path, place)
        worker.request(log.policy)
        worker.wait_until_idle()
        assert [each.members for each in seen[-1].merged] == [(1, 2, 3, 4)]
        expected.check_live(log)


def test_a_server_that_fails_ends_neither_the_worker_nor_the_removal(tmp_path: Path) -> None:
    filled(tmp_path, last=120, snapshot=96, live=[20])
    raised: list[Exception] = [ZeroDivisionError("oops"), NotFound("gone")]

    def server(changes: SegmentChanges, outcome: WorkerOutcome) -> None:
        raise raised.pop(0)

    # Its own first look would be another compaction, with news of its own.
    with SegmentLog(tmp_path, options()) as log, \
            LogCompactionWorker(log, server=server, every_seconds=None) as worker:
        worker.request(DropDead())
        outcome = worker.wait_until_idle()
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, TaskFailed)
        assert not (tmp_path / f"{1:016d}.segment").exists()
        worker.request(DropDead())
        outcome = worker.wait_until_idle()
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, NotFound)


def test_closing_cancels_what_runs_and_a_closed_log_is_no_surprise(tmp_path: Path) -> None:
    expected = filled(tmp_path, last=97, snapshot=96, live=[1, 2, 21, 49, 70, 91])
    log = SegmentLog(tmp_path, options())
    entered, go_on = threading.Event(), threading.Event()
    refused: list[CompactlibError] = []

    def act(moment: str) -> None:
        entered.set()
        assert go_on.wait(30)
        try:
            worker.stop()
        except Busy as error:
            refused.append(error)

    worker = LogCompactionWorker(log, executor=Moments(act))
    worker.start()
    worker.request(log.policy)
    assert entered.wait(30)
    closer = threading.Thread(target=worker.stop)
    closer.start()
    go_on.set()
    closer.join(30)
    assert not closer.is_alive()
    assert refused
    expected.check(log)
    log.close()
    late = LogCompactionWorker(log)
    late.start()
    late.request(DropDead())
    assert isinstance(late.wait_until_idle(), Failed)
    assert isinstance(late.stop(), Done)


def test_many_threads_may_ask_at_once(tmp_path: Path) -> None:
    expected = filled(tmp_path, last=200, snapshot=150, live=[1, 20, 40, 60, 80, 100, 120, 140])
    with SegmentLog(tmp_path, options()) as log, LogCompactionWorker(log) as worker:
        kinds: tuple[LogPolicy | None, ...] = (DropDead(), None, log.policy)

        def ask(kind: LogPolicy | None) -> None:
            for _ in range(50):
                worker.request(kind)

        threads = [threading.Thread(target=ask, args=[kind]) for kind in kinds * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        worker.wait_until_idle()
        expected.check_live(log)
