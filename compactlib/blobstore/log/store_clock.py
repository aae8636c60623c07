# SPDX-License-Identifier: Apache-2.0
"""The time of a store: the clock of operations and answers, and the cautious one of compactions.

The host's clock may jump. What is written and what is answered uses `steady`: a reading that is off is not accepted
before a second one confirms it. What cannot be taken back (the content of an expired or deleted blob goes) waits for
more: after a step at opening, forward or back, the clock that a compaction sees uses the earlier of both times until
the step is confirmed.

What the store knows of time from its earlier life comes from its records: the middle one of the newest few, so that a
single one with a wild time, from a peer say, does not count.
"""

from __future__ import annotations

from statistics import median_low

from compactlib.blobstore.log.contents import LogContents
from compactlib.clock import Clock
from compactlib.runtime import SteadyClock
from compactlib.runtime.observe import Observer
from compactlib.runtime.steady_clock import DEFAULT_CONFIRM_SECONDS

NEWEST_RECORDS = 9
"""How many records the time is taken from."""


class StoreClock:
    """A `Clock` whose `now` is the time up to which things are over for good. Threads may share one.

    Args:
        clock: the host's.
        last_known: see `last_known_time`.
        observer: notified when the host's clock jumps.
    """

    def __init__(self, clock: Clock, last_known: float | None, observer: Observer) -> None:
        self._clock = clock.host_clock if isinstance(clock, SteadyClock) else clock
        self._steady = SteadyClock(self._clock, last_known=last_known, observer=observer)
        self._opened = self._clock.now(), self._clock.monotonic()

    def steady(self) -> float:
        """The time of an operation or an answer, seconds since the epoch."""
        return self._steady.steady()

    def now(self) -> float:
        """The time that a compaction uses, seconds since the epoch."""
        wall, tick = self._opened
        passed = self._clock.monotonic() - tick
        over = self._steady.expiry()
        # The records may be wrong as well as the clock: as long as they do not agree, the earlier time counts.
        return over if passed >= DEFAULT_CONFIRM_SECONDS else min(over, wall + passed)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        self._clock.sleep(seconds)

    def accept(self) -> None:
        """Accept the host's clock as it stands."""
        self._steady.accept()
        self._opened = self._clock.now(), self._clock.monotonic()

    def __repr__(self) -> str:
        return f"StoreClock({self._clock!r})"


def last_known_time(contents: LogContents) -> float | None:
    """About when the newest records of a log were written, seconds since the epoch; `None` if there are none."""
    times = list(contents.open.columns.op_times[-NEWEST_RECORDS:])
    for index in reversed(contents.sealed):
        if len(times) >= NEWEST_RECORDS:
            break
        times = [*index.columns.op_times[-(NEWEST_RECORDS - len(times)):], *times]
    return median_low(times) / 1000 if times else None
