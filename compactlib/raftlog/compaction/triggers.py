# SPDX-License-Identifier: Apache-2.0
"""Triggers of major compactions, evaluated before each compaction; combined with `|` (either) and `&` (both).

>>> trigger = EveryNMinors(8) | DeadBytes(512 << 20) | (Elapsed(3600.0) & DeadRatio(0.5))
>>> trigger.is_due(CompactionState(minors_since_major=8, seconds_since_major=60.0))
True

A trigger is a pure function of numbers. It decides between a minor compaction, which only drops wholly dead segments,
and a major compaction, which also rewrites the groups that the log's policy chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Literal, TypeAlias

import attrs

from compactlib._arguments import is_seconds, is_whole, require_one_of
from compactlib.clock import Clock
from compactlib.errors import Busy, CompactlibError, StorageError
from compactlib.raftlog.compaction.policy import LogView, is_number, stored_dead_bytes, stored_live_bytes
from compactlib.raftlog.values import SegmentStats

Measure: TypeAlias = Literal["bytes", "entries"]


@attrs.frozen(kw_only=True)
class CompactionState:
    """The numbers for a trigger. Live and dead are counted over the compactable segments.

    Attributes:
        minors_since_major: count of minor compactions that had a compactable segment, since the last major compaction
            or the log's opening.
        seconds_since_major: since the end of the last major compaction or the log's opening.
        live_entries: entries that a compaction would keep.
        dead_entries: entries that a compaction would free.
        live_bytes: stored bytes of the live entries: payloads and index records.
        dead_bytes: stored bytes of the dead entries.
    """

    minors_since_major: int = 0
    seconds_since_major: float = 0.0
    live_entries: int = 0
    dead_entries: int = 0
    live_bytes: int = 0
    dead_bytes: int = 0

    @classmethod
    def of(cls, compactable: Iterable[SegmentStats], *, minors_since_major: int = 0,
           seconds_since_major: float = 0.0) -> CompactionState:
        """The state of a log whose `LogView.compactable` is given. O(segments)."""
        segments = tuple(compactable)
        live_entries = sum(segment.live_entries for segment in segments)
        return cls(minors_since_major=minors_since_major, seconds_since_major=seconds_since_major,
                   live_entries=live_entries, dead_entries=sum(each.entries for each in segments) - live_entries,
                   live_bytes=sum(map(stored_live_bytes, segments)), dead_bytes=sum(map(stored_dead_bytes, segments)))

    def __str__(self) -> str:
        return (f"{self.minors_since_major:,} minors and {self.seconds_since_major:,.0f} seconds since the last major, "
                f"{self.dead_bytes:,} bytes in {self.dead_entries:,} entries dead beside {self.live_bytes:,} in "
                f"{self.live_entries:,} live")


class Trigger(ABC):
    """Decides whether the next compaction is a major one.

    Plans print its `repr`, which names its settings: use a frozen attrs class.
    """

    __slots__ = ()

    @abstractmethod
    def is_due(self, state: CompactionState) -> bool:
        """Whether a major compaction is due. Pure and quick."""

    def __or__(self, other: Trigger) -> Trigger:
        """A trigger that is due when this trigger or `other` is."""
        return AnyOf((self, other))

    def __and__(self, other: Trigger) -> Trigger:
        """A trigger that is due when this trigger and `other` are."""
        return AllOf((self, other))


@attrs.frozen(repr=False)
class AnyOf(Trigger):
    """Due when at least one of `triggers` is. Of no triggers: never."""

    triggers: tuple[Trigger, ...]

    def is_due(self, state: CompactionState) -> bool:
        return any(trigger.is_due(state) for trigger in self.triggers)

    def __repr__(self) -> str:
        return f"({' | '.join(map(repr, self.triggers))})"


@attrs.frozen(repr=False)
class AllOf(Trigger):
    """Due when each of `triggers` is. Of no triggers: never."""

    triggers: tuple[Trigger, ...]

    def is_due(self, state: CompactionState) -> bool:
        return bool(self.triggers) and all(trigger.is_due(state) for trigger in self.triggers)

    def __repr__(self) -> str:
        return f"({' & '.join(map(repr, self.triggers))})"


@attrs.frozen
class Manual(Trigger):
    """Never due: the host requests major compactions."""

    def is_due(self, state: CompactionState) -> bool:
        return False


@attrs.frozen
class EveryNMinors(Trigger):
    """Due after `n` minor compactions since the last major compaction.

    With n = 2, requests 1 and 2 are minor and request 3 is major; with n = 0 all are major.

    Attributes:
        n: count of minor compactions, >= 0.
    """

    n: int = attrs.field(default=8, validator=is_whole())

    def is_due(self, state: CompactionState) -> bool:
        return state.minors_since_major >= self.n


@attrs.frozen
class DeadRatio(Trigger):
    """Due at a ratio of dead to live bytes or entries; never due if nothing is dead.

    Attributes:
        dead_per_live: the ratio, >= 0: 1.0 is half dead, 3.0 three quarters. With nothing live, any dead entry is
            enough.
        measure: `"bytes"` as they are stored, payloads and index records, or `"entries"`.
    """

    dead_per_live: float = attrs.field(default=1.0, validator=is_number())
    measure: Measure = attrs.field(
        default="bytes", validator=lambda _, field, value: require_one_of(field.name, value, Measure))

    def is_due(self, state: CompactionState) -> bool:
        by_bytes = self.measure == "bytes"
        dead, live = (state.dead_bytes, state.live_bytes) if by_bytes else (state.dead_entries, state.live_entries)
        return dead > 0 and dead >= self.dead_per_live * live


@attrs.frozen
class DeadBytes(Trigger):
    """Due at a number of dead stored bytes, payloads and index records together.

    Attributes:
        min_bytes: dead bytes, >= 1.
    """

    min_bytes: int = attrs.field(validator=is_whole(1))

    def is_due(self, state: CompactionState) -> bool:
        return state.dead_bytes >= self.min_bytes


@attrs.frozen
class Elapsed(Trigger):
    """Due at a time after the last major compaction or the log's opening.

    Attributes:
        seconds: the time, >= 0.
    """

    seconds: float = attrs.field(validator=is_seconds())

    def is_due(self, state: CompactionState) -> bool:
        return state.seconds_since_major >= self.seconds


class MajorCadence:
    """Evaluates a trigger, and counts minor compactions and the time for it. Not thread-safe.

    The counts are in memory: opening the log resets them, which only delays the next major compaction.

    Args:
        trigger: decides from the counts.
        clock: measures the time since the last major compaction.
    """

    def __init__(self, trigger: Trigger, clock: Clock) -> None:
        self._trigger = trigger
        self._clock = clock
        self._minors = 0
        self._last_major = clock.monotonic()

    def judge(self, view: LogView) -> tuple[bool, str]:
        """Whether a major compaction is due, and the reason: the trigger with its settings, and the numbers."""
        state = CompactionState.of(view.compactable, minors_since_major=self._minors,
                                   seconds_since_major=self._clock.monotonic() - self._last_major)
        is_due = self._trigger.is_due(state)
        return is_due, f"{self._trigger!r} is {'' if is_due else 'not '}due: {state}"

    def ended(self, view: LogView, *, drops_only: bool, failures: Iterable[CompactlibError] = ()) -> None:
        """Count a compaction of `view` that has ended.

        A minor compaction counts if there was a compactable segment. After a `Busy` or `StorageError` a major
        compaction is still due.
        """
        if drops_only:
            self._minors += bool(view.compactable)
        elif not any(isinstance(error, Busy | StorageError) for error in failures):
            self._minors, self._last_major = 0, self._clock.monotonic()
