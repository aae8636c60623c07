"""A thread that does one thing whenever it is woken, so that those who append need not."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Calls `work` once for each `wake`, or once for several that come while it works.

    Args:
        work: what to do; keeps its errors to itself.
        name: of the thread.
    """

    def __init__(self, work: Callable[[], object], name: str) -> None:
        self._work = work
        self._woken = threading.Event()
        self._ending = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There is something to do."""
        self._woken.set()

    def _run(self) -> None:
        while True:
            self._woken.wait()
            self._woken.clear()
            if self._ending:
                return
            self._work()

    def close(self) -> None:
        """Let the work in hand end, and the thread with it."""
        self._ending = True
        self._woken.set()
        self._thread.join()
