# SPDX-License-Identifier: Apache-2.0
"""The settings of a scheduler: part of its replicated state, which only commands change."""

from __future__ import annotations

import math
from typing import Any

import attrs

from compactlib.scheduler.errors import BadConfig

_MOST = (1 << 20) - 1


def _whole(least: int, most: int | None = None) -> Any:
    def check(_: Any, field: attrs.Attribute[Any], value: Any) -> None:
        if type(value) is not int or value < least or (most is not None and value > most):
            raise BadConfig(f"{field.name} is {value!r:.100}; give a whole number of at least {least}"
                            + (f" and at most {most}" if most is not None else ""))

    return check


def _as_seconds(value: float) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadConfig(f"{value!r:.100} is no time: {error}; give seconds") from error


def _seconds(default: float, *, above_zero: bool = False) -> Any:
    def check(_: Any, field: attrs.Attribute[Any], value: float) -> None:
        if not 0 <= value < math.inf or (above_zero and not value):
            raise BadConfig(f"{field.name} is {value}; give finite seconds {'> 0' if above_zero else '>= 0'}")

    return attrs.field(default=default, converter=_as_seconds, validator=check)


@attrs.frozen(kw_only=True)
class LevelConfig:
    """The limits of the jobs of a level.

    Raises:
        BadConfig: a value is out of its range.
    """

    max_blocks: int = attrs.field(validator=_whole(1))
    """The number of blocks of a full job."""
    max_age_seconds: float = _seconds(0.0)
    """The age of its first block from which on a job need not be full; 0: never."""
    max_job_bytes: int | None = attrs.field(default=None, validator=attrs.validators.optional(_whole(1)))
    """The most bytes of a job, except of a single block; `None`: no limit."""
    max_range_seconds: float = _seconds(0.0)
    """The largest difference of the times of a job's blocks; 0: no limit."""


DEFAULT_LEVELS = (
    LevelConfig(max_blocks=20, max_age_seconds=36, max_range_seconds=10800),
    LevelConfig(max_blocks=10, max_age_seconds=720, max_range_seconds=10800),
    LevelConfig(max_blocks=10, max_age_seconds=10800, max_range_seconds=10800),
)
"""Pyroscope's levels, L0 to L2; blocks of level 3 are never compacted again."""


def _are_levels(_: Any, field: attrs.Attribute[Any], value: Any) -> None:
    if not value or not all(isinstance(level, LevelConfig) for level in value):
        raise BadConfig(f"levels is {value!r:.200}; give at least one LevelConfig")


@attrs.frozen(kw_only=True)
class SchedulerConfig:
    """The settings of jobs, leases and tombstones. An `AssignmentPolicy` orders the jobs.

    Raises:
        BadConfig: a value is out of its range.
    """

    levels: tuple[LevelConfig, ...] = attrs.field(default=DEFAULT_LEVELS, validator=_are_levels)
    """One for each compacted level; blocks of higher levels are not compacted."""
    max_failures: int = attrs.field(default=3, validator=_whole(0))
    """The number of failures after which a job is excluded; 0: it is retried for ever."""
    max_releases: int = attrs.field(default=10, validator=_whole(0))
    """The number of releases in a row that count as a failure; 0: no limit."""
    lease_seconds: float = _seconds(15.0, above_zero=True)
    """The duration of a lease, seconds."""
    max_queue_size: int = attrs.field(default=10_000, validator=_whole(0))
    """The most queued jobs; 0: no limit."""
    max_quarantine_size: int = attrs.field(default=10_000, validator=_whole(1, _MOST))
    """The most jobs in quarantine; the oldest are removed, with an event."""
    max_jobs_per_poll: int = attrs.field(default=1_000, validator=_whole(1, _MOST))
    """The most jobs that a poll assigns, and the most that it creates."""
    backoff_seconds: float = _seconds(5.0)
    """The back-off of a job after a failure or a second release; doubles each time."""
    max_backoff_seconds: float = _seconds(300.0)
    """The longest back-off."""
    cleanup_batch_size: int = attrs.field(default=2, validator=_whole(0))
    """Tombstones in the answer to a poll, for each free slot of the worker."""
    cleanup_delay_seconds: float = _seconds(900.0)
    """The age of a tombstone at which its objects are deleted."""
    max_tombstones: int = attrs.field(default=100_000, validator=_whole(1, _MOST))
    """The most tombstones; the oldest are removed, with an event, and a sweep has to find their objects. Without a
    worker with a cleanup, that happens to all."""
    cleanup_lease_seconds: float = _seconds(900.0)
    """The time without a confirmation after which a tombstone is sent again."""
