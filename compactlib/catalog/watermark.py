# SPDX-License-Identifier: Apache-2.0
"""The low watermark: the time below which data may be deleted. It only rises, is durable, and waits for its readers.

A rise has four steps: refuse new readers below the new value, store it, wait for the present readers below it, put it
in force and call the listeners. A recovered value is in force at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager

import attrs

from compactlib.catalog.errors import BelowLowWatermark
from compactlib.catalog.history import RetainedVersions
from compactlib.catalog.keys import low_watermark_key
from compactlib.catalog.timestamp import HybridClock, Timestamp, add_ms, checked_timestamp, milliseconds, physical_ms
from compactlib.catalog.values import Factor, Floor, Need, Unavailable
from compactlib.codec import JsonCodec
from compactlib.errors import InvalidInput
from compactlib.kv import KVStore
from compactlib.kv.cell import Cell

_LOGGER = logging.getLogger("compactlib.catalog")

WatermarkListener = Callable[[Timestamp], object]
"""Called with each new value once it is in force, not with the recovered value. Its errors are logged."""


@attrs.frozen
class Watermark:
    """A node's low watermark: data below `time` may be deleted.

    Attributes:
        time: the value in force; `None` before the first.
        pending: the next value, until it is stored and no reader is below it; `None` without a rise.
    """

    time: Timestamp | None = None
    pending: Timestamp | None = None


class LowWatermark:
    """A node's low watermark, in a cell of a store. Any thread may call it.

    Args:
        store: the store of the cell.
        node: the node's name, part of the key.
        clock: the node's clock.
        data_availability_seconds: how long old data stays readable.
        earliest: activation of the earliest retained catalog version; a lower recovered value is raised to it.
        partition: the store's partition.

    Raises:
        InvalidInput: the duration is negative.
        CorruptData, Unsupported: the stored value cannot be read.
    """

    def __init__(self, store: KVStore, node: str, clock: HybridClock, *, data_availability_seconds: float = 600.0,
                 earliest: Timestamp | None = None, partition: bytes = b"catalog") -> None:
        self._clock = clock
        self._cell = Cell[int](store, partition, low_watermark_key(node), JsonCodec(int), clock=clock.clock)
        self._availability_ms = milliseconds(data_availability_seconds, name="data_availability_seconds")
        self._lock = threading.Lock()
        kept = self._cell.read()
        self._time: Timestamp | None = None if kept is None else max(checked_timestamp(kept), earliest or 0)
        self._pending: Timestamp | None = None
        self._is_kept = False  # whether the store has the pending value
        self._readers: dict[Hashable, Timestamp] = {}
        self._listeners: list[WatermarkListener] = []

    # -- reading

    @property
    def value(self) -> Watermark:
        """The value in force, and the pending value."""
        with self._lock:
            return Watermark(self._time, self._pending)

    def candidate(self) -> Timestamp | None:
        """Return now minus the availability minus the clocks' greatest skew; `None` if that is before the epoch."""
        back = self._availability_ms + self._clock.max_skew_ms
        now = self._clock.present()
        return add_ms(now, -back) if physical_ms(now) > back else None

    def need(self, view: RetainedVersions) -> Need:
        """Return the value in force as a floor; a pending value still has readers below it."""
        time = self.value.time
        if time is None:
            return Unavailable(Factor.LOW_WATERMARK, "it has not been raised yet")
        return Floor(Factor.LOW_WATERMARK, time)

    def listen(self, listener: WatermarkListener) -> None:
        """Call `listener` with each later value once it is in force."""
        with self._lock:
            self._listeners.append(listener)

    # -- raising

    def advance(self, to: Timestamp | None = None) -> Watermark:
        """Raise the low watermark to `to`, default `candidate()`; pending until the last reader below it ends.

        Does nothing if that value is not higher, or another rise is pending.

        Returns:
            The value in force now, and the pending value.

        Raises:
            InvalidInput: `to` is no timestamp.
            OutcomeUnknown, CompactlibError: the store did not acknowledge; the value in force is unchanged.
        """
        wanted = self.candidate() if to is None else checked_timestamp(to)
        self._put_in_force()  # an interrupt may have ended the last rise before this step
        is_rising = False
        try:
            with self._lock:
                if wanted is None or wanted <= (self._time or 0) or self._pending is not None:
                    return Watermark(self._time, self._pending)
                # From here on no reader begins below `wanted`. The lock is released while the store writes.
                is_rising = True
                self._pending = wanted
            self._cell.update(lambda kept: max(wanted, kept or 0), operation="keeping the low watermark",
                              may_repeat=True)
            with self._lock:
                self._is_kept = True
        except BaseException:
            with self._lock:
                if is_rising and not self._is_kept:
                    self._pending = None
            raise
        self._put_in_force()
        return self.value

    def _put_in_force(self) -> None:
        """Put the pending value in force if it is stored and no reader is below it."""
        with self._lock:
            time = self._pending
            if time is None or not self._is_kept or any(reader < time for reader in self._readers.values()):
                return
            self._time, self._pending, self._is_kept = time, None, False
            listeners = tuple(self._listeners)
        for listener in listeners:
            try:
                listener(time)
            except Exception as error:
                _LOGGER.warning("the listener %r of the low watermark raised %r; the others are called", listener,
                                error, exc_info=error)

    # -- readers

    def lock(self, reader: Hashable, time: Timestamp) -> None:
        """Keep the low watermark from passing `time` until `unlock(reader)`. O(1).

        Raises:
            BelowLowWatermark: the low watermark or its pending value is above `time`.
            InvalidInput: the reader has a lock already.
        """
        with self._lock:
            limit = max(self._time or 0, self._pending or 0)
            if time < limit:
                raise BelowLowWatermark(time=time, low_watermark=limit)
            if reader in self._readers:
                raise InvalidInput(f"reader {reader!r} holds a lock already; give each reader a different name")
            self._readers[reader] = time

    def unlock(self, reader: Hashable) -> None:
        """Release the reader's lock, if it has one. The last reader below a pending value puts that value in force."""
        with self._lock:
            self._readers.pop(reader, None)
        self._put_in_force()

    @contextmanager
    def reading(self, reader: Hashable, time: Timestamp) -> Iterator[None]:
        """Hold the reader's lock for a block."""
        self.lock(reader, time)
        try:
            yield
        finally:
            self.unlock(reader)

    def __repr__(self) -> str:
        return f"LowWatermark({self.value}, {len(self._readers)} readers)"
