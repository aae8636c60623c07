# SPDX-License-Identifier: Apache-2.0
"""The settings of a scheduler: part of its replicated state, changed by a command alone."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

import attrs

from compactlib.scheduler.errors import BadConfig

SelfT = TypeVar("SelfT")


def check_seconds(name: str, seconds: float) -> None:
    """Raise `BadConfig` unless `seconds` is finite and not negative."""
    if not math.isfinite(seconds) or seconds < 0:
        raise BadConfig(f"{name} is {seconds}; give finite seconds >= 0")


def _of_types(check: Callable[[SelfT], None]) -> Callable[[SelfT], None]:
    """A check of settings that refuses by name what cannot be compared as it should."""
    @wraps(check)
    def checked(self: SelfT) -> None:
        for field in attrs.fields(type(self)):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            is_left_out = value is None and field.type != "int"
            if str(field.type).startswith("int") and not isinstance(value, int) and not is_left_out:
                raise BadConfig(f"{field.name} is {value!r:.100}; give a whole number")
        try:
            check(self)
        except (TypeError, AttributeError, OverflowError) as error:
            raise BadConfig(f"{self!r:.500}: {error}; give values of the types that the settings have") from error

    return checked


@attrs.frozen(kw_only=True)
class LevelConfig:
    """When the blocks of one level become a job.

    Attributes:
        max_blocks: so many blocks are a full batch, and the most a job has, >= 1.
        max_age_seconds: a batch older than this is flushed and planned though it is not full; 0: never.
        max_job_bytes: a job takes no block that would bring it above this, except its first; `None`: no limit.
        max_range_seconds: the most by which the times of a job's blocks may differ; 0: no limit.

    Raises:
        BadConfig: a value is out of its range.
    """

    max_blocks: int
    max_age_seconds: float = 0.0
    max_job_bytes: int | None = None
    max_range_seconds: float = 0.0

    @_of_types
    def __attrs_post_init__(self) -> None:
        if self.max_blocks < 1:
            raise BadConfig(f"max_blocks is {self.max_blocks}; a batch holds at least one block")
        for name in ("max_age_seconds", "max_range_seconds"):
            check_seconds(name, getattr(self, name))
        if self.max_job_bytes is not None and self.max_job_bytes < 1:
            raise BadConfig(f"max_job_bytes is {self.max_job_bytes}; give at least 1, or None for no limit")


@attrs.frozen
class Limits:
    """The settings by which an update is carried out: recorded with it, so that no later ones judge it again.

    Attributes:
        max_queue_size: see `SchedulerConfig`, like the others.
        max_quarantine_size: of evicted jobs.
        max_tombstones: of those that are not confirmed.
        lease_seconds: no job's lease lasts longer.
        max_backoff_seconds: no job waits longer.
        cleanup_lease_seconds: no tombstone's lease lasts longer.
    """

    max_queue_size: int
    max_quarantine_size: int
    max_tombstones: int
    lease_seconds: float
    max_backoff_seconds: float
    cleanup_lease_seconds: float


MAX_TOKENS_ABOVE = 1 << 62
"""So that all indexes of a log have tokens of eight bytes."""

DEFAULT_LEVELS = (
    LevelConfig(max_blocks=20, max_age_seconds=36, max_range_seconds=10800),
    LevelConfig(max_blocks=10, max_age_seconds=720, max_range_seconds=10800),
    LevelConfig(max_blocks=10, max_age_seconds=10800, max_range_seconds=10800),
)
"""Pyroscope's levels, L0 to L2; blocks of level 3 are never compacted again."""


@attrs.frozen(kw_only=True)
class SchedulerConfig:
    """How jobs are made, leased and cleaned up after. Which one goes first is an `AssignmentPolicy`'s to say.

    Attributes:
        levels: one for each level that is compacted; blocks above are left alone.
        max_failures: a job that failed so often is excluded; 0: it is tried for ever.
        max_releases: a job that was given back so often without a failure has failed; 0: as often as workers like.
        lease_seconds: how long a worker may stay silent, > 0.
        max_queue_size: jobs queued at most; 0: no limit.
        max_quarantine_size: evicted jobs remembered at most; the oldest leave, and an event says so.
        max_jobs_per_poll: the most that one poll assigns, and that it makes.
        backoff_seconds: how long a job waits that a worker reported as failed, or gave back for the second time;
            doubled with each time after that.
        max_backoff_seconds: the most it waits.
        cleanup_batch_size: tombstones that ride on a job.
        cleanup_delay_seconds: how old a tombstone must be before its objects are deleted.
        cleanup_min_level: lowest level of jobs that carry tombstones.
        cleanup_max_level: highest level of jobs that carry tombstones.
        max_tombstones: tombstones kept at most; the oldest leave, an event says so, and their objects stay for someone
            else to find. Where no worker has a cleanup, all of them end so.
        cleanup_lease_seconds: after this long without a confirmation, a tombstone is handed out again.
        tokens_above: added to the index of a command to make it a token, >= 0. For a scheduler whose log was lost,
            beside fences that remember its tokens: any number above them. Never falls again, whatever is set later.

    Raises:
        BadConfig: a value is out of its range.
    """

    levels: tuple[LevelConfig, ...] = DEFAULT_LEVELS
    max_failures: int = 3
    max_releases: int = 10
    lease_seconds: float = 15.0
    max_queue_size: int = 10_000
    max_quarantine_size: int = 10_000
    max_jobs_per_poll: int = 1_000
    backoff_seconds: float = 5.0
    max_backoff_seconds: float = 300.0
    cleanup_batch_size: int = 2
    cleanup_delay_seconds: float = 900.0
    cleanup_min_level: int = 0
    cleanup_max_level: int = 1
    max_tombstones: int = 100_000
    cleanup_lease_seconds: float = 900.0
    tokens_above: int = 0

    @_of_types
    def __attrs_post_init__(self) -> None:
        if not self.levels:
            raise BadConfig("levels is empty; give at least one")
        given: tuple[object, ...] = self.levels
        strange = [level for level in given if not isinstance(level, LevelConfig)]
        if strange:
            raise BadConfig(f"levels has {strange!r:.200}; give a LevelConfig each")
        if not self.lease_seconds > 0 or not math.isfinite(self.lease_seconds):
            raise BadConfig(f"lease_seconds is {self.lease_seconds}; a lease lasts longer than 0 seconds")
        for name in ("max_failures", "max_releases", "max_queue_size", "cleanup_batch_size"):
            if getattr(self, name) < 0:
                raise BadConfig(f"{name} is {getattr(self, name)}; it cannot be negative")
        if not 0 <= self.tokens_above < MAX_TOKENS_ABOVE:
            raise BadConfig(f"tokens_above is {self.tokens_above}; give 0 to {MAX_TOKENS_ABOVE - 1}")
        for name in ("max_quarantine_size", "max_jobs_per_poll", "max_tombstones"):
            if not 1 <= getattr(self, name) < 1 << 20:
                raise BadConfig(f"{name} is {getattr(self, name)}; give 1 to {(1 << 20) - 1}")
        for name in ("backoff_seconds", "max_backoff_seconds", "cleanup_delay_seconds", "cleanup_lease_seconds"):
            check_seconds(name, getattr(self, name))

    @property
    def limits(self) -> Limits:
        """What is recorded with each update."""
        return Limits(self.max_queue_size, self.max_quarantine_size, self.max_tombstones, self.lease_seconds,
                      self.max_backoff_seconds, self.cleanup_lease_seconds)
