"""The worker and those around it: whatever policies, executors, observers raise; closing from anywhere; audits."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import AuditFailed, BudgetSpent, Busy, Closed
from compactlib.observe import Observer, RecordingObserver
from compactlib.outcome import Done, Failed
from compactlib.rewrite import LocalExecutor
from compactlib.staging import Compactor, StagingEvents, TokenCleaner
from compactlib.staging.plan import CompactionPlan
from compactlib.staging.policy import BranchPressure, DeletesPolicy
from compactlib.staging.sensor import CompactionSensor
from compactlib.staging.worker import BranchesAtWork, CompactionWorker
from tests.staging.world import World


class Policy:
    """A plan policy that does something else first, and says yes."""

    name = "a host's"

    def __init__(self, first: Callable[[CompactionPlan], object]) -> None:
        self._first = first

    def choose(self, plan: CompactionPlan) -> str | None:
        self._first(plan)
        return "always"


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


def test_the_thread_survives_a_policy_that_raises_and_tries_again() -> None:
    world, sensor = sensed()
    observer, bug = RecordingObserver(), Raises(2)
    with CompactionWorker(sensor, [Compactor(world.context)], plan_policy=Policy(bug), observer=observer) as worker:
        worker.start()
        assert bug.survived.wait(30)
        worker.audit()
    assert worker.failures == 2
    assert isinstance(worker.last_error, ZeroDivisionError)
    assert "2 failures" in repr(worker)
    told = [fields for name, fields in observer.events if name == "staging_worker_failed"]
    assert [(fields["error"], fields["branch"]) for fields in told] == [("ZeroDivisionError", "main")] * 2
    with pytest.raises(Closed):
        worker.start()
    with pytest.raises(Closed):
        worker.run_pending()


def test_one_branch_that_fails_does_not_keep_the_others_back() -> None:
    world, sensor = sensed(("bad", "good"))
    bug = Raises(3)
    policy = Policy(lambda plan: bug() if plan.view.branch == "bad" else None)
    worker = CompactionWorker(sensor, [Compactor(world.context)], plan_policy=policy, clock=world.clock)
    first = {work.trigger.branch: work.outcome for work in worker.run_pending()}
    assert isinstance(first["good"], Done)
    assert isinstance(first["bad"], Failed)
    assert "ZeroDivisionError" in str(first["bad"].error)
    for _ in range(2):
        (again,) = worker.run_pending()
        assert isinstance(again.outcome, Failed)
    (at_last,) = worker.run_pending()
    assert (at_last.trigger.branch, type(at_last.outcome)) == ("bad", Done)
    assert worker.run_pending() == []


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
    at_work = BranchesAtWork()
    worker = CompactionWorker(sensor, [Compactor(world.context, executor=HostExecutor(Raises(1, error)))],
                              at_work=at_work, clock=world.clock)
    if issubclass(error, Exception):
        worker.run_pending()
    else:
        with pytest.raises(error):
            worker.run_pending()
    assert isinstance(worker.last_error, error)
    assert at_work.enter("main", "main")
    at_work.leave("main", "main")
    world.area.branch("main").delete(b"b")
    world.clock.advance(10_000)
    assert any(isinstance(work.outcome, Done) for work in worker.run_pending())
    worker.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_was_ended_is_told_by_the_audit() -> None:
    world, sensor = sensed()
    worker = CompactionWorker(sensor, [Compactor(world.context)], plan_policy=Policy(Raises(1, SystemExit)))
    worker.start()
    thread = next(each for each in threading.enumerate() if each.name == "compactlib-staging")
    thread.join(30)
    with pytest.raises(AuditFailed, match="SystemExit"):
        worker.audit()
    assert isinstance(worker.last_error, SystemExit)
    worker.close()


def test_a_cleanup_that_raises_is_tried_again_on_the_timer() -> None:
    world = World()
    bug = Raises(1)

    class Cleaner(TokenCleaner):
        def run(self, **options: Any) -> Any:
            bug()
            return super().run(**options)

    worker = CompactionWorker(CompactionSensor(), [], cleaners=[Cleaner(world.context)], cleanup_seconds=60,
                              clock=world.clock)
    worker.run_pending()
    assert (worker.failures, bug.calls) == (1, 1)
    world.clock.advance(60)
    worker.run_pending()
    assert (worker.failures, bug.calls) == (1, 2)


def test_observers_and_listeners_that_raise_break_neither_reads_nor_writes_nor_compactions() -> None:
    class BadObserver(Observer):
        def event(self, *_: Any, **__: Any) -> None:
            raise ZeroDivisionError

        count = measure = progress = event

    class BadEvents(StagingEvents):
        def record_seen(self, *_: Any, **__: Any) -> None:
            raise ZeroDivisionError

        tombstones_written = tombstones_listed = write_retried = committed = reset = branch_deleted = record_seen

    world = World(events=BadEvents(), observer=BadObserver())
    branch = world.area.create_branch("main")
    branch.put_many({b"a": b"1", b"b": b"2"})
    branch.commit("c")
    branch.delete(b"a")
    assert branch.list().keys == (b"b",)
    assert isinstance(Compactor(world.context).compact("main"), Done)
    branch.reset()
    assert branch.get(b"a").data == b"1"
    assert isinstance(TokenCleaner(world.context, grace_seconds=0).run(), Done)
    world.area.delete_branch("main")


def test_a_sense_policy_that_raises_breaks_no_write_and_may_ask_the_sensor() -> None:
    class Sense:
        def choose(self, pressure: BranchPressure) -> str | None:
            assert sensor.pressure("main", "main").deletes >= 0  # No lock is held meanwhile.
            raise ZeroDivisionError

    sensor = CompactionSensor(Sense())
    world = World(events=sensor.events("main"))
    world.branch({"a": "1", "b": "2"}).delete(b"a")
    assert world.area.branch("main").list().keys == (b"b",)
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

    worker = CompactionWorker(sensor, [Compactor(world.context, executor=Waiting())])
    worker.start()
    assert began.wait(30)
    worker.close()
    assert over == ["cancelled"]
    worker.close()
    assert world.area.branch("main").list().keys == (b"b",)
    assert isinstance(Compactor(world.context).compact("main", force=True), Done)


@pytest.mark.parametrize("who", ["policy", "executor", "observer", "repository's observer", "events"])
@pytest.mark.parametrize("threads", [False, True])
def test_closing_from_within_is_busy_and_changes_nothing(who: str, threads: bool) -> None:
    told: list[BaseException | None] = []

    def close(*_: Any, **__: Any) -> None:
        if not worker:
            return
        try:
            worker[0].close()
            told.append(None)
        except Busy as busy:
            told.append(busy)

    class Closes(Observer):
        progress = close

        def event(self, name: str, fields: Any) -> None:
            if name == "staging_compaction":
                close()

    worker: list[CompactionWorker] = []
    world, sensor = sensed(observer=Closes() if who == "repository's observer" else None)
    executor = HostExecutor(close) if who == "executor" else LocalExecutor(workers=2) if threads else None
    observer = Closes() if who == "observer" else None
    made = CompactionWorker(sensor, [Compactor(world.context, executor=executor)], clock=world.clock,
                            plan_policy=Policy(close) if who == "policy" else None, observer=observer,
                            cleaners=[TokenCleaner(world.context)])
    worker.append(made)
    (work,) = made.run_pending()
    assert isinstance(work.outcome, Done)
    assert all(isinstance(each, Busy) for each in told), told
    if who in ("policy", "executor", "repository's observer"):
        assert told
    made.close()


def test_a_worker_that_is_at_work_elsewhere_gives_nothing_and_loses_no_trigger() -> None:
    world, sensor = sensed(("main", "side"))
    inside: list[object] = []
    worker = CompactionWorker(sensor, [Compactor(world.context)], clock=world.clock,
                              plan_policy=Policy(lambda plan: inside.append(worker.run_pending())))
    assert [type(work.outcome) for work in worker.run_pending()] == [Done, Done]
    assert inside == [[], []]


# --- audits

AUDITS = """
from compactlib.clock import ManualClock
from compactlib.errors import AuditFailed
from compactlib.kv import MemoryStore
from compactlib.objects import MemoryObjects
from compactlib.staging import CommittedRanges, CompactionSensor, CompactionWorker, StagingArea
assert False, "asserts are off"
area = StagingArea(MemoryStore(), CommittedRanges(MemoryObjects()))
main = area.create_branch("main")
area.audit()
area.context.tokens.mark_dropped([main.record().staging_token], "main")
sensor = CompactionSensor(buffer=1)
sensor._triggers.queue.extend([None] * 3)
worker = CompactionWorker(sensor, [], clock=ManualClock())
worker._next_cleanup = 1e9
for audit in (area.audit, sensor.audit, worker.audit):
    try:
        audit()
    except AuditFailed as error:
        print("found")
"""


def test_audits_find_what_is_wrong_also_without_asserts() -> None:
    ran = subprocess.run([sys.executable, "-O", "-c", AUDITS], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["found"] * 3


def test_the_timer_is_the_monotonic_clock() -> None:
    clock = ManualClock(1000.0)
    worker = CompactionWorker(CompactionSensor(), [], clock=clock)
    worker.run_pending()
    clock.advance(1)
    worker.audit()
