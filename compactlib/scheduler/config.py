# SPDX-License-Identifier: Apache-2.0
"""The settings of a scheduler: part of its replicated state, changed by a command alone."""

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
    """When the blocks of one level become a job.

    Raises:
        BadConfig: a value is out of its range.
    """

    max_blocks: int = attrs.field(validator=_whole(1))
    """So many blocks are a full batch, and the most that a job has."""
    max_age_seconds: float = _seconds(0.0)
    """A batch older than this is flushed and planned though it is not full; 0: never."""
    max_job_bytes: int | None = attrs.field(default=None, validator=attrs.validators.optional(_whole(1)))
    """A job takes no block that would bring it above this, except its first; `None`: no limit."""
    max_range_seconds: float = _seconds(0.0)
    """The most by which the times of a job's blocks may differ; 0: no limit."""


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
    """How jobs are made, leased and cleaned up after. Which one goes first is an `AssignmentPolicy`'s to say.

    Raises:
        BadConfig: a value is out of its range.
    """

    levels: tuple[LevelConfig, ...] = attrs.field(default=DEFAULT_LEVELS, validator=_are_levels)
    """One for each level that is compacted; blocks above are left alone."""
    max_failures: int = attrs.field(default=3, validator=_whole(0))
    """A job that failed so often is excluded; 0: it is tried for ever."""
    max_releases: int = attrs.field(default=10, validator=_whole(0))
    """A job that was given back so often without a failure has failed; 0: as often as workers like."""
    lease_seconds: float = _seconds(15.0, above_zero=True)
    """How long a worker may stay silent."""
    max_queue_size: int = attrs.field(default=10_000, validator=_whole(0))
    """Jobs queued at most; 0: no limit."""
    max_quarantine_size: int = attrs.field(default=10_000, validator=_whole(1, _MOST))
    """Evicted jobs remembered at most; the oldest are forgotten, with an event."""
    max_jobs_per_poll: int = attrs.field(default=1_000, validator=_whole(1, _MOST))
    """The most jobs that one poll assigns, and that it makes."""
    backoff_seconds: float = _seconds(5.0)
    """How long a job waits that a worker reported as failed, or gave back for the second time; doubled each time."""
    max_backoff_seconds: float = _seconds(300.0)
    """The most that it waits."""
    cleanup_batch_size: int = attrs.field(default=2, validator=_whole(0))
    """Tombstones that a poll hands out for each job that its worker has room for."""
    cleanup_delay_seconds: float = _seconds(900.0)
    """How old a tombstone must be before its objects are deleted."""
    max_tombstones: int = attrs.field(default=100_000, validator=_whole(1, _MOST))
    """Tombstones kept at most; the oldest are forgotten, with an event, and a sweep has to find their objects. Where no
    worker has a cleanup, all of them end so."""
    cleanup_lease_seconds: float = _seconds(900.0)
    """After this long without a confirmation, a tombstone is handed out again."""
