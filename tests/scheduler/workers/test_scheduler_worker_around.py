# SPDX-License-Identifier: Apache-2.0
"""What is around a worker: transports and jobs that hang, nonsense for an answer, stopping from within, no threads."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from typing import Any

import attrs
import pytest

from compactlib.errors import Busy, InvalidInput
from compactlib.outcome import Done, Failed
from compactlib.runtime import Observer, RecordingObserver
from compactlib.scheduler import (
    CompactedBlocks,
    JobStatus,
    PollRequest,
    PollResponse,
    RunningJob,
    Worker,
    WorkerOptions,
)
from compactlib.scheduler.model.values import Tombstone
from tests.scheduler.workers.test_scheduler_worker import FAST, PATIENCE, Desk, nothing, tombstone, working


class Waiting(RecordingObserver):
    """An observer that can be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.changed = threading.Condition()

    def event(self, name: str, fields: Any) -> None:
        with self.changed:
            super().event(name, fields)
            self.changed.notify_all()

    def wait_for(self, name: str, times: int = 1) -> dict[str, Any]:
        def found() -> list[Any]:
            return [fields for told, fields in self.events if told == name]

        with self.changed:
            assert self.changed.wait_for(lambda: len(found()) >= times, PATIENCE)
            return dict(found()[-1])


PROGRAM = """
import threading
from compactlib.scheduler import AddBlocks, BlockMeta, LevelConfig, SchedulerConfig, SchedulerService, Worker
from compactlib.scheduler.model.values import Command
from compactlib.scheduler import PollRequest, WorkerOptions
service, began, index = SchedulerService(SchedulerConfig(levels=(LevelConfig(max_blocks=1),))), threading.Event(), 1
service.apply(Command(1, 1, 0.0), AddBlocks((BlockMeta(id="a", tenant="A", shard=1, level=0),)))
class Direct:
    def poll(self, request):
        global index
        index += 1
        return service.poll(Command(index, 1, 0.0), request)
def execute(job):
    began.set()
    threading.Event().wait()
worker = Worker(Direct(), execute, options=WorkerOptions(poll_seconds=0.01))
worker.start()
began.wait()
{end}
print("over")
"""


@pytest.mark.parametrize("end", ["print(type(worker.stop(wait_seconds=0.01)).__name__)", ""])
def test_a_job_that_hangs_keeps_no_process_from_ending(end: str) -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM.format(end=end)], check=True, capture_output=True, text=True,
                           timeout=PATIENCE)
    assert ended.stdout.split() == (["Failed", "over"] if end else ["over"])


def test_stopping_keeps_its_deadline_although_the_transport_hangs() -> None:
    asked, may_answer = threading.Event(), threading.Event()

    class Hanging:
        def poll(self, request: PollRequest) -> PollResponse:
            asked.set()
            assert may_answer.wait(PATIENCE)
            return PollResponse()

    worker = Worker(Hanging(), nothing, options=FAST)
    worker.start()
    assert asked.wait(PATIENCE)
    stopped = threading.Thread(target=worker.stop, kwargs={"wait_seconds": 0.01})
    stopped.start()
    stopped.join(PATIENCE / 2)
    assert not stopped.is_alive()
    may_answer.set()


def test_a_worker_used_by_hand_reports_when_it_is_stopped() -> None:
    desk = Desk("a")

    def execute(job: RunningJob) -> CompactedBlocks:
        desk.broken = 1
        return nothing(job)

    worker = Worker(desk, execute, options=WorkerOptions())
    desk.broken = 1
    [failed] = worker.run_pending()
    assert isinstance(failed, Failed)
    assert isinstance(worker.last_error, ConnectionError)

    assert [type(outcome) for outcome in worker.run_pending()] == [Done, Done, Failed]
    assert (desk.reports, worker.failures) == ({}, 2)
    assert isinstance(worker.stop(wait_seconds=PATIENCE), Done)
    assert desk.reports == {"a": (JobStatus.SUCCESS, "")}


@pytest.mark.parametrize("where", ["job", "cleanup", "scheduler_job_started", "scheduler_job_reported"])
def test_stopping_from_within_its_own_work_is_busy_on_whatever_thread(where: str) -> None:
    desk, refused = Desk("a"), threading.Event()
    desk.cleanup = [tombstone("t")]
    workers: list[Worker] = []

    def stop(who: str) -> None:
        if who == where and not refused.is_set():
            with pytest.raises(Busy, match="within its own work"):
                workers[0].stop()
            refused.set()

    def execute(job: RunningJob) -> CompactedBlocks:
        stop("job")
        return nothing(job)

    class Stopping(Observer):
        def event(self, name: str, fields: Any) -> None:
            stop(name)

    def cleanup(what: Tombstone) -> None:
        stop("cleanup")

    workers.append(Worker(desk, execute, cleanup=cleanup, options=FAST, observer=Stopping()))
    with workers[0]:
        assert refused.wait(30)


@pytest.mark.parametrize("nonsense", [None, "yes", 5])
def test_a_transport_that_answers_nonsense_is_asked_again(nonsense: Any) -> None:
    desk, told, answers = Desk("a"), Waiting(), [nonsense, nonsense]

    class Strange:
        def poll(self, request: PollRequest) -> PollResponse:
            return answers.pop() if answers else desk.poll(request)

    with working(Strange(), nothing, observer=told) as worker:  # type: ignore[arg-type]
        desk.wait_for(lambda: desk.reports)
        assert isinstance(worker.last_error, InvalidInput)
    assert "PollResponse" in told.wait_for("scheduler_poll_failed")["error"]


@pytest.mark.parametrize("wrong", [{"tombstones": ("x",)}, {"answers": (5,)}, {"assignments": None}, {"now": "0"},
                                   {"compaction_jobs": (5,)}])
def test_an_answer_with_something_wrong_in_it_begins_nothing(wrong: dict[str, Any]) -> None:
    desk, told = Desk("a"), RecordingObserver()

    class Strange:
        def poll(self, request: PollRequest) -> PollResponse:
            return attrs.evolve(desk.poll(request), **wrong)

    worker = Worker(Strange(), nothing, observer=told)
    [outcome] = worker.run_pending()
    assert isinstance(outcome, Failed)
    assert f"PollResponse.{next(iter(wrong))} cannot be" in str(outcome.error)
    assert (worker.jobs, worker.is_idle) == ((), True)


def test_what_nobody_expected_in_the_polling_thread_is_kept_and_told_and_the_worker_goes_on() -> None:
    desk, told = Desk("a"), Waiting()

    class Broken(random.Random):
        left = 1

        def random(self) -> float:
            self.left -= 1
            if self.left == 0:
                raise AttributeError("a mistake of the host's")
            return super().random()

    worker = Worker(desk, nothing, options=FAST, observer=told, rng=Broken())
    worker.start()
    assert told.wait_for("scheduler_worker_failed")["message"].startswith("the work polls ended in AttributeError")
    assert isinstance(worker.last_error, AttributeError)
    desk.wait_for(lambda: len(desk.polls) > 2)
    assert isinstance(worker.stop(), Done)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_was_told_to_exit_is_missed_by_the_audit() -> None:
    class Exiting:
        def poll(self, request: PollRequest) -> PollResponse:
            raise SystemExit("by a signal's handler")

    worker = Worker(Exiting(), nothing, options=FAST)
    worker.start()
    for thread in threading.enumerate():
        if thread.name.startswith("the worker"):
            thread.join(PATIENCE)
    assert isinstance(worker.last_error, SystemExit)
    assert isinstance(worker.stop(wait_seconds=PATIENCE), Done)


def test_a_job_for_which_there_is_no_thread_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, start = Desk("a"), threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name.startswith("compactlib-job"):
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with working(desk, nothing) as worker:
        desk.wait_for(lambda: desk.reports)
        assert isinstance(worker.last_error, RuntimeError)
    status, reason = desk.reports["a"]
    assert status is JobStatus.RELEASED
    assert "no thread" in reason


def test_an_observer_that_fails_is_kept_and_its_worker_goes_on() -> None:
    class Broken(Observer):
        def event(self, name: str, fields: Any) -> None:
            raise RuntimeError(name)

    desk = Desk(*"abcd")
    with working(desk, nothing, observer=Broken()):
        desk.wait_for(lambda: len(desk.reports) == 4)
