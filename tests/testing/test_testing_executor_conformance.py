# SPDX-License-Identifier: Apache-2.0
"""The executor conformance suite finds executors that break their promises, each by the test that it should."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import attrs
import pytest

from compactlib.errors import CompactlibError, TaskFailed
from compactlib.executors import Attempt, LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.executors.tasks import attempt_task, checked_names, new_attempt_id
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime import Budget, Observer
from compactlib.runtime.observe import telling
from compactlib.testing import ExecutorConformance, PromiseBroken, check_executor
from compactlib.testing.executors.conformance import DieTask, RaiseTask, WriteTask, by_name, error_of, result_of
from tests.harness.lessons import check_lesson


class Sound:
    """Does everything right, one step a method, for others to get one of them wrong."""

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        return self.outcomes(self.listed(tasks), budget or Budget(), telling(observer))

    def listed(self, tasks: Iterable[RewriteTask]) -> list[RewriteTask]:
        return list(checked_names(tasks))

    def outcomes(self, tasks: list[RewriteTask], budget: Budget, observer: Observer) -> Iterator[RewriteOutcome]:
        for number, task in enumerate(tasks):
            yield self.outcome(task, Attempt(self.attempt_id(number), budget, observer))

    def attempt_id(self, number: int) -> str:
        return new_attempt_id()

    def outcome(self, task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
        return attempt_task(task, attempt)


class LosesTheLast(Sound):
    def outcomes(self, tasks: list[RewriteTask], budget: Budget, observer: Observer) -> Iterator[RewriteOutcome]:
        yield from list(super().outcomes(tasks, budget, observer))[:6]


class TellsTwice(Sound):
    def outcomes(self, tasks: list[RewriteTask], budget: Budget, observer: Observer) -> Iterator[RewriteOutcome]:
        for outcome in super().outcomes(tasks, budget, observer):
            yield outcome
            yield outcome


class RunsTwice(Sound):
    def outcome(self, task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
        attempt_task(task, attrs.evolve(attempt, id=f"{attempt.id}-spare"))
        return attempt_task(task, attempt)


class ReusesAttemptIds(Sound):
    def attempt_id(self, number: int) -> str:
        return "attempt"


class AcceptsDuplicates(Sound):
    def listed(self, tasks: Iterable[RewriteTask]) -> list[RewriteTask]:
        return list(tasks)


class RefusesDuplicatesLate(Sound):
    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        yield from super().run(tasks, budget=budget, observer=observer)


class IgnoresTheBudget(Sound):
    def outcome(self, task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
        return attempt_task(task, attrs.evolve(attempt, budget=Budget()))


class GivesUpSilently(Sound):
    def outcomes(self, tasks: list[RewriteTask], budget: Budget, observer: Observer) -> Iterator[RewriteOutcome]:
        return iter(()) if budget.cancelled else super().outcomes(tasks, budget, observer)


class LetsForeignErrorsThrough(Sound):
    def outcome(self, task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
        return task.run(attempt)


class LetsObserversBreakTasks(Sound):
    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        return self.outcomes(self.listed(tasks), budget or Budget(), observer or Observer())


class FlattensLibraryErrors(Sound):
    def outcome(self, task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
        outcome = super().outcome(task, attempt)
        if isinstance(outcome, RewriteFailure) and not isinstance(outcome.error, TaskFailed):
            return RewriteFailure(outcome.task, CompactlibError(str(outcome.error)))
        return outcome


class ForgetsTheTraceback(Sound):
    def outcome(self, task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
        outcome = super().outcome(task, attempt)
        if isinstance(outcome, RewriteFailure) and isinstance(outcome.error, TaskFailed):
            outcome.error.detail = ""
        return outcome


class RoundsResults(Sound):
    def outcome(self, task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
        outcome = super().outcome(task, attempt)
        if isinstance(outcome, RewriteResult):
            return attrs.evolve(outcome, seconds=round(outcome.seconds, 6))
        return outcome


BROKEN: dict[type[Sound], str] = {
    LosesTheLast: "test_each_task_has_one_outcome",
    TellsTwice: "test_each_task_has_one_outcome",
    RunsTwice: "test_what_is_written_is_charged",
    ReusesAttemptIds: "test_attempts_write_under_names_of_their_own",
    AcceptsDuplicates: "test_duplicate_names_are_refused_at_once",
    RefusesDuplicatesLate: "test_duplicate_names_are_refused_at_once",
    IgnoresTheBudget: "test_spent_bytes_end_a_task",
    GivesUpSilently: "test_a_cancelled_budget_lets_nothing_run",
    LetsForeignErrorsThrough: "test_foreign_errors_become_task_failed",
    LetsObserversBreakTasks: "test_what_an_observer_raises_is_kept",
    FlattensLibraryErrors: "test_library_errors_come_back_whole",
    ForgetsTheTraceback: "test_foreign_errors_become_task_failed",
    RoundsResults: "test_results_travel_unchanged",
}


def test_the_suite_passes_sound_executors_and_says_what_it_tested(tmp_path: Path) -> None:
    told = check_executor(Sound, tmp_path)
    assert told == sorted(name for name in vars(ExecutorConformance) if name.startswith("test_"))
    assert set(BROKEN.values()) <= set(told)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_broken_executor_fails_the_test_it_should(broken: type[Sound], tmp_path: Path) -> None:
    suite = ExecutorConformance()
    suite.make_executor = broken  # type: ignore[method-assign]
    with pytest.raises(PromiseBroken) as caught:
        getattr(suite, BROKEN[broken])(tmp_path)
    check_lesson(caught.value, BROKEN[broken])


def test_a_suite_must_be_told_what_to_test() -> None:
    with pytest.raises(NotImplementedError, match="which executor"):
        ExecutorConformance().make_executor()


def test_the_deadly_task_spares_the_callers_process(tmp_path: Path) -> None:
    """An executor that claims to isolate its tasks and does not fails, instead of killing the test run."""
    class Suite(ExecutorConformance):
        isolates_tasks = True
        make_executor = staticmethod(LocalExecutor)

    with pytest.raises(PromiseBroken, match="mortal"):
        Suite().test_a_task_whose_process_died_is_tried_again(tmp_path)


def test_helpers_tell_results_from_failures(tmp_path: Path) -> None:
    tasks: list[RewriteTask] = [WriteTask("written", str(tmp_path)), RaiseTask("raised", "foreign")]
    outcomes = by_name(tasks, LocalExecutor().run(tasks))
    assert result_of(outcomes["written"]).task == "written"
    assert isinstance(error_of(outcomes["raised"]), TaskFailed)
    with pytest.raises(AssertionError, match="should have been done"):
        result_of(outcomes["raised"])
    with pytest.raises(AssertionError, match="should have failed"):
        error_of(outcomes["written"])
    with pytest.raises(AssertionError, match="outcomes came for"):
        by_name(tasks[:1], outcomes.values())


def test_the_deadly_task_writes_once_its_deaths_are_used_up(tmp_path: Path) -> None:
    result_of(next(LocalExecutor().run([DieTask("mortal", str(tmp_path), 0, spared_process=0)])))
