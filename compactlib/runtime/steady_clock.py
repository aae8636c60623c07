# SPDX-License-Identifier: Apache-2.0
"""A clock that notices when the host's clock jumps, and accepts a jump only once it was seen twice.

Within a process the wall clock is held against the monotonic clock. A reading that is off by more than a bound is not
accepted at once: `now` refuses it by name, `steady` goes on from the last reading that was accepted, and a later
reading that agrees with it confirms it (a machine that slept, a clock that was set), as `accept` does at once. A
reading that was wrong once therefore freezes nothing and expires nothing.

When a store is opened there is no monotonic time to compare with: a step forward since `last_known` is accepted at once
for new times, and for expiry only when a second reading has confirmed it; a step back is in doubt as within a process.
"""

from __future__ import annotations

import math
import threading

from compactlib.clock import Clock, SystemClock
from compactlib.errors import ClockJumped, InvalidInput
from compactlib.runtime.observe import Observer, telling

CLOCK_JUMPED = "clock_jumped"
"""The clock is off by more than the bound: `seconds` (positive: ahead), `max_jump_seconds`; not accepted yet."""
CLOCK_ACCEPTED = "clock_accepted"
"""A jump was confirmed by a later reading, by an operator, or at opening: `seconds`, `how`."""
DEFAULT_MAX_JUMP_SECONDS = 60.0
DEFAULT_CONFIRM_SECONDS = 30.0


class SteadyClock:
    """A `Clock` over a host's. Threads may share it.

    Args:
        clock: the host's.
        last_known: a time that the store was seen at in an earlier life, seconds since the epoch; `None` for a new one.
        max_jump_seconds: how far two readings may differ from what the monotonic clock says, > 0.
        confirm_seconds: how much later, by the monotonic clock, a second reading confirms a jump, >= 0.
        observer: notified as `CLOCK_JUMPED` and `CLOCK_ACCEPTED`.

    Raises:
        InvalidInput: a bound is out of its range, or `last_known` is not finite.
    """

    def __init__(self, clock: Clock | None = None, *, last_known: float | None = None,
                 max_jump_seconds: float = DEFAULT_MAX_JUMP_SECONDS, confirm_seconds: float = DEFAULT_CONFIRM_SECONDS,
                 observer: Observer | None = None) -> None:
        if not 0 < max_jump_seconds < math.inf or not 0 <= confirm_seconds < math.inf:
            raise InvalidInput(f"max_jump_seconds is {max_jump_seconds}, confirm_seconds {confirm_seconds}; give a "
                               f"positive bound, and 0 or more to confirm")
        if last_known is not None and not math.isfinite(last_known):
            raise InvalidInput(f"last_known is {last_known}; give seconds since the epoch, or None")
        self._clock: Clock = SystemClock() if clock is None else clock
        self._max_jump = max_jump_seconds
        self._confirm_seconds = confirm_seconds
        self._observer = telling(observer)
        self._lock = threading.Lock()
        wall, tick = self._clock.now(), self._clock.monotonic()
        # The line that readings are held against: at monotonic `_tick` the wall clock stood at `_wall`.
        self._wall, self._tick = wall, tick
        self._doubt: tuple[float, float] | None = None  # (offset from the line, when it was seen first)
        self._expiry_held: float | None = None
        self._opened = tick
        step = 0.0 if last_known is None else wall - last_known
        if last_known is not None and step > max_jump_seconds:
            # Until the step is confirmed, nothing expires beyond what was known then.
            self._expiry_held = last_known
            self._observer.event(CLOCK_ACCEPTED, {"seconds": step, "how": "at opening"})
        elif last_known is not None and step < -max_jump_seconds:
            # As within a process: what has expired does not come back because of one reading.
            self._wall, self._doubt = last_known, (step, tick)
            self._observer.event(CLOCK_JUMPED, {"seconds": step, "max_jump_seconds": max_jump_seconds})

    @property
    def host_clock(self) -> Clock:
        """The clock below."""
        return self._clock

    @property
    def max_jump_seconds(self) -> float:
        """How far two readings may differ from what the monotonic clock says."""
        return self._max_jump

    def now(self) -> float:
        """Seconds since the epoch.

        Raises:
            ClockJumped: the host's clock is off by more than the bound, and no later reading has confirmed it.
        """
        wall, doubt = self._read()
        if doubt is not None:
            raise ClockJumped(seconds=doubt, max_jump_seconds=self._max_jump, confirm_seconds=self._confirm_seconds)
        return wall

    def steady(self) -> float:
        """Seconds since the epoch, never refused: while a jump is in doubt, as if the clock had not jumped."""
        return self._read()[0]

    def expiry(self) -> float:
        """The time up to which things may be taken as expired: as `steady`, but held after a step at opening.

        It is held at what was known in the earlier life, until a reading `confirm_seconds` later confirms the step.
        """
        wall, _ = self._read()
        held = self._expiry_held
        return wall if held is None else min(wall, held)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return self._clock.monotonic()

    def sleep(self, seconds: float) -> None:
        """See `Clock.sleep`."""
        self._clock.sleep(seconds)

    def accept(self) -> None:
        """Accept the host's clock as it stands; for an operator who has looked at it."""
        with self._lock:
            wall, tick = self._clock.now(), self._clock.monotonic()
            jump = wall - (self._wall + (tick - self._tick))
            self._wall, self._tick, self._doubt, self._expiry_held = wall, tick, None, None
        self._observer.event(CLOCK_ACCEPTED, {"seconds": jump, "how": "by an operator"})

    def _read(self) -> tuple[float, float | None]:
        """The time to use, and how far the host's clock is off, if that is in doubt."""
        told: tuple[str, dict[str, object]] | None = None
        with self._lock:
            wall, tick = self._clock.now(), self._clock.monotonic()
            line = self._wall + (tick - self._tick)
            jump = wall - line
            if abs(jump) <= self._max_jump:
                self._wall, self._tick, self._doubt = wall, tick, None
                if self._expiry_held is not None and tick - self._opened >= self._confirm_seconds:
                    self._expiry_held = None
                answer: tuple[float, float | None] = wall, None
            elif self._doubt is None or abs(jump - self._doubt[0]) > self._max_jump:
                self._doubt = jump, tick
                told = CLOCK_JUMPED, {"seconds": jump, "max_jump_seconds": self._max_jump}
                answer = line, jump
            elif tick - self._doubt[1] >= self._confirm_seconds:
                self._wall, self._tick, self._doubt = wall, tick, None
                told = CLOCK_ACCEPTED, {"seconds": jump, "how": "confirmed"}
                answer = wall, None
            else:
                answer = line, jump
        if told is not None:
            self._observer.event(*told)
        return answer

    def __repr__(self) -> str:
        return f"SteadyClock({self._clock!r}{', in doubt' if self._doubt is not None else ''})"
