# SPDX-License-Identifier: Apache-2.0
"""Deferred callbacks: what happened inside a lock is reported after its release, in the order in which it happened."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

from compactlib.guard import take_within
from compactlib.runtime.observe import Observer, Progress, tell, telling


class _Mine(threading.local):
    """What each thread has of its own."""

    def __init__(self) -> None:
        self.holding = threading.Lock()


class LaterCalls:
    """Calls to listeners that wait until no lock is held here. Threads may share it.

    One thread at a time delivers, and what others put in meanwhile as well: so each listener is called in order, and
    may call whatever it likes. What a listener raises is kept and logged.

    Attributes:
        failures: how many calls raised.
        last_error: what was raised last.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._delivering = threading.Lock()
        self._mine = _Mine()
        self.failures: int = 0
        self.last_error: Exception | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, listener: Callable[..., object], *arguments: object) -> None:
        """Have `listener` called with the next `deliver`."""
        self._waiting.append(partial(listener, *arguments))

    def held(self) -> AbstractContextManager[object]:
        """This thread delivers nothing inside `with calls, calls.held():`, and everything behind it.

        Entered by a thread that is about to hold a lock. An interrupt is not kept waiting: what was put in stays for
        the next delivery.
        """
        # The lock itself, which functions of C take and release: no interrupt can leave it held.
        return nullcontext() if self._mine.holding.locked() else self._mine.holding

    def __enter__(self) -> LaterCalls:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._waiting and (kind is None or issubclass(kind, Exception)):
            self.deliver()

    def deliver(self) -> None:
        """Make the calls that wait, unless another thread does so, or this one is inside `held`."""
        # Looked at again after each round: a thread that was turned away meanwhile has left its calls to this one.
        while self._waiting and not self._mine.holding.locked():
            taken: list[bool] = []
            try:
                take_within(self._delivering, 0.0, taken)
                if taken != [True]:
                    return
                while self._waiting:
                    error = tell(self._waiting.popleft())
                    if error is not None:
                        self.failures, self.last_error = self.failures + 1, error
            finally:
                if taken == [True]:
                    self._delivering.release()

    def __repr__(self) -> str:
        return f"<LaterCalls: {len(self)} calls wait, {self.failures} failed>"


class LaterObserver(Observer):
    """Keeps what is reported to it inside a lock, and passes it on when `deliver` is called outside of it, in its
    order.

    What is passed on goes through `telling`. Threads may share one.

    Args:
        observer: is notified in the end.
    """

    def __init__(self, observer: Observer | None) -> None:
        self._told = telling(observer)
        self._calls = LaterCalls()

    def progress(self, progress: Progress) -> None:
        """Kept."""
        self._calls.put(self._told.progress, progress)

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        """Kept."""
        self._calls.put(self._told.count, name, value, labels)

    def measure(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Kept."""
        self._calls.put(self._told.measure, name, value, labels)

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Kept."""
        self._calls.put(self._told.event, name, fields)

    @property
    def is_deaf(self) -> bool:
        """See `Observer.is_deaf`."""
        return self._told.is_deaf

    def deliver(self) -> None:
        """Pass on all that was kept, unless another thread does so; call it with no lock held."""
        self._calls.deliver()

    def __repr__(self) -> str:
        return f"LaterObserver({self._told!r}, {len(self._calls)} kept)"
