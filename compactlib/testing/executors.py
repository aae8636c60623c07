# SPDX-License-Identifier: Apache-2.0
"""The promises of every `Executor`, as a suite of `compactlib.testing.promises`.

The tasks are picklable classes of this module, which the workers have to import. They share the folder of the tasks.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

import attrs

from compactlib.budget import Budget
from compactlib.errors import BudgetSpent, CompactlibError, CorruptData, InvalidInput, TaskFailed
from compactlib.files import LocalFiles, crc32
from compactlib.observer import Observers
from compactlib.rewrite import (
    Attempt,
    Executor,
    RewriteFailure,
    RewriteOutcome,
    RewriteResult,
    RewriteTask,
    RewrittenFile,
)
from compactlib.testing.promises import ConformanceKit, error_from, same, shown
from compactlib.testing.stand_ins import Call, ObserverBy, raising


class ExecutorConformance(ConformanceKit):
    """Inherit in a test class and override `make_executor`; pytest finds the tests.

    Attributes:
        isolates_tasks: whether tasks run in other processes, so that a task is retried after its process died.
    """

    isolates_tasks: bool = False

    def make_executor(self) -> Executor:
        """Return the executor to be tested; may be called more than once in a test."""
        raise NotImplementedError("override make_executor to return an Executor")

    def run(self, tasks: Iterable[RewriteTask], budget: Budget | None = None) -> dict[str, RewriteOutcome]:
        """Return the outcomes of one run by task name; each task must have exactly one outcome."""
        listed = list(tasks)
        return by_name(listed, self.make_executor().run(iter(listed), budget=budget))

    def test_each_task_has_one_outcome(self, tmp_path: Path) -> None:
        """Each of forty tasks has one outcome, with spaces and non-ASCII letters in names; no tasks, no outcomes.

        To do: yield one outcome for each task, by its name, in any order; do not end the loop before the last worker
        has returned. Without tasks return an iterator that ends.
        """
        names = ["a", "A", "0000000000000001-0000000000000002", "with space", "größe", *map(str, range(35))]
        outcomes = self.run(WriteTask(name, str(tmp_path), number) for number, name in enumerate(names))
        same([result_of(outcomes[name]).files[0].size_bytes for name in names], list(range(40)))
        same((self.run([]), self.run([], Budget(total_bytes=0))), ({}, {}))

    def test_attempts_have_unique_ids(self, tmp_path: Path) -> None:
        """Attempt ids differ, also when an executor runs a task again; they are part of the names of whole files.

        To do: give each attempt, and each retry, a new id with new_attempt_id(), and return the result only when the
        task has ended. Let run() make and release what it needs, pools too.
        """
        executor = self.make_executor()
        tasks = [WriteTask(f"task {number}", str(tmp_path), 2500) for number in range(5)]
        results = [result_of(outcome) for _ in range(2) for outcome in by_name(tasks, executor.run(tasks)).values()]
        same(len({result.attempt for result in results}), 10)
        for result in results:
            (file,) = result.files
            same(Path(file.path).name, f"{result.task}.{result.attempt}", case=file)
            same(Path(file.path).read_bytes(), bytes(2500), case=file)

    def test_results_travel_unchanged(self, tmp_path: Path) -> None:
        """Large numbers, odd paths, no files, many files and an exact float are returned unchanged.

        To do: pickle results, or give every field its full range: 64 bit numbers, floats bit by bit, any path.
        """
        # A path that is not on this disk, so that an executor that checks files skips it.
        odd = RewrittenFile(f"elsewhere://{tmp_path}/größe 'n' \\ \n.x", (1 << 63) - 1, 0, (1 << 32) - 1)
        tasks = [FixedTask("no files", (), 0, 0.0), FixedTask("odd file", (odd,), (1 << 63) - 1, 0.1),
                 FixedTask("many files", tuple(attrs.evolve(odd, entries=number) for number in range(500)), 1, 1e-9)]
        outcomes = self.run(tasks)
        for task in tasks:
            result = result_of(outcomes[task.name])
            same(result, task.run(Attempt(result.attempt, Budget(), Observers())), case=task.name)

    def test_errors_are_returned(self, tmp_path: Path) -> None:
        """A library's error is returned whole; another error as `TaskFailed` with the task's name, the error's text and
        the traceback, which can be pickled, also if the error cannot. The other tasks succeed.

        To do: run tasks with attempt_task(task, attempt): it turns foreign errors into TaskFailed, with the traceback.
        Pass each outcome through compactlib.executors.tasks.portable() where the task ran: it leaves a CompactlibError
        as it is, if it can be pickled. Do not wrap it or rebuild it from its text.
        """
        outcomes = self.run([*(RaiseTask(f"task {kind}", kind) for kind in known_errors()),
                             WriteTask("sound", str(tmp_path))])
        result_of(outcomes["sound"])
        for kind, wanted in known_errors().items():
            error = error_of(outcomes[f"task {kind}"])
            assert str(wanted) in str(error), f"the text of the error of {kind} is missing: {error}"
            if kind == "corrupt":
                same((type(error), str(error), vars(error)), (type(wanted), str(wanted), vars(wanted)))
            else:
                assert isinstance(error, TaskFailed), f"not TaskFailed, but {error!r}"
                same((error.task, error.kind), (f"task {kind}", type(wanted).__name__))
                same(str(pickle.loads(pickle.dumps(error))), str(error))
                for part in ("Traceback", "known_errors"):
                    assert part in error.detail, f"{part!r} is missing in the detail {error.detail!r}"

    def test_observer_that_raises_breaks_nothing(self, tmp_path: Path) -> None:
        """Every task succeeds although each call of the observer raises.

        To do: notify through compactlib.observer.Observers(observer).
        """
        watching = ObserverBy(raising(RuntimeError("the observer's own bug")))
        tasks = [WriteTask("a", str(tmp_path), 100), WriteTask("b", str(tmp_path), 100)]
        outcomes = by_name(tasks, self.make_executor().run(tasks, observer=watching))
        same([result_of(outcome).files[0].size_bytes for outcome in outcomes.values()], [100, 100])

    def test_duplicate_names_are_refused_at_once(self, tmp_path: Path) -> None:
        """`run` itself raises, not the first `next`; no task runs.

        To do: call checked_names(tasks) in run() itself; in a generator nothing runs before the first next().
        """
        task = WriteTask("twice", str(tmp_path))
        refused = error_from(InvalidInput, self.make_executor().run, [task, WriteTask("once", str(tmp_path)), task])
        assert "twice" in str(refused), refused
        assert not any(tmp_path.iterdir()), "tasks ran although their names were refused"

    def test_bytes_are_charged_to_the_budget(self, tmp_path: Path) -> None:
        """After the run the caller's budget has the spent bytes; a task that exceeds it fails by `BudgetSpent`; if the
        total is enough for one of two tasks, one is done.

        To do: give each attempt the caller's budget or a share of it, or charge the caller's with result.bytes_written,
        once for each task. Return BudgetSpent like any other error. Retry a task that needs more than its share
        with the rest of the total.
        """
        for total, sizes, done in ((1_000_000, (1500, 700), 2), (10_000, (50_000,), 0), (1500, (1000, 1000), 1)):
            budget, case = Budget(total_bytes=total), f"{sizes} bytes of {total}"
            outcomes = self.run([WriteTask(f"{total} {number}", str(tmp_path), size)
                                 for number, size in enumerate(sizes)], budget)
            results = [outcome for outcome in outcomes.values() if isinstance(outcome, RewriteResult)]
            same(len(results), done, case=case)
            if done:
                same(budget.spent_bytes, sum(result.bytes_written for result in results), case=case)
            for outcome in outcomes.values():
                if outcome not in results:
                    error = error_of(outcome)
                    assert isinstance(error, BudgetSpent), f"not BudgetSpent, but {error!r}"
                    same(error.reason, "bytes")
                    assert 0 <= error.spent_bytes <= total, error.spent_bytes

    def test_spent_budget_runs_no_task(self, tmp_path: Path) -> None:
        """After the deadline, also of a paused budget, and after a cancel every task has an outcome and does not run.

        To do: call budget.check() before each task and return BudgetSpent for the tasks that do not start. Read
        budget.refusal before budget.paused: after the deadline nobody has to resume it.
        """
        late, paused, cancelled = Budget(deadline=1.0), Budget(deadline=1.0), Budget()
        paused.pause()
        cancelled.cancel()
        for budget, reason in ((late, "deadline"), (paused, "deadline"), (cancelled, "cancelled")):
            tasks = [WriteTask(f"task {number}", str(tmp_path)) for number in range(5)]
            for outcome in Call(partial(self.run, tasks, budget), "run() with a spent budget").answer().values():
                error = error_of(outcome)
                assert isinstance(error, BudgetSpent), f"not BudgetSpent, but {error!r}"
                same(error.reason, reason)
            assert not any(tmp_path.iterdir()), "a task ran although the budget was spent"

    def test_leaving_early_does_no_harm(self, tmp_path: Path) -> None:
        """After a caller drops the iterator at one outcome of ten, the executor can be used again.

        To do: stop workers in the `finally` of the generator: callers may drop the iterator at any time.
        """
        executor = self.make_executor()
        result_of(next(iter(executor.run([WriteTask(f"task {number}", str(tmp_path)) for number in range(10)]))))
        again = [WriteTask(f"again {number}", str(tmp_path)) for number in range(3)]
        for outcome in by_name(again, executor.run(again)).values():
            result_of(outcome)

    def test_task_is_retried_if_its_process_died(self, tmp_path: Path) -> None:
        """A task whose first attempt is killed has one outcome, of another attempt; only if `isolates_tasks`.

        To do: notice that the process has died, run the task in another with a new attempt id, and fail it after a few
        deaths.
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


def by_name(tasks: Sequence[RewriteTask], outcomes: Iterable[RewriteOutcome]) -> dict[str, RewriteOutcome]:
    """Return the outcomes by task name.

    Raises:
        AssertionError: a task has no outcome or more than one, or an outcome belongs to no task.
    """
    listed = list(outcomes)
    found, wanted = sorted(outcome.task for outcome in listed), sorted(task.name for task in tasks)
    assert found == wanted, f"there are outcomes of {shown(found)}, and the tasks were {shown(wanted)}"
    return {outcome.task: outcome for outcome in listed}


def result_of(outcome: RewriteOutcome) -> RewriteResult:
    """Return the outcome, which must be a result."""
    assert isinstance(outcome, RewriteResult), f"task {outcome.task!r} should have been done: {outcome!r}"
    return outcome


def error_of(outcome: RewriteOutcome) -> CompactlibError:
    """Return the error of the outcome, which must be a failure."""
    assert isinstance(outcome, RewriteFailure), f"task {outcome.task!r} should have failed: {outcome!r}"
    return outcome.error


# ---- the tasks


@attrs.frozen
class WriteTask:
    """Write one file of `size` bytes, `<name>.<attempt id>`, in pieces of a thousand bytes."""

    name: str
    folder: str
    size: int = 1000

    def run(self, attempt: Attempt) -> RewriteResult:
        out = LocalFiles().create(os.path.join(self.folder, f"{self.name}.{attempt.id}"))
        try:
            for start in range(0, self.size, 1000):
                piece = bytes(min(1000, self.size - start))
                attempt.budget.spend(len(piece))
                out.write_at(start, [piece])
            out.sync()
        finally:
            out.close()
        attempt.observer.event("conformance_files", add=1)
        file = RewrittenFile(out.path, self.size, 1, crc32(bytes(self.size)))
        return RewriteResult(task=self.name, attempt=attempt.id, files=(file,), bytes_read=self.size,
                             bytes_written=self.size, seconds=0.5)


@attrs.frozen
class FixedTask:
    """Write nothing and return a result with these files, bytes read and written, and seconds."""

    name: str
    files: tuple[RewrittenFile, ...]
    number: int
    seconds: float

    def run(self, attempt: Attempt) -> RewriteResult:
        return RewriteResult(task=self.name, attempt=attempt.id, files=self.files, bytes_read=self.number,
                             bytes_written=self.number, seconds=self.seconds)


@attrs.frozen
class RaiseTask:
    """Raise the error of this name in `known_errors`."""

    name: str
    error: str

    def run(self, attempt: Attempt) -> RewriteResult:
        raise known_errors()[self.error]


@attrs.frozen
class DieTask:
    """Kill its process, but the spared one, in the first `deaths` attempts; afterwards write like `WriteTask`.

    A file `<name>.died.<attempt id>` marks each death.
    """

    name: str
    folder: str
    deaths: int
    spared_process: int

    def run(self, attempt: Attempt) -> RewriteResult:
        if os.getpid() == self.spared_process:
            raise InvalidInput("this task kills its process, and the executor runs it in the caller's own")
        if len(list(Path(self.folder).glob(f"{self.name}.died.*"))) < self.deaths:
            LocalFiles().create(os.path.join(self.folder, f"{self.name}.died.{attempt.id}")).close()
            os.kill(os.getpid(), signal.SIGKILL)
        return WriteTask(self.name, self.folder).run(attempt)


def known_errors() -> dict[str, Exception]:
    """Return new errors of the kinds that `RaiseTask` can raise; the unpicklable one has a lock in a field."""
    unpicklable = ValueError("the flux holds a lock")
    vars(unpicklable)["lock"] = threading.Lock()
    return {
        "corrupt": CorruptData(path="/log/0007.segment", offset=4711, expected="CRC 0x01", found="CRC 0x02", index=42),
        "foreign": ValueError("the flux is missing"),
        "unpicklable": unpicklable,
    }
