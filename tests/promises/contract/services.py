# SPDX-License-Identifier: Apache-2.0
"""A service with a test's hooks in its work, and what each promise of `contract.Service` needs to see of it."""

from __future__ import annotations

import abc
import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from compactlib.budget import Budget
from compactlib.contract import Service
from compactlib.errors import Closed
from compactlib.observer import EventRecorder, Observer

PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.005
_THREADS_SECONDS = 3.0


class ServiceHooks:
    """The function that a service calls.

    Attributes:
        on_decide: what `decides` does; a test sets it.
        on_work: what `works` does.
        decided: how often `decides` was called.
        worked: how often `works` was called.
    """

    def __init__(self) -> None:
        self.on_decide: Callable[[], object] = lambda: None
        self.on_work: Callable[[Budget], object] = lambda budget: None
        self.decided = 0
        self.worked = 0

    def decides(self) -> None:
        """To be called once in each turn, where no error is expected: by a policy, say, or a source of jobs."""
        self.decided += 1
        self.on_decide()

    def works(self, budget: Budget) -> None:
        """To be called within the long part of the work, with the budget that it was given."""
        self.worked += 1
        self.on_work(budget)


class ServiceFactory(abc.ABC):
    """Makes services of one kind."""

    @abc.abstractmethod
    def make(self, folder: Path, hooks: ServiceHooks, *, observer: Observer) -> Service:
        """Return a service that was not started, with something to do at once."""

    def wake(self, service: Any) -> None:  # noqa: B027
        """Make it due now, also after an error. Default: nothing, for a service with retries within a second."""

    def held(self, service: Any) -> Sequence[object]:
        """Return the leases, locks and runs that its work holds now."""
        return ()

    def release(self, service: Any) -> None:  # noqa: B027
        """Release the objects opened with the service, after its `stop`. May be called twice."""


class Running:
    """A service that was made.

    Attributes:
        factory: what made it.
        hooks: in its work.
        observer: of it.
        service: the service.
    """

    def __init__(self, factory: ServiceFactory, folder: Path) -> None:
        self.factory = factory
        self.hooks = ServiceHooks()
        self.observer = EventRecorder()
        self.service: Any = factory.make(folder, self.hooks, observer=self.observer)

    def wake(self) -> None:
        """Wake it; one that was stopped may say so."""
        with contextlib.suppress(Closed):
            self.factory.wake(self.service)

    def until(self, is_so: Callable[[], bool], meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wake it, and call `meanwhile` until the condition holds."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not is_so():
            assert time.monotonic() < deadline, f"not in time; last_error is {self.service.last_error!r}"
            self.wake()
            meanwhile()
            time.sleep(_POLL_SECONDS)

    def pending(self) -> int:
        """Wake it, run the due work, and return the result of `run_pending`."""
        self.wake()
        done: int = self.service.run_pending()
        return done

    def require_released(self) -> None:
        """Require that its work holds nothing."""
        assert not self.factory.held(self.service)


@contextlib.contextmanager
def made(factory: ServiceFactory, folder: Path) -> Iterator[Running]:
    """A service that was not started; at the end it is stopped, holds nothing, and has left no thread."""
    before = set(threading.enumerate())
    folder.mkdir(exist_ok=True)
    running = Running(factory, folder)
    try:
        yield running
        running.service.stop()
        running.require_released()
    finally:
        with contextlib.suppress(Exception):
            running.service.stop(wait_seconds=0.05)
        with contextlib.suppress(Closed):
            factory.release(running.service)
    assert not lasting_threads(before)


def lasting_threads(before: set[threading.Thread]) -> set[threading.Thread]:
    """The threads that were not there before and do not end soon."""
    found, deadline = set(threading.enumerate()) - before, time.monotonic() + _THREADS_SECONDS
    while found and time.monotonic() < deadline:
        time.sleep(0.001)
        found.intersection_update(threading.enumerate())
    return found


def raising(error: BaseException, times: int = 1) -> Callable[[], None]:
    """A call that raises so often, and then does nothing."""
    left = [error] * times

    def call() -> None:
        if left:
            raise left.pop()

    return call
