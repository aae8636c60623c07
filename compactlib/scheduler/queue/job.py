# SPDX-License-Identifier: Apache-2.0
"""A queued job as it is kept in memory, in less than a kilobyte: its sources' ids are one string."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeAlias

from compactlib.scheduler.model.frozen import maker
from compactlib.scheduler.model.values import BlockMeta, JobPlan, JobState, JobStatus, Tombstone, made

Places: TypeAlias = tuple[int, int]
"""Two bits of `Job.ready`: that the job stands in a line, and that it stands beside it, in front of where it ends."""

OF_LEVEL: Places = (1, 2)
"""In the line of its level."""
OF_TENANT: Places = (4, 8)
"""In the line of its tenant."""
NOT_READY = 0

"""What decides between jobs that are otherwise equal: a number for all of them, or a name."""

_SEPARATOR = "\n"
_make_plan: Callable[..., JobPlan] = maker(JobPlan)


class DelayQueue(Protocol):
    """What a job asks of those that it waits with for a time to come; `due_jobs.py` keeps them."""

    def remove(self, job: Job) -> None:
        """The job waits no longer."""

    def hastened(self, job: Job) -> None:
        """The job waits for an earlier time than before."""


class Job:
    """One queued job. Only the queue changes it.

    What its state says are attributes of its own: `JobState` tells what each of them is.

    Attributes:
        last_key: its place in the order of creation, which decides between jobs that are otherwise equal.
        tenant: the plan's.
        shard: the plan's.
        tombstones: the plan's.
        size_bytes: the plan's.
        source_count: how many sources the plan has.
        orphans: blocks that workers wrote who lost the job, and that have no owner if the holder does not write them
            too.
        neighbours: the sources of all jobs of its tenant, shard and level, its own included, if the queue knows them.
        ready: where it stands among the ready jobs of its level and its tenant, if it does.
        waits_in: the jobs of the same kind that it waits with for a time to come, if it does.
    """

    __slots__ = ("_sources", "added_at", "compaction_level", "failures", "last_failure", "last_key", "lease_expires_at",
                 "name", "neighbours", "not_before", "orphans", "ready", "releases", "sequence", "shard", "size_bytes",
                 "source_count", "status", "tenant", "token", "tombstones", "waits_in")

    status: JobStatus
    token: int
    lease_expires_at: float
    failures: int
    not_before: float
    last_failure: str
    releases: int

    def __init__(self, state: JobState, plan: JobPlan) -> None:
        self.name: str = state.name
        self.compaction_level: int = state.compaction_level
        self.added_at: float = state.added_at
        self.sequence: int = state.sequence
        self.become(state)
        self.last_key: int = state.sequence
        self.tenant: str = plan.tenant
        self.shard: int = plan.shard
        self.tombstones: tuple[Tombstone, ...] = plan.tombstones
        self.size_bytes: int = plan.size_bytes
        self.source_count: int = len(plan.source_blocks)
        self.orphans: tuple[BlockMeta, ...] = ()
        self.neighbours: set[str] | None = None
        self.ready: int = NOT_READY
        self.waits_in: DelayQueue | None = None
        packed = _SEPARATOR.join(plan.source_blocks)
        # Ids are printable, so the separator occurs in none; a plan that was made by hand may differ.
        is_plain = plan.source_blocks and packed.count(_SEPARATOR) + 1 == len(plan.source_blocks)
        self._sources: str | tuple[str, ...] = packed if is_plain else plan.source_blocks

    @property
    def state(self) -> JobState:
        """How far it has come."""
        return made(JobState, {
            "name": self.name, "compaction_level": self.compaction_level, "status": self.status, "token": self.token,
            "lease_expires_at": self.lease_expires_at, "added_at": self.added_at, "failures": self.failures,
            "sequence": self.sequence, "not_before": self.not_before, "last_failure": self.last_failure,
            "releases": self.releases})

    def become(self, state: JobState) -> None:
        """Come as far as this later state of the job says."""
        self.status = state.status
        self.token = state.token
        self.lease_expires_at = state.lease_expires_at
        self.failures = state.failures
        self.not_before = state.not_before
        self.last_failure = state.last_failure
        self.releases = state.releases

    @property
    def source_blocks(self) -> tuple[str, ...]:
        """The plan's. O(sources)."""
        sources = self._sources
        return tuple(sources.split(_SEPARATOR)) if isinstance(sources, str) else sources

    def has_sources(self, source_blocks: tuple[str, ...]) -> bool:
        """Whether these are the plan's, in its order. O(sources), and a tenth of making them."""
        sources = self._sources
        if isinstance(sources, str):
            # So many ids with one separator between each two: then there is none inside an id.
            return len(source_blocks) == self.source_count and _SEPARATOR.join(source_blocks) == sources
        return sources == source_blocks

    def plan(self) -> JobPlan:
        """The plan as it was made. O(sources)."""
        sources = self._sources
        return _make_plan(self.name, self.tenant, self.shard, self.compaction_level,
                          tuple(sources.split(_SEPARATOR)) if isinstance(sources, str) else sources,
                          self.tombstones, self.size_bytes)

    def __lt__(self, other: Job) -> bool:
        # Asked by heaps for two entries of one job at one time: any order will do.
        return False

    def __repr__(self) -> str:
        return f"Job({self.state!r})"
