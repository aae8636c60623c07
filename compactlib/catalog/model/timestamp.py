# SPDX-License-Identifier: Apache-2.0
"""Hybrid logical timestamps: 48 bits of milliseconds, 16 bits of counter, in one integer that orders events.

A timestamp is a plain `int`, so that it compares, packs and prints at no cost: `physical_ms << 16 | logical`. 0 means
"no time"; the lowest time is 1.

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
from sys import float_info
from typing import TypeAlias

from compactlib.catalog.errors import ClockSkewExceeded
from compactlib.clock import Clock
from compactlib.errors import InvalidInput
from compactlib.runtime import SteadyClock
from compactlib.runtime.observe import Observer

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
    if not _is_finite(seconds) or seconds < 0:
        raise InvalidInput(f"{seconds!r} is no time since the epoch; give seconds >= 0")
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
    if not _is_finite(seconds) or seconds < 0:
        raise InvalidInput(f"{name} is {seconds!r}; give seconds >= 0")
    return math.ceil(round(seconds * 1000, 6))


def _is_finite(seconds: float) -> bool:
    return type(seconds) in (int, float, bool) and abs(seconds) <= _MAX_SECONDS


def show(time: Timestamp) -> str:
    """A timestamp as people read it: milliseconds, and the counter if there is one."""
    return f"{physical_ms(time)}+{logical(time)}" if logical(time) else str(physical_ms(time))


class HybridClock:
    """Gives timestamps that ascend strictly and never fall behind what was observed. Any thread may call it.

    The physical clock is held against its own monotonic one (`compactlib.runtime.SteadyClock`): a jump beyond a minute
    is refused by name until a later reading confirms it, or `accept` does, so that a clock that was wrong once leaves
    no timestamp that every node has to wait for.

    Args:
        clock: where physical time comes from; it may jump back, the timestamps do not. A `SteadyClock` is taken as it
            is, with its own bounds.
        max_skew_seconds: how far an observed timestamp may run ahead of this clock.
        observer: notified of jumps (`clock_jumped`, `clock_accepted`).

    Raises:
        InvalidInput: the skew is negative or not finite.
    """

    def __init__(self, clock: Clock, *, max_skew_seconds: float = 0.5, observer: Observer | None = None) -> None:
        self.max_skew_ms: int = milliseconds(max_skew_seconds, name="max_skew_seconds")
        self._observer = observer
        self._is_given = isinstance(clock, SteadyClock)
        self._steady: SteadyClock = clock if isinstance(clock, SteadyClock) else SteadyClock(clock, observer=observer)
        self._known = False
        self._last = 0
        self._lock = threading.Lock()

    @property
    def steady(self) -> SteadyClock:
        """The physical clock, held against the monotonic one."""
        return self._steady

    def known(self, time: Timestamp) -> None:
        """Give the clock a time that a store was seen at in an earlier life; the first call counts.

        A step forward since then is accepted for new timestamps, and expires nothing until a later reading confirms
        it; a step back is refused until then. A `SteadyClock` that was given knows its own last time.
        """
        seconds = to_seconds(checked_timestamp(time))
        with self._lock:
            if self._known or self._is_given:
                return
            self._known = True
        self._steady = SteadyClock(self._steady.host_clock, last_known=seconds, observer=self._observer)

    def now(self) -> Timestamp:
        """The next timestamp: the physical clock's, or one more than the last if that is not above it. O(1).

        Raises:
            ClockJumped: the physical clock is off, and nothing has confirmed it.
        """
        physical = int(self._steady.now() * 1000) << LOGICAL_BITS
        with self._lock:
            self._last = physical if physical > self._last else self._last + 1
            return self._last

    def present(self) -> Timestamp:
        """The time to look things up at; never refused, and while a jump is in doubt as if there had been none."""
        return max(int(self._steady.steady() * 1000) << LOGICAL_BITS, self._last, LOWEST)

    def expiry(self, *, moves_on: bool = True) -> Timestamp:
        """The time up to which things may be taken as expired, and below which nothing new will be needed.

        As `present`, but held after a step at opening until a later reading has confirmed it.

        Args:
            moves_on: whether `now` is to stay above it; otherwise it is never below it.
        """
        wall, limit = self._steady.steady(), self._steady.expiry()
        time = max(int(min(wall, limit) * 1000) << LOGICAL_BITS, LOWEST)
        if not moves_on:
            return time if limit < wall else max(time, self._last)
        with self._lock:
            if limit < wall:
                self._last = max(self._last, time)
                return time
            self._last = max(self._last + 1, time)
            return self._last

    def ahead_ms(self, time: Timestamp) -> int:
        """By how many milliseconds a timestamp runs ahead of the physical clock; negative if it lies behind."""
        return physical_ms(time) - int(self._steady.steady() * 1000)

    def accept(self) -> None:
        """Accept the physical clock as it stands; for an operator who has looked at it."""
        self._steady.accept()

    def observe(self, time: Timestamp) -> Timestamp:
        """Take over a timestamp received from elsewhere and give one above it.

        Raises:
            InvalidInput: `time` is no timestamp.
            ClockSkewExceeded: it runs ahead by more than the allowed skew; the clock did not move.
            ClockJumped: as `now`; the clock did not move.
        """
        checked_timestamp(time)
        ahead = physical_ms(time) - int(self._steady.now() * 1000)
        if ahead > self.max_skew_ms:
            raise ClockSkewExceeded(time=time, ahead_ms=ahead, limit_ms=self.max_skew_ms)
        with self._lock:
            self._last = max(self._last, time)
        return self.now()

    def wait_until(self, time: Timestamp) -> None:
        """Sleep until the physical clock is at or above `time`, or so much time has passed by the monotonic one."""
        end: float | None = None
        while (short := self.ahead_ms(time) / 1000) > 0:
            tick = self._steady.monotonic()
            # A little more, so that rounding does not end it before the physical clock is there.
            end = tick + short + _ROUNDING_SECONDS if end is None else end
            if tick >= end:
                return
            self._steady.sleep(min(short, end - tick))

    def __repr__(self) -> str:
        return f"HybridClock(last={show(self._last)})"
