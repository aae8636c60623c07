# SPDX-License-Identifier: Apache-2.0
"""What every `Executor` has to do, as tests that any implementation can inherit.

    from compactlib.testing.executors.conformance import ExecutorConformance

    class TestMyExecutor(ExecutorConformance):
        isolates_tasks = True

        def make_executor(self) -> Executor:
            return MyExecutor()

pytest collects the inherited methods; without pytest, `check_executor` runs them one after the other. The tasks are
picklable classes of `executor_tasks`, which has to be importable where they run, and the folder that they are given as
text has to be the same one there.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compactlib.clock import SystemClock
from compactlib.errors import BudgetSpent, CompactlibError, InvalidInput, TaskFailed
from compactlib.rewrite import Executor, RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask, RewrittenFile
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, Progress
from compactlib.testing.executors.tasks import (
    DieTask,
    FixedTask,
    RaiseTask,
    UnpicklableError,
    UnpicklableLibraryError,
    UnrevivableError,
    UnrevivableLibraryError,
    WriteTask,
    known_errors,
)
from compactlib.testing.promises import ConformanceKit, run_kit, same, shown

__all__ = ["DieTask", "ExecutorConformance", "FixedTask", "RaiseTask", "UnpicklableError", "UnpicklableLibraryError",
           "UnrevivableError", "UnrevivableLibraryError", "WriteTask", "by_name", "check_executor", "error_of",
           "known_errors", "result_of"]


class ExecutorConformance(ConformanceKit):
    """Inherit in a test class, say how to make the executor, and pytest finds the rest.

    Attributes:
        isolates_tasks: whether tasks run in other processes, so that one that dies is tried again.
    """

    isolates_tasks: bool = False

    def make_executor(self) -> Executor:
        """The executor to be tested; may be called more than once in a test."""
        raise NotImplementedError("say which executor is to be tested")

    def run(self, tasks: Iterable[RewriteTask], budget: Budget | None = None) -> dict[str, RewriteOutcome]:
        """The outcomes of one run by task name, having checked that each comes once and no other does."""
        listed = list(tasks)
        return by_name(listed, self.make_executor().run(iter(listed), budget=budget))

    def test_each_task_has_one_outcome(self, tmp_path: Path) -> None:
        """Seven tasks, among them names with spaces and letters beyond ASCII.

        To do: yield one outcome for each task, by its name; do not end the loop before the last worker has
        answered.
        """
        names = ["a", "b", "c", "0000000000000001-0000000000000002", "with space", "größe", "A"]
        outcomes = self.run(WriteTask(name, str(tmp_path)) for name in names)
        assert all(isinstance(outcome, RewriteResult) for outcome in outcomes.values()), outcomes

    def test_no_tasks_no_outcomes(self, tmp_path: Path) -> None:
        """An empty run ends, with and without a budget.

        To do: no tasks are no error: give an iterator that ends.
        """
        same(self.run([]), {})
        same(self.run([], Budget(total_bytes=0)), {})

    def test_many_small_tasks(self, tmp_path: Path) -> None:
        """Forty tasks, more than any executor runs at once.

        To do: keep what waits in a queue; results may come in any order, but all must come.
        """
        outcomes = self.run(WriteTask(f"task {number}", str(tmp_path), number) for number in range(40))
        sizes = {name: result_of(outcome).files[0].size_bytes for name, outcome in outcomes.items()}
        same(sizes, {f"task {number}": number for number in range(40)})

    def test_an_executor_can_run_again(self, tmp_path: Path) -> None:
        """The same executor, the same task: a second attempt under another id.

        To do: let run() make what it needs, pools too, and leave nothing behind that a second run trips over.
        """
        executor = self.make_executor()
        task = WriteTask("again", str(tmp_path))
        first, second = (result_of(by_name([task], executor.run([task]))["again"]) for _ in range(2))
        assert first.attempt != second.attempt, "two attempts had one id"

    def test_attempts_write_under_names_of_their_own(self, tmp_path: Path) -> None:
        """Attempt ids differ, are part of the files' names, and the files are there and whole.

        To do: give each attempt an id of its own with new_attempt_id(), retries too, and return the result only
        when the task has ended.
        """
        outcomes = self.run(WriteTask(f"task {number}", str(tmp_path), 2500) for number in range(5))
        results = [result_of(outcome) for outcome in outcomes.values()]
        assert len({result.attempt for result in results}) == 5, "two attempts had one id"
        for result in results:
            (file,) = result.files
            same(Path(file.path).name, f"{result.task}.{result.attempt}", case=file)
            assert Path(file.path).read_bytes() == bytes(2500), f"{file.path} is not what was written"

    def test_results_travel_unchanged(self, tmp_path: Path) -> None:
        """Large numbers, odd paths, no files and many files, an exact float.

        To do: pickle results, or give every field its full range: 64 bit numbers, floats bit by bit, any path.
        """
        # A place that is no file here, so that an executor which looks at files has nothing to look at.
        odd = RewrittenFile(f"elsewhere://{tmp_path}/größe 'n' \\ \n.x", (1 << 63) - 1, 0, (1 << 32) - 1)
        tasks = [
            FixedTask("no files", (), 0, 0.0),
            FixedTask("odd file", (odd,), (1 << 63) - 1, 0.1),
            FixedTask("many files", tuple(attrs.evolve(odd, entries=number) for number in range(500)), 1, 1e-9),
        ]
        for name, outcome in self.run(tasks).items():
            result = result_of(outcome)
            task = next(task for task in tasks if task.name == name)
            wanted = RewriteResult(task=name, attempt=result.attempt, files=task.files, bytes_read=task.number,
                                   bytes_written=task.number, seconds=task.seconds)
            same(result, wanted, case=name)

    def test_library_errors_come_back_whole(self, tmp_path: Path) -> None:
        """The class, the message and every field; the other tasks are not concerned.

        To do: pickle a CompactlibError as it is: it keeps its fields. Do not wrap it or rebuild it from its
        text.
        """
        outcomes = self.run([RaiseTask("broken", "corrupt"), WriteTask("sound", str(tmp_path))])
        error = error_of(outcomes["broken"])
        wanted = known_errors()["corrupt"]
        same(type(error), type(wanted))
        same((str(error), vars(error)), (str(wanted), vars(wanted)))
        result_of(outcomes["sound"])

    def test_foreign_errors_become_task_failed(self, tmp_path: Path) -> None:
        """With the task's name and the error's text in the message, and the traceback beside it.

        To do: run tasks with attempt_task(task, attempt): it turns foreign errors into TaskFailed, with the
        traceback.
        """
        outcomes = self.run([RaiseTask("out of phase", "foreign"), WriteTask("sound", str(tmp_path))])
        error = error_of(outcomes["out of phase"])
        assert isinstance(error, TaskFailed), f"not TaskFailed, but {error!r}"
        same((error.task, error.kind), ("out of phase", "ValueError"))
        assert "out of phase" in str(error), f"the message lacks 'out of phase': {error}"
        assert "the flux is out of phase" in str(error), f"the message lacks 'the flux is out of phase': {error}"
        assert "Traceback" in error.detail, f"there is no traceback in the detail: {error.detail!r}"
        assert "known_errors" in error.detail, f"the traceback does not reach the task: {error.detail!r}"
        result_of(outcomes["sound"])

    def test_errors_that_cannot_be_pickled_do_no_harm(self, tmp_path: Path) -> None:
        """What comes back can be pickled and describes the error in text; the other tasks are not concerned.

        To do: pass each outcome through compactlib.executors.tasks.portable() where the task ran.
        """
        kinds = ["unpicklable", "unrevivable", "unpicklable-library", "unrevivable-library"]
        outcomes = self.run([*(RaiseTask(kind, kind) for kind in kinds), WriteTask("sound", str(tmp_path))])
        for kind in kinds:
            error = error_of(outcomes[kind])
            assert str(known_errors()[kind]) in str(error), f"the text of the error of {kind} is missing: {error}"
            if self.isolates_tasks or not kind.endswith("-library"):
                assert isinstance(error, TaskFailed), f"not TaskFailed, but {error!r}"
                same(error.kind, type(known_errors()[kind]).__name__)
                same(str(pickle.loads(pickle.dumps(error))), str(error))
        result_of(outcomes["sound"])

    def test_what_an_observer_raises_is_kept(self, tmp_path: Path) -> None:
        """Watching breaks nothing: every task ends as it would have, whatever the observer does.

        To do: call compactlib.runtime.observe.telling(observer) in run(), and notify only what that returns.
        """
        tasks = [WriteTask("a", str(tmp_path), 100), WriteTask("b", str(tmp_path), 100)]
        outcomes = by_name(tasks, self.make_executor().run(tasks, observer=_Raising()))
        same([result_of(outcome).files[0].size_bytes for outcome in outcomes.values()], [100, 100])

    def test_duplicate_names_are_refused_at_once(self, tmp_path: Path) -> None:
        """By `run` itself, not by the first `next`; nothing has run.

        To do: call checked_names(tasks) in run() itself; in a generator nothing runs before the first next().
        """
        task = WriteTask("twice", str(tmp_path))
        refused = None
        try:
            self.make_executor().run([task, WriteTask("once", str(tmp_path)), task])
        except InvalidInput as error:
            refused = str(error)
        assert refused is not None, "two tasks with one name were accepted"
        assert "twice" in refused, refused
        assert not any(tmp_path.iterdir()), "tasks ran although their names were refused"

    def test_what_is_written_is_charged(self, tmp_path: Path) -> None:
        """After the run the caller's budget knows the bytes.

        To do: give each attempt the caller's budget, or charge the caller's with result.bytes_written, once for
        each task.
        """
        budget = Budget(total_bytes=1_000_000)
        self.run([WriteTask("one", str(tmp_path), 1500), WriteTask("two", str(tmp_path), 700)], budget)
        same(budget.spent_bytes, 2200)

    def test_spent_bytes_end_a_task(self, tmp_path: Path) -> None:
        """A task that asks for more than there is ends in `BudgetSpent`, which comes back whole.

        To do: give each attempt the caller's budget or a share of it, and pass BudgetSpent on like any other
        error.
        """
        error = error_of(self.run([WriteTask("large", str(tmp_path), 50_000)], Budget(total_bytes=10_000))["large"])
        assert isinstance(error, BudgetSpent), f"not BudgetSpent, but {error!r}"
        same(error.reason, "bytes")
        assert 0 <= error.spent_bytes <= 10_000, error.spent_bytes

    def test_a_piece_larger_than_a_part_of_the_total_is_written(self, tmp_path: Path) -> None:
        """Where the total suffices for one of two tasks, one is done, also if each gets a part of it at first.

        To do: give a task that needs more (tasks.least_bytes) what is left of the whole, in a further attempt.
        """
        budget = Budget(total_bytes=1500)
        outcomes = self.run([WriteTask(name, str(tmp_path), 1000) for name in ("one", "two")], budget)
        same(sum(isinstance(outcome, RewriteResult) for outcome in outcomes.values()), 1)
        same(budget.spent_bytes, 1000)

    def test_after_the_deadline_nothing_runs(self, tmp_path: Path) -> None:
        """Every task is reported, none has begun.

        To do: ask budget.check() before each task and report BudgetSpent for those that do not start.
        """
        self._all_refused(tmp_path, Budget(deadline=1.0), "deadline")

    def test_a_pause_lasts_no_longer_than_the_deadline(self, tmp_path: Path) -> None:
        """Every task of a paused budget whose deadline has passed is reported, and none has begun.

        To do: look at budget.refusal before budget.paused: after the deadline nobody has to resume it.
        """
        budget = Budget(deadline=1.0, clock=_Impatient())
        budget.pause()
        self._all_refused(tmp_path, budget, "deadline")

    def test_a_cancelled_budget_lets_nothing_run(self, tmp_path: Path) -> None:
        """Every task is reported, none has begun.

        To do: ask budget.check() before each task and report BudgetSpent for those that do not start; silence
        loses them.
        """
        budget = Budget()
        budget.cancel()
        self._all_refused(tmp_path, budget, "cancelled")

    def _all_refused(self, folder: Path, budget: Budget, reason: str) -> None:
        outcomes = self.run([WriteTask(f"task {number}", str(folder)) for number in range(5)], budget)
        for outcome in outcomes.values():
            error = error_of(outcome)
            assert isinstance(error, BudgetSpent), f"not BudgetSpent, but {error!r}"
            same(error.reason, reason)
        assert not any(folder.iterdir()), "a task ran although the budget was spent"

    def test_leaving_early_does_no_harm(self, tmp_path: Path) -> None:
        """The iterator is dropped after one outcome of ten; the executor can be used again.

        To do: stop workers in the `finally` of the generator: callers may drop the iterator at any time.
        """
        executor = self.make_executor()
        tasks = [WriteTask(f"task {number}", str(tmp_path)) for number in range(10)]
        for outcome in executor.run(tasks):
            result_of(outcome)
            break
        again = [WriteTask(f"again {number}", str(tmp_path)) for number in range(3)]
        for outcome in by_name(again, executor.run(again)).values():
            result_of(outcome)

    def test_a_task_whose_process_died_is_tried_again(self, tmp_path: Path) -> None:
        """Its first attempt is killed in mid-task: one outcome, of another attempt; only if `isolates_tasks`.

        To do: notice that the process is gone, give the task to another one with a new attempt id, and end
        after a few deaths.
        """
        if not self.isolates_tasks:
            return
        tasks: list[RewriteTask] = [DieTask("mortal", str(tmp_path), 1, os.getpid()),
                                    *(WriteTask(f"task {number}", str(tmp_path)) for number in range(5))]
        outcomes = self.run(tasks)
        result = result_of(outcomes["mortal"])
        (mark,) = tmp_path.glob("mortal.died.*")
        assert mark.name != f"mortal.died.{result.attempt}", "the attempt that died was reported as done"
        for outcome in outcomes.values():
            assert Path(result_of(outcome).files[0].path).exists(), outcome


class _Impatient(SystemClock):
    """Ends a run that looks at it again and again."""

    def __init__(self) -> None:
        self._looks = 0

    def now(self) -> float:
        self._looks += 1
        assert self._looks < 10_000, "the run waits for a paused budget whose deadline has passed"
        return super().now()


class _Raising(Observer):
    def progress(self, progress: Progress) -> None:
        raise RuntimeError("the observer's own bug")

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        raise RuntimeError("the observer's own bug")

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        raise RuntimeError("the observer's own bug")


def check_executor(make_executor: Callable[[], Executor], folder: Path, *, isolates_tasks: bool = False) -> list[str]:
    """Run the whole suite without pytest; the names of the tests that were passed.

    Args:
        make_executor: makes the executor to be tested.
        folder: an empty folder that exists; each test gets a folder of its own inside.
        isolates_tasks: as `ExecutorConformance.isolates_tasks`.

    Raises:
        AssertionError: the executor does not do what a test demands; the message says what.
    """
    suite = ExecutorConformance()
    suite.isolates_tasks = isolates_tasks
    suite.make_executor = make_executor  # type: ignore[method-assign]
    return run_kit(suite, folder)


def by_name(tasks: Sequence[RewriteTask], outcomes: Iterable[RewriteOutcome]) -> dict[str, RewriteOutcome]:
    """The outcomes by task name.

    Raises:
        AssertionError: a task has no outcome or more than one, or an outcome belongs to no task.
    """
    listed = list(outcomes)
    found, wanted = sorted(outcome.task for outcome in listed), sorted(task.name for task in tasks)
    assert found == wanted, f"outcomes came for {shown(found)}, tasks were {shown(wanted)}"
    return {outcome.task: outcome for outcome in listed}


def result_of(outcome: RewriteOutcome) -> RewriteResult:
    """The outcome as a result.

    Raises:
        AssertionError: it is a failure.
    """
    assert isinstance(outcome, RewriteResult), f"task {outcome.task!r} should have been done: {outcome!r}"
    return outcome


def error_of(outcome: RewriteOutcome) -> CompactlibError:
    """The outcome's error.

    Raises:
        AssertionError: it is a result.
    """
    assert isinstance(outcome, RewriteFailure), f"task {outcome.task!r} should have failed: {outcome!r}"
    return outcome.error
