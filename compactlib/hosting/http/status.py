# SPDX-License-Identifier: Apache-2.0
"""How a scheduler stands, as a value: for JSON, and for Prometheus."""

from __future__ import annotations

from itertools import islice
from typing import Any

import attrs

from compactlib.runtime.observe import Observer
from compactlib.scheduler import SchedulerService
from compactlib.scheduler.model.values import BlockTombstones, JobPhase, Tombstone
from compactlib.scheduler.queue.job_queue import LevelCounts

MAX_SHOWN = 50
"""Rows of leases, of jobs in quarantine and of tombstones; the counts say how many there are in all."""


@attrs.frozen(kw_only=True)
class SchedulerStatus:
    """How a scheduler stands.

    Attributes:
        now: when it was looked at, seconds since the epoch.
        index: the last command that was carried out.
        term: that command's.
        levels: a row a level: `level`, `waiting blocks` that are to become jobs, jobs by phase, and what happened since
            the start.
        lease_count: jobs that a worker has.
        leases: of these the ones whose leases end first.
        quarantine_count: jobs that were given up.
        quarantine: the newest of these.
        tombstone_count: what is to be deleted.
        tombstones: the oldest of these.
    """

    now: float
    index: int
    term: int
    levels: tuple[dict[str, Any], ...]
    lease_count: int
    leases: tuple[dict[str, Any], ...]
    quarantine_count: int
    quarantine: tuple[dict[str, Any], ...]
    tombstone_count: int
    tombstones: tuple[dict[str, Any], ...]

    @staticmethod
    def of(service: SchedulerService, now: float) -> SchedulerStatus:
        """O(levels + what is shown + jobs whose lease has run out + jobs that failed too often)."""
        state = service.state
        waiting = {number: level.blocks for number, level in enumerate(state.blocks.levels)}
        jobs = {row["level"]: row for row in service.stats(now)}
        none = {**{phase.value: 0 for phase in JobPhase}, **attrs.asdict(LevelCounts())}
        levels = tuple({"level": level, "waiting blocks": waiting.get(level, 0), **none, **jobs.get(level, {})}
                       for level in sorted(waiting.keys() | jobs.keys()))
        leases = tuple({"ends_in_seconds": job.lease_expires_at - now, "level": job.compaction_level,
                        "shard": job.shard, "tenant": job.tenant, "token": job.token,
                        "failures": job.failures, "phase": state.jobs.phase(job, now).value,
                        "job": job.name} for job in islice(state.jobs.leased(), MAX_SHOWN))
        newest = islice(reversed(state.quarantine.values()), MAX_SHOWN)
        quarantine = tuple({"age_seconds": now - each.since, "level": each.plan.compaction_level,
                            "shard": each.plan.shard, "tenant": each.plan.tenant,
                            "blocks": len(each.plan.source_blocks), "failures": each.failures, "job": each.plan.name,
                            "reason": each.reason} for each in newest)
        oldest = islice(state.tombstones, MAX_SHOWN)
        tombstones = tuple({"age_seconds": now - each.appended_at,
                            "leased_for_seconds": each.leased_until - now if each.leased_until > now else None,
                            "blocks": _count(each.tombstone), "shard": each.tombstone.shard,
                            "tenant": each.tombstone.tenant, "tombstone": each.tombstone.name} for each in oldest)
        applied = state.applied
        return SchedulerStatus(
            now=now, index=state.applied_index, term=0 if applied is None else applied.term, levels=levels,
            lease_count=state.jobs.lease_count, leases=leases,
            quarantine_count=len(state.quarantine), quarantine=quarantine,
            tombstone_count=len(state.tombstones), tombstones=tombstones)

    def tell(self, observer: Observer) -> None:
        """Notify an observer of the levels: each is an event with a `value`, which Prometheus has as a gauge."""
        for row in self.levels:
            level = str(row["level"])
            observer.event("scheduler_blocks_waiting", {"level": level, "value": row["waiting blocks"]})
            for phase in JobPhase:
                observer.event("scheduler_jobs", {"level": level, "phase": phase.value, "value": row[phase.value]})
        observer.event("scheduler_quarantine", {"value": self.quarantine_count})
        observer.event("scheduler_tombstones", {"value": self.tombstone_count})


def _count(tombstone: Tombstone) -> int | None:
    """Of its blocks; `None` for a span of time, whose blocks nobody has counted."""
    return len(tombstone.blocks) if isinstance(tombstone, BlockTombstones) else None
