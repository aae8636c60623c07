"""`LogFollower`: watches the update log's keys for what other nodes append, in a thread of its own.

Key-value stores have no common way to tell of changes, so the follower looks: every so often, and at once when somebody
nudges it, for instance on a notification that a host's store does have. One look costs two reads if nothing is new.
"""

from __future__ import annotations

import threading
from typing import Self

from compactlib.catalog.service import CatalogService
from compactlib.errors import Closed, CompactlibError, InvalidInput
from compactlib.observe import Observer


class LogFollower:
    """Keeps a service's view up to date; use it in a `with`. `nudge` may be called from any thread.

    A look that fails is told to the observer (`catalog_follow_failed`), kept in `last_error`, and made again at the
    next turn: a store that is away for a while, and damage that somebody repairs, end nothing.

    Args:
        service: what to keep up to date.
        interval_seconds: how long to wait between two looks, > 0.
        observer: told of looks that fail.

    Raises:
        InvalidInput: the interval is not above 0.
    """

    def __init__(self, service: CatalogService, *, interval_seconds: float = 0.1,
                 observer: Observer | None = None) -> None:
        if not 0 < interval_seconds <= threading.TIMEOUT_MAX:
            raise InvalidInput(f"interval_seconds is {interval_seconds}; give more than 0")
        self._service = service
        self._interval = interval_seconds
        self._observer = Observer() if observer is None else observer
        self._wake = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        self.last_error: CompactlibError | None = None

    def start(self) -> None:
        """Begin to look.

        Raises:
            Closed: it was stopped, or runs already.
        """
        if self._stopped or self._thread is not None:
            raise Closed("this follower was started before; make a new one")
        self._thread = threading.Thread(target=self._run, name="catalog-follower", daemon=True)
        self._thread.start()

    def nudge(self) -> None:
        """Look now."""
        self._wake.set()

    def stop(self) -> None:
        """End after the look at hand; stopping again does nothing."""
        self._stopped = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        while not self._stopped:
            try:
                self._service.poll()
                self.last_error = None
            except CompactlibError as error:
                self.last_error = error
                self._observer.event("catalog_follow_failed", {"error": str(error)})
            self._wake.wait(self._interval)
            self._wake.clear()

    def __repr__(self) -> str:
        state = "stopped" if self._stopped else "not started" if self._thread is None else "running"
        return f"LogFollower({self._service!r}, {state})"
