# SPDX-License-Identifier: Apache-2.0
"""A queued job as it is kept in memory, in about a kilobyte: its sources' ids are one string."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from compactlib.scheduler.model.values import BlockMeta, JobPlan, JobState, Tombstone, made

Places: TypeAlias = tuple[int, int]
"""Two bits of `Job.ready`: that the job stands in a line, and that it stands beside it, in front of where it ends."""

OF_LEVEL: Places = (1, 2)
"""In the line of its level."""
OF_TENANT: Places = (4, 8)
"""In the line of its tenant."""
NOT_READY = 0

LastKeyOf: TypeAlias = Callable[[JobState], Any]
"""What decides between jobs that are otherwise equal: a number or a name, the same for all."""

_SEPARATOR = "\n"


class DelayQueue(Protocol):
    """What a job asks of those that it waits with for a time to come; `due_jobs.py` keeps them."""

    def remove(self, job: Job) -> None:
        """The job waits no longer."""

    def hastened(self, job: Job, key: int | str) -> None:
        """The job waits for an earlier time than before."""


class Job:
    """One queued job. Only the queue changes it.

    Attributes:
        state: how far it has come; replaced, never changed.
        tenant: the plan's.
        shard: the plan's.
        tombstones: the plan's.
        size_bytes: the plan's.
        source_count: how many sources the plan has.
        orphans: blocks that workers wrote who lost the job, and that have no owner if the holder does not write them
            too.
        ready: where it stands among the ready jobs of its level and its tenant, if it does.
        waits_in: the jobs of the same kind that it waits with for a time to come, if it does.
    """

    __slots__ = ("_sources", "orphans", "ready", "shard", "size_bytes", "source_count", "state", "tenant", "tombstones",
                 "waits_in")

    def __init__(self, state: JobState, plan: JobPlan) -> None:
        self.state: JobState = state
        self.tenant: str = plan.tenant
        self.shard: int = plan.shard
        self.tombstones: tuple[Tombstone, ...] = plan.tombstones
        self.size_bytes: int = plan.size_bytes
        self.source_count: int = len(plan.source_blocks)
        self.orphans: tuple[BlockMeta, ...] = ()
        self.ready: int = NOT_READY
        self.waits_in: DelayQueue | None = None
        packed = _SEPARATOR.join(plan.source_blocks)
        # Ids are printable, so the separator occurs in none; a plan that was made by hand may differ.
        is_plain = plan.source_blocks and packed.count(_SEPARATOR) + 1 == len(plan.source_blocks)
        self._sources: str | tuple[str, ...] = packed if is_plain else plan.source_blocks

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
        state, sources = self.state, self._sources
        return made(JobPlan, {
            "name": state.name, "tenant": self.tenant, "shard": self.shard, "compaction_level": state.compaction_level,
            "source_blocks": tuple(sources.split(_SEPARATOR)) if isinstance(sources, str) else sources,
            "tombstones": self.tombstones, "size_bytes": self.size_bytes})

    def __lt__(self, other: Job) -> bool:
        # Asked by heaps for two entries of one job at one time: any order will do.
        return False

    def __repr__(self) -> str:
        return f"Job({self.state!r})"
