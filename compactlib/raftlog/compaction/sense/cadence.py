# SPDX-License-Identifier: Apache-2.0
"""Sense: how long ago the last major compaction was, in minors and in seconds, and whether the next one is due."""

from __future__ import annotations

from collections.abc import Sequence

from compactlib.clock import Clock
from compactlib.errors import Busy, StorageError
from compactlib.raftlog.compaction.plan.plan import GroupFailed, LogPlan
from compactlib.raftlog.compaction.plan.view import LogView
from compactlib.raftlog.compaction.sense.trigger import CompactionState, Trigger, why_not


class MajorCadence:
    """Counts towards the next major compaction. Losing it costs a later major, never data.

    Args:
        trigger: decides from what was counted.
        clock: when a major ran.
    """

    def __init__(self, trigger: Trigger, clock: Clock) -> None:
        self._trigger = trigger
        self._clock = clock
        self._minors_since_major = 0
        # By the monotonic clock: what a wall clock says that went wrong once must not keep the next major waiting.
        self._last_major_tick = clock.monotonic()

    def reason_for_major(self, view: LogView) -> str:
        """Why a major is due, or an empty text."""
        return self._trigger.wants_major(self._state_of(view)) or ""

    def why_not(self, view: LogView) -> str:
        """What holds a major back that is not due: which number is short of which setting."""
        return why_not(self._trigger, self._state_of(view))

    def _state_of(self, view: LogView) -> CompactionState:
        now = self._clock.now()
        return CompactionState.of(view.compactable, minors_since_major=self._minors_since_major, now=now,
                                  last_major_at=now - (self._clock.monotonic() - self._last_major_tick))

    def planned(self, plan: LogPlan, view: LogView) -> None:
        """A compaction was planned; minors count if there was anything to look at."""
        if plan.drops_only and view.compactable:
            self._minors_since_major += 1

    def ended(self, plan: LogPlan, failed: Sequence[GroupFailed]) -> None:
        """A compaction ended. One that a lease or the disk cut short is to go on, not to wait for its turn again."""
        if not plan.drops_only and not any(isinstance(group.error, Busy | StorageError) for group in failed):
            self._minors_since_major, self._last_major_tick = 0, self._clock.monotonic()
