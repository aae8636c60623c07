# SPDX-License-Identifier: Apache-2.0
"""`process_executor`: real worker processes, really killed; the same promises as in this process."""

from __future__ import annotations

import errno
import multiprocessing
import multiprocessing.context
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from compactlib.budget import Budget
from compactlib.clock import ManualClock, SystemClock
from compactlib.errors import BudgetSpent, CompactlibError, TaskFailed
from compactlib.executors import Executor, ProcessExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.observer import Observer
from compactlib.rewrite import RewriteOutcome
from compactlib.testing.executors import (
    DieTask,
    WriteTask,
    by_name,
    error_of,
    result_of,
)
from tests.executors.process_tasks import (
    EndlessTask,
    EndTask,
    HeldTask,
    InterruptedTask,
    LostTask,
    MeetingTask,
    PieceTask,
    StubbornTask,
    TellingTask,
    wait_for,
)
from tests.harness.recording import Progress, RecordingObserver

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def workers_without_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give workers an empty main module: they would import pytest, which costs more than the rest of the test."""
    main = sys.modules["__main__"]
    monkeypatch.setattr(main, "__spec__", None)
    monkeypatch.delattr(main, "__file__", raising=False)


def ran(executor: Executor, tasks: Iterable[RewriteTask], budget: Budget | None = None,
        observer: Observer | None = None) -> dict[str, RewriteOutcome]:
    listed = list(tasks)
    return by_name(listed, executor.run(listed, budget=budget, observer=observer))


def workers_alive() -> list[BaseProcess]:
    return list(multiprocessing.active_children())


def meanwhile(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def failed_task(outcome: RewriteOutcome) -> TaskFailed:
    error = error_of(outcome)
    assert isinstance(error, TaskFailed), repr(error)
    return error


# -------------------------------------------------------------------------------------------------- workers that die


def test_a_task_that_kills_every_worker_fails_alone(tmp_path: Path) -> None:
    tasks: list[RewriteTask] = [
        *(WriteTask(f"before {number}", str(tmp_path), 200_000) for number in range(3)),
        DieTask("killer", str(tmp_path), 99, os.getpid()),
        *(WriteTask(f"after {number}", str(tmp_path), 200_000) for number in range(3)),
    ]
    outcomes = ran(ProcessExecutor(2), tasks)
    error = failed_task(outcomes.pop("killer"))
    assert (error.task, error.kind) == ("killer", "WorkerDied")
    assert "'killer'" in str(error)
    assert len(list(tmp_path.glob("killer.died.*"))) == 2
    for name, outcome in outcomes.items():
        assert result_of(outcome).files[0].path in map(str, tmp_path.glob(f"{name}.*"))


def test_a_task_that_exits_fails_and_ends_no_worker() -> None:
    outcomes = ran(ProcessExecutor(2), [EndTask("exits", "exit"), EndTask("interrupts", "interrupt")])
    assert failed_task(outcomes["exits"]).kind == "SystemExit"
    assert failed_task(outcomes["interrupts"]).kind == "KeyboardInterrupt"


def test_control_c_is_left_to_the_parent() -> None:
    result_of(ran(ProcessExecutor(1), [InterruptedTask("interrupted")])["interrupted"])


def test_a_main_module_that_cannot_be_imported_is_reported(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from compactlib.executors.process_executor import ProcessExecutor\n"
        "from compactlib.testing.executors import WriteTask\n"
        f"for outcome in ProcessExecutor(2).run([WriteTask('a', {str(tmp_path)!r}), WriteTask('b', 'x')]):\n"
        "    print(outcome.task, outcome.error.kind, '__main__' in str(outcome.error))\n")
    told = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd=ROOT,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert sorted(told.stdout.splitlines()) == ["a WorkerNotStarted True", "b WorkerNotStarted True"]


def test_a_process_that_may_have_no_children_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a `multiprocessing.Pool` is, and each worker of this executor."""
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]  # noqa: SLF001
    for outcome in ran(ProcessExecutor(2), [TellingTask("a"), TellingTask("b")]).values():
        error = failed_task(outcome)
        assert error.kind == "WorkerNotStarted"
        assert "daemonic processes" in str(error)


def test_a_task_that_runs_when_no_further_worker_can_be_started_has_an_outcome(
        monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = multiprocessing.context.SpawnProcess.start, list[object]()

    def refused_after_one(process: multiprocessing.context.SpawnProcess) -> None:
        if started:
            raise BlockingIOError(errno.EAGAIN, "no more processes")
        started.append(process)
        start(process)

    monkeypatch.setattr(multiprocessing.context.SpawnProcess, "start", refused_after_one)
    for outcome in ran(ProcessExecutor(2), [TellingTask("a"), TellingTask("b"), TellingTask("c")]).values():
        error = failed_task(outcome)
        assert error.kind == "WorkerNotStarted"
        assert "no more processes" in str(error)


def test_workers_stop_when_their_parent_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "from compactlib.executors.process_executor import ProcessExecutor\n"
        "from tests.executors.process_tasks import EndlessTask\n"
        "if __name__ == '__main__':\n"
        f"    list(ProcessExecutor(1).run([EndlessTask('endless', {str(tmp_path)!r})]))\n")
    with subprocess.Popen([sys.executable, script], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
                          stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        wait_for(tmp_path / "endless.began")
        parent.send_signal(signal.SIGKILL)
        assert parent.stdout.read() == b"", "the last process that holds this end of the pipe has ended"


# --------------------------------------------------------------------------------------------------------- to and fro


def test_workers_run_at_the_same_time(tmp_path: Path) -> None:
    tasks = [MeetingTask("a", str(tmp_path), "b"), MeetingTask("b", str(tmp_path), "a")]
    assert all(result_of(outcome) for outcome in ran(ProcessExecutor(2), tasks).values())


def test_tasks_that_cannot_be_pickled_fail_alone(tmp_path: Path) -> None:
    tasks: list[RewriteTask] = [HeldTask("held", threading.Lock()), LostTask("lost"), WriteTask("sound", str(tmp_path))]
    outcomes = ran(ProcessExecutor(1), tasks)
    held, lost = failed_task(outcomes["held"]), failed_task(outcomes["lost"])
    assert (held.task, held.kind) == ("held", "TypeError")
    assert (lost.task, lost.kind) == ("lost", "LookupError")
    assert "nobody here knows lost" in str(lost)
    result_of(outcomes["sound"])


def test_the_caller_is_at_most_one_task_behind_each_worker(tmp_path: Path) -> None:
    run = ProcessExecutor(1).run(WriteTask(f"{number}", str(tmp_path)) for number in range(10))
    for consumed, _ in enumerate(run, 1):
        assert len(list(tmp_path.iterdir())) <= consumed + 1


# ---------------------------------------------------------------------------------------------------------- observers


def test_counters_and_events_arrive_with_progress_per_task(tmp_path: Path) -> None:
    observer = RecordingObserver()
    ran(ProcessExecutor(2), [TellingTask("told"), WriteTask("written", str(tmp_path), 1500)], observer=observer)
    assert observer.counters == {("told", (("task", "told"),)): 2, ("conformance_files", ()): 1}
    assert observer.events == [("limits", {"bytes_per_second": None, "total_bytes": None, "deadline": None})]
    assert sorted(observer.progresses, key=str) == [
        Progress("rewrite", 1, 2, "groups"), Progress("rewrite", 2, 2, "groups"),
        Progress("told", 0, 0), Progress("written", 1500, 1500),
    ]


def test_an_event_that_cannot_be_pickled_fails_its_task() -> None:
    observer = RecordingObserver()
    error = failed_task(ran(ProcessExecutor(1), [TellingTask("told", True)], observer=observer)["told"])
    assert error.kind == "TypeError"
    assert "attempt.observer.event" in error.detail
    assert [name for name, _ in observer.events] == ["limits"]


# ------------------------------------------------------------------------------------------------------------- budgets


def limits_told(count: int, budget: Budget) -> list[dict[str, object]]:
    observer = RecordingObserver()
    ran(ProcessExecutor(2), [TellingTask(f"{number}") for number in range(count)], budget, observer)
    return [dict(fields) for _, fields in observer.events]


def test_running_tasks_share_the_rate_and_a_total_is_for_one_task_at_a_time() -> None:
    assert limits_told(2, Budget(bytes_per_second=1000, deadline=1e12)) == [
        {"bytes_per_second": 500, "total_bytes": None, "deadline": 1e12}] * 2
    assert limits_told(2, Budget(bytes_per_second=1000, total_bytes=600)) == [
        {"bytes_per_second": 1000, "total_bytes": 600, "deadline": None}] * 2


def test_all_workers_together_stay_within_the_total(tmp_path: Path) -> None:
    budget = Budget(total_bytes=10_000)
    outcomes = ran(ProcessExecutor(2), [WriteTask(f"{number}", str(tmp_path), 3000) for number in range(8)], budget)
    results = [outcome for outcome in outcomes.values() if isinstance(outcome, RewriteResult)]
    errors = [outcome.error for outcome in outcomes.values() if isinstance(outcome, RewriteFailure)]
    assert results
    assert errors
    assert all(isinstance(error, BudgetSpent) and error.reason == "bytes" for error in errors)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= budget.spent_bytes <= 10_000


@pytest.mark.parametrize(("sizes", "total", "expected"), [
    ((60, 60), 100, 1), ((60, 40), 100, 2), ((10, 70, 10, 10), 100, 4), ((101, 50, 50), 100, 2),
    ((70, 90, 30), 100, 2)])
def test_a_task_gets_the_rest_of_the_total(
        sizes: tuple[int, ...], total: int, expected: int) -> None:
    """A host that did as the error says, and gave that much, would never have got it done."""
    budget = Budget(total_bytes=total)
    outcomes = ran(ProcessExecutor(2), [PieceTask(f"{number}", size) for number, size in enumerate(sizes)], budget)
    results = [size for number, size in enumerate(sizes) if isinstance(outcomes[f"{number}"], RewriteResult)]
    assert len(results) == expected
    assert budget.spent_bytes == sum(results)
    for outcome in outcomes.values():
        if isinstance(outcome, RewriteFailure):
            assert isinstance(outcome.error, BudgetSpent)
            assert outcome.error.reason == "bytes"


def test_a_deadline_ends_running_tasks(tmp_path: Path) -> None:
    budget = Budget(deadline=SystemClock().now() + 0.5)
    error = error_of(ran(ProcessExecutor(1), [EndlessTask("endless", str(tmp_path))], budget)["endless"])
    assert isinstance(error, BudgetSpent)
    assert error.reason == "deadline"


def test_cancelling_stops_running_tasks_and_refuses_queued_ones(tmp_path: Path) -> None:
    budget = Budget()

    def cancel() -> None:
        wait_for(tmp_path / "0.began")
        budget.cancel()

    thread = meanwhile(cancel)
    outcomes = ran(ProcessExecutor(1), [EndlessTask(f"{number}", str(tmp_path)) for number in range(3)], budget)
    thread.join()
    errors: list[CompactlibError] = [error_of(outcome) for outcome in outcomes.values()]
    assert [isinstance(error, BudgetSpent) and error.reason for error in errors] == ["cancelled"] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.began", "0.cancelled"]


def test_a_paused_budget_holds_tasks_back(tmp_path: Path) -> None:
    class Patient(ManualClock):
        """Asked while the run waits under its deadline; resumes it at the third question."""

        questions = 0

        def now(self) -> float:
            self.questions += 1
            if self.questions == 3:
                seen.extend([*workers_alive(), *tmp_path.iterdir()])
                budget.resume()
            return super().now()

    seen: list[object] = []
    clock = Patient()
    budget = Budget(deadline=1e12, clock=clock)
    budget.pause()
    outcomes = ran(ProcessExecutor(2), [WriteTask("a", str(tmp_path)), WriteTask("b", str(tmp_path))], budget)
    assert len([result_of(outcome) for outcome in outcomes.values()]) == 2
    assert clock.questions >= 3
    assert seen == []


# ------------------------------------------------------------------------------------------------------------- leaving


def test_leaving_ends_running_tasks_and_leaves_no_process(tmp_path: Path) -> None:
    budget = Budget()
    tasks: list[RewriteTask] = [MeetingTask("first", str(tmp_path), "endless.began"),
                                EndlessTask("endless", str(tmp_path)),
                                *(EndlessTask(f"{number}", str(tmp_path)) for number in range(5))]
    run = ProcessExecutor(2).run(tasks, budget=budget)
    assert next(run).task == "first"
    run.close()
    assert workers_alive() == []
    assert (tmp_path / "endless.cancelled").exists()
    assert not budget.cancelled
    assert len(list(tmp_path.glob("*.began"))) <= 2
    assert list(run) == []


def test_leaving_kills_workers_that_ignore_the_cancel(tmp_path: Path) -> None:
    tasks: list[RewriteTask] = [MeetingTask("first", str(tmp_path), "stubborn.began"),
                                StubbornTask("stubborn", str(tmp_path))]
    run = ProcessExecutor(2, grace_seconds=0).run(tasks)
    assert next(run).task == "first"
    run.close()
    assert workers_alive() == []


def test_a_finished_run_leaves_no_process(tmp_path: Path) -> None:
    ran(ProcessExecutor(2), [WriteTask("a", str(tmp_path)), WriteTask("b", str(tmp_path))])
    assert workers_alive() == []


def test_an_observer_that_interrupts_ends_the_run_and_its_workers(tmp_path: Path) -> None:
    class Interrupting:
        def event(self, name: str, /, **fields: Any) -> None:
            raise KeyboardInterrupt

    run = ProcessExecutor(2).run([WriteTask("a", str(tmp_path)), EndlessTask("b", str(tmp_path))],
                                 observer=Interrupting())
    with pytest.raises(KeyboardInterrupt):
        list(run)
    assert workers_alive() == []
