# SPDX-License-Identifier: Apache-2.0
"""Policies, executors, observers, fences, clocks and disks that do what a test says, for the kits of the contract."""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar

import attrs

from compactlib.executors.tasks import LocalExecutor, attempt_task, new_attempt_id
from compactlib.files.disk import Files, LocalFiles, StrPath
from compactlib.rewrite import Attempt, RewriteFailure, RewriteOutcome, RewriteResult, RewriteTask
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, Progress
from compactlib.testing.faults.plan import FailingFiles, FileFaultChoice
from compactlib.testing.kit.conformance import Mismatch

PATIENCE_SECONDS = 30.0
"""After how long a call that should have come back is taken to hang."""
_LATE_SECONDS = 1e18
EARLY_SECONDS = 0.05
"""How long a call that should wait is given to come back too early. One that does is found; none is found in error."""
_LAST_SECONDS = 3.0
_LOOK_SECONDS = 0.001
ROOM_BYTES = 1 << 40

AnswerT = TypeVar("AnswerT")


class Gate:
    """A place at which work is held. Leaving the `with` lets all threads through."""

    def __init__(self) -> None:
        self.reached: threading.Event = threading.Event()
        self._opened = threading.Event()

    def hold(self, *_: object) -> None:
        """Wait here until the gate is open."""
        self.reached.set()
        # Longer than any caller waits for the work, so that the caller reports it.
        if not self._opened.wait(2 * PATIENCE_SECONDS):
            raise Mismatch("work that was held was never let go", "the check to end")

    def open(self) -> None:
        """Let all threads through, now and later."""
        self._opened.set()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.open()


class Call(Generic[AnswerT]):
    """A call in a thread of its own.

    Args:
        call: what to call.
        what: as messages name it.
    """

    PREFIX = "check-"
    """What the names of such threads begin with."""

    def __init__(self, call: Callable[[], AnswerT], what: str) -> None:
        self._call = call
        self._what = what
        self._answers: list[AnswerT] = []
        self.error: BaseException | None = None
        self.ended: threading.Event = threading.Event()
        threading.Thread(target=self._run, name=f"{self.PREFIX}{what}", daemon=True).start()

    def _run(self) -> None:
        try:
            self._answers.append(self._call())
        except BaseException as error:
            self.error = error
        finally:
            self.ended.set()

    def wait(self, *, times: float = 1.0) -> None:
        """Wait until it has come back, whatever came of it; with so many times the usual patience.

        Raises:
            Mismatch: it hangs.
        """
        patience = times * PATIENCE_SECONDS
        if not self.ended.wait(patience):
            raise Mismatch(f"{self._what} has not come back after {patience:.0f} seconds", "it to come back")

    def answer(self, *, times: float = 1.0) -> AnswerT:
        """What it returned.

        Raises:
            Mismatch: it hangs.
            BaseException: what it raised.
        """
        self.wait(times=times)
        if self.error is not None:
            raise self.error
        return self._answers[0]

    def holds_until(self, gate: Gate) -> None:
        """Wait until its work is held at a gate.

        Raises:
            Mismatch: it came back, or hangs, without having come there.
        """
        while not gate.reached.wait(0.01):
            if self.ended.is_set() and not gate.reached.is_set():
                raise Mismatch(f"{self._what} came back without having come there: {self._told()}",
                               "its work to be held where the check holds it")

    def _told(self) -> str:
        return f"raised {self.error!r}" if self.error is not None else f"answered {self._answers[0]!r}"


def lasting_threads(before: Set[threading.Thread]) -> list[threading.Thread]:
    """The threads that were not there before and do not soon end, but for those of the checks themselves.

    One that another is about to begin cannot be joined; so they are looked for again and again. What begins in the
    meantime is not asked after.
    """
    found = {thread for thread in threading.enumerate() if not thread.name.startswith(Call.PREFIX)} - before
    deadline = time.monotonic() + _LAST_SECONDS
    while found and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
        found.intersection_update(threading.enumerate())
    return list(found)


class PolicyBy:
    """Another policy, that first runs a function; of `choose` what `first` returns, unless that is `GOES_ON`."""

    GOES_ON = object()

    def __init__(self, policy: Any, first: Callable[[Any, float], object]) -> None:
        self._policy = policy
        self._first = first
        self.times: list[float] = []

    @property
    def name(self) -> str:
        """The other's."""
        return str(self._policy.name)

    def choose(self, view: Any, now: float) -> Any:
        """What `first` returns, or what the other chooses."""
        self.times.append(now)
        answer = self._first(view, now)
        return self._policy.choose(view, now) if answer is PolicyBy.GOES_ON else answer

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._policy, name)


class ExecutorBy:
    """An executor whose `run` is a function of tasks, budget and observer.

    Attributes:
        runs: how often it was called.
        tasks: of how many tasks.
    """

    def __init__(self, run: Callable[[Sequence[RewriteTask], Budget, Observer], Iterable[Any]]) -> None:
        self._run = run
        self.runs: int = 0
        self.tasks: int = 0

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Any:
        """See `Executor.run`."""
        listed = list(tasks)
        self.runs += 1
        self.tasks += len(listed)
        return self._run(listed, budget or Budget(), observer or Observer())


def soundly(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterator[RewriteOutcome]:
    """As it should be done, in this thread."""
    return LocalExecutor().run(tasks, budget=budget, observer=observer)


def in_another_thread(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterator[RewriteOutcome]:
    """As it should be done, in a thread that knows nothing of its caller."""
    for task in tasks:
        attempt = partial(attempt_task, task, Attempt(new_attempt_id(), budget, observer))
        # Longer than any caller waits for the compaction, so that the caller reports it.
        yield Call(attempt, f"task {task.name}").answer(times=2)


@attrs.frozen
class TaskBy:
    """A task that does something before it does what another one does. Stays in this process."""

    task: RewriteTask
    first: Callable[[], object]

    @property
    def name(self) -> str:
        """The other's."""
        return self.task.name

    def run(self, attempt: Attempt) -> RewriteResult:
        """See `RewriteTask.run`."""
        self.first()
        return self.task.run(attempt)


def raising_executors(error: BaseException) -> Mapping[str, ExecutorBy]:
    """Executors that do wrong, by what they do."""

    def at_once(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterable[Any]:
        raise error

    def later(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterable[Any]:
        yield from list(soundly(tasks, budget, observer))[1:]
        raise error

    return {"raises when it is called": ExecutorBy(at_once), "raises while it is asked": ExecutorBy(later)}


def garbage_executors() -> Mapping[str, ExecutorBy]:
    """Executors whose answers are none, by what they do."""

    def told(*answers: Any) -> ExecutorBy:
        return ExecutorBy(lambda tasks, budget, observer: answers)

    return {
        "answers for no task at all": told(),
        "answers None": told(None),
        "answers a text": told("done"),
        "answers for a task that it was not given": told(RewriteResult(
            task="no such task", attempt="1", files=(), bytes_read=0, bytes_written=0, seconds=0.0)),
        "is no iterator": ExecutorBy(lambda tasks, budget, observer: 42),  # type: ignore[arg-type, return-value]
    }


def failing_executor(error: Any) -> ExecutorBy:
    """An executor whose every task fails with a library's error."""
    return ExecutorBy(lambda tasks, budget, observer: [RewriteFailure(task.name, error) for task in tasks])


def raising(error: BaseException) -> Callable[..., Any]:
    """A call that raises, whatever it is given."""

    def call(*_: object) -> object:
        raise error

    return call


def asserts_of(function: Any) -> list[str]:
    """The assert statements of a function, as they are written; none if its source is not there."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return []
    return [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Assert)]


class ObserverBy(Observer):
    """Calls a function at each notification.

    Attributes:
        told: how often it was.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.told: int = 0

    def progress(self, progress: Progress) -> None:
        """Calls."""
        self._tell()

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        """Calls."""
        self._tell()

    def measure(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Calls."""
        self._tell()

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Calls."""
        self._tell()

    def _tell(self) -> None:
        self.told += 1
        self._call()


class FenceBy:
    """A fence that calls a function with the number of the entry, from 1, before it lets a caller in.

    Attributes:
        entered: how often a caller was let in.
    """

    def __init__(self, enter: Callable[[int], object] = lambda number: None) -> None:
        self._enter = enter
        self.asked: int = 0
        self.entered: int = 0

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """See `CommitFence.guard`."""
        self.asked += 1
        self._enter(self.asked)
        self.entered += 1
        yield


class SteppingClock:
    """Counts its readings: a budget with a deadline reads it at each of its steps. Override `at`.

    Attributes:
        readings: how often `now` was called.
        budget: the one that reads it, for who steers it.
    """

    def __init__(self) -> None:
        self.readings: int = 0
        self.budget: Budget | None = None

    def at(self, reading: int) -> float:
        """The time at a reading, by its number from 1."""
        return 0.0

    def now(self) -> float:
        """See `Clock.now`."""
        self.readings += 1
        return self.at(self.readings)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return 0.0

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""


class HeldAt(SteppingClock):
    """At its n-th reading the work stands still, until it is let go."""

    def __init__(self, number: int, gate: Gate) -> None:
        super().__init__()
        self._number = number
        self._gate = gate

    def at(self, reading: int) -> float:
        if reading == self._number:
            self._gate.hold()
        return 0.0


class SpentAt(SteppingClock):
    """From its n-th reading on the deadline has passed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def at(self, reading: int) -> float:
        return _LATE_SECONDS if reading >= self._number else 0.0


class CancelledAt(SpentAt):
    """At its n-th reading the budget is cancelled."""

    def at(self, reading: int) -> float:
        if reading == self._number and self.budget is not None:
            self.budget.cancel()
        return 0.0


class PausedAt(SpentAt):
    """At its n-th reading the budget is paused, and resumed when the work that waits looks at the time again."""

    def at(self, reading: int) -> float:
        if self.budget is not None and self.budget.paused:
            self.budget.resume()
        elif reading == self._number and self.budget is not None:
            self.budget.pause()
        return 0.0


class CheckedFiles(FailingFiles):
    """The local disk, with a stated room, that counts changes, and refuses some from the moment it is armed.

    Attributes:
        room: what `available_bytes` answers.
    """

    def __init__(self, files: Files | None = None) -> None:
        super().__init__(files or LocalFiles(), faults=self._choose)
        self.room: int | None = ROOM_BYTES
        self._choice: FileFaultChoice | None = None
        self._from = 0

    def arm(self, choice: FileFaultChoice | None) -> None:
        """Let changes fail from now on, by their numbers from now on; `None`: no more."""
        self._from, self._choice = self.count, choice

    @property
    def since(self) -> int:
        """How many changes there were since it was armed."""
        return self.count - self._from

    def available_bytes(self, path: StrPath) -> int | None:
        """See `Files.available_bytes`."""
        return self.room

    def _choose(self, number: int) -> Any:
        return None if self._choice is None else self._choice(number - self._from)
