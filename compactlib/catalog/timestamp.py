# SPDX-License-Identifier: Apache-2.0
"""Hybrid logical timestamps: 48 bits of milliseconds, 16 bits of counter, in an integer that orders events.

A timestamp is a plain `int`, `physical_ms << 16 | logical`, for cheap comparison and storage. 0 means "no time"; the
lowest time is 1.

>>> commit = from_seconds(1.0) + 5
>>> activation = add_ms(commit, 500)
>>> activation, show(activation)
(98304005, '1500+5')
>>> show(ensured_activation(activation, max_skew_ms=500))
'2001'
"""

from __future__ import annotations

import math
import threading
from sys import float_info
from typing import TypeAlias

from compactlib.catalog.errors import ClockSkewExceeded
from compactlib.clock import Clock
from compactlib.errors import InvalidInput

Timestamp: TypeAlias = int
"""A hybrid timestamp: `physical_ms << 16 | logical`, 1 .. 2**63 - 1."""

LOGICAL_BITS = 16
LOWEST: Timestamp = 1
"""The lowest time, (0, 1)."""
HIGHEST: Timestamp = (1 << 63) - 1
"""The highest time; fits a signed 64-bit field."""

_MAX_LOGICAL = (1 << LOGICAL_BITS) - 1
_ROUNDING_SECONDS = 0.01
_MAX_SECONDS = float_info.max / 1000


def checked_timestamp(value: int) -> Timestamp:
    """Return `value` if it is a timestamp.

    Raises:
        InvalidInput: the value is not from 1 to 2**63 - 1.
    """
    if not LOWEST <= value <= HIGHEST:
        raise InvalidInput(f"{value!r} is no timestamp; a timestamp is an integer from {LOWEST} to {HIGHEST}")
    return value


def physical_ms(time: Timestamp) -> int:
    """Return the milliseconds since the epoch."""
    return time >> LOGICAL_BITS


def from_seconds(seconds: float) -> Timestamp:
    """Return the first timestamp of the millisecond that contains `seconds` since the epoch; 1 for the epoch itself.

    Raises:
        InvalidInput: not finite, negative, or beyond the year 6000.
    """
    if not abs(seconds) <= _MAX_SECONDS or seconds < 0:
        raise InvalidInput(f"{seconds!r} is no time since the epoch; give seconds >= 0")
    return checked_timestamp(max(int(seconds * 1000) << LOGICAL_BITS, LOWEST))


def to_seconds(time: Timestamp) -> float:
    """Return the seconds since the epoch, without the counter."""
    return (time >> LOGICAL_BITS) / 1000


def add_ms(time: Timestamp, milliseconds: int) -> Timestamp:
    """Return `time` plus `milliseconds`, which may be negative; the counter is unchanged.

    Raises:
        InvalidInput: the result is no timestamp.
    """
    return checked_timestamp(time + (milliseconds << LOGICAL_BITS))


def ensured_activation(activation: Timestamp, *, max_skew_ms: int) -> Timestamp:
    """Return the time from which every node's clock, within the skew, is at or above `activation`."""
    time = add_ms(activation, max_skew_ms)
    return time if not time & _MAX_LOGICAL else ((time >> LOGICAL_BITS) + 1) << LOGICAL_BITS


def milliseconds(seconds: float, *, name: str) -> int:
    """Return a duration as whole milliseconds, rounded up; `name` is the name of the argument, for the error.

    Raises:
        InvalidInput: not finite or negative.
    """
    if not 0 <= seconds <= _MAX_SECONDS:
        raise InvalidInput(f"{name} is {seconds!r}; give seconds >= 0")
    return math.ceil(round(float(seconds) * 1000, 6))  # as a float, since an integer of NumPy may overflow


def show(time: Timestamp) -> str:
    """Return a timestamp as text: milliseconds, and the counter unless it is 0."""
    counter = time & _MAX_LOGICAL
    return f"{physical_ms(time)}+{counter}" if counter else str(physical_ms(time))


class HybridClock:
    """Draws strictly ascending timestamps, even if the physical clock jumps back. Any thread may call it.

    A wrong physical clock is not corrected. A node whose clock is behind the log by more than the skew is not admitted
    (`CatalogNode.join`).

    Args:
        clock: the physical clock.
        max_skew_seconds: limit of the difference between the clocks of two nodes, and of the lead of an observed
            timestamp.

    Raises:
        InvalidInput: the skew is negative or not finite.
    """

    def __init__(self, clock: Clock, *, max_skew_seconds: float = 0.5) -> None:
        self.clock: Clock = clock
        self.max_skew_ms: int = milliseconds(max_skew_seconds, name="max_skew_seconds")
        self._last = 0
        self._lock = threading.Lock()

    def now(self) -> Timestamp:
        """Draw the next timestamp: the physical time, or the last timestamp plus 1 if that is higher. O(1)."""
        physical = self._physical()
        with self._lock:
            self._last = physical if physical > self._last else self._last + 1
            return self._last

    def present(self) -> Timestamp:
        """Return the present time without drawing a timestamp; every later timestamp is at or above it."""
        return max(self._physical(), self._last)

    def ahead_ms(self, time: Timestamp) -> int:
        """Return the milliseconds by which a timestamp is ahead of the physical clock; negative if it is behind."""
        return physical_ms(time) - physical_ms(self._physical())

    def observe(self, time: Timestamp) -> Timestamp:
        """Advance the clock to a timestamp from another node, and draw a timestamp above it.

        Raises:
            InvalidInput: `time` is no timestamp.
            ClockSkewExceeded: `time` is ahead by more than the skew; the clock did not advance.
        """
        ahead = self.ahead_ms(checked_timestamp(time))
        if ahead > self.max_skew_ms:
            raise ClockSkewExceeded(time=time, ahead_ms=ahead, limit_ms=self.max_skew_ms)
        with self._lock:
            self._last = max(self._last, time)
        return self.now()

    def wait_until(self, time: Timestamp) -> None:
        """Sleep until the physical clock reaches `time`, but no longer than from the present time to `time`."""
        # The limit counts if the physical clock jumps back. Some milliseconds more, so that rounding does not end the
        # wait before the physical clock reaches `time`.
        end = self.clock.monotonic() + (physical_ms(time) - physical_ms(self.present())) / 1000 + _ROUNDING_SECONDS
        while (short := min(self.ahead_ms(time) / 1000, end - self.clock.monotonic())) > 0:
            self.clock.sleep(short)

    def _physical(self) -> Timestamp:
        return max(int(self.clock.now() * 1000) << LOGICAL_BITS, LOWEST)
