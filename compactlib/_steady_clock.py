# SPDX-License-Identifier: Apache-2.0
"""`SteadyClock`: a clock over the host's clock that a single wrong reading does not change."""

from __future__ import annotations

from compactlib.clock import Clock

MAX_STEP_SECONDS = 60.0
"""The largest step of the host's clock that counts immediately."""
CONFIRM_SECONDS = 30.0
"""How long a larger step has to last before it counts."""


class SteadyClock:
    """A `Clock` over the host's. Threads may share one: a race between two readings only delays a confirmation.

    A wrong time would stamp records that expire too early, let a compaction drop blobs that have not expired, end the
    leases of jobs and delete objects before their time. So a large step counts only once a later reading confirms it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = clock.now() - clock.monotonic()  # the wall clock less the monotonic clock, as far as it counts
        self._step: tuple[float, float] | None = None  # an unconfirmed value of `_ahead`, and when it was first read

    def now(self) -> float:
        """Return the time of operations, answers and compactions, in seconds since the epoch."""
        tick = self._clock.monotonic()
        ahead = self._clock.now() - tick
        step = self._step
        if abs(ahead - self._ahead) <= MAX_STEP_SECONDS:
            self._ahead, self._step = ahead, None
        elif step is None or abs(ahead - step[0]) > MAX_STEP_SECONDS:
            self._step = ahead, tick
        elif tick - step[1] >= CONFIRM_SECONDS:
            self._ahead, self._step = ahead, None
        return tick + self._ahead

    def monotonic(self) -> float:
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)

    def __repr__(self) -> str:
        return f"SteadyClock({self._clock!r})"
