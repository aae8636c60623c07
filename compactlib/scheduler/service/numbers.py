# SPDX-License-Identifier: Apache-2.0
"""A scheduler in the numbers that every store has: its compactions are the jobs that its workers carry out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from compactlib.runtime.observe import Observer
from compactlib.runtime.store_numbers import Moved, StoreLevels, StoreNumbers
from compactlib.scheduler.apply.effects import JOB_COMPLETED, JOB_EXCLUDED, JOB_QUARANTINED
from compactlib.scheduler.queue.state import SchedulerState

Event: TypeAlias = tuple[str, Mapping[str, Any]]

NUMBERS = StoreNumbers("scheduler", "scheduler")
_GIVEN_UP = {JOB_EXCLUDED: "excluded", JOB_QUARANTINED: "quarantined"}


def tell_events(observer: Observer, events: Iterable[Event]) -> None:
    """Notify of what a command made happen, and count the jobs that it ended."""
    if observer.is_deaf:
        return
    for name, fields in events:
        observer.event(name, fields)
        if name == JOB_COMPLETED:
            NUMBERS.ended(observer, "done", "job", fields["seconds"], Moved(
                read=fields["source_bytes"], copied=fields["output_bytes"],
                freed=fields["source_bytes"] - fields["output_bytes"]))
        elif name in _GIVEN_UP:
            NUMBERS.ended(observer, "failed", _GIVEN_UP[name], None, Moved())


def levels_of(state: SchedulerState) -> StoreLevels:
    """What waits to be compacted and what to be deleted. O(levels + jobs that failed too often)."""
    first = next(state.jobs.leased(), None)
    oldest = next(iter(state.tombstones), None)
    return StoreLevels(
        live_bytes=state.jobs.size_bytes,
        oldest_lease_seconds=None if first is None else first.state.lease_expires_at - state.config.lease_seconds,
        oldest_unreclaimed_seconds=None if oldest is None else oldest.appended_at)
