# SPDX-License-Identifier: Apache-2.0
"""`PeriodicService`: a thread that repeats a function, and retries it after an error."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Self

from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy
from compactlib.guard import is_mine, take_within

_LOGGER = logging.getLogger("compactlib.services")
_POLL_SECONDS = 1.0
"""The longest sleep of the thread: the clock may be a manual clock."""


class PeriodicService:
    """Calls a function at start, once a period, when woken, and after an error with a growing delay.

    Threads may share it. Use it in a `with`, or call `start` and `stop`; after `stop` it can be started again.

    Args:
        run_once: the function. `stop` cancels the budget that it is called with. It returns the seconds until its next
            call, or `None` for `every_seconds`.
        name: the thread's name, also for messages: `"compactions of disk 8:1"`.
        every_seconds: the period; `None`: only when woken.
        retry_seconds: the delay after the first error; doubles with each further error in a row.
        max_retry_seconds: the longest delay.
        clock: decides when a call is due.

    Attributes:
        name: as given.
        failures: the number of calls that raised.
        last_error: the last exception that was raised.
    """

    def __init__(self, run_once: Callable[[Budget], float | None], *, name: str, every_seconds: float | None = None,
                 retry_seconds: float = 1.0, max_retry_seconds: float = 60.0, clock: Clock | None = None) -> None:
        self.name: str = name
        self.failures: int = 0
        self.last_error: BaseException | None = None
        self._run_once = run_once
        self._every = every_seconds
        self._retry, self._max_retry = retry_seconds, max_retry_seconds
        self._clock: Clock = SystemClock() if clock is None else clock
        self._due: float | None = None
        # The service was woken if these two differ; a new service is due.
        self._wake, self._answered_wake = object(), object()
        self._failures_in_a_row = 0
        self._budget = Budget(clock=self._clock)
        self._held = threading.RLock()  # while the function runs
        self._starting = threading.RLock()
        self._thread: threading.Thread | None = None
        # A queue in C, whose lock no interrupt leaves held.
        self._bell: SimpleQueue[None] = SimpleQueue()

    @property
    def is_running(self) -> bool:
        """Whether its thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_own_thread(self) -> bool:
        """Whether the calling thread is the service's own, and not one that called `run_pending`."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Start a daemon thread; starting again does nothing.

        Raises:
            Busy: the service was stopped, and its last call has not ended.
        """
        with self._starting:
            if self.is_running:
                if self._budget.cancelled:
                    raise Busy(f"{self.name} is being stopped; stop it again to wait for its end")
                return
            if self._budget.cancelled:
                self._budget = Budget(clock=self._clock)
            self._wake = object()
            self._thread = threading.Thread(target=self._run, args=(self._budget,), name=self.name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Have the function called now, or again after the present call."""
        self._wake = object()
        if self._bell.empty():  # only a thread empties the bell, which would grow without one
            self._bell.put(None)

    def run_pending(self) -> bool:
        """Call the function in the caller's thread if it is due, for hosts without threads.

        Returns:
            Whether it was due.

        Raises:
            Busy: the function itself makes this call.
        """
        if is_mine(self._held):
            raise Busy(f"{self.name} cannot be run from within its own work")
        with self._held:
            wake = self._wake
            if wake is self._answered_wake and (self._due is None or self._clock.monotonic() < self._due):
                return False
            try:
                delay = self._run_once(self._budget)
                self._failures_in_a_row = 0
            except Exception as error:
                delay = self._failed(error)
            delay = self._every if delay is None else delay
            self._due = None if delay is None else self._clock.monotonic() + delay
            self._answered_wake = wake  # last: after an interrupt before this the call is made again
        return True

    def stop(self, *, wait_seconds: float = 30.0) -> None:
        """Cancel the present call, wait for its end, and begin no other; stopping again waits again.

        Raises:
            Busy: the call has not ended in time, or stops the service itself. No other call begins.
        """
        self.cancel()
        if is_mine(self._held):
            raise Busy(f"{self.name} cannot wait for its own end; it ends when its function returns")
        if self._thread is not None and self.is_running:
            self._thread.join(min(wait_seconds, threading.TIMEOUT_MAX))
        taken: list[bool] = []
        try:
            # A thread of the host may be in `run_pending`.
            take_within(self._held, 0.0 if self.is_running else wait_seconds, taken)
            if not taken[0] or self.is_running:
                raise Busy(f"{self.name} has not ended in {wait_seconds:g} seconds; stop it again to wait longer")
            self._budget = Budget(clock=self._clock)
        finally:
            if taken and taken[0]:
                self._held.release()

    def cancel(self) -> None:
        """Cancel the present call, and begin no other; `stop` without waiting."""
        self._budget.cancel()
        self._bell.put(None)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, budget: Budget) -> None:
        while not budget.cancelled:
            try:
                seconds = 0.0 if self.run_pending() else self._seconds_left()
            except BaseException as error:
                # From the host's clock, or `sys.exit()` in the function: the thread continues.
                seconds = self._failed(error)
            if seconds > 0 and not budget.cancelled:
                with contextlib.suppress(Empty):
                    self._bell.get(timeout=min(seconds, _POLL_SECONDS))

    def _seconds_left(self) -> float:
        return _POLL_SECONDS if self._due is None else self._due - self._clock.monotonic()

    def _count(self, error: BaseException) -> None:
        self.last_error = error
        self.failures += 1

    def _failed(self, error: BaseException) -> float:
        self._count(error)
        delay = min(self._retry * 2.0 ** min(self._failures_in_a_row, 1000), self._max_retry)
        self._failures_in_a_row += 1
        _LOGGER.warning("%s failed, and is tried again in %.1f s", self.name, delay, exc_info=error)
        return delay

    def __repr__(self) -> str:
        return f"<PeriodicService {self.name}: {'running' if self.is_running else 'stopped'}>"
