# SPDX-License-Identifier: Apache-2.0
"""`StoreClock`: the time of a store, which no single wrong reading of the host's clock changes."""

from __future__ import annotations

from compactlib.clock import Clock

MAX_STEP_SECONDS = 60.0
"""How far the host's clock may step and be believed at once."""
CONFIRM_SECONDS = 30.0
"""How long a larger step has to last to be believed."""


class StoreClock:
    """A `Clock` over the host's. Threads may share one: a race between two readings only delays a confirmation.

    A record that was stamped by a wrong clock expires too early, and what a compaction takes for expired is gone. So a
    step is believed only when a later reading confirms it.

    Args:
        clock: the host's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = clock.now() - clock.monotonic()  # of the wall clock before the monotonic one, as believed
        self._step: tuple[float, float] | None = None  # the step that is not believed yet, and when it was first seen

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
        return f"StoreClock({self._clock!r})"
