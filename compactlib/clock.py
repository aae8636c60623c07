# SPDX-License-Identifier: Apache-2.0
"""Time as an argument: the `Clock` protocol, the system's clock, and a manual clock.

No other module of the library reads the system's time or sleeps.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Protocol

from compactlib.errors import InvalidInput


class Clock(Protocol):
    """Reads the time and sleeps. All values are seconds as `float`; threads may share a clock."""

    def now(self) -> float:
        """Seconds since the epoch; may jump when the host's clock is set."""

    def monotonic(self) -> float:
        """Seconds since an unknown start, for durations and rates in this process; never goes back."""

    def sleep(self, seconds: float) -> None:
        """Return after `seconds` of this clock.

        Raises:
            InvalidInput: `seconds` is negative or not finite.
        """


class SystemClock:
    """The operating system's clock. Has no state; all instances are equal and picklable.

    A subclass may have a state of its own, which is pickled and compared too.
    """

    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(_checked(seconds))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ManualClock:
    """A clock that only `advance`, `sleep` and `set_now` move; `sleep` does not wait.

    Threads may share one. A pickled clock is a copy.

    Args:
        now: seconds since the epoch at the start.

    Raises:
        InvalidInput: `now` is not finite.
    """

    def __init__(self, now: float = 0.0) -> None:
        self._now = _finite(now)
        self._elapsed = 0.0
        self._lock = threading.Lock()

    def now(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._elapsed

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move forward by `seconds` (>= 0).

        Raises:
            InvalidInput: `seconds` is negative or not finite; use `set_now` to move the wall clock back.
        """
        step = _checked(seconds)
        with self._lock:
            self._now += step
            self._elapsed += step

    def set_now(self, now: float) -> None:
        """Set the wall clock, as an administrator would; `monotonic()` does not change.

        Raises:
            InvalidInput: `now` is not finite.
        """
        value = _finite(now)
        with self._lock:
            self._now = value

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {"_now": self._now, "_elapsed": self._elapsed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"ManualClock({self._now!r})"


def _finite(seconds: float) -> float:
    if not math.isfinite(seconds):
        raise InvalidInput(f"{seconds} is not a time; give seconds as a finite number")
    return float(seconds)


def _checked(seconds: float) -> float:
    if _finite(seconds) < 0:
        raise InvalidInput(f"a clock cannot move by {seconds} seconds; give >= 0, or use set_now() to go back")
    return float(seconds)
