# SPDX-License-Identifier: Apache-2.0
"""The worker with its threads, against a scripted scheduler; events tell when to go on, nothing sleeps."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, Busy, Closed, InvalidInput
from compactlib.fences import FencedOff
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime import Budget, Observer, RecordingObserver
from compactlib.runtime.services.work_service import Stopped
from compactlib.scheduler import (
    CompactedBlocks,
    JobPlan,
    JobStatus,
    NoOutput,
    PollRequest,
    PollResponse,
    RunningJob,
    Worker,
    WorkerOptions,
)
from compactlib.scheduler.errors import JobLost, ReleaseJob
from compactlib.scheduler.model.poll import Assignment, StatusAnswer, Verdict
from compactlib.scheduler.model.values import BlockTombstones, Tombstone
from compactlib.scheduler.workers.running_job import Execute
from compactlib.scheduler.workers.worker import Polled

PATIENCE = 60.0
FENCED_OFF = FencedOff(resource="a", token=1, highest=7)
FAST = WorkerOptions(capacity=2, poll_seconds=0.01, jitter=0)


def plan(name: str, *tombstones: Tombstone) -> JobPlan:
    return JobPlan(name=name, tenant="A", shard=1, compaction_level=0, source_blocks=("1",), tombstones=tombstones)


def tombstone(name: str) -> BlockTombstones:
    return BlockTombstones(name=name, tenant="A", shard=1, level=0, blocks=("x",))


def nothing(job: RunningJob) -> CompactedBlocks:
    return CompactedBlocks(tenant="A", shard=1, source_blocks=job.plan.source_blocks, no_output=NoOutput.EMPTY)


class Desk:
    """A scheduler with a heap of jobs: hands out each once, renews what is not lost, and notes every report."""

    def __init__(self, *names: str, lease_seconds: float = 15.0) -> None:
        self.waiting = list(names)
        self.lost: set[str] = set()
        self.reports: dict[str, tuple[JobStatus | int, str]] = {}
        self.polls: list[PollRequest] = []
        self.renewals: dict[str, int] = {}
        self.deleted: set[str] = set()
        self.cleanup: list[Tombstone] = []
        self.broken = 0
        self.lease_seconds = lease_seconds
        self.token = 0
        self.changed = threading.Condition()

    def poll(self, request: PollRequest) -> PollResponse:
        with self.changed:
            self.changed.notify_all()
            self.polls.append(request)
            if self.broken:
                self.broken -= 1
                raise ConnectionError("no leader")
            self.deleted |= set(request.deleted_tombstones)
            assignments = []
            answers = []
            for update in request.status_updates:
                lost = update.name in self.lost
                if not lost and update.status == JobStatus.IN_PROGRESS:
                    self.renewals[update.name] = self.renewals.get(update.name, 0) + 1
                    assignments.append(Assignment(update.name, update.token, self.lease_seconds))
                elif not lost:
                    self.reports[update.name] = update.status, update.reason
                answers.append(StatusAnswer(update.name, Verdict.STALE_TOKEN if lost else Verdict.ACCEPTED))
            taken = [self.waiting.pop(0) for _ in range(min(request.job_capacity, len(self.waiting)))]
            self.token += 1
            assignments += [Assignment(name, self.token, self.lease_seconds) for name in taken]
            cleanup, self.cleanup = tuple(self.cleanup), []
            return PollResponse(tuple(map(plan, taken)), tuple(assignments), tuple(answers), cleanup)

    def wait_for(self, what: object) -> None:
        with self.changed:
            assert self.changed.wait_for(what, PATIENCE)  # type: ignore[arg-type]


@contextmanager
def working(desk: Desk, execute: Execute, **settings: object) -> Iterator[Worker]:
    worker = Worker(desk, execute, **{"options": FAST, **settings})  # type: ignore[arg-type]
    with worker:
        yield worker


def test_all_jobs_are_done_and_reported() -> None:
    desk = Desk(*"abcdefgh")
    with working(desk, nothing):
        desk.wait_for(lambda: len(desk.reports) == 8)
    assert set(desk.reports.values()) == {(JobStatus.SUCCESS, "")}
    assert all(poll.job_capacity <= 2 for poll in desk.polls)


def test_jobs_run_side_by_side_and_are_renewed_meanwhile() -> None:
    desk, together = Desk("a", "b"), threading.Barrier(3)

    def execute(job: RunningJob) -> CompactedBlocks:
        together.wait(PATIENCE)
        together.wait(PATIENCE)
        return nothing(job)

    with working(desk, execute) as worker:
        together.wait(PATIENCE)
        desk.wait_for(lambda: desk.renewals.get("a", 0) >= 3 and desk.renewals.get("b", 0) >= 3)
        assert set(worker.jobs) == {"a", "b"}
        assert not worker.is_idle
        together.wait(PATIENCE)
        desk.wait_for(lambda: len(desk.reports) == 2)


@pytest.mark.parametrize(("error", "status", "reason"), [
    (ZeroDivisionError("boom"), JobStatus.FAILED, "ZeroDivisionError: boom"),
    (SystemExit("out"), JobStatus.FAILED, "SystemExit: out"),
    (MemoryError(), JobStatus.FAILED, "MemoryError: "),
    (ReleaseJob("too large for me"), JobStatus.RELEASED, "too large for me"),
    (FENCED_OFF, JobStatus.RELEASED, str(FENCED_OFF)),
    (JobLost(name="a", reason="it went away"), JobStatus.RELEASED, "stop working on 'a': it went away"),
])
def test_a_worker_survives_what_its_jobs_end_in(error: BaseException, status: JobStatus, reason: str) -> None:
    desk = Desk("bad", "good")

    def execute(job: RunningJob) -> CompactedBlocks:
        if job.plan.name == "bad":
            raise error
        return nothing(job)

    with working(desk, execute):
        desk.wait_for(lambda: len(desk.reports) == 2)
    assert desk.reports == {"bad": (status, reason), "good": (JobStatus.SUCCESS, "")}


def test_an_execute_that_returns_something_else_has_failed() -> None:
    desk = Desk("a")
    with working(desk, lambda job: None):  # type: ignore[arg-type, return-value]
        desk.wait_for(lambda: desk.reports)
    assert desk.reports["a"] == (JobStatus.FAILED, "the execute must return CompactedBlocks, of Python's own numbers, "
                                 "texts and tuples: a NoneType stands where a CompactedBlocks belongs")


def test_results_that_cannot_be_said_are_a_failure_and_keep_no_other_job_from_being_reported() -> None:
    desk = Desk("bad", "good")

    def execute(job: RunningJob) -> CompactedBlocks:
        results = nothing(job)
        listed: Any = [*results.source_blocks]
        return attrs.evolve(results, source_blocks=listed) if job.plan.name == "bad" else results

    with working(desk, execute):
        desk.wait_for(lambda: len(desk.reports) == 2)
    assert desk.reports["good"] == (JobStatus.SUCCESS, "")
    status, reason = desk.reports["bad"]
    assert (status, "source_blocks cannot be ['1']" in reason) == (JobStatus.FAILED, True)


def test_a_lease_is_renewed_in_time_by_a_worker_that_polls_seldom() -> None:
    desk, clock = Desk("a", lease_seconds=15.0), ManualClock()

    def execute(job: RunningJob) -> CompactedBlocks:
        for _ in range(10):
            clock.advance(6.0)
            job.check()
            assert job.lease_seconds_left > 0
        return nothing(job)

    options = WorkerOptions(poll_seconds=300.0, max_poll_seconds=300.0, jitter=0)
    worker = Worker(desk, execute, options=options, clock=clock)
    worker.run_pending()
    assert desk.reports["a"] == (JobStatus.SUCCESS, "")
    worker.stop()


def test_a_job_whose_lease_was_lost_is_stopped_and_not_reported() -> None:
    desk, ended = Desk("a"), threading.Event()
    found: list[object] = []

    def execute(job: RunningJob) -> CompactedBlocks:
        if job.plan.name == "b":
            return nothing(job)
        job.check()
        desk.lost.add("a")
        try:
            # The budget is how work that writes finds out.
            job.budget.pause()
            job.budget.check()
        except BudgetSpent as error:
            found.append(error)
            with pytest.raises(JobLost, match="stop working on 'a': stale token"):
                job.check()
            assert job.is_stopped
            assert "stopped" in repr(job)
            ended.set()
            raise
        return nothing(job)

    told = RecordingObserver()
    with working(desk, execute, observer=told, options=WorkerOptions(poll_seconds=0.01)):
        assert ended.wait(PATIENCE)
        desk.waiting.append("b")
        desk.wait_for(lambda: desk.reports)
    assert list(desk.reports) == ["b"]
    assert len(found) == 1
    events = [name for name, fields in told.events if fields.get("job") == "a"]
    assert events == ["scheduler_job_started", "scheduler_job_stopped"]


def test_cancelling_one_job_leaves_the_others_and_their_common_budget_alone() -> None:
    desk, common = Desk("a", "b"), Budget()
    lost = threading.Event()

    def execute(job: RunningJob) -> CompactedBlocks:
        job.budget.spend(10)
        if job.plan.name == "a":
            desk.lost.add("a")
            job.budget.pause()
            try:
                job.budget.check()
            finally:
                job.budget.resume()
                lost.set()
        assert lost.wait(PATIENCE)
        job.budget.spend(10)
        return nothing(job)

    with working(desk, execute, budget=common):
        desk.wait_for(lambda: desk.reports)
    assert desk.reports == {"b": (JobStatus.SUCCESS, "")}
    assert not common.cancelled
    assert common.spent_bytes == 30


def test_a_scheduler_that_does_not_answer_is_asked_again() -> None:
    desk, told = Desk("a"), RecordingObserver()
    desk.broken = 3
    with working(desk, nothing, observer=told):
        desk.wait_for(lambda: desk.reports)
    failed = [fields["in_a_row"] for name, fields in told.events if name == "scheduler_poll_failed"]
    assert failed == [1, 2, 3]


def test_a_report_that_was_not_answered_is_sent_again() -> None:
    desk = Desk("a")

    def execute(job: RunningJob) -> CompactedBlocks:
        desk.broken = 2
        return nothing(job)

    with working(desk, execute):
        desk.wait_for(lambda: desk.reports)
    sent = [each for poll in desk.polls for each in poll.status_updates if each.status == JobStatus.SUCCESS]
    assert len(sent) >= 2


def test_an_observer_that_fails_does_not_end_the_work() -> None:
    class Broken(Observer):
        def event(self, name: str, fields: object) -> None:
            raise RuntimeError(name)

    desk = Desk("a", "b")
    desk.broken = 1
    with working(desk, nothing, observer=Broken()):
        desk.wait_for(lambda: len(desk.reports) == 2)


def test_objects_are_deleted_and_confirmed_and_what_fails_is_not() -> None:
    desk, told = Desk(), RecordingObserver()
    desk.cleanup = [tombstone("good"), tombstone("bad")]

    def cleanup(what: Tombstone) -> None:
        if what.name == "bad":
            raise OSError("store is down")

    with working(desk, nothing, cleanup=cleanup, observer=told):
        desk.wait_for(lambda: desk.deleted)
    assert desk.deleted == {"good"}
    assert [fields["tombstone"] for name, fields in told.events if name == "scheduler_cleanup_failed"] == ["bad"]


def test_stopping_waits_for_jobs_and_deletions_and_reports_them() -> None:
    desk, began, may_end = Desk("a"), threading.Event(), threading.Event()
    deleting = threading.Event()
    desk.cleanup = [tombstone("t")]

    def execute(job: RunningJob) -> CompactedBlocks:
        began.set()
        assert may_end.wait(PATIENCE)
        return nothing(job)

    def cleanup(what: Tombstone) -> None:
        deleting.set()
        assert may_end.wait(PATIENCE)

    worker = Worker(desk, execute, cleanup=cleanup, options=FAST)
    worker.start()
    worker.start()
    assert began.wait(PATIENCE)
    assert deleting.wait(PATIENCE)
    polls = len(desk.polls)
    stopping = threading.Thread(target=worker.stop, kwargs={"wait_seconds": PATIENCE, "grace_seconds": PATIENCE})
    stopping.start()
    # It goes on renewing, and asks for no more jobs.
    desk.wait_for(lambda: len(desk.polls) > polls + 3)
    may_end.set()
    stopping.join()
    assert desk.reports == {"a": (JobStatus.SUCCESS, "")}
    assert desk.deleted == {"t"}
    assert desk.polls[-1].job_capacity == 0
    assert isinstance(worker.stop(), Done)
    with pytest.raises(Closed):
        worker.run_pending()
    assert "stopped" in repr(worker)


def test_what_was_stopped_can_be_started_again() -> None:
    desk = Desk("a")
    worker = Worker(desk, nothing, options=FAST)
    for name in ("b", "c"):
        worker.start()
        desk.wait_for(lambda: len(desk.reports) % 2 == 1)
        assert isinstance(worker.stop(), Done)
        with desk.changed:
            desk.waiting.append(name)
            desk.reports["between"] = JobStatus.SUCCESS, ""
    worker.start()
    desk.wait_for(lambda: set(desk.reports) >= {"a", "b", "c"})
    assert isinstance(worker.stop(), Done)


@pytest.mark.parametrize("end", ["the with", "stop"])
def test_stopping_cancels_the_jobs_and_gives_them_back(end: str) -> None:
    desk, began = Desk("a"), threading.Event()

    def execute(job: RunningJob) -> CompactedBlocks:
        began.set()
        job.budget.pause()
        job.budget.check()
        return nothing(job)

    with working(desk, execute) as worker:
        assert began.wait(PATIENCE)
        if end == "stop":
            assert isinstance(worker.stop(wait_seconds=PATIENCE), Done)
    status, reason = desk.reports["a"]
    assert status is JobStatus.RELEASED
    assert "cancelled" in reason


def test_a_job_that_does_not_listen_is_left_behind() -> None:
    desk, may_end, began = Desk("a"), threading.Event(), threading.Event()

    def execute(job: RunningJob) -> CompactedBlocks:
        began.set()
        assert may_end.wait(PATIENCE)
        return nothing(job)

    worker = Worker(desk, execute, options=FAST)
    worker.start()
    assert began.wait(PATIENCE)
    for _ in range(2):
        late = worker.stop(wait_seconds=0)
        assert isinstance(late, Failed)
        assert isinstance(late.error, Busy)
        assert "a still runs, or could not be reported" in str(late.error)
    assert desk.reports == {}
    may_end.set()
    assert isinstance(worker.stop(wait_seconds=PATIENCE), Done)
    assert desk.reports == {"a": (JobStatus.SUCCESS, "")}


def test_by_hand_and_on_a_clock_of_one_s_own() -> None:
    desk, clock, ended = Desk("a", lease_seconds=12), ManualClock(1000), threading.Event()
    seen: list[float] = []

    def execute(job: RunningJob) -> CompactedBlocks:
        seen.extend([job.token, job.lease_seconds_left])
        ended.set()
        return nothing(job)

    worker = Worker(desk, execute, clock=clock, options=WorkerOptions(), rng=random.Random(1))
    got, done, reported = worker.run_pending()
    assert ended.is_set()
    assert seen == [1, 12.0]
    assert (got, reported) == (Done(Polled(("a",), (), 0)), Done(Polled((), ("a",), 0)))
    assert isinstance(done, Done)
    assert desk.reports == {"a": (JobStatus.SUCCESS, "")}
    [nothing_new] = worker.run_pending()
    assert nothing_new == Skipped("the scheduler had nothing for this worker")
    assert worker.stop() == Done(Stopped(3, 0))
    assert len(desk.polls) == 3


def test_by_hand_a_job_renews_its_lease_when_it_checks_and_no_job_comes_before_the_next_call() -> None:
    desk, clock = Desk("a", "b", lease_seconds=12), ManualClock(1000)
    threads: list[threading.Thread] = []

    def execute(job: RunningJob) -> CompactedBlocks:
        threads.append(threading.current_thread())
        for _ in range(10):
            clock.advance(5)
            job.check()
            assert job.lease_seconds_left == 12
        return nothing(job)

    worker = Worker(desk, execute, clock=clock, options=WorkerOptions(jitter=0))
    before = set(threading.enumerate())
    worker.run_pending()
    assert (desk.renewals, list(desk.reports), desk.waiting) == ({"a": 10}, ["a"], ["b"])
    worker.run_pending()
    assert desk.reports == dict.fromkeys("ab", (JobStatus.SUCCESS, ""))
    assert set(threads) == {threading.current_thread()}
    assert set(threading.enumerate()) == before


def test_by_hand_a_job_cannot_do_the_pending_work_once_more() -> None:
    desk = Desk("a")

    def execute(job: RunningJob) -> CompactedBlocks:
        with pytest.raises(Busy, match="from within the work of another one"):
            worker.run_pending()
        return nothing(job)

    worker = Worker(desk, execute)
    assert [type(outcome) for outcome in worker.run_pending()] == [Done, Done, Done]
    assert desk.reports == {"a": (JobStatus.SUCCESS, "")}


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit("out")])
def test_by_hand_an_interrupt_is_the_caller_s_and_leaves_nothing_behind(error: BaseException) -> None:
    desk = Desk("a", "b")
    desk.cleanup = [tombstone("t")]
    began: list[str] = []

    def execute(job: RunningJob) -> CompactedBlocks:
        began.append(job.plan.name)
        if len(began) == 1:
            raise error
        return nothing(job)

    worker = Worker(desk, execute, options=WorkerOptions(capacity=2), cleanup=lambda what: None)
    with pytest.raises(type(error)):
        worker.run_pending()
    worker.run_pending()
    assert began == ["a"], "the other one was given back, not begun"
    assert {name: status for name, (status, _) in desk.reports.items()} == {"a": JobStatus.FAILED,
                                                                           "b": JobStatus.RELEASED}
    assert isinstance(worker.stop(), Done)


def test_what_has_ended_is_reported_at_once_and_then_there_are_pauses_again() -> None:
    desk, clock = Desk("a"), ManualClock()
    worker = Worker(desk, nothing, clock=clock, options=WorkerOptions(poll_seconds=5))
    worker.start()
    # The clock stands still, so only the end of the job can have brought the second poll.
    desk.wait_for(lambda: desk.reports)
    with desk.changed:
        assert not desk.changed.wait_for(lambda: len(desk.polls) > 10, 0.3)
    polls = len(desk.polls)
    while len(desk.polls) == polls:
        clock.advance(1)
    assert isinstance(worker.stop(), Done)


@pytest.mark.parametrize("wrong", [{"capacity": 0}, {"cleanup_capacity": 0}, {"poll_seconds": 0.0}, {"jitter": 2.0},
                                   {"poll_seconds": 9.0, "max_poll_seconds": 5.0}])
def test_options_that_are_none(wrong: dict[str, float]) -> None:
    with pytest.raises(InvalidInput):
        WorkerOptions(**wrong)  # type: ignore[arg-type]
