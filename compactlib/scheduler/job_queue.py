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
from typing import Any

import attrs
from sortedcontainers import SortedDict, SortedList

from compactlib.errors import AuditFailed
from compactlib.scheduler.values import BlockMeta, JobPhase, JobPlan, JobState, JobStatus

_UNSPECIFIED = JobStatus.UNSPECIFIED
_IN_PROGRESS = JobStatus.IN_PROGRESS


@attrs.define(eq=False)
class Job:
    """One queued job. Only the queue changes its state."""

    plan: JobPlan
    state: JobState
    orphans: tuple[BlockMeta, ...] = ()
    """Blocks that workers wrote who lost the job; they have no owner if the holder does not write them too."""


@attrs.define
class LevelCounts:
    """What happened to the jobs of one level since the queue was made or loaded."""

    added: int = 0
    completed: int = 0
    assigned: int = 0
    reassigned: int = 0
    evicted: int = 0


@attrs.define(eq=False)
class JobLevel:
    """The jobs of one level that may be assigned now or later. Entries end with sequence and name."""

    ready: SortedList[tuple[int, int, str]] = attrs.field(factory=SortedList)
    tenants: dict[str, SortedList[tuple[int, int, str]]] = attrs.field(factory=dict)
    delayed: SortedList[tuple[float, int, str]] = attrs.field(factory=SortedList)
    leased: SortedList[tuple[float, int, str]] = attrs.field(factory=SortedList)
    counts: LevelCounts = attrs.field(factory=LevelCounts)


class JobQueue:
    """Every job that was created and is neither completed nor evicted.

    Args:
        max_failures: a job that failed so often is assigned no more; 0: none is.
    """

    def __init__(self, max_failures: int) -> None:
        self._max_failures = max_failures
        self._jobs: dict[str, Job] = {}
        self.levels: SortedDict[int, JobLevel] = SortedDict()
        # Jobs that failed too often, the worst first; their last leases may still run.
        self._failed: SortedList[tuple[int, float, int, int, str]] = SortedList()
        # Of them, those with a lease that was not reported as lost, by its end.
        self._last_attempts: SortedList[tuple[float, int, str]] = SortedList()
        self.leased_by_tenant: Counter[str] = Counter()
        """Leased jobs of each tenant, those whose lease is over included."""
        self.size_bytes: int = 0
        """Of the sources of all jobs."""

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """All jobs, in no order that means anything."""
        return iter(self._jobs.values())

    def get(self, name: str) -> Job | None:
        """Return the job of a name, if it is queued. O(1)."""
        return self._jobs.get(name)

    # ------------------------------------------------------------------------------------------------- changes

    def add(self, plan: JobPlan, state: JobState, orphans: tuple[BlockMeta, ...] = ()) -> None:
        """Queue a job; there must be none of its name."""
        job = self._jobs[plan.name] = Job(plan, state, orphans)
        self.size_bytes += plan.size_bytes
        self._place(job)

    def change(self, job: Job, **fields: Any) -> None:
        """Replace fields of a job's state."""
        self._displace(job)
        before, job.state = job.state, attrs.evolve(job.state, **fields)
        self._place(job)
        if job.state.status is _IN_PROGRESS:
            counts = self.levels[job.plan.compaction_level].counts
            if before.status is _UNSPECIFIED:
                counts.assigned += 1
            elif before.token != job.state.token:
                counts.reassigned += 1

    def remove(self, job: Job) -> LevelCounts:
        """Remove a job; return the counts of its level."""
        self._displace(job)
        del self._jobs[job.plan.name]
        self.size_bytes -= job.plan.size_bytes
        return self.levels[job.plan.compaction_level].counts

    def _place(self, job: Job) -> None:
        plan, state = job.plan, job.state
        level = self.levels.get(plan.compaction_level)
        if level is None:
            level = self.levels[plan.compaction_level] = JobLevel()
        entry = state.lease_expires_at, state.sequence, plan.name
        if state.status is _IN_PROGRESS:
            self.leased_by_tenant[plan.tenant] += 1
        if self.has_failed(state):
            self._failed.add(_failed_entry(state))
            if state.status is _IN_PROGRESS:
                self._last_attempts.add(entry)
        elif state.status is _IN_PROGRESS:
            level.leased.add(entry)
        elif state.not_before:
            level.delayed.add((state.not_before, state.sequence, plan.name))
        else:
            waiting = state.failures, state.sequence, plan.name
            level.ready.add(waiting)
            line = level.tenants.get(plan.tenant)
            if line is None:
                line = level.tenants[plan.tenant] = SortedList()
            line.add(waiting)

    def _displace(self, job: Job) -> None:
        plan, state = job.plan, job.state
        level = self.levels[plan.compaction_level]
        entry = state.lease_expires_at, state.sequence, plan.name
        if state.status is _IN_PROGRESS:
            self.leased_by_tenant[plan.tenant] -= 1
            if not self.leased_by_tenant[plan.tenant]:
                del self.leased_by_tenant[plan.tenant]
        if self.has_failed(state):
            self._failed.remove(_failed_entry(state))
            self._last_attempts.discard(entry)
        elif state.status is _IN_PROGRESS:
            level.leased.remove(entry)
        elif state.not_before:
            level.delayed.remove((state.not_before, state.sequence, plan.name))
        else:
            waiting = state.failures, state.sequence, plan.name
            level.ready.remove(waiting)
            line = level.tenants[plan.tenant]
            line.remove(waiting)
            if not line:
                del level.tenants[plan.tenant]

    # --------------------------------------------------------------------------------------- what may be assigned

    def assignable(self, now: float, without: Collection[str]) -> Iterator[Job]:
        """All jobs that may be assigned, in order, but for those of these names."""
        for level in self.levels.values():
            yield from self.unassigned(level, now, without)
            yield from self.expired(level, now, without)

    def unassigned(self, level: JobLevel, now: float, without: Collection[str],
                   entries: Iterable[tuple[int, int, str]] | None = None) -> Iterator[Job]:
        """Jobs without a holder and a back-off that runs, by failures and age.

        Args:
            level: of these jobs.
            now: seconds.
            without: names that are left out.
            entries: some of `level.ready`, in their order, for all of them.
        """
        due = sorted((self._jobs[name].state.failures, not_before, sequence, name)
                     for not_before, sequence, name in _until(level.delayed, now, inclusive=True))
        ready: Iterable[tuple[int, float, int, str]] = (
            (failures, 0.0, sequence, name)
            for failures, sequence, name in (level.ready if entries is None else entries))
        for *_, name in merge(ready, due) if due else ready:
            if name not in without:
                yield self._jobs[name]

    def expired(self, level: JobLevel, now: float, without: Collection[str]) -> Iterator[Job]:
        """Jobs whose lease is over, by failures and its end."""
        over = sorted((self._jobs[name].state.failures, end, sequence, name)
                      for end, sequence, name in _until(level.leased, now, inclusive=False))
        return (self._jobs[name] for *_, name in over if name not in without)

    def may_be_assigned(self, job: Job, now: float) -> bool:
        """Whether the job has no holder, and waits for nothing. O(1)."""
        state = job.state
        if self.has_failed(state):
            return False
        return now > state.lease_expires_at if state.status is _IN_PROGRESS else now >= state.not_before

    # --------------------------------------------------------------------------------------------------- the rest

    def has_failed(self, state: JobState) -> bool:
        """Whether the job failed so often that it is assigned no more."""
        return 0 < self._max_failures <= state.failures

    def excluded(self, now: float) -> Iterator[Job]:
        """Jobs that failed too often and that have no holder, the worst first: most failures, longest excluded."""
        for *_, name in self._failed:
            job = self._jobs[name]
            if self.phase(job.state, now) is JobPhase.EXCLUDED:
                yield job

    def lost_last_attempts(self, now: float) -> tuple[str, ...]:
        """Names of the jobs whose last lease is over, and that `note_excluded` was not called for."""
        return tuple(name for *_, name in _until(self._last_attempts, now, inclusive=False))

    def note_excluded(self, name: str) -> None:
        """The loss of a job's last attempt was reported; after a restart it is once more."""
        state = self._jobs[name].state
        self._last_attempts.discard((state.lease_expires_at, state.sequence, name))

    def leases_beyond(self, end: float) -> list[Job]:
        """Jobs whose lease ends after `end`, seconds. O(1) if there is none."""
        orders = self._last_attempts, *(level.leased for level in self.levels.values())
        return [self._jobs[name] for order in orders for *_, name in order.irange((end, inf, ""))]  # type: ignore[arg-type]

    def phase(self, state: JobState, now: float) -> JobPhase:
        """Return a job's phase at a time."""
        if state.status is _IN_PROGRESS and not now > state.lease_expires_at:
            return JobPhase.IN_PROGRESS
        if self.has_failed(state):
            return JobPhase.EXCLUDED
        return JobPhase.LEASE_EXPIRED if state.status is _IN_PROGRESS else JobPhase.UNASSIGNED

    def phases(self, now: float) -> dict[int, Counter[JobPhase]]:
        """Return how many jobs of each level are in which phase. O(levels + expired and failed jobs)."""
        found = {}
        for number, level in self.levels.items():
            over = sum(1 for _ in _until(level.leased, now, inclusive=False))
            found[number] = Counter({JobPhase.UNASSIGNED: len(level.ready) + len(level.delayed),
                                     JobPhase.IN_PROGRESS: len(level.leased) - over, JobPhase.LEASE_EXPIRED: over})
        for *_, name in self._failed:
            state = self._jobs[name].state
            found[state.compaction_level][self.phase(state, now)] += 1
        return found

    def leased(self) -> Iterator[Job]:
        """Jobs with a lease, run out or not, by its end; without those on their last attempt."""
        return (self._jobs[name] for *_, name in merge(*(level.leased for level in self.levels.values())))

    @property
    def counts(self) -> dict[str, int]:
        """How many jobs are `leased`, `delayed` and `excluded`."""
        return {"leased": self.leased_by_tenant.total(),
                "delayed": sum(len(level.delayed) for level in self.levels.values()), "excluded": len(self._failed)}

    def in_order(self) -> list[JobState]:
        """Return all jobs by priority. O(n log n)."""
        return sorted((job.state for job in self), key=lambda state: (
            state.compaction_level, self.has_failed(state), state.status, state.failures, state.lease_expires_at,
            state.not_before, state.sequence))

    def audit(self) -> None:
        """Check that every job stands exactly where its state says. O(n log n).

        Raises:
            AuditFailed: one does not; the message has the numbers.
        """
        again = JobQueue(self._max_failures)
        for name, job in self._jobs.items():
            if name != job.state.name or name != job.plan.name or job.state.status not in (_UNSPECIFIED, _IN_PROGRESS):
                raise AuditFailed(f"job {name!r} is kept with the state {job.state!r}")
            again.add(job.plan, job.state)
        for number, level in self.levels.items():
            other = again.levels.get(number, JobLevel())
            for what in ("ready", "tenants", "delayed", "leased"):
                if getattr(level, what) != getattr(other, what):
                    raise AuditFailed(f"level {number}: {what} is {getattr(level, what)!r:.300}; by the states of its "
                                      f"jobs it is {getattr(other, what)!r:.300}")
        if (self._failed, self.size_bytes, self.leased_by_tenant) != (
                again._failed, again.size_bytes, again.leased_by_tenant):
            raise AuditFailed(f"{len(self._failed)} jobs failed too often, {self.size_bytes} bytes, "
                              f"{self.leased_by_tenant} leased; by the states of the jobs {len(again._failed)}, "
                              f"{again.size_bytes} and {again.leased_by_tenant}")

    def __repr__(self) -> str:
        return f"JobQueue({len(self)} jobs)"


def _until(entries: SortedList[tuple[float, int, str]], now: float, *, inclusive: bool
           ) -> Iterator[tuple[float, int, str]]:
    """The entries of times before `now`, or up to it."""
    return entries.irange(None, (now, inf if inclusive else -inf, ""))  # type: ignore[arg-type]


def _failed_entry(state: JobState) -> tuple[int, float, int, int, str]:
    return -state.failures, state.lease_expires_at, -state.compaction_level, state.sequence, state.name
