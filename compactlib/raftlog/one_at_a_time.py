"""At most one compaction of a log at a time, which closing the log cancels and waits for."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from compactlib.budget import Budget


class OneAtATime:
    """Who compacts holds it; a second one is turned away, and closing waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: tuple[Budget, int] | None = None

    @contextlib.contextmanager
    def begin(self, budget: Budget) -> Iterator[bool]:
        """Hold it inside the `with`; yields whether it was free. `budget` is what `cancel` will cancel."""
        if not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            self._running = budget, threading.get_ident()
            yield True
        finally:
            self._running = None
            self._lock.release()

    @property
    def is_mine(self) -> bool:
        """Whether this very thread is inside a compaction, in an observer it calls for example."""
        running = self._running
        return running is not None and running[1] == threading.get_ident()

    @contextlib.contextmanager
    def ended(self) -> Iterator[None]:
        """Cancel what runs, wait for its end, and let nothing begin inside the `with`."""
        running = self._running
        if running is not None:
            running[0].cancel()
        with self._lock:
            yield
