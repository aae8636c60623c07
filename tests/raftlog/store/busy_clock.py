# SPDX-License-Identifier: Apache-2.0
"""A clock for which whatever is done between two looks takes time."""

from __future__ import annotations

from compactlib.breather import NAP_SECONDS
from compactlib.clock import ManualClock


class BusyClock(ManualClock):
    """Each look at it takes a piece of work's time; it counts the naps."""

    def __init__(self, now: float, step: float) -> None:
        super().__init__(now)
        self.step = step
        self.naps = 0

    def monotonic(self) -> float:
        self.advance(self.step)
        return super().monotonic()

    def sleep(self, seconds: float) -> None:
        self.naps += seconds == NAP_SECONDS
        super().sleep(seconds)
