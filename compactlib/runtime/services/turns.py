# SPDX-License-Identifier: Apache-2.0
"""A daemon thread that takes one turn after the other, and survives whatever a turn raises.

What a turn raises is kept in `last_error`, counted, logged and reported, and the turn is tried again after a growing
delay. `KeyboardInterrupt` and `SystemExit` are kept as well, and end the thread.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, Closed
from compactlib.runtime.observe import Observer, telling
from compactlib.runtime.owned_lock import Changes

_LOGGER = logging.getLogger("compactlib.turns")
_LOOK_AGAIN_SECONDS = 0.1
"""How long the thread sleeps at most by a clock that is not the system's, which may move without waking any thread."""


class Turns:
    """Calls `turn` in a daemon thread: when woken, when it is due again, and after an error when the delay is over.

    Args:
        turn: does what there is to do, and returns in how many seconds the next turn is due; `None`: when woken.
        name: of the thread, and in messages.
        event: its name when a turn that raises is reported, with `error`, `message`, `failures` in a row and
            `retry_in_seconds`.
        clock: for when a turn is due.
        observer: is notified.
        first_delay_seconds: after the first error; doubles with each one in a row.
        max_delay_seconds: how far it grows.
    """

    def __init__(self, turn: Callable[[], float | None], *, name: str, event: str, clock: Clock | None = None,
                 observer: Observer | None = None, first_delay_seconds: float = 0.1,
                 max_delay_seconds: float = 60.0) -> None:
        self._turn = turn
        self._name = name
        self._event = event
        self._clock: Clock = SystemClock() if clock is None else clock
        self._observer = telling(observer)
        self._first_delay = first_delay_seconds
        self._max_delay = max_delay_seconds
        self._changed = Changes()
        self._woken = False
        self._stopping = False
        self._thread: threading.Thread | None = None
        self.last_error: BaseException | None = None
        """What a turn raised last; stays after turns that went well, see `failures_in_a_row`."""
        self._in_a_row = 0
        self.failures: int = 0
        """How many turns raised, in all."""

    @property
    def failures_in_a_row(self) -> int:
        """How many turns raised since the last one that went well."""
        return self._in_a_row

    @property
    def is_running(self) -> bool:
        """Whether the thread lives."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_mine(self) -> bool:
        """Whether the caller is the thread."""
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Begin; the first turn is due at once. Starting again does nothing.

        Raises:
            Closed: it was stopped.
            RuntimeError: no thread can be started now.
        """
        with self._changed:
            if self._stopping:
                raise Closed(f"{self._name} was stopped; make a new one")
            if self._thread is None:
                self._woken = True
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                try:
                    self._thread.start()
                except BaseException:
                    self._thread = None
                    raise

    def wake(self) -> None:
        """There is something to do: take a turn now, or once more after the present one. Also ends a delay."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def end(self) -> None:
        """Take no further turn; does not wait for the present one."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def stop(self, *, wait_seconds: float | None = None) -> bool:
        """Take no further turn, and wait for the present one; whether the thread has ended in time.

        The thread is a daemon: one that did not end in time does not keep the process from ending.

        Raises:
            Busy: called from the thread itself; it ends after its turn all the same.
        """
        self.end()
        thread = self._thread
        if thread is None:
            return True
        if self.is_mine:
            raise Busy(f"{self._name} cannot wait for its own end; it ends after this turn, wait in another thread")
        thread.join(wait_seconds)
        return not thread.is_alive()

    def attempt(self) -> float | None:
        """One turn in the caller's thread, treated as the thread would: seconds until the next, or `None`.

        Raises:
            BaseException: only what is no `Exception`, such as `KeyboardInterrupt`.
        """
        try:
            due_in = self._turn()
        except Exception as error:
            return self._note(error)
        except BaseException as error:
            self.last_error = error
            self.failures += 1
            _LOGGER.warning("%s: a turn raised %r", self._name, error, exc_info=error)
            raise
        self._in_a_row = 0
        return due_in

    def _note(self, error: Exception) -> float:
        self.last_error = error
        self.failures += 1
        self._in_a_row += 1
        delay: float = min(self._first_delay * 2.0 ** min(self._in_a_row - 1, 60), self._max_delay)
        if self._in_a_row & (self._in_a_row - 1) == 0:
            _LOGGER.warning("%s: a turn raised %r (%d in a row); it is tried again in %.1f s", self._name, error,
                            self._in_a_row, delay, exc_info=error)
        self._observer.event(self._event, {"error": type(error).__name__, "message": str(error),
                                           "failures": self._in_a_row, "retry_in_seconds": delay})
        return delay

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                self._woken = False
            due_in = self.attempt()
            try:
                self._await_turn(due_in)
            except Exception as error:  # the host's clock
                delay = self._note(error)
                with self._changed:
                    self._changed.wait_for(lambda: self._woken or self._stopping, delay)

    def _await_turn(self, due_in: float | None) -> None:
        exact = isinstance(self._clock, SystemClock)
        due = None if due_in is None else self._clock.monotonic() + due_in
        with self._changed:
            while not self._woken and not self._stopping:
                left = None if due is None else due - self._clock.monotonic()
                if left is not None and left <= 0:
                    return
                self._changed.wait(left if exact or left is None else min(left, _LOOK_AGAIN_SECONDS))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.stop()

    def __repr__(self) -> str:
        state = "stopped" if self._stopping else "not started" if self._thread is None else "running"
        return f"<Turns of {self._name}: {state}, {self.failures} failures>"
