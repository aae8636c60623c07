"""Hybrid logical timestamps: 48 bits of milliseconds, 16 bits of counter, in one integer that orders events.

A timestamp is a plain `int`, so that it compares, packs and prints at no cost: `physical_ms << 16 | logical`. 0 means
"no time"; the lowest time is 1 (notes/catalog.md 1.1).

>>> commit = timestamp(1000, 5)
>>> activation = add_ms(commit, 500)
>>> activation, show(activation)
(98304005, '1500+5')
>>> show(ensured_activation(activation, max_skew_ms=500))
'2001'
"""

from __future__ import annotations

import math
import threading
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


def timestamp(physical_ms: int, logical: int = 0) -> Timestamp:
    """The timestamp of these two parts.

    Raises:
        InvalidInput: a part is out of range, or both are 0.
    """
    if not 0 <= logical <= _MAX_LOGICAL:
        raise InvalidInput(f"the logical part is {logical}; it must be between 0 and {_MAX_LOGICAL}")
    return checked_timestamp((physical_ms << LOGICAL_BITS) | logical)


def checked_timestamp(value: int) -> Timestamp:
    """`value`, which must be a timestamp.

    Raises:
        InvalidInput: it is no integer from 1 to 2**63 - 1.
    """
    if type(value) is not int or not LOWEST <= value <= HIGHEST:
        raise InvalidInput(f"{value!r} is no timestamp; one is an integer from {LOWEST} to {HIGHEST}")
    return value


def physical_ms(time: Timestamp) -> int:
    """Milliseconds since the epoch."""
    return time >> LOGICAL_BITS


def logical(time: Timestamp) -> int:
    """The counter that orders events of one millisecond, 0 .. 65535."""
    return time & _MAX_LOGICAL


def from_seconds(seconds: float) -> Timestamp:
    """The first timestamp of the millisecond in which `seconds` since the epoch lie; the epoch itself gives 1.

    Raises:
        InvalidInput: not finite, negative, or beyond the year 6000.
    """
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidInput(f"{seconds} is no time since the epoch; give seconds >= 0")
    return checked_timestamp(max(int(seconds * 1000) << LOGICAL_BITS, LOWEST))


def to_seconds(time: Timestamp) -> float:
    """Seconds since the epoch, the counter left out."""
    return (time >> LOGICAL_BITS) / 1000


def add_ms(time: Timestamp, milliseconds: int) -> Timestamp:
    """`time` moved by `milliseconds`, negative ones backwards; the counter stays.

    Raises:
        InvalidInput: the result is no timestamp.
    """
    return checked_timestamp(time + (milliseconds << LOGICAL_BITS))


def round_up(time: Timestamp) -> Timestamp:
    """The first timestamp with a counter of 0 that is not below `time`."""
    return time if not time & _MAX_LOGICAL else ((time >> LOGICAL_BITS) + 1) << LOGICAL_BITS


def ensured_activation(activation: Timestamp, *, max_skew_ms: int) -> Timestamp:
    """From when on every node agrees that what is active at `activation` is active, whatever its clock's skew."""
    return round_up(add_ms(activation, max_skew_ms))


def milliseconds(seconds: float, *, name: str) -> int:
    """A duration as whole milliseconds, rounded up; `name` is the argument's, for the message.

    Raises:
        InvalidInput: not finite or negative.
    """
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidInput(f"{name} is {seconds}; give seconds >= 0")
    return math.ceil(round(seconds * 1000, 6))


def show(time: Timestamp) -> str:
    """A timestamp as people read it: milliseconds, and the counter if there is one."""
    return f"{physical_ms(time)}+{logical(time)}" if logical(time) else str(physical_ms(time))


class HybridClock:
    """Gives timestamps that ascend strictly and never fall behind what was observed. Any thread may call it.

    Args:
        clock: where physical time comes from; it may jump back, the timestamps do not.
        max_skew_seconds: how far an observed timestamp may run ahead of this clock.

    Raises:
        InvalidInput: the skew is negative or not finite.
    """

    def __init__(self, clock: Clock, *, max_skew_seconds: float = 0.5) -> None:
        self._clock = clock
        self.max_skew_ms: int = milliseconds(max_skew_seconds, name="max_skew_seconds")
        self._last = 0
        self._lock = threading.Lock()

    def now(self) -> Timestamp:
        """The next timestamp: the physical clock's, or one more than the last if that is not above it. O(1)."""
        physical = int(self._clock.now() * 1000) << LOGICAL_BITS
        with self._lock:
            self._last = physical if physical > self._last else self._last + 1
            return self._last

    def observe(self, time: Timestamp) -> Timestamp:
        """Take over a timestamp received from elsewhere and give one above it.

        Raises:
            InvalidInput: `time` is no timestamp.
            ClockSkewExceeded: it runs ahead by more than the allowed skew; the clock did not move.
        """
        checked_timestamp(time)
        ahead = physical_ms(time) - int(self._clock.now() * 1000)
        if ahead > self.max_skew_ms:
            raise ClockSkewExceeded(time=time, ahead_ms=ahead, limit_ms=self.max_skew_ms)
        with self._lock:
            self._last = max(self._last, time)
        return self.now()

    def wait_until(self, time: Timestamp) -> None:
        """Sleep on the physical clock until `now()` is at or above `time`."""
        while (short := physical_ms(time) - int(self._clock.now() * 1000)) > 0:
            self._clock.sleep(short / 1000)

    def __repr__(self) -> str:
        return f"HybridClock(last={show(self._last)})"
