"""Telling an observer after a lock is released what happened while it was held."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from compactlib.observe import Observer, Progress
from compactlib.runtime.tell import telling


class LaterObserver(Observer):
    """Keeps what it is told inside a lock, and passes it on when `deliver` is called outside of it, in its order.

    What is passed on is told as by `telling`. Threads may share one.

    Args:
        observer: who is told in the end.
    """

    def __init__(self, observer: Observer | None) -> None:
        self._told = telling(observer)
        self._kept: deque[Callable[[], object]] = deque()

    def progress(self, progress: Progress) -> None:
        """Kept."""
        self._kept.append(partial(self._told.progress, progress))

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        """Kept."""
        self._kept.append(partial(self._told.count, name, value, labels))

    def measure(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Kept."""
        self._kept.append(partial(self._told.measure, name, value, labels))

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Kept."""
        self._kept.append(partial(self._told.event, name, fields))

    def deliver(self) -> None:
        """Pass on all that was kept; call it with no lock held."""
        while self._kept:
            try:
                pass_on = self._kept.popleft()
            except IndexError:  # another thread was faster
                return
            pass_on()

    def __repr__(self) -> str:
        return f"LaterObserver({self._told!r}, {len(self._kept)} kept)"
