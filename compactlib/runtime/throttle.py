# SPDX-License-Identifier: Apache-2.0
"""A byte-rate throttle: a token bucket as a pure value, and the class that waits for it."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable

import attrs

from compactlib.clock import Clock, SystemClock
from compactlib.errors import InvalidInput

_LOOK_AGAIN_SECONDS = 0.1


@attrs.frozen
class TokenBucket:
    """How many bytes may go now, as a value: `take` returns the next state and how long to wait first.

    Attributes:
        bytes_per_second: the long-run rate, > 0.
        burst_bytes: what may go at once after a pause, > 0.
        level: bytes that may go without waiting; negative when the future has been borrowed from.
        at: monotonic seconds at which `level` held.

    Raises:
        InvalidInput: the rate or the burst is not positive and finite.
    """

    bytes_per_second: float
    burst_bytes: float
    level: float
    at: float

    def __attrs_post_init__(self) -> None:
        for value in (self.bytes_per_second, self.burst_bytes):
            if not (value > 0 and math.isfinite(value)):
                raise InvalidInput(f"a throttle needs a positive, finite rate and burst, found "
                                   f"{self.bytes_per_second} B/s and {self.burst_bytes} B")

    def take(self, size: int, now: float) -> tuple[TokenBucket, float]:
        """Take `size` bytes at monotonic time `now`: the next state, and the seconds to wait before using them.

        A request larger than the burst is granted whole and paid for by waiting, so no request can starve.

        Raises:
            InvalidInput: `size` is negative.
        """
        if not size >= 0:
            raise InvalidInput(f"{size} bytes cannot be taken; give back what was not used with give_back()")
        refilled = self.level + max(0.0, now - self.at) * self.bytes_per_second
        level = min(self.burst_bytes, refilled) - size
        wait = max(0.0, -level / self.bytes_per_second)
        return TokenBucket(self.bytes_per_second, self.burst_bytes, level, max(self.at, now)), wait

    def give_back(self, size: int) -> TokenBucket:
        """The state after `size` bytes that were taken turned out not to be needed."""
        return attrs.evolve(self, level=min(self.burst_bytes, self.level + size))


@attrs.define(eq=False)
class Reservation:
    """Bytes that were booked.

    Attributes:
        due: the time on the clock's `monotonic()` from which they may go. It comes nearer if bytes that were booked
            before these are given back.
    """

    due: float
    _size: int = attrs.field(alias="size")
    _at: float = attrs.field(alias="at")
    _after: TokenBucket = attrs.field(alias="after", repr=False)


class Throttle:
    """Keeps work below a byte rate by making it wait. Threads may share one: each waits for its own share.

    Over any span of time at most `burst_bytes` plus the span's worth of the rate is let through.

    Args:
        bytes_per_second: the long-run rate, > 0.
        burst_bytes: what may go at once after a pause; default a tenth of a second's worth.
        saved_bytes: how much of the burst may go right at the start; default all of it.
        clock: where time comes from.

    Raises:
        InvalidInput: the rate or the burst is not positive and finite, or `saved_bytes` not in 0 .. burst.
    """

    def __init__(self, bytes_per_second: float, *, burst_bytes: float | None = None,
                 saved_bytes: float | None = None, clock: Clock | None = None) -> None:
        burst = bytes_per_second / 10 if burst_bytes is None else burst_bytes
        saved = burst if saved_bytes is None else saved_bytes
        self._clock: Clock = SystemClock() if clock is None else clock
        # Without those that wait, who come after it in their order.
        self._bucket = TokenBucket(bytes_per_second, burst, saved, self._clock.monotonic())
        self._waiting: deque[Reservation] = deque()
        if not 0 <= saved <= burst:
            raise InvalidInput(f"saved_bytes is {saved}; it must lie between 0 and the burst of {burst} bytes")
        self._lock = threading.Lock()

    @property
    def bytes_per_second(self) -> float:
        """The long-run rate."""
        return self._bucket.bytes_per_second

    def reserve(self, size: int) -> Reservation:
        """Book `size` bytes without waiting; says from when on they may go.

        For callers that wait in their own way; they `give_back` what they end up not using.

        Raises:
            InvalidInput: `size` is negative.
        """
        with self._lock:
            now = self._clock.monotonic()
            self._let_go(now)
            after, wait = self._last.take(size, now)
            booked = Reservation(after.at + wait, size, now, after)
            self._waiting.append(booked)
        return booked

    def give_back(self, booked: Reservation) -> None:
        """Return bytes that will not be used; those who wait behind them wait less. O(those who wait)."""
        with self._lock:
            now = self._clock.monotonic()
            self._let_go(now)
            try:
                self._waiting.remove(booked)
            except ValueError:
                self._bucket = self._bucket.give_back(booked._size)
            after = self._bucket
            for each in self._waiting:
                after, wait = after.take(each._size, each._at)
                if after.at + wait < now:
                    # It could have gone, and goes now: from now on the rate is that of the next.
                    after, wait = attrs.evolve(after, level=0.0, at=now), 0.0
                each.due, each._after = after.at + wait, after

    def _let_go(self, now: float) -> None:
        """Those whose time has come wait no longer."""
        while self._waiting and self._waiting[0].due <= now:
            self._bucket = self._waiting.popleft()._after

    @property
    def _last(self) -> TokenBucket:
        return self._waiting[-1]._after if self._waiting else self._bucket

    def take(self, size: int, *, check: Callable[[], object] | None = None) -> float:
        """Wait until `size` more bytes may go; returns the seconds waited.

        Args:
            size: how many.
            check: called ten times a second while waiting, `Budget.check` for example. What it raises ends the wait,
                and the bytes are given back.

        Raises:
            InvalidInput: `size` is negative.
        """
        start = self._clock.monotonic()
        booked = self.reserve(size)
        try:
            # The due time is absolute: a clock that another thread moved on meanwhile is not waited for twice.
            while (left := booked.due - self._clock.monotonic()) > 0:
                if check is not None:
                    check()
                self._clock.sleep(left if check is None else min(left, _LOOK_AGAIN_SECONDS))
        except BaseException:
            self.give_back(booked)
            raise
        return max(0.0, booked.due - start)

    def __repr__(self) -> str:
        return f"Throttle({self.bytes_per_second:g} B/s)"
