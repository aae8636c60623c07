# SPDX-License-Identifier: Apache-2.0
"""Sense: how long ago the last major compaction was, in minors and in seconds, and whether the next one is due.

It is kept over restarts in the log's `CADENCE` file (`docs/formats/raftlog-snapshot.md`), which is written when the
count changes. Losing it costs a major that comes later, or one that comes earlier and finds less to do, never data.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

from compactlib.clock import Clock
from compactlib.errors import Busy, CorruptData, StorageError
from compactlib.files.disk import Files, read_if_there, write_durably
from compactlib.files.record_frame import RecordFrame
from compactlib.observer import Observer
from compactlib.raftlog.compaction.plan.plan import GroupFailed, LogPlan
from compactlib.raftlog.compaction.plan.view import LogView
from compactlib.raftlog.compaction.sense.trigger import CompactionState, Trigger, why_not
from compactlib.raftlog.model.names import CADENCE_NAME, TEMPORARY_SUFFIX

CADENCE_LOST = "raftlog_cadence_lost"
"""A log's `CADENCE` file is damaged, and the next major is counted to anew: `error`."""

_FRAME = RecordFrame("cadence", b"CLRAFCAD", 1, "<H6xQQ")
_MAX_SECONDS = 1e10
"""Later than any clock that goes right: in the year 2286."""


class CadenceFile:
    """Where a log keeps what was counted.

    Args:
        files: the disk.
        folder: the log's.
        observer: notified if what was kept is damaged.
    """

    def __init__(self, files: Files, folder: str, observer: Observer) -> None:
        self._files = files
        self._path = os.path.join(folder, CADENCE_NAME)
        self._observer = observer

    def read(self) -> tuple[int, int] | None:
        """Minors since the last major, and its time in nanoseconds since the epoch; `None` if nothing is kept.

        Raises:
            Unsupported: a later release wrote it.
            StorageError: it cannot be read.
        """
        try:
            data = read_if_there(self._path)
            if data is None:
                return None
            minors, since_ns, _ = _FRAME.decode(data, self._path)
            return minors, since_ns
        except CorruptData as error:
            self._observer.event(CADENCE_LOST, error=str(error))
            return None

    def write(self, minors: int, since_ns: int) -> None:
        """Keep both, if the disk takes them."""
        # A compaction makes room on a disk that is full, and must not fail for want of it.
        with contextlib.suppress(StorageError):
            write_durably(self._files, self._path, [_FRAME.encode(minors, since_ns)],
                          temporary_suffix=TEMPORARY_SUFFIX)


class MajorCadence:
    """Counts towards the next major compaction.

    Args:
        trigger: decides from what was counted.
        clock: when a major ran.
        kept: keeps it over restarts; `None`: counted from now on.

    Raises:
        Unsupported, StorageError: as `CadenceFile.read`.
    """

    def __init__(self, trigger: Trigger, clock: Clock, kept: CadenceFile | None = None) -> None:
        self._trigger = trigger
        self._clock = clock
        self._kept = kept
        self._is_due = False
        found = None if kept is None else kept.read()
        self._minors_since_major, since_ns = (0, self._now_ns()) if found is None else found
        # By the monotonic clock: what a wall clock says that goes wrong once must not keep the next major waiting.
        self._since_ns = min(since_ns, self._now_ns())
        self._last_major_tick = clock.monotonic() - (self._now_ns() - self._since_ns) / 1e9

    def reason_for_major(self, view: LogView) -> str:
        """Why a major is due, or an empty text."""
        reason = self._trigger.wants_major(self._state_of(view)) or ""
        self._is_due = bool(reason)
        return reason

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
            # Once it is due, what keeps it from being done may be that there is no room.
            if not self._is_due:
                self._keep()
            self._is_due = False

    def ended(self, plan: LogPlan, failed: Sequence[GroupFailed]) -> None:
        """A compaction ended. One that a lease or the disk cut short is to go on, not to wait for its turn again."""
        if not plan.drops_only and not any(isinstance(group.error, Busy | StorageError) for group in failed):
            self._since_ns, self._last_major_tick = self._now_ns(), self._clock.monotonic()
            if self._minors_since_major:
                self._minors_since_major = 0
                self._keep()

    def _now_ns(self) -> int:
        now = self._clock.now()
        return round(now * 1e9) if 0 <= now < _MAX_SECONDS else 0

    def _keep(self) -> None:
        if self._kept is not None:
            self._kept.write(self._minors_since_major, self._since_ns)
