# SPDX-License-Identifier: Apache-2.0
"""The contract of an assignment policy, which orders the jobs of a poll.

A policy chooses among the jobs that may be assigned. The leader records the choice in its update, and every replica
carries out the recorded choice. So policies may change at any time, and differ between leaders. A policy cannot change
the rules: which jobs may be assigned, leases, and the holder of a job.
"""

from __future__ import annotations

import heapq
from typing import Any, Protocol

import attrs

from compactlib.report import Printed

WINDOW = 100
"""The number of jobs of each tenant and level in the view of a policy without a `window`."""


@attrs.frozen(kw_only=True)
class WaitingJob:
    """A job that may be assigned now.

    Attributes:
        name: unique.
        tenant: the sources' tenant.
        shard: the sources' shard.
        level: the sources' level.
        blocks: the number of sources.
        size_bytes: the bytes of the sources with known sizes.
        added_at: time of its creation, seconds.
        failures: the number of its failures and lost leases.
        sequence: its position in the order of creation.
    """

    name: str
    tenant: str
    shard: int
    level: int
    blocks: int
    size_bytes: int
    added_at: float
    failures: int = 0
    sequence: int = 0


@attrs.frozen
class TenantLine:
    """The unassigned jobs of a tenant in a level.

    Attributes:
        tenant: the jobs' tenant.
        leased: the number of leased jobs of the tenant in all levels.
        jobs: the first `window` unassigned jobs, by failures and age.
    """

    tenant: str
    leased: int
    jobs: tuple[WaitingJob, ...]


@attrs.frozen
class LevelView:
    """The jobs of a level that may be assigned.

    Attributes:
        level: the jobs' level.
        leased: the number of leased jobs of the level.
        tenants: the unassigned jobs by tenant.
        again: the first `window` jobs with an ended lease, by failures and its end.
    """

    level: int
    leased: int
    tenants: tuple[TenantLine, ...]
    again: tuple[WaitingJob, ...] = ()

    @property
    def ready(self) -> tuple[WaitingJob, ...]:
        """Return the unassigned jobs of all tenants, by failures and age."""
        return tuple(heapq.merge(*(line.jobs for line in self.tenants), key=lambda job: (job.failures, job.sequence)))


@attrs.frozen(kw_only=True, repr=False)
class AssignmentView(Printed):
    """The input of an `AssignmentPolicy`: the jobs that a poll may assign.

    Attributes:
        capacity: the most jobs that this poll may assign, >= 1.
        levels: with present or past jobs, ascending.
        queued: the number of all queued jobs.
        leased: the queued jobs with a lease, also an ended lease.
        delayed: the queued jobs with a back-off, also an ended back-off.
        excluded: the queued jobs with too many failures.
        lease_seconds: the duration of a lease.
        max_failures: the number of failures that exclude a job; 0: no limit.
    """

    capacity: int
    levels: tuple[LevelView, ...] = ()
    queued: int = 0
    leased: int = 0
    delayed: int = 0
    excluded: int = 0
    lease_seconds: float = 0.0
    max_failures: int = 0

    def why_nothing(self) -> str:
        """Return the reason if no job can be assigned: the gate, its value, and advice."""
        if not self.queued:
            return ("no job is queued: blocks become one once there are max_blocks of their level, or the first is "
                    "older than its max_age_seconds at a poll; add blocks, or poll again")
        return (f"no job of {self.queued} queued jobs is free: {self.leased} are leased (lease_seconds="
                f"{self.lease_seconds:g}), {self.delayed} wait for their back-off, {self.excluded} failed max_failures="
                f"{self.max_failures} times, and the rest was made or reported in this very poll; wait, requeue "
                f"what failed, or raise the limit")

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a row for each job that may be assigned."""
        return [attrs.asdict(job) for level in self.levels for jobs in (level.ready, level.again) for job in jobs]

    def _summary(self) -> str:
        return f"{self.capacity} of {self.queued} jobs may be given out"


@attrs.frozen
class JobChoice:
    """The jobs that a poll assigns.

    Attributes:
        jobs: names, in the order of assignment; at most the view's capacity, each once.
        why: the rule; of an empty choice the gate that is shut, its value, and advice.
    """

    jobs: tuple[str, ...]
    why: str

    @property
    def is_empty(self) -> bool:
        """Whether nothing is assigned."""
        return not self.jobs


class AssignmentPolicy(Protocol):
    """A `contract.Policy` for polls: chooses among the jobs that may be assigned.

    The leader calls it in the preparation of a poll with a free slot, while other commands wait: be quick. An exception
    propagates to the caller of the poll, and nothing was changed. A policy may have an attribute `window`: the number
    of jobs of each tenant and level in its view, by default 100.
    """

    @property
    def name(self) -> str:
        """A short name for updates and reports."""

    def choose(self, view: AssignmentView, now: float) -> JobChoice:
        """Return the jobs to assign at `now`, seconds. Pure: equal arguments give equal choices; never `None`."""
