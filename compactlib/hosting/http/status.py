# SPDX-License-Identifier: Apache-2.0
"""How a scheduler stands, as a value: for a page, for JSON, and for Prometheus."""

from __future__ import annotations

import heapq
from html import escape
from typing import Any

import attrs

from compactlib.report import Table
from compactlib.runtime.observe import Observer
from compactlib.scheduler import SchedulerService
from compactlib.scheduler.model.values import BlockTombstones, JobPhase, Tombstone
from compactlib.scheduler.queue.job_queue import LevelCounts

MAX_SHOWN = 100
"""Rows of leases, of jobs in quarantine and of tombstones; the page says how many there are in all."""


@attrs.frozen(kw_only=True)
class SchedulerStatus:
    """How a scheduler stands.

    Attributes:
        now: when it was looked at, seconds since the epoch.
        index: the last command that was carried out.
        term: that command's.
        levels: a row a level: `level`, `blocks` that wait to become jobs, jobs by phase, and what happened since the
            start.
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
        """O(jobs + tombstones)."""
        state = service.state
        waiting: dict[int, int] = {row["level"]: row["blocks"] for row in state.blocks.stats()}
        jobs = {row["level"]: row for row in service.stats(now)}
        none = {**{phase.value: 0 for phase in JobPhase}, **attrs.asdict(LevelCounts())}
        levels = tuple({"level": level, "blocks": waiting.get(level, 0), **none, **jobs.get(level, {})}
                       for level in sorted(waiting.keys() | jobs.keys()))
        held = [job for job in state.jobs if job.state.lease_expires_at]
        leases = tuple({"job": job.state.name, "tenant": job.tenant, "shard": job.shard,
                        "level": job.state.compaction_level, "token": job.state.token,
                        "phase": state.jobs.phase(job.state, now).value, "ends in": job.state.lease_expires_at - now,
                        "failures": job.state.failures}
                       for job in heapq.nsmallest(MAX_SHOWN, held, key=lambda job: job.state.lease_expires_at))
        given_up = heapq.nlargest(MAX_SHOWN, state.quarantine.values(), key=lambda each: each.since)
        quarantine = tuple({"job": each.plan.name, "tenant": each.plan.tenant, "shard": each.plan.shard,
                            "level": each.plan.compaction_level, "blocks": len(each.plan.source_blocks),
                            "failures": each.failures, "age": now - each.since, "reason": each.reason}
                           for each in given_up)
        oldest = heapq.nsmallest(MAX_SHOWN, state.tombstones, key=lambda each: (each.index, each.position))
        tombstones = tuple({"tombstone": each.tombstone.name, "tenant": each.tombstone.tenant,
                            "shard": each.tombstone.shard, "blocks": _count(each.tombstone),
                            "age": now - each.appended_at,
                            "leased for": each.leased_until - now if each.leased_until > now else None}
                           for each in oldest)
        applied = state.applied
        return SchedulerStatus(
            now=now, index=state.applied_index, term=0 if applied is None else applied.term, levels=levels,
            lease_count=len(held), leases=leases, quarantine_count=len(state.quarantine), quarantine=quarantine,
            tombstone_count=len(state.tombstones), tombstones=tombstones)

    def tell(self, observer: Observer) -> None:
        """Notify an observer of the levels: each is an event with a `value`, which Prometheus has as a gauge."""
        for row in self.levels:
            level = str(row["level"])
            observer.event("scheduler_blocks_waiting", {"level": level, "value": row["blocks"]})
            for phase in JobPhase:
                observer.event("scheduler_jobs", {"level": level, "phase": phase.value, "value": row[phase.value]})
        observer.event("scheduler_quarantine", {"value": self.quarantine_count})
        observer.event("scheduler_tombstones", {"value": self.tombstone_count})

    def page(self) -> str:
        """One page in HTML, with nothing from elsewhere and no scripts."""
        tables = [("Jobs by level", len(self.levels), self.levels), ("Leases", self.lease_count, self.leases),
                  ("Quarantine", self.quarantine_count, self.quarantine),
                  ("Tombstones", self.tombstone_count, self.tombstones)]
        return page("Scheduler", f"<p>after command {self.index:,} in term {self.term:,}</p>" + "".join(
            _section(title, count, rows) for title, count, rows in tables))


def _count(tombstone: Tombstone) -> int | None:
    """Of its blocks; `None` for a span of time, whose blocks nobody has counted."""
    return len(tombstone.blocks) if isinstance(tombstone, BlockTombstones) else None


def page(title: str, body: str) -> str:
    """A whole page around a body in HTML."""
    return _PAGE.replace("{title}", escape(title)).replace("{body}", body)


def _section(title: str, count: int, rows: tuple[dict[str, Any], ...]) -> str:
    shown = "" if count == len(rows) else f" (the first {len(rows):,} of {count:,})"
    table = Table.from_dicts(rows)._repr_html_() if rows else "<p>none</p>"
    return f"<section><h2>{escape(title)}{shown}</h2><div>{table}</div></section>"


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root { color-scheme: light dark; font: 16px/1.4 system-ui, sans-serif; }
body { margin: 0 auto; padding: 1rem; max-width: 72rem; }
h1 { font-size: 1.4rem; margin: 0; }
h2 { font-size: 1.1rem; margin: 1.5rem 0 .5rem; }
p { margin: .2rem 0; }
div { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #8886; white-space: nowrap; vertical-align: top; }
td:last-child { white-space: normal; overflow-wrap: anywhere; min-width: 4rem; }
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
