# SPDX-License-Identifier: Apache-2.0
"""Policies, executors, observers, fences and clocks that do what a test says; calls that must come back, and gates."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, Generic, TypeVar

import attrs

from compactlib.budget import Budget
from compactlib.errors import CompactlibError
from compactlib.executors import Attempt, LocalExecutor, RewriteFailure, RewriteResult, RewriteTask
from compactlib.observer import Observer, Observers
from compactlib.rewrite import RewriteOutcome
from compactlib.testing.promises import Mismatch

PATIENCE_SECONDS = 30.0
"""After how long a call that should have come back is taken to hang, and a thread that should have ended to live on."""
_THREADS_SECONDS = 3.0
_LATE_SECONDS = 1e18
_DEADLINE = 1.0

AnswerT = TypeVar("AnswerT")

# ------------------------------------------------------------------------------------------------- threads of a check


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
        """Wait until it has come back, `times` the usual patience.

        Raises:
            Mismatch: it hangs.
        """
        patience = times * PATIENCE_SECONDS
        if not self.ended.wait(patience):
            raise Mismatch(f"{self._what} has not come back after {patience:g} seconds", "it to come back")

    def answer(self, *, times: float = 1.0) -> AnswerT:
        """Return what it returned.

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
            Mismatch: it came back without having come there.
        """
        while not gate.reached.wait(0.01):
            if self.ended.is_set() and not gate.reached.is_set():
                came = f"raised {self.error!r}" if self.error is not None else f"answered {self._answers[0]!r}"
                raise Mismatch(f"{self._what} came back without having come there: {came}",
                               "its work to be held where the check holds it")


def in_threads(count: int, work: Callable[[int], AnswerT]) -> list[AnswerT]:
    """Run `work(0)`, `work(1)`, ... each in a thread of its own, all begun together; return their results.

    Raises:
        BaseException: what one of them raised, after all have ended.
    """
    together = threading.Barrier(count)

    def run(number: int) -> AnswerT:
        together.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def lasting_threads(before: Set[threading.Thread]) -> list[threading.Thread]:
    """The threads that were not there before and do not end soon; threads of the checks themselves are left out."""
    found = {thread for thread in threading.enumerate() if not thread.name.startswith(Call.PREFIX)} - before
    deadline = time.monotonic() + min(_THREADS_SECONDS, PATIENCE_SECONDS)
    while found and time.monotonic() < deadline:
        # One that another thread is about to begin cannot be joined.
        time.sleep(0.001)
        found.intersection_update(threading.enumerate())
    return list(found)


# ------------------------------------------------------------------------------------- who decides, watches and guards


def raising(error: BaseException) -> Callable[..., Any]:
    """A call that raises, whatever it is given."""

    def call(*_: object) -> object:
        raise error

    return call


class PolicyBy:
    """A policy that first runs a function, and then chooses as another one does.

    Args:
        policy: the other one.
        first: given the view and the time.

    Attributes:
        times: the times that it was given.
    """

    def __init__(self, policy: Any, first: Callable[[Any, float], object] = lambda view, now: None) -> None:
        self._policy = policy
        self._first = first
        self.times: list[float] = []

    @property
    def name(self) -> str:
        return str(self._policy.name)

    def choose(self, view: Any, now: float) -> Any:
        self.times.append(now)
        self._first(view, now)
        return self._policy.choose(view, now)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._policy, name)


class ObserverBy:
    """An observer that calls a function at each event.

    Attributes:
        calls: how often it was notified.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self.calls: int = 0

    def event(self, name: str, /, **fields: Any) -> None:
        self.calls += 1
        self._call()


class FenceBy:
    """A fence that calls a function with the number of the entry, from 1, before it lets a caller in.

    Attributes:
        entered: how often a caller was let in.
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


# --------------------------------------------------------------------------------------------------- who runs the tasks


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
        listed = list(tasks)
        self.runs += 1
        self.tasks += len(listed)
        return self._run(listed, budget or Budget(), observer or Observers())


def soundly(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterator[RewriteOutcome]:
    """Run the tasks as it should be done, in this thread."""
    return LocalExecutor().run(tasks, budget=budget, observer=observer)


@attrs.frozen
class TaskBy:
    """A task that runs a function before it does what another one does. Stays in this process."""

    task: RewriteTask
    first: Callable[[], object]

    @property
    def name(self) -> str:
        return self.task.name

    def run(self, attempt: Attempt) -> RewriteResult:
        self.first()
        return self.task.run(attempt)


def raising_executors(error: BaseException) -> Mapping[str, ExecutorBy]:
    """Executors that raise, by when they do."""

    def later(tasks: Sequence[RewriteTask], budget: Budget, observer: Observer) -> Iterable[Any]:
        yield from list(soundly(tasks, budget, observer))[1:]
        raise error

    return {"raises when it is called": ExecutorBy(raising(error)), "raises while it is asked": ExecutorBy(later)}


def garbage_executors() -> Mapping[str, ExecutorBy]:
    """Executors whose answers are wrong, by what they answer."""

    def answering(*answers: Any) -> ExecutorBy:
        return ExecutorBy(lambda tasks, budget, observer: answers)

    return {
        "answers for no task at all": answering(),
        "answers None": answering(None),
        "answers a text": answering("done"),
        "answers for a task that it was not given": answering(RewriteResult(
            task="no such task", attempt="1", files=(), bytes_read=0, bytes_written=0, seconds=0.0)),
        "is no iterator": ExecutorBy(lambda tasks, budget, observer: 42),  # type: ignore[arg-type, return-value]
    }


def failing_executor(error: CompactlibError) -> ExecutorBy:
    """An executor whose every task fails with this error."""
    return ExecutorBy(lambda tasks, budget, observer: [RewriteFailure(task.name, error) for task in tasks])


# -------------------------------------------------------------------------------------------- budgets with a step each


class StepClock:
    """A clock that counts its readings: a budget with a deadline reads it at each of its steps.

    Args:
        at: gives the time at a reading, by its number from 1 and this clock.

    Attributes:
        readings: how often `now` was called.
        budget: the budget that reads it.
    """

    def __init__(self, at: Callable[[int, StepClock], float] = lambda number, clock: 0.0) -> None:
        self._at = at
        self.readings: int = 0
        self.budget: Budget = Budget(deadline=_DEADLINE, clock=self)

    def now(self) -> float:
        self.readings += 1
        return self._at(self.readings, self)

    def monotonic(self) -> float:
        return 0.0

    def sleep(self, seconds: float) -> None:
        """Return at once."""


def spent_at(step: int) -> StepClock:
    """From this step on the deadline has passed."""
    return StepClock(lambda number, clock: _LATE_SECONDS if number >= step else 0.0)


def paused_at(step: int) -> StepClock:
    """At this step the budget is paused; it is resumed when the work that waits reads the time again."""

    def at(number: int, clock: StepClock) -> float:
        if clock.budget.paused:
            clock.budget.resume()
        elif number == step:
            clock.budget.pause()
        return 0.0

    return StepClock(at)
