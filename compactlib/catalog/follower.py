"""`LogFollower`: watches the update log's keys for what other nodes append, in a thread of its own.

Key-value stores have no common way to tell of changes, so the follower looks: every so often, and at once when somebody
nudges it, for instance on a notification that a host's store does have. One look costs two reads if nothing is new.
"""

from __future__ import annotations

import threading
from typing import Self

from compactlib.catalog.service import CatalogService
from compactlib.catalog.timestamp import milliseconds
from compactlib.clock import Clock
from compactlib.errors import InvalidInput
from compactlib.observe import Observer
from compactlib.runtime import Turns

_FOLLOW_FAILED = "catalog_follow_failed"
_LONGEST_DELAY_SECONDS = 10.0


class LogFollower:
    """Keeps a service's view up to date; use it in a `with`. `nudge` may be called from any thread.

    A look that fails, whatever it raises, is told to the observer (`catalog_follow_failed`), kept in `last_error`, and
    made again after a growing delay, at the latest after ten seconds: a store that is away for a while, and damage that
    somebody repairs, end nothing.

    Args:
        service: what to keep up to date.
        interval_seconds: how long to wait between two looks, > 0.
        observer: told of looks that fail.
        clock: for when a look is due.

    Raises:
        InvalidInput: the interval is not above 0.
    """

    def __init__(self, service: CatalogService, *, interval_seconds: float = 0.1,
                 observer: Observer | None = None, clock: Clock | None = None) -> None:
        if not milliseconds(interval_seconds, name="interval_seconds") or interval_seconds > threading.TIMEOUT_MAX:
            raise InvalidInput(f"interval_seconds is {interval_seconds}; give more than 0")
        self._service = service
        self._interval = interval_seconds
        self._turns = Turns(self._look, name="catalog-follower", event=_FOLLOW_FAILED, clock=clock,
                            observer=observer, first_delay_seconds=min(interval_seconds, _LONGEST_DELAY_SECONDS),
                            max_delay_seconds=_LONGEST_DELAY_SECONDS)

    @property
    def last_error(self) -> BaseException | None:
        """What the last look that failed raised, if every look since then has failed as well; else `None`."""
        return self._turns.last_error if self._turns.failures_in_a_row or not self._turns.is_running else None

    def start(self) -> None:
        """Begin to look; starting again does nothing.

        Raises:
            Closed: it was stopped.
        """
        self._turns.start()

    def nudge(self) -> None:
        """Look now."""
        self._turns.wake()

    def stop(self) -> None:
        """End after the look at hand; stopping again does nothing.

        Raises:
            Busy: called by a listener of the service, inside a look; it ends after that look.
        """
        self._turns.stop()

    def audit(self) -> None:
        """Check that it still looks, if it should.

        Raises:
            CompactlibError: its thread has ended although nobody stopped it.
        """
        self._turns.audit()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _look(self) -> float:
        self._service.poll()
        return self._interval

    def __repr__(self) -> str:
        return f"LogFollower({self._service!r}, {self._turns!r})"
