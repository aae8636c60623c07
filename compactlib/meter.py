# SPDX-License-Identifier: Apache-2.0
"""Metrics of the requests to a store, reported to an observer: how often, how they ended, how long, how many bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from compactlib.clock import Clock
from compactlib.errors import CompactlibError
from compactlib.observer import Observer, Observers


class Meter:
    """Reports the requests to one store. Any thread may use it.

    Labels are bounded: the store's name is the host's, operations are methods, and an outcome is `ok` or the name of
    an error class of this library (any other exception is `error`).

    Args:
        observer: is notified.
        family: what the names begin with, `kv` or `objects`.
        store: the label `store`.
        clock: times the requests.
    """

    def __init__(self, observer: Observer, family: str, store: str, clock: Clock) -> None:
        self._observer = Observers(observer)
        self._family = family
        self._store = store
        self._clock = clock

    def began(self) -> float:
        """When a request began, for `ended`."""
        return self._clock.monotonic()

    def ended(self, operation: str, began: float, error: BaseException | None = None) -> None:
        """A request is over."""
        labels = {"store": self._store, "operation": operation}
        self._observer.event(f"{self._family}_request_seconds", sample=self._clock.monotonic() - began, **labels)
        self._observer.event(f"{self._family}_requests", add=1, **labels, outcome=_outcome(error))

    @contextmanager
    def request(self, operation: str) -> Iterator[None]:
        """A request, from its beginning to its end."""
        began = self.began()
        try:
            yield
        except BaseException as error:
            self.ended(operation, began, error)
            raise
        self.ended(operation, began)

    def read(self, operation: str, size: int) -> None:
        """So many bytes of content came."""
        self._bytes("read", operation, size)

    def written(self, operation: str, size: int) -> None:
        """So many bytes of content went."""
        self._bytes("written", operation, size)

    def _bytes(self, direction: str, operation: str, size: int) -> None:
        self._observer.event(f"{self._family}_{direction}_bytes", add=size, store=self._store, operation=operation)


def _outcome(error: BaseException | None) -> str:
    if error is None:
        return "ok"
    return type(error).__name__ if isinstance(error, CompactlibError) else "error"
