# SPDX-License-Identifier: Apache-2.0
"""Clocks that go wrong as real ones do: set forward and back, standing still, running at another rate, waking up late.

>>> from compactlib.clock import ManualClock
>>> truth = ManualClock(1000.0)
>>> ours = ScriptedClock(truth, ClockScript())
>>> theirs = ScriptedClock(truth, ClockScript(skew_seconds=-2.0, events=(Jump(10.0, by_seconds=-60.0), )))
>>> truth.advance(15.0)
>>> ours.now(), theirs.now(), theirs.monotonic()
(1015.0, 953.0, 15.0)

Several clocks over one true time are the clocks of several nodes. Random scripts for Hypothesis are
`compactlib.testing.strategies.clock_scripts`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import attrs

from compactlib._arguments import refuses_misfits
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput


@attrs.frozen
class Jump:
    """The clock is set. `monotonic()` does not notice.

    Attributes:
        at_seconds: when, in seconds of true time after the clock was made.
        by_seconds: how far, forward or back.
    """

    at_seconds: float
    by_seconds: float


@attrs.frozen
class Freeze:
    """The clock stands still for a while and then shows the right time again: a coarse tick, a virtual machine paused.

    Attributes:
        at_seconds: when, in seconds of true time after the clock was made.
        for_seconds: how long.
    """

    at_seconds: float
    for_seconds: float


@attrs.frozen
class Rate:
    """From now on the clock runs faster or slower than time.

    Attributes:
        at_seconds: when, in seconds of true time after the clock was made.
        rate: its seconds in a true second, above 0.
    """

    at_seconds: float
    rate: float


ClockEvent: TypeAlias = Jump | Freeze | Rate
"""One thing that happens to a clock."""


@attrs.frozen
class ClockScript:
    """What happens to one clock. The default is a clock that is right.

    Attributes:
        skew_seconds: how far it differs from true time at the start.
        events: what happens, in any order.
        oversleep_seconds: how much longer than asked each sleep takes, >= 0.

    Raises:
        InvalidInput: a time lies before the start, a rate is not above 0, or a number is not finite.
    """

    skew_seconds: float = 0.0
    events: tuple[ClockEvent, ...] = ()
    oversleep_seconds: float = 0.0

    @refuses_misfits
    def __attrs_post_init__(self) -> None:
        numbers = [self.skew_seconds, self.oversleep_seconds, *(number for event in self.events
                                                                for number in attrs.astuple(event))]
        if not all(map(math.isfinite, numbers)) or self.oversleep_seconds < 0:
            raise InvalidInput(f"{self} has a number that is not finite, or sleeps too short; give finite ones, and "
                               f"oversleep_seconds >= 0")
        for event in self.events:
            if event.at_seconds < 0 or (isinstance(event, Rate) and event.rate <= 0) \
                    or (isinstance(event, Freeze) and event.for_seconds < 0):
                raise InvalidInput(f"{event} cannot happen to a clock; give times from 0 on and a rate above 0")

    @property
    def goes_back(self) -> bool:
        """Whether `now()` may be less than it was before."""
        return any(isinstance(event, Jump) and event.by_seconds < 0 for event in self.events)

    def elapsed(self, seconds: float) -> float:
        """What the clock's `monotonic()` has counted after so many seconds of true time."""
        frozen = [event for event in self.events if isinstance(event, Freeze)
                  and event.at_seconds <= seconds < event.at_seconds + event.for_seconds]
        return self._counted(min((event.at_seconds for event in frozen), default=seconds))

    def set_by(self, seconds: float) -> float:
        """How far `now()` was set away from that by then, the skew included."""
        return self.skew_seconds + sum(event.by_seconds for event in self.events
                                       if isinstance(event, Jump) and event.at_seconds <= seconds)

    def until(self, elapsed: float) -> float:
        """The first moment of true time, in seconds after the start, at which `monotonic()` shows so much."""
        moment = next(start + (elapsed - counted) / rate for start, end, rate, counted in self._pieces()
                      if counted + rate * (end - start) >= elapsed)
        while self.elapsed(moment) < elapsed:  # it stands still, or the last bit is lost
            held = [event.at_seconds + event.for_seconds for event in self.events if isinstance(event, Freeze)
                    and event.at_seconds <= moment < event.at_seconds + event.for_seconds]
            moment = max(held, default=math.nextafter(moment, math.inf))
        return moment

    def _counted(self, seconds: float) -> float:
        return next(counted + rate * (seconds - start) for start, end, rate, counted in self._pieces()
                    if seconds <= end)

    def _pieces(self) -> Iterator[tuple[float, float, float, float]]:
        """From when to when it runs at which rate, and what it has counted before."""
        start, rate, counted = 0.0, 1.0, 0.0
        for event in sorted((event for event in self.events if isinstance(event, Rate)),
                            key=lambda event: event.at_seconds):
            yield start, event.at_seconds, rate, counted
            counted += rate * (event.at_seconds - start)
            start, rate = event.at_seconds, event.rate
        yield start, math.inf, rate, counted


class ScriptedClock:
    """A `Clock` that follows a script, over a true time that several may share. Threads may share it.

    Args:
        truth: true time. A sleep on this clock moves it.
        script: what is wrong with this clock.
    """

    def __init__(self, truth: ManualClock, script: ClockScript) -> None:
        self.truth: ManualClock = truth
        self.script: ClockScript = script
        self._epoch = truth.now()
        self._start = truth.monotonic()

    @property
    def _since(self) -> float:
        return self.truth.monotonic() - self._start

    def now(self) -> float:
        """Seconds since the epoch, as this clock shows them; may go back."""
        return self._epoch + self.script.elapsed(self._since) + self.script.set_by(self._since)

    def monotonic(self) -> float:
        """Seconds that this clock has counted; never goes back."""
        return self.script.elapsed(self._since)

    def sleep(self, seconds: float) -> None:
        """Move true time until this clock has counted so many seconds, and some more if the script says so.

        Raises:
            InvalidInput: `seconds` is negative or not finite.
        """
        if not math.isfinite(seconds) or seconds < 0:
            raise InvalidInput(f"a clock cannot sleep for {seconds} seconds; give a finite number >= 0")
        if seconds:
            wanted = self.monotonic() + seconds
            self.truth.advance(max(self.script.until(wanted) - self._since, 0.0) + self.script.oversleep_seconds)
            while self.monotonic() < wanted:  # the sum of floats fell short of it by a bit
                self.truth.advance(max(math.ulp(self.truth.monotonic()), 1e-9))

    def __repr__(self) -> str:
        return f"ScriptedClock({self.truth!r}, {self.script})"
