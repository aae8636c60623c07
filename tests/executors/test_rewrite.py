# SPDX-License-Identifier: Apache-2.0
"""`rewrite`: the local executor passes the conformance suite, and leaves nothing behind however it is left."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.budget import Budget
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, InvalidInput, TaskFailed
from compactlib.executors import Attempt, LocalExecutor, RewriteFailure, RewriteResult
from compactlib.executors.tasks import (
    MAX_DETAIL_CHARS,
    MAX_MESSAGE_CHARS,
    MAX_NAME_CHARS,
    answers_of,
    foreign_error,
)
from compactlib.rewrite import RewriteOutcome, RewriteTask
from compactlib.testing.executors import (
    WriteTask,
    error_of,
    result_of,
)
from compactlib.testing.stand_ins import ExecutorBy, garbage_executors
from tests.harness.recording import RecordingObserver

both_kinds = pytest.mark.parametrize("workers", [1, 2])


def done(task: str, attempt: Attempt) -> RewriteResult:
    return RewriteResult(task=task, attempt=attempt.id, files=(), bytes_read=0, bytes_written=0, seconds=0)


@attrs.frozen
class CallTask:
    """Calls a function of this process; returns its result, or by default that of a task."""

    name: str
    call: Callable[[Attempt], object]

    def run(self, attempt: Attempt) -> RewriteResult:
        told = self.call(attempt)
        return done(self.name, attempt) if told is None else told  # type: ignore[return-value]


def endless(attempt: Attempt) -> None:
    while True:
        attempt.budget.spend(1)


def rewriting_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("compactlib-rewrite")]


# ------------------------------------------------------------------------------------------------ what it gives tasks


@both_kinds
def test_attempts_get_the_callers_observer_clock_and_budget(workers: int) -> None:
    observer, clock, budget = RecordingObserver(), ManualClock(7), Budget(total_bytes=100)

    def work(attempt: Attempt) -> None:
        attempt.observer.event("seen", add=1)
        attempt.budget.spend(30)
        assert attempt.clock is clock

    executor = LocalExecutor(workers, clock=clock)
    tasks = [CallTask("a", work), CallTask("b", work)]
    results = [result_of(outcome) for outcome in executor.run(tasks, budget=budget, observer=observer)]
    assert len({result.attempt for result in results}) == 2
    assert observer.counters == {("seen", ()): 2}
    assert budget.spent_bytes == 60


def test_threads_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=60)
    outcomes = LocalExecutor(3).run(CallTask(name, lambda _: [meeting.wait(), None][1]) for name in "abc")
    assert all(result_of(outcome) for outcome in outcomes)


def test_one_worker_begins_a_task_when_next_is_called() -> None:
    begun: list[str] = []
    run = LocalExecutor().run(CallTask(name, lambda attempt: begun.append(attempt.id)) for name in "abc")
    assert begun == []
    for number, _ in enumerate(run, 1):
        assert len(begun) == number


@pytest.mark.parametrize("workers", [2, 3])
def test_threads_run_a_bounded_number_of_tasks_ahead(workers: int) -> None:
    begun: list[str] = []
    run = LocalExecutor(workers).run(CallTask(f"{number}", lambda attempt: begun.append(attempt.id))
                                     for number in range(50))
    for consumed, _ in enumerate(run):
        assert len(begun) <= consumed + 2 * workers
    assert len(begun) == 50


# ------------------------------------------------------------------------------------------------------- how tasks end


@both_kinds
@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_base_exception_ends_the_run_and_begins_no_task(workers: int,
                                                          interrupt: type[BaseException]) -> None:
    begun: list[str] = []

    def stop(attempt: Attempt) -> None:
        raise interrupt

    def go_on(attempt: Attempt) -> None:
        begun.append(attempt.id)
        while True:  # until the run ends it
            attempt.budget.check()
            time.sleep(0.001)

    tasks = [CallTask("stop", stop), *(CallTask(f"{number}", go_on) for number in range(50))]
    run = LocalExecutor(workers).run(tasks)
    with pytest.raises(interrupt):
        list(run)
    assert len(begun) <= workers
    assert list(run) == []
    assert rewriting_threads() == []


@pytest.mark.parametrize("returned", [
    "done",
    RewriteResult(task="another", attempt="1", files=(), bytes_read=0, bytes_written=0, seconds=0),
    RewriteResult(task="odd", attempt="2", files=(), bytes_read=0, bytes_written=0, seconds=0),
], ids=["no result", "another task's", "another attempt's"])
def test_a_task_must_return_its_own_result(returned: object) -> None:
    (outcome,) = LocalExecutor().run([CallTask("odd", lambda _: returned)])
    error = error_of(outcome)
    assert isinstance(error, InvalidInput)
    assert "must return a RewriteResult" in str(error)


@both_kinds
def test_cancelling_in_the_middle_reports_every_task(workers: int, tmp_path: Path) -> None:
    budget = Budget()
    run = LocalExecutor(workers).run([WriteTask(f"{number}", str(tmp_path)) for number in range(20)], budget=budget)
    outcomes = [next(run)]
    budget.cancel()
    outcomes.extend(run)
    assert sorted(outcome.task for outcome in outcomes) == sorted(f"{number}" for number in range(20))
    failures = [outcome for outcome in outcomes if isinstance(outcome, RewriteFailure)]
    assert len(failures) >= 20 - 2 * workers - 1
    assert {type(failure.error) for failure in failures} == {BudgetSpent}


# ------------------------------------------------------------------------------------------------------------- leaving


def test_leaving_one_worker_begins_nothing_more() -> None:
    begun: list[str] = []
    run = LocalExecutor().run(CallTask(name, lambda attempt: begun.append(attempt.id)) for name in "abc")
    next(run)
    run.close()
    assert len(begun) == 1
    assert list(run) == []


def test_leaving_threads_ends_running_tasks_and_begins_none() -> None:
    begun: list[str] = []

    def work(attempt: Attempt) -> None:
        begun.append(attempt.id)
        endless(attempt)

    budget = Budget()
    tasks = [CallTask("first", lambda _: None), *(CallTask(f"{number}", work) for number in range(50))]
    run = LocalExecutor(2).run(tasks, budget=budget)
    result_of(next(run))
    run.close()
    assert rewriting_threads() == []
    assert len(begun) <= 4
    assert not budget.cancelled
    budget.check()


def test_leaving_does_not_wait_for_a_paused_budget() -> None:
    budget = Budget()
    is_paused = threading.Event()

    def pause(attempt: Attempt) -> None:
        budget.pause()
        is_paused.set()

    def wait(attempt: Attempt) -> None:
        assert is_paused.wait(60)
        endless(attempt)

    run = LocalExecutor(2).run([CallTask("pause", pause), CallTask("wait", wait)], budget=budget)
    assert next(run).task == "pause"
    run.close()
    assert rewriting_threads() == []
    assert budget.paused


def test_an_iterator_without_a_call_of_next_leaves_nothing() -> None:
    begun: list[str] = []
    run = LocalExecutor(4).run([CallTask("a", lambda attempt: begun.append(attempt.id))])
    run.close()
    assert begun == []
    assert rewriting_threads() == []


# ------------------------------------------------------------------------------------------------------ names and input


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME_CHARS + 1)])
@both_kinds
def test_names_have_a_length(workers: int, name: str) -> None:
    with pytest.raises(InvalidInput, match="1 to 1000 characters"):
        LocalExecutor(workers).run([CallTask(name, lambda _: None)])


# ---------------------------------------------------------------------------------------- for authors of executors


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


def raised(error: Exception) -> Exception:
    """The error with a traceback of its own."""
    try:
        raise error
    except Exception as caught:
        return caught


def test_foreign_errors_are_reported_in_bounded_text() -> None:
    error = foreign_error("t", raised(ValueError("x" * 100_000)))
    assert len(str(error)) < MAX_MESSAGE_CHARS + 200
    assert str(error).startswith("task 't' failed: ValueError: xxx")
    assert len(error.detail) < MAX_DETAIL_CHARS + 200
    assert error.detail.startswith("Traceback")
    assert "characters left out" in error.detail


def test_foreign_errors_without_a_message_are_reported() -> None:
    error = foreign_error("t", raised(Mute()))
    assert isinstance(error, TaskFailed)
    assert error.kind == "Mute"
    assert "Mute" in str(error)


@pytest.mark.parametrize(("name", "executor"), garbage_executors().items())
def test_a_result_that_is_no_outcome_is_named(name: str, executor: ExecutorBy) -> None:
    tasks = [CallTask("a", lambda attempt: None), CallTask("b", lambda attempt: None)]
    if name == "returns no iterator":
        with pytest.raises(TypeError, match="not iterable"):
            list(answers_of(executor, tasks))
    elif name == "yields no outcome":
        outcomes = list(answers_of(executor, tasks))
        assert [outcome.task for outcome in outcomes] == ["a", "b"]
        assert all("gave no outcome for the task" in str(error_of(outcome)) for outcome in outcomes)
    else:
        with pytest.raises(InvalidInput, match=r"it must give one outcome for each of the tasks .*: see Executor\.run"):
            list(answers_of(executor, tasks))


def test_a_task_is_answered_once() -> None:
    twice = ExecutorBy(lambda tasks, budget, observer: (outcome for task in tasks for outcome in
                                                        2 * [RewriteFailure(task.name, InvalidInput("no"))]))
    answers = answers_of(twice, [CallTask("a", lambda attempt: None)])
    assert error_of(next(answers)).args == ("no",)
    with pytest.raises(InvalidInput, match=r"see Executor\.run"):
        next(answers)


def test_an_executor_ends_its_tasks_with_its_iterator() -> None:
    ended: list[str] = []

    def run(tasks: Iterable[RewriteTask], *_: object) -> Iterator[RewriteOutcome]:
        try:
            for task in tasks:
                yield RewriteFailure(task.name, InvalidInput("no"))
        finally:
            ended.append("run")

    answers = answers_of(ExecutorBy(run), [CallTask("a", lambda attempt: None), CallTask("b", lambda attempt: None)])
    next(answers)
    assert ended == []
    answers.close()
    assert ended == ["run"]


# ----------------------------------------------------------------------------------------------------------- observers


@attrs.frozen
class ReportingTask:
    """Reports its thread and each kind of number."""

    name: str

    def run(self, attempt: Attempt) -> RewriteResult:
        attempt.observer.event("ran", thread=threading.get_ident())
        attempt.observer.event("ran", add=1)
        attempt.observer.event("ran_seconds", sample=0.5)
        attempt.observer.event("progress", work=self.name, done=1, total=1, unit="bytes")
        return RewriteResult(task=self.name, attempt=attempt.id, files=(), bytes_read=0, bytes_written=0, seconds=0.0)


def test_an_observer_runs_on_the_callers_thread_before_the_outcome() -> None:
    seen: list[tuple[int, str]] = []

    class Here(RecordingObserver):
        def event(self, name: str, /, **fields: Any) -> None:
            super().event(name, **fields)
            if name == "progress":
                seen.append((threading.get_ident(), fields["work"]))

    observer = Here()
    for outcome in LocalExecutor(workers=2).run([ReportingTask(f"{number}") for number in range(9)], observer=observer):
        assert (threading.get_ident(), outcome.task) in seen
    assert len(seen) == 9
    assert {thread for thread, _ in seen} == {threading.get_ident()}
    assert threading.get_ident() not in {fields["thread"] for _, fields in observer.events}
    assert sum(observer.counters.values()) == 9
    assert sum(len(values) for values in observer.measured.values()) == 9
