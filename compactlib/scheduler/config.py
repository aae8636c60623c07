# SPDX-License-Identifier: Apache-2.0
"""The settings of a scheduler: part of its replicated state, which only commands change."""

from __future__ import annotations

from typing import Any

import attrs

from compactlib._arguments import is_above, is_seconds, is_whole
from compactlib.errors import InvalidInput

SEQUENCE_BITS = 20
"""A job's sequence is its command's index shifted by this, plus its position among the command's new jobs."""


def _are_levels(_: object, field: Any, value: tuple[Any, ...]) -> None:
    if not value:
        raise InvalidInput(f"{field.name} is empty; give at least one LevelConfig")


@attrs.frozen(kw_only=True)
class LevelConfig:
    """The limits of the jobs of a level.

    Raises:
        InvalidInput: a value is out of its range.
    """

    max_blocks: int = attrs.field(validator=is_whole(1))
    """The number of blocks of a full job."""
    max_age_seconds: float = attrs.field(default=0.0, validator=is_seconds())
    """The age of its first block from which on a job need not be full; 0: never."""
    max_job_bytes: int | None = attrs.field(default=None, validator=is_whole(1, or_none=True))
    """The most bytes of a job, except of a single block; `None`: no limit."""
    max_range_seconds: float = attrs.field(default=0.0, validator=is_seconds())
    """The largest difference of the times of a job's blocks; 0: no limit."""


DEFAULT_LEVELS = (
    LevelConfig(max_blocks=20, max_age_seconds=36, max_range_seconds=10800),
    LevelConfig(max_blocks=10, max_age_seconds=720, max_range_seconds=10800),
    LevelConfig(max_blocks=10, max_age_seconds=10800, max_range_seconds=10800),
)
"""Pyroscope's levels, L0 to L2; blocks of level 3 are never compacted again."""


@attrs.frozen(kw_only=True)
class SchedulerConfig:
    """The settings of jobs, leases and tombstones. An `AssignmentPolicy` orders the jobs.

    Raises:
        InvalidInput: a value is out of its range.
    """

    levels: tuple[LevelConfig, ...] = attrs.field(default=DEFAULT_LEVELS, validator=_are_levels)
    """One for each compacted level; blocks of higher levels are not compacted."""
    max_failures: int = attrs.field(default=3, validator=is_whole())
    """The number of failures after which a job is excluded; 0: it is retried for ever."""
    max_releases: int = attrs.field(default=10, validator=is_whole())
    """The number of releases in a row that count as a failure; 0: no limit."""
    lease_seconds: float = attrs.field(default=15.0, validator=is_above(0))
    """The duration of a lease, seconds."""
    max_queue_size: int = attrs.field(default=10_000, validator=is_whole())
    """The most queued jobs; 0: no limit."""
    max_quarantine_size: int = attrs.field(default=10_000, validator=is_whole(1))
    """The most jobs in quarantine; the oldest are removed, with an event."""
    max_jobs_per_poll: int = attrs.field(default=1_000, validator=is_whole(1, 1 << SEQUENCE_BITS))
    """The most jobs that a poll assigns, and the most that it creates."""
    backoff_seconds: float = attrs.field(default=5.0, validator=is_seconds())
    """The back-off of a job after a failure or a second release; doubles each time."""
    max_backoff_seconds: float = attrs.field(default=300.0, validator=is_seconds())
    """The longest back-off."""
    cleanup_batch_size: int = attrs.field(default=2, validator=is_whole())
    """Tombstones in the answer to a poll, for each free slot of the worker."""
    cleanup_delay_seconds: float = attrs.field(default=900.0, validator=is_seconds())
    """The age of a tombstone at which its objects are deleted."""
    max_tombstones: int = attrs.field(default=100_000, validator=is_whole(1))
    """The most tombstones; the oldest are removed, with an event, and a sweep has to find their objects. Without a
    worker with a cleanup, that happens to all."""
    cleanup_lease_seconds: float = attrs.field(default=900.0, validator=is_seconds())
    """The time without a confirmation after which a tombstone is sent again."""
