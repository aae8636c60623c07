"""The log's worker: what it does next, and that a result is merged whatever has happened meanwhile."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from compactlib.budget import Budget
from compactlib.errors import Busy, CompactlibError, InvalidInput, NotFound, TaskFailed
from compactlib.indexset import IndexSet
from compactlib.observe import Observer
from compactlib.outcome import Done, Failed, Skipped
from compactlib.raftlog import CompactionReport, SegmentLog, SegmentRef, merge_refs
from compactlib.raftlog.log import CompactionKind
from compactlib.raftlog.log_state import LogState
from compactlib.raftlog.protocols import LogWorker
from compactlib.raftlog.worker import CompactionWorker
from compactlib.raftlog.worker_core import (
    CancelCompaction,
    MergedSegments,
    RemoveFiles,
    ReportChanges,
    RunCompaction,
    SegmentChanges,
    WorkerCore,
    WorkerOutcome,
)
from compactlib.rewrite import LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from tests.raftlog.compaction_logs import entries_of, entry_of, filled, flip_byte, options, payload_place
from tests.raftlog.wrapped_files import UnsyncedFiles

NOTHING: WorkerOutcome = Skipped("nothing to do")


def report(kind: str = "minor", dropped: tuple[int, ...] = ()) -> Done[CompactionReport]:
    return Done(CompactionReport(kind=kind, why="", snapshot_index=1, dropped=dropped, dropped_bytes=0, groups=(),
                                 left_out=(), purged_links=(), unreclaimed=None, seconds=0.0))


# -- the core


def test_one_at_a_time_and_the_server_hears_before_a_file_goes() -> None:
    core = WorkerCore()
    assert core.request("minor") == [RunCompaction(1, "minor")]
    assert core.request("minor") == []
    changes = SegmentChanges(dropped=(1,))
    assert core.ended(1, report(dropped=(1,)), changes) == [ReportChanges(1, changes, report(dropped=(1,)))]
    assert core.reported(1) == [RemoveFiles(1), RunCompaction(2, "minor")]
    assert not core.is_at_rest, "it runs, although nothing waits"
    core.ended(2, NOTHING, SegmentChanges())
    assert not core.is_at_rest, "the server has not heard of it"
    assert core.reported(2) == [RemoveFiles(2)]
    assert core.is_at_rest


def test_vector_57_requests_during_one_are_coalesced_to_the_strongest_not_dropped() -> None:
    """Upstream drops a second major request while the first runs; here it runs afterwards."""
    for kinds, expected in ((("major",), "major"), (("minor", "auto"), "auto"), (("major", "minor", "auto"), "major")):
        core = WorkerCore()
        core.request("major")
        for kind in kinds:
            assert core.request(kind) == []  # type: ignore[arg-type]
        core.ended(1, NOTHING, SegmentChanges())
        assert core.reported(1)[1:] == [RunCompaction(2, expected)]  # type: ignore[arg-type]
        core.ended(2, NOTHING, SegmentChanges())
        assert core.reported(2) == [RemoveFiles(2)]


def test_a_snapshot_or_new_segments_during_a_run_lead_to_another() -> None:
    core = WorkerCore()
    assert core.segments_flushed() == []
    assert core.snapshot_recorded(10) == [RunCompaction(1, "auto")]
    assert core.segments_flushed() == []
    assert core.wanted == "minor"
    core.snapshot_recorded(20)
    core.ended(1, NOTHING, SegmentChanges())
    assert core.reported(1) == [RemoveFiles(1), RunCompaction(2, "auto")]


def test_a_major_that_dropped_something_is_looked_at_again() -> None:
    """What was dropped was held in place until the server knew, and kept its neighbours apart."""
    core = WorkerCore()
    core.request("major")
    core.ended(1, report("major", (2,)), SegmentChanges(dropped=(2,)))
    assert core.reported(1) == [RemoveFiles(1), RunCompaction(2, "major")]
    core.ended(2, report("major"), SegmentChanges())
    assert core.reported(2) == [RemoveFiles(2)]


def test_wrong_answers_and_kinds_are_refused() -> None:
    core = WorkerCore()
    with pytest.raises(InvalidInput, match="found 'sideways'"):
        core.request("sideways")  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="job 1 as if running; the worker is idle"):
        core.ended(1, NOTHING, SegmentChanges())
    core.request("minor")
    with pytest.raises(InvalidInput, match="the worker is running with job 1"):
        core.reported(1)
    with pytest.raises(InvalidInput):
        core.ended(2, NOTHING, SegmentChanges())


class CoreMachine(RuleBasedStateMachine):
    """The core against a plain model: what is owed, and what runs."""

    def __init__(self) -> None:
        super().__init__()
        self.core = WorkerCore()
        self.running: RunCompaction | None = None
        self.reporting: int | None = None
        self.owed: set[str] = set()
        self.runs = self.removals = 0
        self.closed = False

    def carry(self, effects: Iterable[Any]) -> None:
        for effect in effects:
            match effect:
                case RunCompaction():
                    assert self.running is None
                    assert self.reporting is None
                    assert not self.closed
                    assert effect.kind == max(self.owed, key=["minor", "auto", "major"].index)
                    self.owed.clear()
                    self.running = effect
                    self.runs += 1
                case ReportChanges(job):
                    self.reporting = job
                case RemoveFiles(job):
                    assert job == self.runs
                    self.removals += 1
                case CancelCompaction():
                    assert self.running is not None

    @rule(kind=st.sampled_from(["minor", "auto", "major"]))
    def request(self, kind: Any) -> None:
        if not self.closed:
            self.owed.add(kind)
        self.carry(self.core.request(kind))

    @rule(index=st.integers(0, 9))
    def snapshot(self, index: int) -> None:
        if not self.closed:
            self.owed.add("auto")
        self.carry(self.core.snapshot_recorded(index))

    @precondition(lambda self: self.running)
    @rule(outcome=st.sampled_from([NOTHING, Failed(NotFound("")), report(), report("major", (1,))]))
    def end(self, outcome: WorkerOutcome) -> None:
        assert self.running is not None
        job, self.running = self.running.job, None
        if isinstance(outcome, Done) and outcome.stats.kind == "major" and not self.closed:
            self.owed.add("major")
        self.carry(self.core.ended(job, outcome, SegmentChanges()))

    @precondition(lambda self: self.reporting is not None)
    @rule()
    def server_knows(self) -> None:
        job, self.reporting = self.reporting, None
        assert job is not None
        self.carry(self.core.reported(job))

    @rule()
    def close(self) -> None:
        self.closed = True
        self.owed.clear()
        self.carry(self.core.close())

    @invariant()
    def sound(self) -> None:
        self.core.audit()
        busy = self.running is not None or self.reporting is not None
        assert self.core.stage == ("running" if self.running else "reporting" if busy else
                                   "closed" if self.closed else "idle")
        assert not (self.owed and not busy)


TestCore = CoreMachine.TestCase
TestCore.settings = settings(max_examples=60, deadline=None)


# -- merging a result into a list that has moved on


def ref(number: int, first: int, last: int) -> SegmentRef:
    return SegmentRef(number, first, last)


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
                found = merge_refs(found, newer if step == "newer" else overwrite).refs
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
        self.refs = merge_refs(self.refs, [each for each in self.log.refs if each.number >= before]).refs

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
        with CompactionWorker(run.log, server=run.told, executor=moments) as worker:
            worker.request("major")
            worker.wait_until_idle()
            run.act("reported")
            worker.audit()
            assert moments.calls
        run.old_reads.close()
        run.check()


# -- the thread


def test_it_is_a_log_worker_and_compacts_after_snapshots(tmp_path: Path) -> None:
    filled(tmp_path, last=120, snapshot=0, live=[])
    with SegmentLog(tmp_path, options()) as log:
        worker: LogWorker = CompactionWorker(log)
        assert isinstance(worker, CompactionWorker)
        log.record_snapshot(96, [20])
        worker.snapshot_recorded(LogState(96, 1, IndexSet.from_sorted([20])))
        outcome = worker.wait_until_idle()
        assert isinstance(outcome, Done)
        assert log.refs[0].number == 2
        log.extend(entries_of(121, 150))
        log.record_snapshot(140, [])
        worker.segments_flushed(150)
        worker.wait_until_idle()
        assert [each.first for each in log.refs] == [129, 145]
        worker.close()
        worker.close()
        worker.request("major")
        assert worker.wait_until_idle() is worker.last_outcome
        worker.audit()


def test_files_go_only_when_the_server_knows(tmp_path: Path) -> None:
    filled(tmp_path, last=120, snapshot=96, live=[20])
    told = threading.Event()
    answer = threading.Event()

    def server(changes: SegmentChanges, outcome: WorkerOutcome) -> None:
        assert changes.dropped == (1, 3, 4, 5, 6)
        told.set()
        assert answer.wait(30)

    with SegmentLog(tmp_path, options()) as log, CompactionWorker(log, server=server) as worker:
        worker.request("minor")
        assert told.wait(30)
        # The list has moved on, the files are there.
        assert [each.number for each in log.refs] == [2, 7, 8]
        assert all((tmp_path / f"{number:016d}.segment").exists() for number in range(1, 9))
        with pytest.raises(Busy, match="the worker is reporting"):
            worker.wait_until_idle(0.0)
        answer.set()
        worker.wait_until_idle()
        assert sorted(path.name[:16] for path in tmp_path.glob("*.segment")) == [f"{n:016d}" for n in (2, 7, 8)]


def test_a_major_also_merges_across_what_it_dropped(tmp_path: Path) -> None:
    """Under a lease 1 and 3 wait for the file of 2; the worker looks again once the server knows that 2 is gone."""
    expected = filled(tmp_path, last=49, snapshot=48, live=[1, 2, 40])
    with SegmentLog(tmp_path, options()) as log, CompactionWorker(log) as worker:
        worker.request("major")
        worker.wait_until_idle()
        assert [(each.number, each.last) for each in log.refs] == [(1, 40), (4, 49)]
        expected.check_live(log)


def test_5_2_item_14_a_failed_group_does_not_discard_the_others_and_is_tried_again(tmp_path: Path) -> None:
    expected = filled(tmp_path, last=97, snapshot=96, live=[1, 2, *range(21, 34), 49, 70, 71, 72, 91])
    path, place = tmp_path / f"{2:016d}.segment", payload_place(tmp_path, 2, 21)
    flip_byte(path, place)
    seen: list[SegmentChanges] = []
    with SegmentLog(tmp_path, options()) as log, \
            CompactionWorker(log, server=lambda changes, outcome: seen.append(changes)) as worker:
        worker.request("major")
        outcome = worker.wait_until_idle()
        assert isinstance(outcome, Done)
        assert [failed.members for failed in outcome.stats.failed] == [(1, 2, 3, 4)]
        assert [each.members for each in seen[0].merged] == [(5, 6)]
        flip_byte(path, place)
        worker.request("major")
        worker.wait_until_idle()
        assert [each.members for each in seen[-1].merged] == [(1, 2, 3, 4)]
        expected.check_live(log)


def test_a_server_that_fails_ends_neither_the_worker_nor_the_removal(tmp_path: Path) -> None:
    filled(tmp_path, last=120, snapshot=96, live=[20])
    raised: list[Exception] = [ZeroDivisionError("oops"), NotFound("gone")]

    def server(changes: SegmentChanges, outcome: WorkerOutcome) -> None:
        raise raised.pop(0)

    with SegmentLog(tmp_path, options()) as log, CompactionWorker(log, server=server) as worker:
        worker.request("minor")
        outcome = worker.wait_until_idle()
        assert isinstance(outcome, Failed)
        assert isinstance(outcome.error, TaskFailed)
        assert not (tmp_path / f"{1:016d}.segment").exists()
        worker.request("minor")
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
            worker.close()
        except Busy as error:
            refused.append(error)

    worker = CompactionWorker(log, executor=Moments(act))
    worker.request("major")
    assert entered.wait(30)
    closer = threading.Thread(target=worker.close)
    closer.start()
    go_on.set()
    closer.join(30)
    assert not closer.is_alive()
    assert refused
    expected.check(log)
    log.close()
    late = CompactionWorker(log)
    late.request("minor")
    assert isinstance(late.wait_until_idle(), Failed)
    late.close()


def test_many_threads_may_ask_at_once(tmp_path: Path) -> None:
    expected = filled(tmp_path, last=200, snapshot=150, live=[1, 20, 40, 60, 80, 100, 120, 140])
    with SegmentLog(tmp_path, options()) as log, CompactionWorker(log) as worker:
        kinds: tuple[CompactionKind, ...] = ("minor", "auto", "major")

        def ask(kind: CompactionKind) -> None:
            for _ in range(50):
                worker.request(kind)

        threads = [threading.Thread(target=ask, args=[kind]) for kind in kinds * 2]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        worker.wait_until_idle()
        worker.audit()
        expected.check_live(log)

