# SPDX-License-Identifier: Apache-2.0
"""Tasks for the tests of `process_executor`: light to import, because every worker process does."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, NoReturn

import attrs

from compactlib.errors import BudgetSpent
from compactlib.executors import Attempt, RewriteResult


def done(task: str, attempt: Attempt) -> RewriteResult:
    return RewriteResult(task=task, attempt=attempt.id, files=(), bytes_read=0, bytes_written=0, seconds=0)


def wait_for(path: Path) -> None:
    """Return once the file is there: how processes wait for each other; a minute is a failure."""
    for _ in range(6000):
        if path.exists():
            return
        time.sleep(0.01)
    raise TimeoutError(f"{path} did not appear")


@attrs.frozen
class EndTask:
    """Ends its process in another way than by a signal."""

    name: str
    how: str

    def run(self, attempt: Attempt) -> RewriteResult:
        if self.how == "exit":
            sys.exit(3)
        raise KeyboardInterrupt


@attrs.frozen
class PieceTask:
    """Asks for all of its bytes at once."""

    name: str
    size: int

    def run(self, attempt: Attempt) -> RewriteResult:
        attempt.budget.spend(self.size)
        return done(self.name, attempt)


@attrs.frozen
class InterruptedTask:
    """Gets the signal of Ctrl-C, as every process of a terminal does, and continues."""

    name: str

    def run(self, attempt: Attempt) -> RewriteResult:
        os.kill(os.getpid(), signal.SIGINT)
        return done(self.name, attempt)


@attrs.frozen
class TellingTask:
    """Emits its limits and other events."""

    name: str
    unpicklable: bool = False

    def run(self, attempt: Attempt) -> RewriteResult:
        attempt.observer.event("progress", work=f"inside {self.name}", done=1, total=2, unit="bytes")
        attempt.observer.event("told", add=2, task=self.name)
        attempt.observer.event("limits", **attrs.asdict(attempt.budget.remaining))
        if self.unpicklable:
            attempt.observer.event("locked", lock=threading.Lock())
        return done(self.name, attempt)


@attrs.frozen
class MeetingTask:
    """Leaves a mark and waits for the other's: two of them end only if they run at the same time."""

    name: str
    folder: str
    other: str

    def run(self, attempt: Attempt) -> RewriteResult:
        Path(self.folder, self.name).touch()
        wait_for(Path(self.folder, self.other))
        return done(self.name, attempt)


@attrs.frozen
class EndlessTask:
    """Marks that it began, asks its budget until that ends it, and marks why it stopped."""

    name: str
    folder: str

    def run(self, attempt: Attempt) -> RewriteResult:
        Path(self.folder, f"{self.name}.began").touch()
        try:
            while True:
                attempt.budget.spend(0)
                time.sleep(0.001)
        except BudgetSpent as error:
            Path(self.folder, f"{self.name}.{error.reason}").touch()
            raise


@attrs.frozen
class StubbornTask:
    """Marks that it began and asks nobody any more."""

    name: str
    folder: str

    def run(self, attempt: Attempt) -> RewriteResult:
        Path(self.folder, f"{self.name}.began").touch()
        wait_for(Path(self.folder, "never"))
        return done(self.name, attempt)


@attrs.frozen
class HeldTask:
    """Holds something that cannot be pickled."""

    name: str
    held: Any

    def run(self, attempt: Attempt) -> RewriteResult:
        return done(self.name, attempt)


@attrs.frozen
class LostTask:
    """Pickles, but cannot be revived."""

    name: str

    def run(self, attempt: Attempt) -> RewriteResult:
        return done(self.name, attempt)

    def __reduce__(self) -> tuple[Any, ...]:
        return lose, (self.name,)


def lose(name: str) -> NoReturn:
    raise LookupError(f"nobody here knows {name}")
