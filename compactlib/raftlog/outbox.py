"""What happened inside a lock, told once no lock is held any more, in the order in which it happened."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from compactlib.runtime import tell


class Outbox:
    """Calls to listeners that wait until nobody here holds a lock. Threads may share it.

    One thread at a time delivers, and what others put in meanwhile as well: so each listener hears things in order, and
    may call whatever it likes. What a listener raises is kept and logged.

    Attributes:
        failures: how many calls raised.
        last_error: what was raised last.
    """

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()
        self._delivering = threading.Lock()
        self._mine = threading.local()
        self.failures: int = 0
        self.last_error: Exception | None = None

    def put(self, listener: Callable[..., object], *arguments: object) -> None:
        """Have `listener` called with the next `deliver`."""
        self._waiting.append(partial(listener, *arguments))

    def held(self) -> Outbox:
        """This thread delivers nothing inside `with outbox.held():`, and everything behind it.

        For whoever is to hold a lock. An interrupt is not kept waiting: what was put in stays for the next delivery.
        """
        return self

    def __enter__(self) -> Outbox:
        self._mine.depth = getattr(self._mine, "depth", 0) + 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._mine.depth -= 1
        if self._waiting and (kind is None or issubclass(kind, Exception)):
            self.deliver()

    def deliver(self) -> None:
        """Make the calls that wait, unless another thread is at it, or this one is inside `held`."""
        # Looked at again after each round: who was turned away meanwhile has left its calls to this thread.
        while self._waiting and not getattr(self._mine, "depth", 0):
            if not self._delivering.acquire(blocking=False):
                return
            try:
                while self._waiting:
                    error = tell(self._waiting.popleft())
                    if error is not None:
                        self.failures, self.last_error = self.failures + 1, error
            finally:
                self._delivering.release()

    def __repr__(self) -> str:
        return f"<Outbox: {len(self._waiting)} calls wait, {self.failures} failed>"
