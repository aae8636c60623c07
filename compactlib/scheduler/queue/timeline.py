# SPDX-License-Identifier: Apache-2.0
"""The times of commands, held against each other: a clock that went wrong freezes nothing and lets no lease expire.

The state machine has no clock but its commands' times, which come from several leaders. A time that lies far from those
before it is in doubt: a clock that went wrong for a moment, a leader whose clock is off, or the first command after a
long silence; one of them alone does not show which. So by the first one nothing expires, and what it stamps (a lease,
the age of a tombstone) is cut again if the next command does not agree with it. A second one that does is accepted.

What this cannot see: a clock that stays wrong for two commands. Leaders hold their clocks against the monotonic one
(`compactlib.runtime.SteadyClock`) before they stamp.
"""

from __future__ import annotations

import attrs

from compactlib.scheduler.model.frozen import made_quickly

MAX_SILENCE_SECONDS = 3600.0
"""How far a command's time may lie above that of the last one without being in doubt."""
MAX_SKEW_SECONDS = 60.0
"""How far it may lie below: by so much two leaders' clocks may differ. Leases last longer by as much."""


@made_quickly
@attrs.frozen
class Timeline:
    """What is known of time; a part of the replicated state.

    Attributes:
        latest: the last time that was accepted, seconds; `None` before the first command.
        doubt: the time of the last command, if it is in doubt.
        has_late_stamps: whether something may have been stamped with a time that turned out to be in the future.
    """

    latest: float | None = None
    doubt: float | None = None
    has_late_stamps: bool = False

    def goes_on(self, now: float) -> bool:
        """Whether a command of this time is taken at its word, as nearly all are, and nothing is in doubt."""
        return (self.doubt is None and self.latest is not None
                and -MAX_SKEW_SECONDS <= now - self.latest <= MAX_SILENCE_SECONDS)

    def at(self, now: float) -> Moment:
        """The time that counts for a command of this time."""
        latest = self.latest
        if latest is None:
            return Moment(Timeline(now), now, now)
        if -MAX_SKEW_SECONDS <= now - latest <= MAX_SILENCE_SECONDS:
            return Moment(Timeline(now, None, self.has_late_stamps or self.doubt is not None), now, now)
        if self.doubt is not None and now >= self.doubt - MAX_SKEW_SECONDS:
            return Moment(Timeline(now, None, self.has_late_stamps or now < latest), now, now)
        late = self.has_late_stamps or self.doubt is not None
        return Moment(Timeline(latest, now, late), max(now, latest), min(now, latest))


@made_quickly
@attrs.frozen
class Moment:
    """A command's time, as the state machine takes it.

    Attributes:
        timeline: what is known after the command.
        stamp: what leases, delays and ages are counted from, seconds.
        expiry: up to when something may have run out, seconds.
    """

    timeline: Timeline
    stamp: float
    expiry: float

    def is_news_after(self, before: Timeline) -> bool:
        """Whether a command that would change nothing else has to be carried out for its time alone."""
        return self.timeline.doubt != before.doubt or self.timeline.has_late_stamps
