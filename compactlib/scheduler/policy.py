# SPDX-License-Identifier: Apache-2.0
"""Which job a poll gives out first: a policy's choice, made by the leader alone.

A policy sees jobs that may be assigned now, and chooses; the leader records the choice in its update, and every replica
carries out what was recorded. So policies may change at any time, and differ between leaders, and no state diverges.
What a policy cannot see or change are the rules: which jobs may be assigned, what a lease is, who owns a job.
"""

from __future__ import annotations

import heapq
from typing import Any, Protocol

import attrs

from compactlib.report import Printed

WINDOW = 100
"""How many jobs of each tenant and level a policy sees that has no `window` of its own."""


@attrs.frozen(kw_only=True)
class WaitingJob:
    """A job that may be assigned now, as a policy sees it.

    Attributes:
        name: unique.
        tenant: whose blocks.
        shard: where.
        level: the sources' level.
        blocks: how many sources it has.
        size_bytes: the sources' bytes, as far as they were given when the blocks were added; 0 if they were not.
        added_at: when it was created, seconds.
        failures: how often it was lost or failed.
        sequence: its place in the order of creation.
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
    """The unassigned jobs of one tenant in one level.

    Attributes:
        tenant: whose.
        leased: how many jobs of the tenant, of any level, workers have now.
        jobs: the first `window` of them, by failures and age.
    """

    tenant: str
    leased: int
    jobs: tuple[WaitingJob, ...]


@attrs.frozen
class LevelView:
    """What may be assigned of one level.

    Attributes:
        level: which.
        leased: how many jobs of the level workers have now.
        tenants: the unassigned jobs by tenant.
        again: jobs whose lease is over, by failures and its end; as many as the policy's window.
    """

    level: int
    leased: int
    tenants: tuple[TenantLine, ...]
    again: tuple[WaitingJob, ...] = ()

    @property
    def ready(self) -> tuple[WaitingJob, ...]:
        """The unassigned jobs of all tenants, by failures and age."""
        return tuple(heapq.merge(*(line.jobs for line in self.tenants), key=lambda job: (job.failures, job.sequence)))


@attrs.frozen(kw_only=True, repr=False)
class AssignmentView(Printed):
    """What a poll may give out; what an `AssignmentPolicy` chooses from.

    Attributes:
        capacity: jobs that this poll may assign, >= 1.
        levels: those that have, or had, jobs, ascending.
        queued: jobs in the queue, all included.
        leased: of them, leased ones, also those whose lease is over.
        delayed: of them, those with a back-off, also those whose back-off is over.
        excluded: of them, those that failed too often.
        lease_seconds: how long a lease lasts.
        max_failures: how many failures are too often; 0: none are.
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
        """Return why no job can be assigned, if none can: the gate, its value, and what to do."""
        if not self.queued:
            return ("no job is queued: blocks become one once a batch has max_blocks of its level, or is older than "
                    "its max_age_seconds at a poll; add blocks, or poll again")
        return (f"none of {self.queued} queued jobs is free: {self.leased} are leased (lease_seconds="
                f"{self.lease_seconds}), {self.delayed} wait for their back-off, {self.excluded} failed max_failures="
                f"{self.max_failures} times, and the rest was made or reported in this very poll; wait, requeue "
                f"what failed, or raise the limit")

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row a job that may be assigned."""
        return [attrs.asdict(job) for level in self.levels for jobs in (level.ready, level.again) for job in jobs]

    def _summary(self) -> str:
        return f"{self.capacity} of {self.queued} jobs may be given out"


@attrs.frozen(repr=False)
class JobChoice(Printed):
    """What a poll is to give out.

    Attributes:
        jobs: names, in the order in which they are assigned; at most the view's capacity, each once.
        why: by what rule; of an empty choice which gate is shut, its value, and what to do.
    """

    jobs: tuple[str, ...]
    why: str

    @property
    def is_empty(self) -> bool:
        """Whether nothing is assigned."""
        return not self.jobs

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one row a job."""
        return [{"job": name, "why": self.why} for name in self.jobs]

    def _summary(self) -> str:
        return f"{len(self.jobs)} jobs: {self.why}"


class AssignmentPolicy(Protocol):
    """A `contract.Policy` for polls: which of the jobs that may be assigned go first.

    Asked by the leader when it prepares a poll that has room for a job, within the host's order of commands: be quick.
    What it raises reaches the caller of the poll, and nothing was changed. One with an attribute `window` sees so many
    jobs of each tenant and level; it is 100 without.
    """

    @property
    def name(self) -> str:
        """A short name for updates and reports."""

    def choose(self, view: AssignmentView, now: float) -> JobChoice:
        """Return what to give out at `now`, seconds. Pure: equal arguments give equal choices; never `None`."""
