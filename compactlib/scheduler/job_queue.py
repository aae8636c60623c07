# SPDX-License-Identifier: Apache-2.0
"""`JobQueue`: all queued jobs, in the order of assignment.

The order is: level, unassigned before expired, fewer failures, earlier time, age. It is kept as sorted lists:

| of a level | jobs | ordered by |
| --- | --- | --- |
| `ready` | unassigned, without a back-off; also by tenant | failures, age |
| `delayed` | unassigned, with a back-off | its end |
| `leased` | in progress | end of the lease |

After the end of its back-off or lease a job stays in its list until it is assigned, since the end depends on the time
of the command. Such jobs are at the head of `delayed` and `leased`, and usually few; they are ranked at a read.
(In one list by failures, a job with an ended lease could be behind a live lease with fewer failures.) Jobs that failed
too often are only in `failed`, with the most failures first.

Made for tens of thousands of jobs, the usual limit; every change costs O(log n).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from heapq import merge
from itertools import chain
from math import inf
from typing import Any, TypeAlias

import attrs
from sortedcontainers import SortedDict, SortedList

from compactlib.scheduler.values import JobPhase, JobPlan, JobStatus

Entry: TypeAlias = tuple[float, int, str]
"""An entry of an order: a number or a time, the age, and the job's name."""
_IN_PROGRESS = JobStatus.IN_PROGRESS


@attrs.define(kw_only=True, weakref_slot=False)
class Job:
    """A queued job, also in the stored state. Only `JobQueue.change` changes it.

    Attributes:
        plan: the job's plan; never changes.
        status: `UNSPECIFIED` or `IN_PROGRESS`.
        token: the fencing token: index of the command that created, assigned or took back the job; ascends.
        lease_expires_at: end of the lease, seconds; 0 if unassigned.
        added_at: time of its creation, seconds.
        failures: the number of its failures and lost leases.
        sequence: its position in the order of creation.
        not_before: end of its back-off, seconds.
        last_failure: the reason of the last worker that failed or released it, if any.
        releases: the number of releases since the last failure.
        reported_lease: the end of the lost lease with which the job was reported as excluded, seconds; 0 for none.
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
    reported_lease: float = 0.0

    @property
    def name(self) -> str:
        """The plan's."""
        return self.plan.name


@attrs.define
class JobLevel:
    """The jobs of a level, without those that failed too often."""

    ready: SortedList[Entry] = attrs.field(factory=SortedList)
    tenants: dict[str, SortedList[Entry]] = attrs.field(factory=dict)
    delayed: SortedList[Entry] = attrs.field(factory=SortedList)
    leased: SortedList[Entry] = attrs.field(factory=SortedList)


class JobQueue:
    """All jobs that are neither completed nor evicted.

    Args:
        max_failures: the number of failures after which a job is excluded; 0: never.
        max_backoff_seconds: the longest back-off. A leader with a fast clock has dated one that ends later than this
            from now; it counts as ended.

    Attributes:
        levels: with jobs that did not fail too often.
        leased_by_tenant: the number of leased jobs of each tenant, also with ended leases.
    """

    def __init__(self, max_failures: int, max_backoff_seconds: float) -> None:
        self.levels: SortedDict[int, JobLevel] = SortedDict()
        self.leased_by_tenant: Counter[str] = Counter()
        self._max_failures, self._max_backoff = max_failures, max_backoff_seconds
        self._jobs: dict[str, Job] = {}
        # Jobs that failed too often, the most failures first; their last leases may not have ended.
        self._failed: SortedList[tuple[int, float, int, int, str]] = SortedList()
        # Of them, those with a lease that was not reported as lost, by its end.
        self._last_attempts: SortedList[Entry] = SortedList()

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        # All jobs, in an arbitrary order.
        return iter(self._jobs.values())

    def get(self, name: str) -> Job | None:
        """Return the job of a name, or `None`. O(1)."""
        return self._jobs.get(name)

    # ------------------------------------------------------------------------------------------------- changes

    def add(self, job: Job) -> None:
        """Queue a job with a new name."""
        self._jobs[job.name] = job
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

    def _move(self, job: Job, *, into: bool) -> None:
        """Add the job to the orders of its present state, or remove it from them."""
        tenant, is_leased = job.plan.tenant, job.status is _IN_PROGRESS
        lease = job.lease_expires_at, job.sequence, job.name
        if is_leased:
            self.leased_by_tenant[tenant] += 1 if into else -1
            if not self.leased_by_tenant[tenant]:
                del self.leased_by_tenant[tenant]
        if self.has_failed(job):
            _change(self._failed, into, (
                -job.failures, job.lease_expires_at, -job.plan.compaction_level, job.sequence, job.name))
            if is_leased and job.reported_lease != job.lease_expires_at:
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
        """Yield the jobs that may be assigned, in order, without these names."""
        for level in self.levels.values():
            yield from self.unassigned(level, now, without)
            yield from self.expired(level, now, without)

    def unassigned(self, level: JobLevel, now: float, without: Collection[str],
                   entries: Iterable[Entry] | None = None) -> Iterator[Job]:
        """Yield the jobs without a holder and without a present back-off, by failures and age.

        Args:
            level: the jobs' level.
            now: seconds.
            without: names to skip.
            entries: a part of `level.ready` to use instead of all, in order.
        """
        misdated = level.delayed.irange((now + self._max_backoff, inf, ""))  # type: ignore[arg-type]
        due = sorted((self._jobs[name].failures, not_before, sequence, name)
                     for not_before, sequence, name in chain(_until(level.delayed, now, inclusive=True), misdated))
        ready: Iterable[tuple[float, float, int, str]] = (
            (failures, 0.0, sequence, name)
            for failures, sequence, name in (level.ready if entries is None else entries))
        for *_, name in merge(ready, due) if due else ready:
            if name not in without:
                yield self._jobs[name]

    def expired(self, level: JobLevel, now: float, without: Collection[str]) -> Iterator[Job]:
        """Yield the jobs with an ended lease, by failures and its end."""
        over = sorted((self._jobs[name].failures, end, sequence, name)
                      for end, sequence, name in _until(level.leased, now, inclusive=False))
        return (self._jobs[name] for *_, name in over if name not in without)

    def may_be_assigned(self, job: Job, now: float) -> bool:
        """Return whether the job has no holder and no back-off. O(1)."""
        if self.has_failed(job):
            return False
        if job.status is _IN_PROGRESS:
            return now > job.lease_expires_at
        return not now < job.not_before <= now + self._max_backoff

    # --------------------------------------------------------------------------------------------------- the rest

    def has_failed(self, job: Job) -> bool:
        """Return whether the job failed too often to be assigned."""
        return 0 < self._max_failures <= job.failures

    def excluded(self, now: float) -> Iterator[Job]:
        """Yield the jobs that failed too often and have no holder: most failures first, then longest excluded."""
        failed = (self._jobs[name] for *_, name in self._failed)
        return (job for job in failed if self.phase(job, now) is JobPhase.EXCLUDED)

    def lost_last_attempts(self, now: float) -> tuple[str, ...]:
        """Return the names of excluded jobs with an ended last lease, before `note_excluded`."""
        return tuple(name for *_, name in _until(self._last_attempts, now, inclusive=False))

    def note_excluded(self, job: Job) -> None:
        """Mark the loss of a job's last attempt as reported."""
        self.change(job, reported_lease=job.lease_expires_at)

    def leases_beyond(self, end: float) -> list[Job]:
        """Return the jobs with a lease that ends after `end`, seconds. O(1) if there are none."""
        orders = self._last_attempts, *(level.leased for level in self.levels.values())
        return [self._jobs[name] for order in orders for *_, name in order.irange((end, inf, ""))]  # type: ignore[arg-type]

    def phase(self, job: Job, now: float) -> JobPhase:
        """Return a job's phase at a time."""
        if job.status is _IN_PROGRESS and not now > job.lease_expires_at:
            return JobPhase.IN_PROGRESS
        if self.has_failed(job):
            return JobPhase.EXCLUDED
        return JobPhase.LEASE_EXPIRED if job.status is _IN_PROGRESS else JobPhase.UNASSIGNED

    @property
    def counts(self) -> dict[str, int]:
        """Return the numbers of `leased`, `delayed` and `excluded` jobs."""
        return {"leased": self.leased_by_tenant.total(),
                "delayed": sum(len(level.delayed) for level in self.levels.values()), "excluded": len(self._failed)}

    def count(self, now: float) -> Counter[tuple[int, JobPhase]]:
        """Count the jobs by level and phase. O(levels log jobs), and O(jobs that failed too often)."""
        found: Counter[tuple[int, JobPhase]] = Counter()
        for number, level in self.levels.items():
            ended = level.leased.bisect_left((now, -inf, ""))  # type: ignore[arg-type]
            found[number, JobPhase.UNASSIGNED] = len(level.ready) + len(level.delayed)
            found[number, JobPhase.LEASE_EXPIRED] = ended
            found[number, JobPhase.IN_PROGRESS] = len(level.leased) - ended
        for *_, name in self._failed:
            job = self._jobs[name]
            found[job.plan.compaction_level, self.phase(job, now)] += 1
        return found

    def phases(self, now: float) -> Iterator[tuple[JobPhase, Job]]:
        """Yield all jobs by priority, each with its phase at a time. O(n log n)."""
        for job in sorted(self, key=lambda job: (
                job.plan.compaction_level, self.has_failed(job), job.status, job.failures, job.lease_expires_at,
                job.not_before, job.sequence)):
            yield self.phase(job, now), job


def _change(order: SortedList[Any], into: bool, entry: Any) -> None:
    if into:
        order.add(entry)
    else:
        order.discard(entry)


def _until(entries: SortedList[Entry], now: float, *, inclusive: bool) -> Iterator[Entry]:
    """Yield the entries with a time before `now`, or up to it."""
    return entries.irange(None, (now, inf if inclusive else -inf, ""))  # type: ignore[arg-type]
