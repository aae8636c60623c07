"""Time as an argument: the `Clock` protocol, the system's clock, and one that is moved by hand.

Nothing else in the library asks the operating system for the time or sleeps.
"""

from __future__ import annotations

import time
from typing import Protocol

from compactlib.errors import InvalidInput


class Clock(Protocol):
    """What the library needs of time. All values are seconds as `float`."""

    def now(self) -> float:
        """Seconds since the epoch; may jump when the host's clock is set."""

    def monotonic(self) -> float:
        """Seconds since an unknown start; never goes back. For durations and rates."""

    def sleep(self, seconds: float) -> None:
        """Return after `seconds` have passed on this clock."""


class SystemClock:
    """The operating system's clock."""

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def __repr__(self) -> str:
        return "SystemClock()"


class ManualClock:
    """A clock that moves only when told: `advance` moves it, and `sleep` moves it at once instead of waiting.

    Args:
        now: seconds since the epoch at the start.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = float(now)
        self._elapsed = 0.0

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds` (>= 0).

        Raises:
            InvalidInput: `seconds` is negative; use `set_now` to move the wall clock back.
        """
        if seconds < 0:
            raise InvalidInput(f"a clock cannot advance by {seconds} seconds; use set_now() to set the wall clock back")
        self._now += seconds
        self._elapsed += seconds

    def set_now(self, now: float) -> None:
        """Set the wall clock, as an administrator would; `monotonic()` is not touched."""
        self._now = float(now)

    def __repr__(self) -> str:
        return f"ManualClock({self._now!r})"
