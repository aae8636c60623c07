# SPDX-License-Identifier: Apache-2.0
"""Unassigned jobs of one level that may be assigned at once, in their order; and, once asked for, by tenant.

Taking the next job costs the same whatever the number of jobs, and looking at the next ones changes nothing. Jobs
mostly arrive in order, so they stand in a deque; those that come back early stand in a small sorted list beside it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Sequence, Set
from operator import attrgetter
from typing import Any

from sortedcontainers import SortedDict, SortedList

from compactlib.errors import AuditFailed
from compactlib.scheduler.queue.job import NOT_READY, OF_LEVEL, OF_TENANT, Job, Places

_SMALL = 64
_LAST_KEY = attrgetter("last_key")


class Line:
    """Ready jobs in the order of their last key.

    Args:
        places: how a job notes that it stands here.
    """

    def __init__(self, places: Places) -> None:
        self._in_line, self._early_one = places
        self._line: deque[Job] = deque()
        # Jobs that would not stand in order at the end of the line.
        self._early: SortedList[tuple[int, str]] = SortedList()
        self._early_jobs: dict[str, Job] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, job: Job) -> None:
        """O(1) for a job that comes after all others, else O(log n)."""
        key = job.last_key
        line = self._line
        # The last one in the line may have left it; it still says where the line ends.
        if not line or line[-1].last_key < key:
            line.append(job)
            job.ready |= self._in_line
        else:
            self._early.add((key, job.name))
            self._early_jobs[job.name] = job
            job.ready |= self._early_one
        self._size += 1

    def remove(self, jobs: Sequence[Job]) -> None:
        """O(1) amortized for each job of the line, else O(log n)."""
        in_line = self._in_line
        for job in jobs:
            ready = job.ready
            if ready & in_line:
                job.ready = ready ^ in_line
            else:
                self._early.remove((job.last_key, job.name))
                del self._early_jobs[job.name]
                job.ready = ready ^ self._early_one
        self._size -= len(jobs)
        line = self._line
        while line and not line[0].ready & in_line:
            line.popleft()
        if len(line) > _SMALL and len(line) > 2 * self._size:
            self._line = deque(waiting for waiting in line if waiting.ready & in_line)

    def first(self, count: int, without: Set[str]) -> list[Job]:
        """The first jobs in order, at most so many, but for those of these names. O(1) a job."""
        found: list[Job] = []
        place = self._in_line
        is_in_order = not self._early
        for job in self._line if is_in_order else self:
            if (is_in_order and not job.ready & place) or job.name in without:
                continue
            found.append(job)
            if len(found) == count:
                break
        return found

    def __iter__(self) -> Iterator[Job]:
        """The jobs in order; the line must not change meanwhile. O(1) a job."""
        place = self._in_line
        in_line = (job for job in self._line if job.ready & place)
        if not self._early:
            return in_line
        early = (self._early_jobs[name] for _, name in self._early)
        return heapq.merge(in_line, early, key=_LAST_KEY)

    def audit(self) -> None:
        """Raise `AuditFailed` unless the parts agree. O(n)."""
        jobs = list(self)
        keys = [job.last_key for job in jobs]
        if len(jobs) != self._size or keys != sorted(keys) or len(self._early) != len(self._early_jobs):
            raise AuditFailed(f"a line of {self._size} ready jobs gives {len(jobs)}, in order: "
                                  f"{keys == sorted(keys)}, of them {len(self._early)}/{len(self._early_jobs)} early")


class ReadyJobs:
    """Ready jobs of one level in their order."""

    def __init__(self) -> None:
        self._line = Line(OF_LEVEL)
        # Costs nothing before turns are used.
        self._turns: TenantTurns | None = None

    def __len__(self) -> int:
        return len(self._line)

    def add(self, job: Job) -> None:
        """Let the job wait to be assigned."""
        self._line.add(job)
        if self._turns is not None:
            self._turns.add(job)

    def remove(self, jobs: Sequence[Job]) -> None:
        """The jobs were assigned, or left."""
        self._line.remove(jobs)
        for job in jobs:
            if self._turns is not None:
                self._turns.remove(job)
            # Also of turns that an interrupt kept from being kept.
            job.ready = NOT_READY

    def first(self, count: int, without: Set[str]) -> list[Job]:
        """The first jobs in order, at most so many (> 0), but for those of these names. O(1) a job."""
        return self._line.first(count, without)

    def __iter__(self) -> Iterator[Job]:
        """The jobs in order; they must not change meanwhile. O(1) a job."""
        return iter(self._line)

    @property
    def turns(self) -> TenantTurns:
        """The same jobs by tenant. O(n) when it is asked for first."""
        turns = self._turns
        if turns is None:
            turns = TenantTurns()
            for job in self._line:
                turns.add(job)
            # Not before it is whole: an interrupt of who only plans must not leave half of it.
            self._turns = turns
        return turns

    def set_turn(self, tenant: str, before: int, after: int) -> None:
        """The tenant had its turn: its last one began at virtual time `before`, the next is at `after`."""
        self.turns.set_turn(tenant, before, after)

    def dump(self) -> list[Any]:
        """The turns as plain values, nothing if there were none; the jobs are stored elsewhere."""
        return [] if self._turns is None else self._turns.dump()

    def load(self, stored: list[Any]) -> None:
        """Take what `dump` gave; the jobs are added after."""
        self.turns.load(stored)

    def loaded(self) -> None:
        """All jobs were added."""
        if self._turns is not None:
            self._turns.loaded()

    def audit(self) -> None:
        """Raise `AuditFailed` unless the parts agree. O(n)."""
        self._line.audit()
        if self._turns is not None:
            self._turns.audit(len(self._line))


class TenantTurns:
    """Ready jobs of one level by tenant, and how far each tenant's turns have come, as its virtual time.

    Recorded turns alone move virtual times on, so that every replica has the same ones, whichever replica chose. A
    tenant that had no jobs for a while starts where the others are, so that it cannot save up turns.
    """

    def __init__(self) -> None:
        self._lines: dict[str, Line] = {}
        self._virtual: dict[str, int] = {}
        self._order: SortedDict[tuple[int, str], Line] = SortedDict()
        self._now = 0

    def add(self, job: Job) -> None:
        """Let the job wait to be assigned. O(log tenants) for a tenant's first."""
        line = self._lines.get(job.tenant)
        if line is None:
            line = self._lines[job.tenant] = Line(OF_TENANT)
            start = max(self._virtual.get(job.tenant, 0), self._now)
            self._virtual[job.tenant] = start
            self._order[start, job.tenant] = line
        line.add(job)

    def remove(self, job: Job) -> None:
        """The job was assigned, or left. O(log tenants) for a tenant's last."""
        line = self._lines[job.tenant]
        line.remove((job,))
        if not line:
            del self._lines[job.tenant]
            del self._order[self._virtual[job.tenant], job.tenant]
            self._forget_past()

    def in_order(self) -> Iterator[tuple[str, int, Line]]:
        """Tenant, virtual time and jobs, the least virtual time first; nothing must change meanwhile."""
        return ((tenant, virtual, line) for (virtual, tenant), line in self._order.items())

    def set_turn(self, tenant: str, before: int, after: int) -> None:
        """See `ReadyJobs.set_turn`. O(log tenants)."""
        self._now = max(self._now, before)
        line = self._lines.get(tenant)
        if line is not None:
            del self._order[self._virtual[tenant], tenant]
            self._order[after, tenant] = line
        self._virtual[tenant] = after

    def dump(self) -> list[Any]:
        """The present virtual time, that of tenants with jobs, and that of others where it lies ahead.

        Nothing if no turn was ever taken: then all of them are 0, and need not be said.
        """
        turns: list[list[Any]] = [[tenant, virtual] for tenant, virtual in sorted(self._virtual.items())]
        if not self._now and not any(virtual for _, virtual in turns):
            return []
        return [self._now, [turn for turn in turns if turn[0] in self._lines],
                [turn for turn in turns if turn[0] not in self._lines and turn[1] > self._now]]

    def load(self, stored: list[Any]) -> None:
        """See `ReadyJobs.load`."""
        self._now = stored[0]
        self._virtual = dict(stored[1] + stored[2])
        for tenant, virtual in stored[1]:
            self._order[virtual, tenant] = self._lines[tenant] = Line(OF_TENANT)

    def loaded(self) -> None:
        """Tenants that have no jobs after all, under other settings, have no turns."""
        for tenant in [tenant for tenant, line in self._lines.items() if not line]:
            del self._lines[tenant]
            del self._order[self._virtual[tenant], tenant]

    def _forget_past(self) -> None:
        """Tenants without jobs whose virtual time is over start at the present one anyway."""
        if len(self._virtual) > 2 * len(self._lines) + _SMALL:
            self._virtual = {tenant: virtual for tenant, virtual in self._virtual.items()
                             if tenant in self._lines or virtual > self._now}

    def audit(self, size: int) -> None:
        """Raise `AuditFailed` unless the parts agree, and with the number of ready jobs. O(n)."""
        for tenant, line in self._lines.items():
            line.audit()
            if not line or self._order.get((self._virtual[tenant], tenant)) is not line:
                raise AuditFailed(f"tenant {tenant!r} with {len(line)} jobs is not in its place among the turns")
        if len(self._order) != len(self._lines) or sum(map(len, self._lines.values())) != size:
            raise AuditFailed(f"{size} ready jobs of {len(self._lines)} tenants, "
                              f"{len(self._order)} of them have turns")
