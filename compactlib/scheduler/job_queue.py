# SPDX-License-Identifier: Apache-2.0
"""All queued jobs, in the order in which they are to be assigned.

The order is: level, unassigned before expired, fewer failures, earlier time, age. It is kept as sorted lists:

| of a level | jobs | ordered by |
| --- | --- | --- |
| `ready` | unassigned, without a back-off; also by tenant | failures, age |
| `delayed` | unassigned, with a back-off | its end |
| `leased` | in progress | end of the lease |

A job whose back-off or lease is over stays where it is until it is assigned: whether a time is over depends on the
command that asks. Such jobs are the first of `delayed` and `leased`, and usually few; they are ranked when they are
asked for. (One list with in-progress jobs by failures would hide a job whose lease is over behind a live lease with
fewer failures.) Jobs that failed too often stand in none of these, but in `failed`, the worst first.

Built for tens of thousands of jobs, the usual limit; every change costs O(log n).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from math import inf
from typing import Any, TypeAlias

import attrs
from sortedcontainers import SortedDict, SortedList

from compactlib.scheduler.values import BlockMeta, JobPhase, JobPlan, JobStatus

Entry: TypeAlias = tuple[float, int, str]
"""A job in an order: by a number or a time, then by age; its name."""
_IN_PROGRESS = JobStatus.IN_PROGRESS


@attrs.define(kw_only=True, weakref_slot=False)
class Job:
    """One queued job; stored as it is. Only `JobQueue.change` changes it.

    Attributes:
        plan: what it is to do; never changes.
        status: `UNSPECIFIED` or `IN_PROGRESS`.
        token: the fencing token: index of the command that created, assigned or took back the job; only grows.
        lease_expires_at: end of the lease, seconds; 0 if unassigned.
        added_at: when the job was created, seconds.
        failures: how often it was lost or failed.
        sequence: its place in the order of creation.
        not_before: it is not assigned before this time (back-off), seconds.
        last_failure: what the last worker said that gave it up, if it said something.
        releases: how often it was given back since it last failed.
        orphans: blocks that workers wrote who lost the job; they have no owner if the holder does not write them too.
    """

    plan: JobPlan
    status: JobStatus = JobStatus.UNSPECIFIED
    token: int = 0
    lease_expires_at: float = 0.0
    added_at: float = 0.0
    failures: int = 0
    sequence: int = 0
    not_before: float = 0.0
    last_failure: str = ""
    releases: int = 0
    orphans: tuple[BlockMeta, ...] = ()

    @property
    def name(self) -> str:
        """The plan's."""
        return self.plan.name


@attrs.define
class JobLevel:
    """The jobs of one level that may be assigned now or later, but for those that failed too often."""

    ready: SortedList[Entry] = attrs.field(factory=SortedList)
    tenants: dict[str, SortedList[Entry]] = attrs.field(factory=dict)
    delayed: SortedList[Entry] = attrs.field(factory=SortedList)
    leased: SortedList[Entry] = attrs.field(factory=SortedList)


class JobQueue:
    """Every job that was created and is neither completed nor evicted.

    Args:
        max_failures: a job that failed so often is assigned no more; 0: none is.

    Attributes:
        levels: those that have jobs which did not fail too often.
        leased_by_tenant: leased jobs of each tenant, those whose lease is over included.
        size_bytes: of the sources of all jobs.
    """

    def __init__(self, max_failures: int) -> None:
        self.levels: SortedDict[int, JobLevel] = SortedDict()
        self.leased_by_tenant: Counter[str] = Counter()
        self.size_bytes: int = 0
        self._max_failures = max_failures
        self._jobs: dict[str, Job] = {}
        # Jobs that failed too often, the worst first; their last leases may still run.
        self._failed: SortedList[tuple[int, float, int, int, str]] = SortedList()
        # Of them, those with a lease that was not reported as lost, by its end.
        self._last_attempts: SortedList[Entry] = SortedList()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """All jobs, in no order that means anything."""
        return iter(self._jobs.values())

    def get(self, name: str) -> Job | None:
        """Return the job of a name, if it is queued. O(1)."""
        return self._jobs.get(name)

    # ------------------------------------------------------------------------------------------------- changes

    def add(self, job: Job) -> None:
        """Queue a job; there must be none of its name."""
        self._jobs[job.name] = job
        self.size_bytes += job.plan.size_bytes
        self._move(job, into=True)

    def change(self, job: Job, **fields: Any) -> None:
        """Replace fields of a job."""
        self._move(job, into=False)
        for name, value in fields.items():
            setattr(job, name, value)
        self._move(job, into=True)

    def remove(self, job: Job) -> None:
        """Remove a job."""
        self._move(job, into=False)
        del self._jobs[job.name]
        self.size_bytes -= job.plan.size_bytes

    def _move(self, job: Job, *, into: bool) -> None:
        """Put the job into the orders in which it stands as it is now, or take it out of them."""
        tenant, is_leased = job.plan.tenant, job.status is _IN_PROGRESS
        lease = job.lease_expires_at, job.sequence, job.name
        if is_leased:
            self.leased_by_tenant[tenant] += 1 if into else -1
            if not self.leased_by_tenant[tenant]:
                del self.leased_by_tenant[tenant]
        if self.has_failed(job):
            _change(self._failed, into, (
                -job.failures, job.lease_expires_at, -job.plan.compaction_level, job.sequence, job.name))
            if is_leased:
                _change(self._last_attempts, into, lease)
            return
        level = self.levels.get(job.plan.compaction_level)
        if level is None:
            level = self.levels[job.plan.compaction_level] = JobLevel()
        if is_leased:
            _change(level.leased, into, lease)
        elif job.not_before:
            _change(level.delayed, into, (job.not_before, job.sequence, job.name))
        else:
            waiting = job.failures, job.sequence, job.name
            _change(level.ready, into, waiting)
            line = level.tenants.get(tenant)
            if line is None:
                line = level.tenants[tenant] = SortedList()
            _change(line, into, waiting)
            if not line:
                del level.tenants[tenant]
        if not (level.ready or level.delayed or level.leased):
            del self.levels[job.plan.compaction_level]

    # --------------------------------------------------------------------------------------- what may be assigned

    def assignable(self, now: float, without: Collection[str]) -> Iterator[Job]:
        """All jobs that may be assigned, in order, but for those of these names."""
        for level in self.levels.values():
            yield from self.unassigned(level, now, without)
            yield from self.expired(level, now, without)

    def unassigned(self, level: JobLevel, now: float, without: Collection[str],
                   entries: Iterable[Entry] | None = None) -> Iterator[Job]:
        """Jobs without a holder and a back-off that runs, by failures and age.

        Args:
            level: of these jobs.
            now: seconds.
            without: names that are left out.
            entries: some of `level.ready`, in their order, for all of them.
        """
        due = sorted((self._jobs[name].failures, not_before, sequence, name)
                     for not_before, sequence, name in _until(level.delayed, now, inclusive=True))
        ready: Iterable[tuple[float, float, int, str]] = (
            (failures, 0.0, sequence, name)
            for failures, sequence, name in (level.ready if entries is None else entries))
        for *_, name in merge(ready, due) if due else ready:
            if name not in without:
                yield self._jobs[name]

    def expired(self, level: JobLevel, now: float, without: Collection[str]) -> Iterator[Job]:
        """Jobs whose lease is over, by failures and its end."""
        over = sorted((self._jobs[name].failures, end, sequence, name)
                      for end, sequence, name in _until(level.leased, now, inclusive=False))
        return (self._jobs[name] for *_, name in over if name not in without)

    def may_be_assigned(self, job: Job, now: float) -> bool:
        """Whether the job has no holder, and waits for nothing. O(1)."""
        if self.has_failed(job):
            return False
        return now > job.lease_expires_at if job.status is _IN_PROGRESS else now >= job.not_before

    # --------------------------------------------------------------------------------------------------- the rest

    def has_failed(self, job: Job) -> bool:
        """Whether the job failed so often that it is assigned no more."""
        return 0 < self._max_failures <= job.failures

    def excluded(self, now: float) -> Iterator[Job]:
        """Jobs that failed too often and that have no holder, the worst first: most failures, longest excluded."""
        failed = (self._jobs[name] for *_, name in self._failed)
        return (job for job in failed if self.phase(job, now) is JobPhase.EXCLUDED)

    def lost_last_attempts(self, now: float) -> tuple[str, ...]:
        """Names of the jobs whose last lease is over, and that `note_excluded` was not called for."""
        return tuple(name for *_, name in _until(self._last_attempts, now, inclusive=False))

    def note_excluded(self, job: Job) -> None:
        """The loss of a job's last attempt was reported; after a restart it is once more."""
        self._last_attempts.discard((job.lease_expires_at, job.sequence, job.name))

    def leases_beyond(self, end: float) -> list[Job]:
        """Jobs whose lease ends after `end`, seconds. O(1) if there is none."""
        orders = self._last_attempts, *(level.leased for level in self.levels.values())
        return [self._jobs[name] for order in orders for *_, name in order.irange((end, inf, ""))]  # type: ignore[arg-type]

    def phase(self, job: Job, now: float) -> JobPhase:
        """Return a job's phase at a time."""
        if job.status is _IN_PROGRESS and not now > job.lease_expires_at:
            return JobPhase.IN_PROGRESS
        if self.has_failed(job):
            return JobPhase.EXCLUDED
        return JobPhase.LEASE_EXPIRED if job.status is _IN_PROGRESS else JobPhase.UNASSIGNED

    def first_lease(self) -> float | None:
        """When the first lease ends, or ended, seconds; those of last attempts do not count."""
        return min((level.leased[0][0] for level in self.levels.values() if level.leased), default=None)

    @property
    def counts(self) -> dict[str, int]:
        """How many jobs are `leased`, `delayed` and `excluded`."""
        return {"leased": self.leased_by_tenant.total(),
                "delayed": sum(len(level.delayed) for level in self.levels.values()), "excluded": len(self._failed)}

    def in_order(self) -> list[Job]:
        """Return all jobs by priority. O(n log n)."""
        return sorted(self, key=lambda job: (
            job.plan.compaction_level, self.has_failed(job), job.status, job.failures, job.lease_expires_at,
            job.not_before, job.sequence))

    def __repr__(self) -> str:
        return f"JobQueue({len(self)} jobs)"


def _change(order: SortedList[Any], into: bool, entry: Any) -> None:
    if into:
        order.add(entry)
    else:
        order.discard(entry)


def _until(entries: SortedList[Entry], now: float, *, inclusive: bool) -> Iterator[Entry]:
    """The entries of times before `now`, or up to it."""
    return entries.irange(None, (now, inf if inclusive else -inf, ""))  # type: ignore[arg-type]
