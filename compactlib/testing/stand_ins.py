# SPDX-License-Identifier: Apache-2.0
"""Policies, executors, observers, fences and clocks controlled by a test; calls with a time limit; gates."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

import attrs

from compactlib.budget import Budget
from compactlib.executors import Attempt, LocalExecutor, RewriteResult, RewriteTask
from compactlib.observer import Observer, Observers
from compactlib.rewrite import RewriteOutcome
from compactlib.testing.promises import Mismatch

PATIENCE_SECONDS = 30.0
"""Seconds after which a call counts as hanging, and a thread as not ended."""
_THREADS_SECONDS = 3.0
_LATE_SECONDS = 1e18
_DEADLINE = 1.0

AnswerT = TypeVar("AnswerT")

# ------------------------------------------------------------------------------------------------- threads of a check


class Gate:
    """A point at which threads wait until the test opens it. The end of the `with` opens it, too."""

    def __init__(self) -> None:
        self.reached: threading.Event = threading.Event()
        self._opened = threading.Event()

    def hold(self, *_: object) -> None:
        """Wait here until the gate is open."""
        self.reached.set()
        # Longer than any caller waits for the work, so that the caller reports it.
        if not self._opened.wait(2 * PATIENCE_SECONDS):
            raise Mismatch("a gate was never opened", "the check to end")

    def open(self) -> None:
        """Let all threads through, now and later."""
        self._opened.set()

    def __enter__(self) -> Gate:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()


class Call(Generic[AnswerT]):
    """A call in a new thread; `what` describes it in messages."""

    PREFIX = "check-"
    """The prefix of the threads' names."""

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

    def wait(self) -> None:
        """Wait until the call has ended.

        Raises:
            Mismatch: the call hangs.
        """
        if not self.ended.wait(PATIENCE_SECONDS):
            raise Mismatch(f"{self._what} has not returned after {PATIENCE_SECONDS:g} seconds", "it to return")

    def answer(self) -> AnswerT:
        """Return the value of the call.

        Raises:
            Mismatch: the call hangs.
            BaseException: the call's error.
        """
        self.wait()
        if self.error is not None:
            raise self.error
        return self._answers[0]

    def holds_until(self, gate: Gate) -> None:
        """Wait until the call's work waits at a gate.

        Raises:
            Mismatch: the call ended without reaching the gate.
        """
        while not gate.reached.wait(0.01):
            if self.ended.is_set() and not gate.reached.is_set():
                ended = f"raised {self.error!r}" if self.error is not None else f"returned {self._answers[0]!r}"
                raise Mismatch(f"{self._what} did not call the fence or executor of the check: it {ended}",
                               "its work to wait there")


def in_threads(count: int, work: Callable[[int], AnswerT]) -> list[AnswerT]:
    """Run `work(0)`, `work(1)`, ... each in a new thread, all begun together; return their results.

    Raises:
        BaseException: the error of a thread, after all have ended.
    """
    together = threading.Barrier(count)

    def run(number: int) -> AnswerT:
        together.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def lasting_threads(before: Set[threading.Thread]) -> list[threading.Thread]:
    """Return new threads that do not end soon; threads of the checks themselves are left out."""
    found = {thread for thread in threading.enumerate() if not thread.name.startswith(Call.PREFIX)} - before
    deadline = time.monotonic() + min(_THREADS_SECONDS, PATIENCE_SECONDS)
    while found and time.monotonic() < deadline:
        # A thread that is about to start cannot be joined.
        time.sleep(0.001)
        found.intersection_update(threading.enumerate())
    return list(found)


# ------------------------------------------------------------------------------------- policies, observers, fences


def raising(error: BaseException) -> Callable[..., Any]:
    """Make a function that takes any arguments and raises."""

    def call(*_: object) -> object:
        raise error

    return call


class PolicyBy:
    """A policy that first calls a function with the view and the time, and then another policy."""

    def __init__(self, policy: Any, first: Callable[[Any, float], object]) -> None:
        self._policy = policy
        self._first = first

    @property
    def name(self) -> str:
        return str(self._policy.name)

    def choose(self, view: Any, now: float) -> Any:
        self._first(view, now)
        return self._policy.choose(view, now)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._policy, name)


class ObserverBy:
    """An observer that calls a function at each event, and counts the calls."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.calls: int = 0

    def event(self, name: str, /, **fields: Any) -> None:
        self.calls += 1
        self._call()


class FenceBy:
    """A fence that calls a function with the number of the entry, from 1, before each entry, and counts those that
    succeed.
    """

    def __init__(self, enter: Callable[[int], object] = lambda number: None) -> None:
        self._enter = enter
        self._asked = 0
        self.entered: int = 0

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        self._asked += 1
        self._enter(self._asked)
        self.entered += 1
        yield


# --------------------------------------------------------------------------------------------------- executors


class ExecutorBy:
    """An executor whose `run` is a function of tasks, budget and observer; counts the calls."""

    def __init__(self, run: Callable[[Sequence[RewriteTask], Budget, Observer], Iterable[Any]]) -> None:
        self._run = run
        self.runs: int = 0

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Any:
        self.runs += 1
        return self._run(list(tasks), budget or Budget(), observer or Observers())


def soundly(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterator[RewriteOutcome]:
    """Run the tasks correctly, in this thread."""
    return LocalExecutor().run(tasks, budget=budget, observer=observer)


@attrs.frozen
class TaskBy:
    """A task that first calls a function, and then runs another task. Stays in this process."""

    task: RewriteTask
    first: Callable[[], object]

    @property
    def name(self) -> str:
        return self.task.name

    def run(self, attempt: Attempt) -> RewriteResult:
        self.first()
        return self.task.run(attempt)


def garbage_executors() -> Mapping[str, ExecutorBy]:
    """Return executors with wrong outcomes, by their description."""
    strange = RewriteResult(task="no such task", attempt="1", files=(), bytes_read=0, bytes_written=0, seconds=0.0)
    answers: dict[str, Any] = {
        "yields no outcome": (), "yields None": (None,), "yields a text": ("done",),
        "yields an outcome of a task that it was not given": (strange,), "returns no iterator": 42}
    return {name: ExecutorBy(lambda tasks, budget, observer, answer=answer: answer)  # type: ignore[misc]
            for name, answer in answers.items()}


# -------------------------------------------------------------------------------------------- budgets with a step each


class StepClock:
    """A clock whose budget reads it at each check, and is spent or paused at one of them.

    Args:
        what: `"spent"` or `"paused"`; a paused budget is resumed at the next reading.
        step: the number of the reading, from 1; 0 for none.

    Attributes:
        readings: the number of calls of `now`.
        budget: the budget that reads this clock.
    """

    def __init__(self, what: str = "", step: int = 0) -> None:
        self._what = what
        self._step = step
        self.readings: int = 0
        self.budget: Budget = Budget(deadline=_DEADLINE, clock=self)

    def now(self) -> float:
        self.readings += 1
        if self.budget.paused:
            self.budget.resume()
        elif self._what == "paused" and self.readings == self._step:
            self.budget.pause()
        return _LATE_SECONDS if self._what == "spent" and self.readings >= self._step else 0.0

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Return at once."""
