# SPDX-License-Identifier: Apache-2.0
"""Letting other threads have the interpreter while one computes in Python.

A thread that runs Python code gives the interpreter up when another has waited `sys.getswitchinterval()` for it, 5 ms.
Who reads or syncs asks for it after each system call, so that one look into a store costs 10 ms while a compaction
decides, builds an index or counts, and an append 5 ms while a flush runs. A nap now and then, as short as the system
has them, gives it up much earlier.
Giving it up without a nap does not help: the same thread has it back before another is awake.
"""

from __future__ import annotations

from compactlib.budget import Budget
from compactlib.clock import Clock

WORK_SECONDS = 0.0001
"""How long is computed at a stretch: what another thread may wait. The naps between take a third of the time."""
NAP_SECONDS = 0.000_001
"""Systems make some 60 us of it."""
_LOOK_EVERY = 512
"""After so many pieces the budget is asked at the latest, also by a clock that stands still."""


def unhurried() -> None:
    """What to call where there is no breather."""


class Breather:
    """For one stretch of computing, by one thread; call `breathe` after each small piece of it.

    Args:
        clock: where time comes from. One that stands still unless it is moved sees no naps.
        budget: asked at each nap whether the computing may go on.
    """

    __slots__ = ("_budget", "_left", "_monotonic", "_since", "_sleep")

    def __init__(self, clock: Clock, budget: Budget | None = None) -> None:
        self._budget = budget
        self._left = _LOOK_EVERY
        self._monotonic = clock.monotonic
        self._sleep = clock.sleep
        self._since = clock.monotonic()

    def breathe(self, pieces: int = 1) -> None:
        """Nap if the last nap is long ago. Costs a look at the clock.

        Args:
            pieces: how many pieces of work were done since the last call.

        Raises:
            BudgetSpent: the budget does not let it go on.
        """
        self._left -= pieces
        if self._left > 0 and self._monotonic() - self._since < WORK_SECONDS:
            return
        self._left = _LOOK_EVERY
        if self._budget is not None:
            self._budget.check()
        if self._monotonic() - self._since >= WORK_SECONDS:
            self._sleep(NAP_SECONDS)
            self._since = self._monotonic()
