# SPDX-License-Identifier: Apache-2.0
"""The rewrite of a compaction as tasks: `RewriteTask`, its outcomes, and `Executor`, which runs tasks.

A `RewriteTask` is a picklable function from immutable inputs to new files under private names. It is idempotent: it may
run twice, also at the same time, or end half-way. An `Executor` runs tasks and yields the outcome of each once. The
caller publishes the files after it has the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import CompactlibError
from compactlib.observer import Observer


@attrs.frozen
class RewrittenFile:
    """A file that an attempt wrote and synced, under its private name.

    Attributes:
        path: the path of the file.
        size_bytes: its length.
        entries: the number of entries in it.
        crc32: CRC-32 of the whole file, or of the part that the format's page names.
    """

    path: str
    size_bytes: int
    entries: int
    crc32: int


@attrs.frozen(kw_only=True)
class RewriteResult:
    """The result of one attempt at a task.

    Attributes:
        task: the task's name.
        attempt: the attempt's id.
        files: the new files, in the task's order.
        bytes_read: bytes read from the sources.
        bytes_written: bytes written to the new files.
        seconds: duration of the attempt.
    """

    task: str
    attempt: str
    files: tuple[RewrittenFile, ...]
    bytes_read: int
    bytes_written: int
    seconds: float


@attrs.frozen
class RewriteFailure:
    """The error of a task; its inputs are unchanged.

    Attributes:
        task: the task's name.
        error: an error of the library; any other exception is described by a `TaskFailed`.
    """

    task: str
    error: CompactlibError


RewriteOutcome: TypeAlias = RewriteResult | RewriteFailure
"""The outcome of a task."""


@attrs.frozen
class Attempt:
    """One attempt at a task, made by an executor.

    Attributes:
        id: unique over all attempts of all tasks; part of the name of every file that the attempt creates.
        budget: the task calls `spend` before each chunk of bytes.
        observer: receives the progress.
        clock: the clock for the seconds in the result.
        turn: held by a task that copies and not while it syncs; a lock that the tasks of one executor share. Python
            runs one thread at a time: two that copy at once take half as long again as one after the other.
    """

    id: str
    budget: Budget
    observer: Observer
    clock: Clock = attrs.field(factory=SystemClock)
    turn: AbstractContextManager[object] = attrs.field(factory=nullcontext)


class RewriteTask(Protocol):
    """A rewrite that any executor can run; implement it as a frozen attrs class of picklable fields.

    It may have `source_files`, the paths of the files that it reads and that nobody changes: an executor of other
    machines then refuses a task where these are missing or others.
    """

    @property
    def name(self) -> str:
        """Unique in one call of an executor, 1 to 1000 characters; part of errors and progress."""

    def run(self, attempt: Attempt) -> RewriteResult:
        """Write the new files under names that contain `attempt.id`, sync them, and return the result.

        Calls `attempt.budget.spend` before each chunk, where the work waits and can be stopped. The result names this
        task and this attempt.

        Raises:
            CompactlibError: passes through the executor unchanged.
        """


class Executor(Protocol):
    """Runs rewrite tasks."""

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        """Yield the outcome of each task exactly once, in any order.

        A task's error is its outcome and ends no other task. A task that the budget does not let begin fails with
        `BudgetSpent`. Leaving the iterator early begins no further task.

        Threads share the rest of a total. If the total is smaller than the sum of their outputs, each call may spend it
        without completing a task; one worker, or a larger total, makes progress. Processes and Spark run the tasks in
        sequence under a total.

        Raises:
            InvalidInput: two tasks share a name, or a name is empty or too long; raised before any task begins.
        """
