"""The heavy step behind one small protocol: tasks, their results, and who runs them.

A `RewriteTask` is a picklable function of immutable inputs to new files in a private place. It is idempotent: it
may run twice, at once, or die half-way, and knows nothing of who runs it. An `Executor` runs tasks and gives each
task's outcome exactly once; publishing the files is the caller's business, after the outcome has come back.
"""

from __future__ import annotations

import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Protocol, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.errors import CompactlibError, InvalidInput, TaskFailed
from compactlib.observe import Observer


@attrs.frozen
class RewrittenFile:
    """One file that an attempt wrote and made durable, still under its private name.

    Attributes:
        path: where it lies.
        size_bytes: its length.
        entries: how many entries it holds.
        crc32: CRC-32 of the whole file, or of the part the format's page names.
    """

    path: str
    size_bytes: int
    entries: int
    crc32: int


@attrs.frozen(kw_only=True)
class RewriteResult:
    """What one attempt at a task produced.

    Attributes:
        task: the task's name.
        attempt: the id of the attempt whose files these are.
        files: the new files, in the task's order.
        bytes_read: bytes read from the sources.
        bytes_written: bytes written to the new files.
        seconds: how long the attempt took.
    """

    task: str
    attempt: str
    files: tuple[RewrittenFile, ...]
    bytes_read: int
    bytes_written: int
    seconds: float


@attrs.frozen
class RewriteFailure:
    """A task that ended in an error; its inputs are untouched.

    Attributes:
        task: the task's name.
        error: one of the library's own; a foreign one comes as `TaskFailed`.
    """

    task: str
    error: CompactlibError


RewriteOutcome: TypeAlias = RewriteResult | RewriteFailure


@attrs.frozen
class Attempt:
    """One try at a task: what the executor lends to it.

    Attributes:
        id: unique over all attempts of all tasks; part of every name the attempt creates.
        budget: asked before each chunk of bytes.
        observer: told of progress.
    """

    id: str
    budget: Budget
    observer: Observer


class RewriteTask(Protocol):
    """A rewrite that any executor can run; implement it as a frozen attrs class of picklable fields."""

    @property
    def name(self) -> str:
        """Unique within one call of an executor; errors and progress carry it."""

    def run(self, attempt: Attempt) -> RewriteResult:
        """Write the new files under names private to `attempt`, make them durable, and say what they are.

        Raises:
            CompactlibError: the library's own errors pass through the executor as they are.
        """


class Executor(Protocol):
    """Runs rewrite tasks somewhere."""

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        """Yield the outcome of each task exactly once, in any order.

        A task's error is its outcome; it does not end the others. Leaving the iterator early abandons what has
        not begun.

        Raises:
            InvalidInput: two tasks share a name.
        """


def new_attempt_id() -> str:
    """A fresh id: 32 hexadecimal digits, unique without coordination."""
    return uuid.uuid4().hex


def attempt_task(task: RewriteTask, attempt: Attempt) -> RewriteOutcome:
    """Run one attempt and turn whatever it raises into an outcome; for those who write executors."""
    try:
        return task.run(attempt)
    except CompactlibError as error:
        return RewriteFailure(task.name, error)
    except Exception as error:
        detail = "".join(traceback.format_exception(error))
        told = f"task {task.name!r} failed: {type(error).__name__}: {error}"
        return RewriteFailure(task.name, TaskFailed(told, task=task.name, kind=type(error).__name__, detail=detail))


def checked_names(tasks: Iterable[RewriteTask]) -> Sequence[RewriteTask]:
    """The tasks as a sequence; for those who write executors.

    Raises:
        InvalidInput: two tasks share a name, so that their outcomes could not be told apart.
    """
    listed = list(tasks)
    seen: set[str] = set()
    for task in listed:
        if task.name in seen:
            raise InvalidInput(f"two tasks are named {task.name!r}; outcomes are told apart by name, rename one")
        seen.add(task.name)
    return listed


class LocalExecutor:
    """Runs tasks in this process: one after the other, or in `workers` threads.

    Threads overlap reading, checksumming of large entries, and fsync; they share the caller's budget and observer.

    Args:
        workers: how many tasks run at once, >= 1.
        attempt_id: gives each attempt its id; for tests that need names to repeat.

    Raises:
        InvalidInput: `workers` is less than 1.
    """

    def __init__(self, workers: int = 1, *, attempt_id: Callable[[], str] = new_attempt_id) -> None:
        if workers < 1:
            raise InvalidInput(f"an executor needs at least one worker, found {workers}")
        self._workers = workers
        self._attempt_id = attempt_id

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        """See `Executor.run`. With one worker, a task starts when its outcome is asked for."""
        listed = checked_names(tasks)
        lent_budget = Budget() if budget is None else budget
        lent_observer = Observer() if observer is None else observer

        def run_one(task: RewriteTask) -> RewriteOutcome:
            return attempt_task(task, Attempt(self._attempt_id(), lent_budget, lent_observer))

        if self._workers == 1:
            return map(run_one, listed)
        return self._run_threads(listed, run_one)

    def _run_threads(self, tasks: Sequence[RewriteTask],
                     run_one: Callable[[RewriteTask], RewriteOutcome]) -> Iterator[RewriteOutcome]:
        with ThreadPoolExecutor(self._workers, thread_name_prefix="compactlib-rewrite") as pool:
            pending: set[Future[RewriteOutcome]] = {pool.submit(run_one, task) for task in tasks}
            try:
                while pending:
                    finished, pending = wait(pending, return_when=FIRST_COMPLETED)
                    for future in finished:
                        yield future.result()
            finally:
                for future in pending:
                    future.cancel()

    def __repr__(self) -> str:
        return f"LocalExecutor(workers={self._workers})"
