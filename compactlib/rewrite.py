# SPDX-License-Identifier: Apache-2.0
"""The heavy step as a task: what it is, what it answers, and who runs it.

A `RewriteTask` is a picklable function of immutable inputs to new files in a private place. It is idempotent: it
may run twice, at once, or die half-way, and knows nothing of who runs it. An `Executor` runs tasks and gives each
task's outcome exactly once; publishing the files is the caller's business, after the outcome has come back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import CompactlibError
from compactlib.observer import Observer
from compactlib.report import Printed


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
class RewriteResult(Printed):
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

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: the numbers, with the files counted and their entries summed."""
        return [{"task": self.task, "files": len(self.files), "entries": sum(file.entries for file in self.files),
                 "bytes_read": self.bytes_read, "bytes_written": self.bytes_written, "seconds": self.seconds,
                 "attempt": self.attempt}]


@attrs.frozen
class RewriteFailure(Printed):
    """A task that ended in an error; its inputs are untouched.

    Attributes:
        task: the task's name.
        error: one of the library's own; a foreign one comes as `TaskFailed`.
    """

    task: str
    error: CompactlibError

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: the task, and the error's class and message."""
        return [{"task": self.task, "error": type(self.error).__name__, "message": str(self.error)}]


RewriteOutcome: TypeAlias = RewriteResult | RewriteFailure
"""What a task ended in; distinguish the two with `match` or `isinstance`."""


@attrs.frozen
class Attempt:
    """One try at a task: what the executor lends to it.

    Attributes:
        id: unique over all attempts of all tasks; part of every name the attempt creates.
        budget: asked before each chunk of bytes.
        observer: notified of progress.
        clock: for the seconds in the result.
        turn: held while the attempt works in Python and not while it syncs, so that threads of one process do not wait
            for the interpreter all the time: one copies while others sync.
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
        """Unique within one call of an executor, 1 to 1000 characters; errors and progress carry it."""

    def run(self, attempt: Attempt) -> RewriteResult:
        """Write the new files under names private to `attempt`, make them durable, and say what they are.

        Asks `attempt.budget` before each chunk it writes, which is where the work can be stopped. The result names
        this task and this attempt.

        Raises:
            CompactlibError: the library's own errors pass through the executor as they are.
        """


class Executor(Protocol):
    """Runs rewrite tasks somewhere."""

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        """Yield the outcome of each task exactly once, in any order.

        A task's error is its outcome; it does not end the others. Tasks that the budget no longer lets begin are
        reported as failures with `BudgetSpent`. Leaving the iterator early abandons what has not begun.

        Tasks that run at once share what is left of a total, so it may be spent with none of them done, again and
        again; one worker, or a total of all that the running ones write, has some done each time.

        Raises:
            InvalidInput: two tasks share a name, or a name is empty or too long; raised at once, before anything
                has begun.
        """
