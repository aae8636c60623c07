# SPDX-License-Identifier: Apache-2.0
"""When a major compaction runs: small triggers, asked before each compaction, joined with `|` (either) and `&` (both).

>>> trigger = EveryNMinors(8) | DeadBytes(512 << 20) | (Elapsed(3600.0) & DeadRatio(0.5))
>>> trigger.wants_major(CompactionState(minors_since_major=8, live_entries=0, dead_entries=0, live_bytes=0,
...                                     dead_bytes=0, last_major_at=0.0, now=60.0))
'8 minors since the last major, at least 8'

A trigger is a pure function of numbers. It decides only between minor, which is to drop what is wholly dead, and major,
which is to ask the log's policy what is to be rewritten as well; one that finds nothing worth it drops all the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from math import isfinite
from typing import Literal, Protocol, TypeAlias

import attrs

from compactlib.errors import InvalidInput
from compactlib.raftlog.arguments import whole
from compactlib.raftlog.compaction.plan.policy import stored_dead_bytes, stored_live_bytes
from compactlib.raftlog.model.values import SegmentStats

Measure: TypeAlias = Literal["bytes", "entries"]


@attrs.frozen(kw_only=True)
class CompactionState:
    """What a trigger may know. Live and dead are counted over the compactable segments only.

    Attributes:
        minors_since_major: compactions by `DropDead` since the last major one that had a segment to look at.
        live_entries: entries that a compaction would keep.
        dead_entries: entries that it would free.
        live_bytes: stored bytes of the live entries: payloads and index records.
        dead_bytes: stored bytes of the dead ones.
        last_major_at: when the last major ended, in an earlier life of the log too, or the log was first opened if none
            has run; seconds since the epoch.
        now: seconds since the epoch.
    """

    minors_since_major: int
    live_entries: int
    dead_entries: int
    live_bytes: int
    dead_bytes: int
    last_major_at: float
    now: float

    @classmethod
    def of(cls, compactable: Iterable[SegmentStats], *, minors_since_major: int, last_major_at: float,
           now: float) -> CompactionState:
        """The state of a log whose `LogView.compactable` is given. O(segments)."""
        segments = tuple(compactable)
        live_entries = sum(segment.live_entries for segment in segments)
        return cls(
            minors_since_major=minors_since_major,
            live_entries=live_entries,
            dead_entries=sum(segment.entries for segment in segments) - live_entries,
            live_bytes=sum(map(stored_live_bytes, segments)),
            dead_bytes=sum(map(stored_dead_bytes, segments)),
            last_major_at=last_major_at,
            now=now,
        )


class Trigger(Protocol):
    """Decides whether the log's policy is asked at the next compaction, which makes that a major one."""

    def wants_major(self, state: CompactionState) -> str | None:
        """The reason why it should, with the numbers in it, or `None`. Pure and quick."""


def why_not(trigger: Trigger, state: CompactionState) -> str:
    """What holds `trigger` back, with the value and the setting; just its name for one that does not say it itself."""
    if isinstance(trigger, CombinableTrigger):
        return trigger.why_not(state)
    return f"the trigger {trigger!r} does not ask for it"


class CombinableTrigger(ABC):
    """A base that gives triggers `|` (either) and `&` (both); `Trigger` itself asks only for `wants_major`."""

    __slots__ = ()

    @abstractmethod
    def wants_major(self, state: CompactionState) -> str | None:
        """See `Trigger.wants_major`."""

    @abstractmethod
    def why_not(self, state: CompactionState) -> str:
        """Where it does not want a major: which number is short of which setting."""

    def __or__(self, other: Trigger) -> AnyOf:
        """A trigger that wants a major when this one or `other` does."""
        return AnyOf((*_parts(self, AnyOf), *_parts(other, AnyOf)))

    def __ror__(self, other: Trigger) -> AnyOf:
        """The same, with a host's own trigger on the left."""
        return AnyOf((*_parts(other, AnyOf), *_parts(self, AnyOf)))

    def __and__(self, other: Trigger) -> AllOf:
        """A trigger that wants a major when this one and `other` do."""
        return AllOf((*_parts(self, AllOf), *_parts(other, AllOf)))

    def __rand__(self, other: Trigger) -> AllOf:
        """The same, with a host's own trigger on the left."""
        return AllOf((*_parts(other, AllOf), *_parts(self, AllOf)))


@attrs.frozen
class AnyOf(CombinableTrigger):
    """Wants a major when at least one of `triggers` does; gives all their reasons. Of no triggers: never."""

    triggers: tuple[Trigger, ...]

    def wants_major(self, state: CompactionState) -> str | None:
        """See `Trigger.wants_major`."""
        reasons = [reason for trigger in self.triggers if (reason := trigger.wants_major(state)) is not None]
        return "; ".join(reasons) if reasons else None

    def why_not(self, state: CompactionState) -> str:
        """See `CombinableTrigger.why_not`."""
        return "; ".join(why_not(trigger, state) for trigger in self.triggers) or "no trigger asks for it"


@attrs.frozen
class AllOf(CombinableTrigger):
    """Wants a major when each of `triggers` does; gives all their reasons. Of no triggers: never."""

    triggers: tuple[Trigger, ...]

    def wants_major(self, state: CompactionState) -> str | None:
        """See `Trigger.wants_major`."""
        reasons = [trigger.wants_major(state) for trigger in self.triggers]
        given = [reason for reason in reasons if reason is not None]
        return " and ".join(given) if given and len(given) == len(reasons) else None

    def why_not(self, state: CompactionState) -> str:
        """See `CombinableTrigger.why_not`."""
        return "; ".join(why_not(trigger, state) for trigger in self.triggers
                         if trigger.wants_major(state) is None) or "no trigger asks for it"


@attrs.frozen
class Manual(CombinableTrigger):
    """Never by itself: majors run only when the host asks for one."""

    def wants_major(self, state: CompactionState) -> str | None:
        """See `Trigger.wants_major`."""
        return None

    def why_not(self, state: CompactionState) -> str:
        """See `CombinableTrigger.why_not`."""
        return "the trigger Manual() never asks for it; give a policy, or another trigger"


@attrs.frozen
class EveryNMinors(CombinableTrigger):
    """Each time `n` compactions have only dropped since the last major, the next one is a major one.

    With n = 2, requests 1 and 2 are minor and request 3 is major; with n = 0 every one is major.

    Attributes:
        n: how many, >= 0.

    Raises:
        InvalidInput: `n` is negative.
    """

    n: int = 8

    def __attrs_post_init__(self) -> None:
        if whole("n", self.n) < 0:
            raise InvalidInput(f"n is {self.n}; the number of minors between two majors cannot be negative")

    def wants_major(self, state: CompactionState) -> str | None:
        """See `Trigger.wants_major`."""
        if state.minors_since_major < self.n:
            return None
        return f"{state.minors_since_major:,} minors since the last major, at least {self.n:,}"

    def why_not(self, state: CompactionState) -> str:
        """See `CombinableTrigger.why_not`."""
        return (f"{state.minors_since_major:,} minors since the last major, below EveryNMinors(n={self.n}); lower it, "
                f"or wait")


@attrs.frozen
class DeadRatio(CombinableTrigger):
    """There is at least so much dead for each live byte.

    Attributes:
        dead_per_live: the ratio, >= 0: 1.0 is half dead, 3.0 three quarters. With nothing live, anything dead will do;
            with nothing dead, never.
        measure: `"bytes"` as they are stored, payloads and index records, or `"entries"`.

    Raises:
        InvalidInput: the ratio is negative or not a number, or the measure is unknown.
    """

    dead_per_live: float = 1.0
    measure: Measure = "bytes"

    def __attrs_post_init__(self) -> None:
        _check_amount("dead_per_live", self.dead_per_live)
        if self.measure not in ("bytes", "entries"):
            raise InvalidInput(f"measure is {self.measure!r}; it must be 'bytes' or 'entries'")

    def wants_major(self, state: CompactionState) -> str | None:
        """See `Trigger.wants_major`."""
        by_bytes = self.measure == "bytes"
        dead, live = (state.dead_bytes, state.live_bytes) if by_bytes else (state.dead_entries, state.live_entries)
        if not dead or dead < self.dead_per_live * live:
            return None
        return f"{dead:,} {self.measure} dead beside {live:,} live, at least {self.dead_per_live:g} to 1"

    def why_not(self, state: CompactionState) -> str:
        """See `CombinableTrigger.why_not`."""
        by_bytes = self.measure == "bytes"
        dead, live = (state.dead_bytes, state.live_bytes) if by_bytes else (state.dead_entries, state.live_entries)
        return (f"{dead:,} {self.measure} dead beside {live:,} live, below DeadRatio(dead_per_live="
                f"{self.dead_per_live:g}); lower it, or wait")


@attrs.frozen
class DeadBytes(CombinableTrigger):
    """At least so many stored bytes are dead, payloads and index records together.

    Attributes:
        min_bytes: how many, >= 1.

    Raises:
        InvalidInput: `min_bytes` is less than 1.
    """

    min_bytes: int

    def __attrs_post_init__(self) -> None:
        if whole("min_bytes", self.min_bytes) < 1:
            raise InvalidInput(f"min_bytes is {self.min_bytes}; it must be at least 1")

    def wants_major(self, state: CompactionState) -> str | None:
        """See `Trigger.wants_major`."""
        if state.dead_bytes < self.min_bytes:
            return None
        return f"{state.dead_bytes:,} bytes dead, at least {self.min_bytes:,}"

    def why_not(self, state: CompactionState) -> str:
        """See `CombinableTrigger.why_not`."""
        return f"{state.dead_bytes:,} bytes dead, below DeadBytes(min_bytes={self.min_bytes}); lower it, or wait"


@attrs.frozen
class Elapsed(CombinableTrigger):
    """At least so much time has passed since the last major. A clock set back only delays it.

    Attributes:
        seconds: how long, >= 0.

    Raises:
        InvalidInput: `seconds` is negative or not a number.
    """

    seconds: float

    def __attrs_post_init__(self) -> None:
        _check_amount("seconds", self.seconds)

    def wants_major(self, state: CompactionState) -> str | None:
        """See `Trigger.wants_major`."""
        passed = state.now - state.last_major_at
        if passed < self.seconds:
            return None
        return f"{passed:,.0f} seconds since the last major, at least {self.seconds:,.0f}"

    def why_not(self, state: CompactionState) -> str:
        """See `CombinableTrigger.why_not`."""
        return (f"{state.now - state.last_major_at:,.0f} seconds since the last major, below "
                f"Elapsed(seconds={self.seconds:g}); lower it, or wait")


def _parts(trigger: Trigger, kind: type[AnyOf] | type[AllOf]) -> tuple[Trigger, ...]:
    """The triggers that `trigger` joins in this way, or itself: chains stay flat."""
    return trigger.triggers if isinstance(trigger, kind) else (trigger,)


def _check_amount(name: str, value: object) -> None:
    if not (isinstance(value, int | float) and isfinite(value) and value >= 0):
        raise InvalidInput(f"{name} is {value!r:.100}; it must be a number of at least 0")
