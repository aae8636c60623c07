# SPDX-License-Identifier: Apache-2.0
"""A clock that jumps: at each of its readings in turn, for one reading, for a while, or for good.

>>> def lease_until(clock):
...     return clock.now() + 60
>>> def check(until, jump):
...     if jump.readings == 1:
...         assert until < 1_000_000 + 3600, "one wrong reading, and the lease lasts a day"
>>> try:
...     explore_clock_jumps(lease_until, check)
... except AssertionError as failed:
...     print(failed, failed.__notes__)
one wrong reading, and the lease lasts a day ['the clock was off by +86400 seconds from reading 1 on, for 1 readings']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import attrs

from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError

DAY_SECONDS = 86_400.0
JUMPS_SECONDS = (DAY_SECONDS, -DAY_SECONDS, 3650 * DAY_SECONDS, -3650 * DAY_SECONDS)
START = 1_000_000.0

ResultT = TypeVar("ResultT")


@attrs.frozen
class Jump:
    """One run's clock.

    Attributes:
        seconds: how far the wall clock is off; the monotonic clock never is.
        reading: from which reading of the wall clock on, counted from 1.
        readings: for how many of them; `None`: to the end, as when the clock is set.
    """

    seconds: float
    reading: int
    readings: int | None

    def __str__(self) -> str:
        span = "for good" if self.readings is None else f"for {self.readings} readings"
        return f"the clock was off by {self.seconds:+.0f} seconds from reading {self.reading} on, {span}"


class JumpingClock(ManualClock):
    """A manual clock that is off for some of its readings. Threads may share it.

    Args:
        jump: when and how far; `None`: never.
        now: seconds since the epoch at the start.

    Attributes:
        readings: how often it was asked for the time.
    """

    def __init__(self, jump: Jump | None = None, *, now: float = START) -> None:
        super().__init__(now)
        self.readings: int = 0
        self._jump = jump

    def now(self) -> float:
        """Seconds since the epoch, right or wrong."""
        self.readings += 1
        jump = self._jump
        off = (jump is not None and self.readings >= jump.reading
               and (jump.readings is None or self.readings < jump.reading + jump.readings))
        return super().now() + (jump.seconds if off and jump is not None else 0.0)


@attrs.frozen
class JumpsReport:
    """What was run.

    Attributes:
        readings: how often the undisturbed work asked for the time.
        runs: runs with a jump; each was checked.
    """

    readings: int
    runs: int


def explore_clock_jumps(work: Callable[[JumpingClock], ResultT],
                        check: Callable[[ResultT | CompactlibError, Jump], object], *,
                        jumps: Iterable[float] = JUMPS_SECONDS,
                        spans: Iterable[int | None] = (1, 3, None)) -> JumpsReport:
    """Run `work` on a clock that jumps at each of its readings, by each distance, for one reading, three, and for good.

    Args:
        work: the code under test: makes its store, gives it the clock, and moves the clock itself (`advance`).
        check: looks at what the work returned, or at the library's error that it raised: nothing was lost, nothing
            expired that should not have, nothing is stuck once the clock is right again.
        jumps: how far, in seconds.
        spans: for how many readings; `None`: for good.

    Raises:
        BaseException: what `check` raised, or an error of the work that is not the library's, with a note that says
            where the clock jumped.
    """
    undisturbed = JumpingClock()
    work(undisturbed)
    every = tuple(spans)
    runs = 0
    for seconds in jumps:
        for reading in range(1, undisturbed.readings + 1):
            for span in every:
                _run(work, check, Jump(seconds, reading, span))
                runs += 1
    return JumpsReport(undisturbed.readings, runs)


def _run(work: Callable[[JumpingClock], ResultT], check: Callable[[ResultT | CompactlibError, Jump], object],
         jump: Jump) -> None:
    try:
        try:
            result: ResultT | CompactlibError = work(JumpingClock(jump))
        except CompactlibError as raised:
            result = raised
        check(result, jump)
    except BaseException as wrong:
        wrong.add_note(str(jump))
        raise
