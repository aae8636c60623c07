# SPDX-License-Identifier: Apache-2.0
"""The worker and those around it: whatever policies, executors, observers raise; closing from anywhere; audits."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from compactlib.errors import BudgetSpent, Busy, Closed, InvalidInput, TaskFailed
from compactlib.executors import LocalExecutor
from compactlib.kv import MemoryStore
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import Budget, Observer, RecordingObserver
from compactlib.staging import (
    CompactionSensor,
    DeletesPolicy,
    StagingChoice,
    StagingOptions,
    StagingView,
    StagingWorker,
)
from compactlib.staging.compaction.metrics import StagingMetrics
from compactlib.staging.compaction.sense_policies import BranchPressure
from compactlib.staging.records.events import StagingEvents
from tests.harness.faulty_store import FaultyStore, KVFault, KVOperation
from tests.staging.world import NOW, World


class Policy:
    """A policy that does something else first, and says yes."""

    name = "a host's"

    def __init__(self, first: Callable[[StagingView], object]) -> None:
        self._first = first

    def choose(self, view: StagingView, now: float) -> StagingChoice:
        self._first(view)
        return StagingChoice("always")


class Raises:
    """Raises so many times, then no more; at the second call it is known that the first was survived."""

    def __init__(self, times: float, error: type[BaseException] = ZeroDivisionError) -> None:
        self.left, self.error, self.calls = times, error, 0
        self.survived = threading.Event()

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.left > 0:
            self.left -= 1
            raise self.error("a host's bug")
        self.survived.set()


def sensed(names: tuple[str, ...] = ("main",), observer: Observer | None = None) -> tuple[World, CompactionSensor]:
    sensor = CompactionSensor(DeletesPolicy(1))
    world = World(events=sensor.events("main"), observer=observer)
    for name in names:
        world.branch({"a": "1", "b": "2"}, name=name).delete(b"a")
    return world, sensor


# --- what is raised


def worker_of(sensor: CompactionSensor, world: World, **options: Any) -> StagingWorker:
    return StagingWorker(sensor, [world.repo], reclaim_seconds=None, surveys=False, **options)


def test_the_thread_survives_a_policy_that_raises_and_tries_again() -> None:
    world, sensor = sensed()
    observer, bug = RecordingObserver(), Raises(2)
    with worker_of(sensor, world, policy=Policy(bug), observer=observer) as worker:
        assert bug.survived.wait(30)
    assert worker.failures == 2
    assert isinstance(worker.last_error, ZeroDivisionError)
    assert "2 errors" in repr(worker)
    told = [fields for name, fields in observer.events if name == "staging_worker_failed"]
    assert [(fields["work"], "ZeroDivisionError" in fields["message"]) for fields in told] == [("main/main", True)] * 2
    status = world.repo.status()
    assert (status.failures, status.last_error) == (2, "ZeroDivisionError: a host's bug")
    with pytest.raises(Closed):
        worker.run_pending()


def test_one_branch_that_fails_does_not_keep_the_others_back() -> None:
    world, sensor = sensed(("bad", "good"))
    bug = Raises(3)
    policy = Policy(lambda view: bug() if view.branch == "bad" else None)
    worker = worker_of(sensor, world, policy=policy, clock=world.clock)
    bad, good = worker.run_pending()
    assert isinstance(good, Done)
    assert isinstance(bad, Failed)
    assert "ZeroDivisionError" in str(bad.error)
    assert worker.run_pending() == []
    for delay in (0.1, 0.2):
        world.clock.advance(delay)
        (again,) = worker.run_pending()
        assert isinstance(again, Failed)
    world.clock.advance(0.4)
    (at_last,) = worker.run_pending()
    assert isinstance(at_last, Done)
    assert at_last.stats.branch == "bad"
    assert worker.run_pending() == []


def test_a_store_that_fails_is_tried_again_and_is_no_surprise() -> None:
    failing: list[bool] = [False]

    def choose(operation: KVOperation) -> KVFault | None:
        return KVFault.FAIL if failing[0] and operation.name == "set_if" else None

    sensor = CompactionSensor(DeletesPolicy(1))
    world = World(FaultyStore(MemoryStore(), choose), events=sensor.events("main"))
    world.branch({"a": "1", "b": "2"}).delete(b"a")
    worker = worker_of(sensor, world, clock=world.clock)
    failing[0] = True
    (outcome,) = worker.run_pending()
    assert isinstance(outcome, Failed)
    assert (worker.failures, worker.last_error) == (0, None)
    failing[0] = False
    world.clock.advance(0.1)
    (outcome,) = worker.run_pending()
    assert isinstance(outcome, Done)


class HostExecutor(LocalExecutor):
    def __init__(self, first: Callable[[], object]) -> None:
        super().__init__()
        self._first = first

    def run(self, *arguments: Any, **options: Any) -> Any:
        self._first()
        return super().run(*arguments, **options)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, SystemExit])
def test_a_branch_is_free_again_whatever_its_compaction_raised(error: type[BaseException]) -> None:
    world, sensor = sensed()
    worker = worker_of(sensor, world, policy=Policy(Raises(1, error)), clock=world.clock)
    if issubclass(error, Exception):
        (failed,) = worker.run_pending()
        assert isinstance(failed, Failed)
    else:
        with pytest.raises(error):
            worker.run_pending()
    assert isinstance(worker.last_error, error)
    assert not world.repo.status().is_busy
    world.clock.advance(10_000)
    (outcome,) = worker.run_pending()
    assert isinstance(outcome, Done)
    worker.stop()


@pytest.mark.parametrize("error", [ZeroDivisionError, InvalidInput])
def test_an_executor_that_raises_is_a_failure(error: type[Exception]) -> None:
    world, _ = sensed()
    outcome = world.repo.compact(executor=HostExecutor(Raises(1, error)))
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, TaskFailed if error is ZeroDivisionError else InvalidInput)
    assert "a host's bug" in str(outcome.error)
    assert isinstance(world.repo.compact(policy=NOW), Done)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_was_ended_is_told_by_the_audit() -> None:
    world, sensor = sensed()
    worker = worker_of(sensor, world, policy=Policy(Raises(1, SystemExit)))
    worker.start()
    for thread in threading.enumerate():
        if thread.name.startswith("the compaction worker"):
            thread.join(30)
    assert isinstance(worker.last_error, SystemExit)
    worker.stop()


def test_a_reclaim_that_fails_is_tried_again() -> None:
    failing: list[bool] = [True]

    def choose(operation: KVOperation) -> KVFault | None:
        return KVFault.FAIL if failing[0] and operation.name == "scan" else None

    world = World(FaultyStore(MemoryStore(), choose))
    worker = StagingWorker(CompactionSensor(), [world.repo], reclaim_seconds=60, surveys=False, clock=world.clock)
    (outcome,) = worker.run_pending()
    assert isinstance(outcome, Failed)
    failing[0] = False
    world.clock.advance(0.1)
    (outcome,) = worker.run_pending()
    assert isinstance(outcome, Skipped)


def test_observers_and_listeners_that_raise_break_neither_reads_nor_writes_nor_compactions() -> None:
    class BadObserver(Observer):
        def event(self, *_: Any, **__: Any) -> None:
            raise ZeroDivisionError

        count = measure = progress = event

    class BadEvents(StagingEvents):
        def record_seen(self, *_: Any, **__: Any) -> None:
            raise ZeroDivisionError

        tombstones_written = tombstones_listed = write_retried = committed = reset = compacted = record_seen
        record_written = branch_deleted = record_seen

    world = World(events=BadEvents(), observer=BadObserver(), options=StagingOptions(grace_seconds=0))
    branch = world.repo.create_branch("main")
    branch.put_many({b"a": b"1", b"b": b"2"})
    branch.commit("c")
    branch.delete(b"a")
    assert branch.list().keys == (b"b",)
    assert isinstance(world.repo.compact(), Done)
    branch.reset()
    assert branch.get(b"a").data == b"1"
    assert isinstance(world.repo.reclaim(), Done)
    status = world.repo.status()
    assert status.failures > 0
    assert status.last_error.startswith("ZeroDivisionError")
    world.repo.delete_branch("main")


def test_a_sense_policy_that_raises_breaks_no_write_and_may_ask_the_sensor() -> None:
    class Sense:
        name = "a host's"

        def choose(self, view: BranchPressure, now: float) -> StagingChoice:
            assert sensor.pressure("main", "main").deletes >= 0  # No lock is held meanwhile.
            raise ZeroDivisionError

    sensor = CompactionSensor(Sense())
    world = World(events=sensor.events("main"))
    world.branch({"a": "1", "b": "2"}).delete(b"a")
    assert world.repo.branch("main").list().keys == (b"b",)
    assert isinstance(sensor.last_error, ZeroDivisionError)
    assert sensor.failures >= 1
    assert sensor.pressure("main", "main").deletes == 1
    assert sensor.take() is None


# --- closing


def test_closing_cancels_what_runs_and_waits_for_it() -> None:
    world, sensor = sensed()
    began, closed, over = threading.Event(), threading.Event(), []

    class Waiting(LocalExecutor):
        def run(self, *arguments: Any, budget: Budget | None = None, **options: Any) -> Any:
            began.set()
            assert budget is not None
            try:
                while True:
                    budget.check()
                    closed.wait(0.001)
            except BudgetSpent:
                over.append("cancelled")
                raise

    worker = worker_of(sensor, world, executor=Waiting())
    worker.start()
    assert began.wait(30)
    assert isinstance(worker.stop(), Done)
    assert over == ["cancelled"]
    assert isinstance(worker.stop(), Done)
    assert world.repo.branch("main").list().keys == (b"b",)
    assert isinstance(world.repo.compact(policy=NOW), Done)


@pytest.mark.parametrize("what", ["worker", "repository"])
@pytest.mark.parametrize("who", ["policy", "executor", "observer", "repository's observer", "events"])
@pytest.mark.parametrize("threads", [False, True])
def test_closing_from_within_is_busy(what: str, who: str, threads: bool) -> None:
    told: list[BaseException | None] = []

    def close(*_: Any, **__: Any) -> None:
        if not worker:
            return
        try:
            worker[0].stop() if what == "worker" else world.repo.close()
            told.append(None)
        except Busy as busy:
            told.append(busy)

    class Closes(Observer):
        progress = close

        def event(self, name: str, fields: Any) -> None:
            if name == "staging_compaction":
                close()

    class Events(StagingEvents):
        compacted = close

    worker: list[StagingWorker] = []
    sensor = CompactionSensor(DeletesPolicy(1))
    events = StagingMetrics(Observer(), "main", sensor.events("main"), *[Events()] * (who == "events"))
    world = World(events=events, observer=Closes() if who == "repository's observer" else None)
    world.branch({"a": "1", "b": "2"}).delete(b"a")
    executor = HostExecutor(close) if who == "executor" else LocalExecutor(workers=2) if threads else None
    made = worker_of(sensor, world, executor=executor, clock=world.clock,
                     policy=Policy(close) if who == "policy" else NOW, observer=Closes() if who == "observer" else None)
    worker.append(made)
    outcomes = made.run_pending()
    assert [type(each) for each in outcomes] == [Done if what == "repository" or who == "events" else type(outcomes[0])]
    assert all(isinstance(each, Busy) for each in told), told
    assert told or who == "observer"
    made.stop()
    world.repo.close()


def test_a_worker_that_is_at_work_elsewhere_gives_nothing_and_loses_no_trigger() -> None:
    world, sensor = sensed(("main", "side"))
    inside: list[object] = []
    worker = worker_of(sensor, world, clock=world.clock,
                       policy=Policy(lambda view: inside.append(worker.run_pending())))
    assert [type(outcome) for outcome in worker.run_pending()] == [Done, Done]
    assert inside == [[], []]


# --- audits

AUDITS = """
from compactlib.clock import ManualClock
from compactlib.errors import AuditFailed
from compactlib.kv import MemoryStore
from compactlib.objects import MemoryObjects
from compactlib.staging import CommittedRanges, CompactionSensor, StagingWorker, Repository
assert False, "asserts are off"
repo = Repository(MemoryStore(), CommittedRanges(MemoryObjects()))
main = repo.create_branch("main")
repo.audit()
repo.context.tokens.mark_dropped({main.record().staging_token: "main"})
sensor = CompactionSensor(buffer=1)
sensor._triggers.extend([None] * 3)
worker = StagingWorker(sensor, [repo], clock=ManualClock())
worker._service._agenda["reclaim main"].retry_at = float("inf")
worker._service._agenda["reclaim main"].failures = 1
for audit in (repo.audit, sensor.audit, worker.audit):
    try:
        audit()
    except AuditFailed as error:
        print("found")
"""
