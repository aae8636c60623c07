# SPDX-License-Identifier: Apache-2.0
"""A service over pieces of work: step by step without threads, with threads on lanes, and whatever anybody raises."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest

from compactlib.clock import Clock, ManualClock
from compactlib.contract import Service
from compactlib.errors import (
    AuditFailed,
    Busy,
    Closed,
    CompactlibError,
    InvalidInput,
    NotFound,
    StorageError,
    TaskFailed,
)
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime import Budget, Observer, RecordingObserver
from compactlib.runtime.services.agenda import Accepted, Refused, Removed
from compactlib.runtime.services.service_face import ServiceFace
from compactlib.runtime.services.work_service import Job, WorkService
from compactlib.testing.interrupts import interruptions
from tests.harness.effort import Effort

FAILED = "shop_failed"


def service(clock: Clock | None = None, observer: Observer | None = None, **options: Any) -> WorkService:
    return WorkService("the shop", event=FAILED, recovered="shop_recovered", clock=clock, observer=observer, **options)


class Work:
    """Counts its turns, and ends as it is told."""

    def __init__(self, *endings: Outcome[Any] | BaseException) -> None:
        self.endings = list(endings)
        self.turns: list[tuple[str, int]] = []
        self.taken = threading.Semaphore(0)

    def __call__(self, job: Job) -> Outcome[Any]:
        self.turns.append((job.turn.cause, job.turn.strength))
        self.taken.release()
        ending = self.endings.pop(0) if self.endings else Done("well")
        if isinstance(ending, BaseException):
            raise ending
        return ending


def broken() -> StorageError:
    return StorageError(operation="write", path="/x", errno=5)


class Trouble(Exception):
    """Of a host's own."""


# --------------------------------------------------------------------------------------------------- without threads

def test_a_service_is_one_by_the_contract() -> None:
    made: Service = service()
    assert made.stop() == made.stop()


def test_what_is_asked_for_and_what_is_due_is_done_in_the_callers_thread() -> None:
    clock, asked, due = ManualClock(), Work(), Work(Skipped("nothing"))
    shop = service(clock)
    shop.add("due", due, every_seconds=10.0)
    shop.add("asked", asked)
    shop.request("asked", 2)
    shop.request("asked", 3)
    assert shop.run_pending() == [Done("well"), Skipped("nothing")]
    assert (asked.turns, due.turns) == ([("asked", 3)], [("periodic", 1)])
    assert shop.run_pending() == []
    clock.advance(10.0)
    assert shop.run_pending() == [Done("well")]
    assert [row.done for row in shop.report().rows] == [1, 1]


def test_what_is_asked_for_while_it_runs_is_done_again() -> None:
    shop = service()
    turns: list[int] = []

    def work(job: Job) -> Outcome[Any]:
        turns.append(job.turn.strength)
        if len(turns) == 1:
            assert shop.request("work", 1) == Accepted("work", "queued")
            assert shop.request("work", 2) == Accepted("work", "already queued")
            assert shop.request("work", 1, joins=True) == Accepted("work", "running")
        return Done("well")

    shop.add("work", work)
    shop.request("work", 1)
    shop.run_pending()
    assert turns == [1, 2]


def test_work_may_say_when_it_is_due_next() -> None:
    clock, turns = ManualClock(), []
    shop = service(clock)

    def work(job: Job) -> Outcome[Any]:
        turns.append(clock.monotonic())
        job.due_in(3.0 if len(turns) == 1 else 7.0)
        return Skipped("polled")

    shop.add("poll", work, every_seconds=100.0)
    for _ in range(12):
        shop.run_pending()
        clock.advance(1.0)
    assert turns == [0.0, 3.0, 10.0]


def test_a_failure_is_tried_again_after_a_growing_delay_and_told() -> None:
    clock, observer = ManualClock(), RecordingObserver()
    work = Work(Trouble("oops"), Failed(broken()), Done("well"))
    shop = service(clock, observer, retry_seconds=1.0, max_retry_seconds=60.0)
    shop.add("work", work, lane="left")
    shop.request("work", 2)
    (outcome,) = shop.run_pending()
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, TaskFailed)
    assert "Trouble: oops" in str(outcome.error)
    assert isinstance(shop.last_error, Trouble)
    assert shop.failures == 1
    assert [row.condition for row in shop.report().failing] == ["failing"]
    clock.advance(0.9)
    assert shop.run_pending() == []
    clock.advance(0.1)
    assert len(shop.run_pending()) == 1
    clock.advance(2.0)
    shop.run_pending()
    assert work.turns == [("asked", 2), ("retry", 2), ("retry", 2)]
    # What a turn returns is no surprise.
    assert shop.failures == 1
    assert [(name, fields["failures"]) for name, fields in observer.events] == [
        (FAILED, 1), (FAILED, 2), ("shop_recovered", 2)]
    assert observer.events[0][1] == {"work": "work", "lane": "left", "error": "TaskFailed", "failures": 1,
                                     "message": str(outcome.error), "retry_in_seconds": 1.0}
    assert shop.report().failing == ()


def test_what_is_not_worth_another_try_is_given_up_until_somebody_asks() -> None:
    clock = ManualClock()
    work = Work(Failed(broken()), Failed(NotFound("gone")))
    shop = service(clock)
    shop.add("work", work, retries=lambda error: isinstance(error, NotFound))
    shop.request("work")
    shop.run_pending()
    clock.advance(1e9)
    assert shop.run_pending() == []
    assert shop.report().rows[0].last_ending == "given up"
    shop.request("work")
    shop.run_pending()
    clock.advance(1e9)
    assert shop.run_pending() == [Done("well")]


def test_who_is_busy_is_asked_again_soon_and_has_not_failed() -> None:
    clock, work = ManualClock(), Work(Skipped("somebody else is at it", is_busy=True))
    shop = service(clock, retry_seconds=10.0)
    shop.add("work", work, every_seconds=1e6)
    shop.run_pending()
    clock.advance(9.0)
    assert shop.run_pending() == []
    clock.advance(1.0)
    assert shop.run_pending() == [Done("well")]
    assert shop.report().failing == ()


def test_what_works_on_something_closed_rests_until_it_is_opened() -> None:
    clock, turns = ManualClock(), []

    def work(job: Job) -> Outcome[Any]:
        turns.append((job.turn.cause, job.turn.strength))
        if len(turns) == 1:
            job.rest()
            return Failed(Closed("the store is closed"))
        return Done("well")

    shop = service(clock)
    shop.add("work", work, every_seconds=10.0, resumes=True)
    (outcome,) = shop.run_pending()
    assert isinstance(outcome, Failed)
    clock.advance(1e6)
    assert shop.run_pending() == []
    assert (shop.report().rows[0].condition, shop.failures) == ("closed", 0)
    assert isinstance(shop.request("work"), Refused)
    shop.set_open("work", True)
    shop.run_pending()
    assert turns == [("resume", 0), ("resume", 0), ("periodic", 1)]


@pytest.mark.parametrize("is_told_of_its_end", [False, True])
def test_what_was_opened_while_its_turn_still_found_it_closed_is_done(is_told_of_its_end: bool) -> None:
    clock, turns = ManualClock(), []

    def work(job: Job) -> Outcome[Any]:
        turns.append((job.turn.cause, job.turn.strength))
        if len(turns) > 1:
            return Done("well")
        if is_told_of_its_end:
            shop.set_open("work", False)
        shop.set_open("work", True)
        job.rest()  # what it met before
        return Failed(Closed("the store is closed"))

    shop = service(clock)
    shop.add("work", work)
    shop.request("work")
    shop.run_pending()
    assert turns == [("asked", 1), ("periodic", 1)]
    assert shop.report().rows[0].condition == "waiting"
    assert isinstance(shop.request("work"), Accepted)


def test_closed_from_anywhere_else_is_an_error_like_any_other() -> None:
    """A host's connection, say: work that rested because of it would have ended in silence."""
    clock, work = ManualClock(), Work(Closed("the connection is closed"))
    shop = service(clock)
    shop.add("work", work, every_seconds=10.0)
    shop.run_pending()
    assert isinstance(shop.last_error, Closed)
    clock.advance(1.0)
    assert shop.run_pending() == [Done("well")]


@pytest.mark.parametrize("answer", [None, "done", 3])
def test_what_is_no_outcome_is_a_failure_with_advice(answer: Any) -> None:
    shop = service(ManualClock())
    shop.add("work", lambda job: answer)
    shop.request("work")
    (outcome,) = shop.run_pending()
    assert isinstance(outcome, Failed)
    assert "has to return Done, Skipped or Failed" in str(outcome.error)
    assert isinstance(shop.last_error, InvalidInput)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_what_ends_a_process_frees_every_lane_and_propagates(error: BaseException) -> None:
    clock = ManualClock()
    shop = service(clock)
    shop.add("a", Work(error), lane="left")
    other = Work()
    shop.add("b", other, lane="right")
    for name in "ab":
        shop.request(name)
    with pytest.raises(type(error)):
        shop.run_pending()
    assert shop.last_error is error
    clock.advance(60.0)
    assert shop.run_pending() == [Done("well"), Done("well")]
    assert isinstance(shop.stop(), Done)


def test_a_clock_that_raises_ends_nothing() -> None:
    class Broken(ManualClock):
        is_broken = False

        def monotonic(self) -> float:
            if self.is_broken:
                raise Trouble("no time")
            return super().monotonic()

    clock = Broken()
    shop = service(clock)
    shop.add("work", Work())
    clock.is_broken = True
    shop.request("work")
    assert shop.run_pending() == [Done("well")]
    assert isinstance(shop.last_error, Trouble)


def test_work_is_added_disabled_and_removed() -> None:
    shop = service(ManualClock())
    work = Work()
    shop.add("work", work, enabled=False, every_seconds=5.0)
    with pytest.raises(InvalidInput, match="work 'work' already"):
        shop.add("work", work)
    with pytest.raises(NotFound, match="known is 'work'"):
        shop.enable("other")
    assert isinstance(shop.request("other"), Refused)
    assert shop.run_pending() == []
    shop.enable("work")
    assert shop.run_pending() == [Done("well")]
    assert shop.remove("work") == Refused("work", "it is enabled; disable it first")
    shop.disable("work")
    assert shop.remove("work") == Removed("work")
    assert shop.report().rows == ()


def test_disabling_cancels_what_runs_which_is_no_failure() -> None:
    shop = service(ManualClock())

    def work(job: Job) -> Outcome[Any]:
        shop.disable("work")
        refusal = job.budget.refusal
        assert refusal is not None
        return Failed(refusal)

    shop.add("work", work)
    shop.request("work")
    shop.run_pending()
    row = shop.report().rows[0]
    assert (row.last_ending, row.failures, row.condition) == ("stopped", 0, "disabled")


def test_after_stop_nothing_is_done_until_it_is_started() -> None:
    shop = service(ManualClock())
    work = Work()
    shop.add("work", work)
    shop.request("work")
    assert isinstance(shop.stop(), Done)
    assert isinstance(shop.request("work"), Refused)
    with pytest.raises(Closed, match="start it, or make another one"):
        shop.run_pending()
    with shop:
        assert isinstance(shop.request("work"), Accepted)
        assert work.taken.acquire(timeout=30)
    assert work.turns == [("asked", 1)]
    assert shop.is_stopped


def test_the_report_prints_itself_and_is_a_status() -> None:
    shop = service(ManualClock())
    for name in ("a", "b"):
        shop.add(name, Work(Trouble("oops")) if name == "a" else Work(), enabled=name == "a")
    shop.request("a")
    shop.run_pending()
    report = shop.report()
    assert repr(report) == "<WorkReport: the shop active: 1 disabled, 1 failing; 1 errors, the last Trouble: oops>"
    assert [row["condition"] for row in report.to_dicts()] == ["failing", "disabled"]
    assert (report.is_busy, report.failures, report.last_error) == (False, 1, "Trouble: oops")
    assert report.row("c") is None
    assert "oops" in str(report)
    assert repr(shop) == repr(report).replace("WorkReport", "WorkService")


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), "soon", None, True])
def test_a_time_that_is_none_is_refused(seconds: Any) -> None:
    with pytest.raises(InvalidInput, match="no time to wait"):
        service().stop(wait_seconds=seconds)


# ------------------------------------------------------------------------------------------------------ with threads

def test_lanes_go_side_by_side_and_a_lane_does_one_at_a_time() -> None:
    """Two meet at a barrier, inside of their turns; a third one shares a lane and comes after."""
    meeting, ended = threading.Barrier(2, timeout=30), threading.Event()
    seen: list[str] = []

    def meet(_: Job) -> Outcome[Any]:
        meeting.wait()
        return Done("met")

    def last(_: Job) -> Outcome[Any]:
        row = shop.report().row("a")
        assert row is not None
        seen.append(row.condition)
        ended.set()
        return Done("last")

    with service() as shop:
        shop.add("a", meet, lane="left")
        shop.request("a")
        shop.add("c", last, lane="left")
        shop.request("c")
        shop.add("b", meet, lane="right", every_seconds=1e6)
        assert ended.wait(30)
        shop.wait_until_idle()
    assert seen == ["waiting"]


def test_a_hosts_clock_that_jumps_is_noticed() -> None:
    clock, work = ManualClock(), Work()
    with service(clock) as shop:
        shop.add("work", work, every_seconds=100.0)
        assert work.taken.acquire(timeout=30)
        clock.advance(100.0)
        assert work.taken.acquire(timeout=30)


def test_stopping_cancels_what_runs_and_waits_for_it() -> None:
    began, ended = threading.Event(), []

    def work(job: Job) -> Outcome[Any]:
        began.set()
        job.budget.pause()
        try:
            job.budget.check()
        finally:
            ended.append(True)
        return Done("it was never cancelled")

    given = Budget()
    shop = service(budget=given)
    shop.add("work", work)
    shop.start()
    shop.start()
    shop.request("work")
    assert began.wait(30)
    outcome = shop.stop()
    assert isinstance(outcome, Done)
    assert (ended, outcome.stats.turns) == ([True], 1)
    assert not given.cancelled
    assert shop.report().rows[0].last_ending == "stopped"


def test_stop_keeps_its_deadline_and_says_who_has_not_ended() -> None:
    began, go_on = threading.Event(), threading.Event()

    def work(_: Job) -> Outcome[Any]:
        began.set()
        assert go_on.wait(30)
        return Done("at last")

    shop = service()
    shop.add("deaf", work)
    shop.request("deaf")
    shop.start()
    assert began.wait(30)
    outcome = shop.stop(wait_seconds=0.0)
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, Busy)
    assert "deaf still runs" in str(outcome.error)
    with pytest.raises(Busy, match="deaf runs; wait again"):
        shop.wait_until_idle(0.0)
    go_on.set()
    assert isinstance(shop.stop(), Done)
    assert isinstance(shop.stop(), Done)


@pytest.mark.parametrize("threads", [False, True])
def test_stopping_from_within_is_busy_on_any_thread_and_stops_all_the_same(threads: bool) -> None:
    told: list[str] = []

    def tries() -> None:
        try:
            shop.stop()
        except Busy as error:
            told.append(str(error))
        try:
            shop.wait_until_idle()
        except Busy as error:
            told.append(str(error))

    def work(_: Job) -> Outcome[Any]:
        tries()
        thread = threading.Thread(target=copy_context().run, args=[tries])
        thread.start()
        thread.join()
        return Done("well")

    shop = service()
    shop.add("work", work)
    shop.request("work")
    if threads:
        shop.start()
        while len(told) < 4:
            pass
    else:
        shop.run_pending()
    assert all("from within" in each for each in told)
    assert isinstance(shop.stop(), Done)
    with pytest.raises(Closed):
        shop.run_pending()


def test_an_observer_that_stops_the_service_or_raises_is_told_busy_and_ends_nothing() -> None:
    refused: list[Busy] = []
    told = threading.Event()

    class Stopping(Observer):
        def event(self, name: str, fields: object) -> None:
            try:
                shop.stop()
            except Busy as error:
                refused.append(error)
                told.set()
            raise Trouble(name)

    shop = service(observer=Stopping())
    shop.add("work", Work(Trouble("oops")))
    shop.request("work")
    shop.start()
    assert told.wait(30)
    assert isinstance(shop.stop(), Done)
    assert len(refused) == 1


def audit_for_ever(shop: WorkService) -> None:
    while True:
        shop.require_threads()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_exit_of_a_thread_of_an_earlier_start_ends_none_of_the_present_one() -> None:
    may_end, began, was_repeated = threading.Event(), threading.Event(), threading.Event()
    turns: list[threading.Thread] = []

    def work(_: Job) -> Outcome[Any]:
        turns.append(threading.current_thread())
        if len(turns) == 1:
            began.set()
            assert may_end.wait(30)
            raise SystemExit
        was_repeated.set()
        return Done("well")

    shop = service(retry_seconds=0.001, max_retry_seconds=0.001)
    shop.add("work", work)
    shop.request("work")
    shop.start()
    assert began.wait(30)
    assert isinstance(shop.stop(wait_seconds=0), Failed)
    shop.start()
    may_end.set()
    turns[0].join(30)
    shop.start()
    # Not `wait_until_idle`: what is put off until its next try counts as idle.
    assert was_repeated.wait(30)
    assert turns[0] not in turns[1:]
    assert isinstance(shop.stop(wait_seconds=30), Done)
    assert "the shop" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_has_ended_is_told_by_audit_and_given_again_by_start() -> None:
    work = Work(SystemExit())
    shop = service(retry_seconds=0.001, max_retry_seconds=0.001)
    shop.add("work", work)
    shop.request("work")
    shop.start()
    with pytest.raises(AuditFailed, match=r"no thread any more: SystemExit\(\); start it again"):
        audit_for_ever(shop)
    # Only then has pytest seen the exit that this test ignores.
    for thread in threading.enumerate():
        if thread.name == "the shop":
            thread.join(30)
    shop.start()
    assert work.taken.acquire(timeout=30)
    assert work.taken.acquire(timeout=30)
    shop.wait_until_idle()
    assert isinstance(shop.stop(), Done)


def test_a_thread_that_cannot_be_begun_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    refused: list[str] = []

    def refusing(thread: threading.Thread) -> None:
        if not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    work = Work()
    shop = service()
    shop.add("work", work)
    monkeypatch.setattr(threading.Thread, "start", refusing)
    shop.start()
    assert isinstance(shop.last_error, RuntimeError)
    with pytest.raises(AuditFailed, match="can't start new thread"):
        shop.require_threads()
    shop.request("work")
    assert work.taken.acquire(timeout=30)
    shop.stop()


def test_many_threads_may_ask_start_and_stop_at_once() -> None:
    work = Work()
    shop = service()
    for name in "abc":
        shop.add(name, work, lane=name)

    def ask(what: Callable[[], object]) -> None:
        for _ in range(100):
            what()

    calls: list[Callable[[], object]] = [lambda: shop.request("a"), lambda: shop.request("b", 2), shop.start,
                                         shop.start, lambda: shop.request("c"), shop.stop, shop.report]
    threads = [threading.Thread(target=ask, args=[call]) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shop.start()
    shop.wait_until_idle()
    assert isinstance(shop.stop(), Done)


# ---------------------------------------------------------------------------------------------------------- the face

class Sweeper(ServiceFace):
    """As a package's own service stands on the machinery."""

    def __init__(self) -> None:
        self._service = service()
        self._service.add("sweep", self._sweep, every_seconds=3600.0)

    def _sweep(self, job: Job) -> Outcome[Any]:
        if self.failures == 0:
            raise Trouble("dust")
        return Done("swept")


def test_the_face_passes_everything_on() -> None:
    sweeper = Sweeper()
    assert isinstance(sweeper.run_pending()[0], Failed)
    assert isinstance(sweeper.last_error, Trouble)
    assert sweeper.failures == 1
    with sweeper as same:
        assert same is sweeper
        assert not sweeper.is_mine
    assert isinstance(sweeper.stop(wait_seconds=1.0), Done)
    with pytest.raises(CompactlibError):
        sweeper.run_pending()


def test_stopping_waits_for_nothing_that_a_later_start_began() -> None:
    inside, let_go = {name: threading.Event() for name in "ab"}, {name: threading.Event() for name in "ab"}

    def work(job: Job) -> Outcome[Any]:
        inside[job.turn.name].set()
        assert let_go[job.turn.name].wait(20)
        return Done(job.turn.name)

    service = WorkService("the test", event="test_failed")
    for name in "ab":
        service.add(name, work, lane=name)
    service.start()
    service.request("a")
    assert inside["a"].wait(20)
    answers: list[Outcome[Any]] = []
    stopping = threading.Thread(target=lambda: answers.append(service.stop(wait_seconds=5)))
    stopping.start()
    while not service.is_stopped:
        stopping.join(0.001)
    service.start()
    service.request("b")
    assert inside["b"].wait(20)
    let_go["a"].set()
    stopping.join(20)
    assert [type(answer) for answer in answers] == [Done]
    let_go["b"].set()
    assert isinstance(service.stop(), Done)


def test_a_thread_that_was_slow_to_begin_takes_nothing_that_a_later_start_began() -> None:
    """Else `stop`, which waits for that thread, waits for work of the later start."""
    took: list[threading.Thread] = []

    def work(job: Job) -> Outcome[Any]:
        took.append(threading.current_thread())
        return Done(job.turn.name)

    for _ in range(20):
        service = WorkService("the test", event="test_failed")
        service.add("a", work, lane="a")
        with service._changed:  # noqa: SLF001 - so that the thread stands where it is about to take its turn
            service.start()
            [slow] = [turns._thread for turns in service._lanes.values()]  # noqa: SLF001
            assert slow is not None
            while not is_in(slow, "_take"):
                slow.join(0.001)
            assert isinstance(service.stop(wait_seconds=0), Failed), "it still runs"
            service.start()
            service.request("a")
        service.wait_until_idle()
        assert isinstance(service.stop(), Done)
        assert took.pop() is not slow
        assert not took


def is_in(thread: threading.Thread, function: str) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)  # noqa: SLF001 - there is no other way to ask
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def test_an_interrupt_anywhere_in_a_turn_keeps_no_lane_busy(effort: Effort) -> None:
    def work(shop: WorkService) -> None:
        shop.request("pack")
        shop.run_pending()

    def made() -> tuple[WorkService, Work]:
        shop, pack = service(ManualClock(), RecordingObserver(), retry_seconds=1e-9), Work(Failed(broken()))
        shop.add("pack", pack, lane="hall", every_seconds=1e9)
        shop.add("send", lambda job: Skipped("nothing is packed"), lane="hall", every_seconds=1.0)
        return shop, pack

    def follow(shop: WorkService, pack: Work, followed: list[bool]) -> None:
        before = len(pack.turns)
        was_accepted = isinstance(shop.request("pack"), Accepted)
        shop.run_pending()
        followed.append(was_accepted and len(pack.turns) > before and isinstance(shop.stop(wait_seconds=0.0), Done))

    for interrupt in interruptions(lambda: work(made()[0]), effort(100, 1_000)):
        shop, pack = made()
        kept: list[BaseException] = []
        try:
            with interrupt:
                work(shop)
        except KeyboardInterrupt as error:
            kept.append(error)  # as a shell keeps the last one, and all that it refers to
        assert not shop.is_mine, interrupt.where
        # Another thread may have what this one has let go.
        followed: list[bool] = []
        other = threading.Thread(target=follow, args=(shop, pack, followed), daemon=True)
        other.start()
        other.join(10.0)
        assert followed == [True], interrupt.where
