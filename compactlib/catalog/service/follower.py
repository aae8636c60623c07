# SPDX-License-Identifier: Apache-2.0
"""`LogFollower`: watches the update log's keys for what other nodes append, in a thread of its own.

Key-value stores have no common change notification, so the follower polls: every so often, and at once when a caller
nudges it, for instance on a notification that a host's store does have. One look costs two reads if nothing is new.
"""

from __future__ import annotations

from compactlib.catalog.model.timestamp import milliseconds
from compactlib.catalog.service.service import CatalogService
from compactlib.clock import Clock
from compactlib.errors import Closed, InvalidInput
from compactlib.outcome import Done, Failed, Skipped
from compactlib.runtime.observe import Observer
from compactlib.runtime.services.service_face import ServiceFace
from compactlib.runtime.services.work_service import Job, WorkService

_LONGEST_DELAY_SECONDS = 10.0
_LOOK = "look"


class LogFollower(ServiceFace):
    """A `Service` that keeps a catalog up to date. `nudge` may be called from any thread.

    A look that fails, whatever it raises, is reported to the observer (`catalog_follow_failed`), kept in `last_error`,
    and made again after a growing delay, at the latest after ten seconds: a store that is away for a while, and damage
    that is repaired, end nothing.

    Args:
        service: what to keep up to date.
        interval_seconds: how long to wait between two looks, > 0.
        observer: notified of looks that fail.
        clock: for when a look is due.

    Raises:
        InvalidInput: the interval is not above 0.
    """

    def __init__(self, service: CatalogService, *, interval_seconds: float = 0.1,
                 observer: Observer | None = None, clock: Clock | None = None) -> None:
        if not milliseconds(interval_seconds, name="interval_seconds"):
            raise InvalidInput(f"interval_seconds is {interval_seconds}; give more than 0")
        self._catalog = service
        self._service = WorkService("the follower of the catalog", event="catalog_follow_failed", clock=clock,
                                    observer=observer, retry_seconds=min(interval_seconds, _LONGEST_DELAY_SECONDS),
                                    max_retry_seconds=_LONGEST_DELAY_SECONDS)
        self._service.add(_LOOK, self._look, every_seconds=interval_seconds)

    def nudge(self) -> None:
        """Look now."""
        self._service.request(_LOOK)

    def _look(self, job: Job) -> Done[int] | Skipped | Failed:
        """Take in what is new; how many versions."""
        try:
            self._catalog.status()
        except Closed as error:
            job.rest()
            return Failed(error)
        found = self._catalog.poll()
        return Done(found) if found else Skipped(f"version {self._catalog.history.latest} is the latest still")

    def __repr__(self) -> str:
        return f"LogFollower({self._catalog!r}, {self._service!r})"
