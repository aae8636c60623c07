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
from compactlib.raftlog.compaction.plan import LogPlan
from compactlib.raftlog.compaction.policy import LogView, is_number, stored_dead_bytes, stored_live_bytes

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
        return _Joined(self, "|", other)

    def __and__(self, other: Trigger) -> Trigger:
        """A trigger that is due when this trigger and `other` are."""
        return _Joined(self, "&", other)


@attrs.frozen(repr=False)
class _Joined(Trigger):
    left: Trigger
    operator: Literal["|", "&"]
    right: Trigger

    def is_due(self, state: CompactionState) -> bool:
        left, right = self.left.is_due(state), self.right.is_due(state)
        return left or right if self.operator == "|" else left and right

    def __repr__(self) -> str:
        return f"({self.left!r} {self.operator} {self.right!r})"


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
        segments = view.compactable
        live = sum(segment.live_entries for segment in segments)
        state = CompactionState(
            minors_since_major=self._minors, seconds_since_major=self._clock.monotonic() - self._last_major,
            live_entries=live, dead_entries=sum(segment.entries for segment in segments) - live,
            live_bytes=sum(map(stored_live_bytes, segments)), dead_bytes=sum(map(stored_dead_bytes, segments)))
        is_due = self._trigger.is_due(state)
        return is_due, f"{self._trigger!r} is {'' if is_due else 'not '}due: {state}"

    def ended(self, plan: LogPlan, failures: Iterable[CompactlibError] = ()) -> None:
        """Count a compaction that has ended.

        A minor compaction counts if there was a compactable segment. After a `Busy` or `StorageError` a major
        compaction is still due.
        """
        if plan.drops_only:
            self._minors += bool(plan.view.compactable)
        elif not any(isinstance(error, Busy | StorageError) for error in failures):
            self._minors, self._last_major = 0, self._clock.monotonic()
