"""Telling those who watch: what an observer or a listener raises is kept and logged, and breaks nothing.

Callables whose answer is used (a policy, a fence, the change of an update) are not told but asked: what they raise is
the caller's to see. Nobody is told inside a lock or in a replay; that is for the caller to see to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from compactlib.observe import Observer, Progress

_LOGGER = logging.getLogger("compactlib.observers")


class TellingObserver(Observer):
    """Passes everything on to an observer, and keeps what that raises; `KeyboardInterrupt` and the like pass through.

    Logged are the first failure, the second, the fourth, and so on, so that one that always fails fills no log.

    Attributes:
        failures: how often the observer raised.
        last_error: what it raised last.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self.failures: int = 0
        self.last_error: Exception | None = None

    def progress(self, progress: Progress) -> None:
        """Passed on."""
        self._tell(self._observer.progress, progress)

    def count(self, name: str, value: int = 1, labels: Mapping[str, str] | None = None) -> None:
        """Passed on."""
        self._tell(self._observer.count, name, value, labels)

    def measure(self, name: str, value: float, labels: Mapping[str, str] | None = None) -> None:
        """Passed on."""
        self._tell(self._observer.measure, name, value, labels)

    def event(self, name: str, fields: Mapping[str, Any]) -> None:
        """Passed on."""
        self._tell(self._observer.event, name, fields)

    def _tell(self, method: Callable[..., object], *arguments: object) -> None:
        try:
            method(*arguments)
        except Exception as error:
            self.failures += 1
            self.last_error = error
            if self.failures & (self.failures - 1) == 0:
                _LOGGER.warning("the observer %r raised %r (failure %d); the work goes on", self._observer, error,
                                self.failures, exc_info=error)

    def __repr__(self) -> str:
        return f"TellingObserver({self._observer!r}, failures={self.failures})"


def telling(observer: Observer | None) -> Observer:
    """`observer` as the library tells it, whatever it raises; `None` is one that does nothing."""
    if observer is None:
        return Observer()
    if type(observer) is Observer or isinstance(observer, TellingObserver):
        return observer
    return TellingObserver(observer)


def tell(listener: Callable[..., object], *arguments: object) -> Exception | None:
    """Call a listener whose answer nobody uses; returns what it raised, which is logged, or `None`."""
    try:
        listener(*arguments)
    except Exception as error:
        _LOGGER.warning("the listener %r raised %r; the work goes on", listener, error, exc_info=error)
        return error
    return None
