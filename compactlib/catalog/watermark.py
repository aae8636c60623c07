# SPDX-License-Identifier: Apache-2.0
"""The low watermark: the time below which data may be deleted. It only rises, is durable, and waits for its readers.

A rise refuses new readers below the new value, and then stores it. The value in force is the stored value, or the time
of the lowest reader if that is lower. So a value that was not stored is never in force, and a recovered value is in
force at once.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import attrs

from compactlib.catalog.errors import BelowLowWatermark
from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.keys import low_watermark_key
from compactlib.catalog.service import CatalogService
from compactlib.catalog.timestamp import Timestamp, add_ms, checked_timestamp, milliseconds, physical_ms
from compactlib.catalog.values import Factor, Floor
from compactlib.errors import InvalidInput
from compactlib.kv.cell import Cell


@attrs.frozen
class Watermark:
    """A node's low watermark: data below `time` may be deleted.

    Attributes:
        time: the value in force; `None` before the first.
        pending: the stored value, while a reader is below it; else `None`.
    """

    time: Timestamp | None = None
    pending: Timestamp | None = None


class LowWatermark:
    """A node's low watermark, in a cell of a store. Any thread may call it.

    Args:
        service: the node's catalog, in the store of the cell. A recovered value that is lower than the activation of
            the earliest retained version is raised to that.
        node: the node's name, part of the key.
        data_availability_seconds: how long old data stays readable.

    Raises:
        InvalidInput: the duration is negative.
        CorruptData, Unsupported: the stored value cannot be read.
    """

    def __init__(self, service: CatalogService, node: str, *, data_availability_seconds: float = 600.0) -> None:
        self._clock = service.clock
        self._cell = Cell[int](service.log.store, service.log.partition, low_watermark_key(node), int,
                               clock=self._clock.clock)
        self._availability_ms = milliseconds(data_availability_seconds, name="data_availability_seconds")
        self._lock = threading.Lock()
        stored = self._cell.read()
        self._stored: Timestamp | None = None if stored is None else max(
            checked_timestamp(stored), service.history.activation(service.history.earliest))
        self._limit = self._stored or 0  # no reader begins below; invariant: at or above the stored value
        self._readers: dict[Hashable, Timestamp] = {}

    # -- reading

    @property
    def value(self) -> Watermark:
        """The value in force, and the pending value. O(readers)."""
        with self._lock:
            if self._stored is None:
                return Watermark()
            time = min([self._stored, *self._readers.values()])
            return Watermark(time, self._stored if self._stored > time else None)

    def candidate(self) -> Timestamp | None:
        """Return now minus the availability minus the clocks' greatest skew; `None` if that is before the epoch."""
        back = self._availability_ms + self._clock.max_skew_ms
        now = self._clock.present()
        return add_ms(now, -back) if physical_ms(now) > back else None

    def need(self, view: RetainedVersions) -> Floor:
        """Return the value in force as a floor; no later reader begins below it."""
        time = self.value.time
        return Floor(Factor.LOW_WATERMARK, time) if time else Floor.unknown("the low watermark has not been raised yet")

    # -- raising

    def advance(self, to: Timestamp | None = None) -> Watermark:
        """Raise the low watermark to `to`, default `candidate()`; pending while a reader is below it.

        Does nothing if that value is not higher. After an error the value in force is unchanged, and readers below `to`
        stay refused, since the store may have the value.

        Returns:
            The value in force now, and the pending value.

        Raises:
            InvalidInput: `to` is no timestamp.
            OutcomeUnknown, CompactlibError: the store did not acknowledge.
        """
        wanted = self.candidate() if to is None else checked_timestamp(to)
        if wanted is not None and wanted > (self._stored or 0):
            with self._lock:
                self._limit = max(self._limit, wanted)
            # Without the lock, so that readers do not wait for the store.
            self._cell.update(lambda stored: max(wanted, stored or 0), operation="storing the low watermark",
                              may_repeat=True)
            with self._lock:
                self._stored = max(self._stored or 0, wanted)
        return self.value

    # -- readers

    def lock(self, reader: Hashable, time: Timestamp) -> None:
        """Keep the low watermark from passing `time` until `unlock(reader)`. O(1).

        Raises:
            BelowLowWatermark: the low watermark or its pending value is above `time`.
            InvalidInput: the reader has a lock already.
        """
        with self._lock:
            if time < self._limit:
                raise BelowLowWatermark(time=time, low_watermark=self._limit)
            if reader in self._readers:
                raise InvalidInput(f"reader {reader!r} holds a lock already; give each reader a different name")
            self._readers[reader] = time

    def unlock(self, reader: Hashable) -> None:
        """Release the reader's lock, if it has one."""
        with self._lock:
            self._readers.pop(reader, None)

    @contextmanager
    def reading(self, reader: Hashable, time: Timestamp) -> Iterator[None]:
        """Hold the reader's lock for a block."""
        self.lock(reader, time)
        try:
            yield
        finally:
            self.unlock(reader)
