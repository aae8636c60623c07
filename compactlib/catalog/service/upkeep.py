# SPDX-License-Identifier: Apache-2.0
"""`CatalogUpkeep`: raises a node's low watermark as time goes by, and forgets what is needed no more, in a thread.

Without it, or a host that does the same, the low watermark stands still, and so does the history that it holds.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from compactlib.catalog.model.timestamp import milliseconds
from compactlib.catalog.model.values import Assignments
from compactlib.catalog.sense.published import PublishedTimes
from compactlib.catalog.sense.watermark import LowWatermark
from compactlib.catalog.service.service import CatalogService
from compactlib.clock import Clock
from compactlib.errors import Closed, CompactlibError, InvalidInput
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime.observe import Observer
from compactlib.runtime.services.service_face import ServiceFace
from compactlib.runtime.services.work_service import Job, WorkService

_RAISE = "raise the low watermark"
_FORGET = "forget"


class CatalogUpkeep(ServiceFace):
    """A `Service` that raises a node's low watermark every so often, and deletes what has had its time: expired pins,
    times that are kept of partitions that are gone, partitions of dropped tables, and what a cut has left behind.

    How long old data stays readable is the low watermark's `data_availability_seconds`. Give a coordinated round to the
    low watermark's listeners (`watermark.listen(compaction.watermark_moved)`), and each rise starts a round.

    What fails is reported to the observer (`catalog_upkeep_failed`), and tried again after a growing delay, at the
    latest after a minute; it keeps nothing else from being deleted.

    Args:
        catalog: the node's catalog.
        watermark: the node's low watermark.
        published: the node's published times, if it hosts partitions.
        assignments: looks up which nodes host which partitions, or will: moves that are planned or under way are among
            them. Times kept of partitions that moved while this node was down are then forgotten.
        destroy: called with table and partition once the low watermark has passed the drop of a table of which this
            node hosts that partition: removes its data and its log. Then it is registered no more, and holds no
            history. Without it the host does both by itself (`PublishedTimes.unreadable`, `remove`).
        interval_seconds: how long to wait between two rises, > 0; the first comes when the service starts.
        observer: notified of what fails.
        clock: for when something is due.

    Raises:
        InvalidInput: the interval is not above 0, or an argument is of another type.
    """

    def __init__(self, catalog: CatalogService, watermark: LowWatermark, *, published: PublishedTimes | None = None,
                 assignments: Callable[[], Assignments] | None = None,
                 destroy: Callable[[int, int], object] | None = None, interval_seconds: float = 60.0,
                 observer: Observer | None = None, clock: Clock | None = None) -> None:
        if not milliseconds(interval_seconds, name="interval_seconds"):
            raise InvalidInput(f"interval_seconds is {interval_seconds}; give more than 0")
        self._catalog = catalog
        self._watermark = watermark
        self._published = published
        self._assignments = assignments
        self._destroy = destroy
        self._service = WorkService("the upkeep of the catalog", event="catalog_upkeep_failed", clock=clock,
                                    observer=observer)
        self._service.add(_RAISE, self._raise, every_seconds=interval_seconds)
        self._service.add(_FORGET, self._forget, every_seconds=interval_seconds)

    def nudge(self) -> None:
        """Raise the low watermark now."""
        self._service.request(_RAISE)

    def _raise(self, job: Job) -> Outcome[Any]:
        return self._closed(job) or self._watermark.advance()

    def _forget(self, job: Job) -> Outcome[Any]:
        closed = self._closed(job)
        if closed is not None:
            return closed
        try:
            self._catalog.poll()
            destroyed = self._destroyed()
        except CompactlibError as error:
            return Failed(error)
        forgotten, failed = 0, list[Exception]()
        for forget in (self._catalog.pins.forget_expired, *destroyed, self._forget_removed, self._forget_cut):
            # What fails, perhaps for ever, keeps none of the others.
            try:
                forgotten += forget()
            except Exception as error:
                failed.append(error)
        for other in failed[1:]:
            job.note(other)
        if not failed:
            return Done(forgotten) if forgotten else Skipped("no pin has expired, no table's partitions are gone, and "
                                                             "no cut has left anything behind")
        if isinstance(failed[0], CompactlibError):
            return Failed(failed[0])
        raise failed[0]

    def _destroyed(self) -> list[Callable[[], int]]:
        """What destroys each partition that nobody can read any more."""
        published, destroy, since = self._published, self._destroy, self._watermark.value.time
        if published is None or destroy is None or since is None:
            return []

        def destroyed(table: int, partition: int, incarnation: int) -> int:
            destroy(table, partition)
            published.remove(table, partition, incarnation)
            return 1

        return [partial(destroyed, *doomed) for doomed in published.unreadable(self._catalog.history, since)]

    def _forget_removed(self) -> int:
        if self._published is None:
            return 0
        return self._published.forget_removed(self._catalog.history,
                                              None if self._assignments is None else self._assignments())

    def _forget_cut(self) -> int:
        left = self._catalog.reclaim()
        if isinstance(left, Failed):
            raise left.error
        return left.stats.keys if isinstance(left, Done) else 0

    def _closed(self, job: Job) -> Failed | None:
        try:
            self._catalog.status()
        except Closed as error:
            job.rest()
            return Failed(error)
        return None

    def __repr__(self) -> str:
        return f"CatalogUpkeep({self._watermark!r}, {self._service!r})"
