"""Unassigned jobs of one level that may be assigned at once, in their order; or in turns over tenants.

Taking the next job costs the same whatever the number of jobs, and looking at the next ones changes nothing. Jobs
mostly arrive in order, so they stand in a deque; those that come back early stand in a small sorted list beside it.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from typing import Any, TypeAlias

from sortedcontainers import SortedDict, SortedList

from compactlib.errors import AuditFailed
from compactlib.scheduler.config import FairShare
from compactlib.scheduler.job import NOT_READY, READY_EARLY, READY_IN_LINE, Job, LastKeyOf

Turn: TypeAlias = tuple[str, int]
"""A tenant, and its virtual time after an assignment."""

_STRIDE = 1 << 20
_SMALL = 64


class Line:
    """Ready jobs in the order of their last key.

    Args:
        last_key: gives a job's last key.
    """

    def __init__(self, last_key: LastKeyOf) -> None:
        self._last_key = last_key
        self._line: deque[Job] = deque()
        # Jobs that would not stand in order at the end of the line.
        self._early: SortedList[tuple[int | str, str]] = SortedList()
        self._early_jobs: dict[str, Job] = {}
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, job: Job) -> None:
        """O(1) for a job that comes after all others, else O(log n)."""
        key = self._last_key(job.state)
        line = self._line
        # The last one in the line may have left it; it still says where the line ends.
        if not line or self._last_key(line[-1].state) < key:
            line.append(job)
            job.ready = READY_IN_LINE
        else:
            self._early.add((key, job.state.name))
            self._early_jobs[job.state.name] = job
            job.ready = READY_EARLY
        self._size += 1

    def remove(self, job: Job) -> None:
        """O(1) amortized for a job of the line, else O(log n)."""
        if job.ready == READY_EARLY:
            self._early.remove((self._last_key(job.state), job.state.name))
            del self._early_jobs[job.state.name]
        job.ready = NOT_READY
        self._size -= 1
        line = self._line
        while line and line[0].ready != READY_IN_LINE:
            line.popleft()
        if len(line) > _SMALL and len(line) > 2 * self._size:
            self._line = deque(waiting for waiting in line if waiting.ready == READY_IN_LINE)

    def __iter__(self) -> Iterator[Job]:
        """The jobs in order; the line must not change meanwhile. O(1) a job."""
        if not self._early:
            return (job for job in self._line if job.ready == READY_IN_LINE)
        in_line = (job for job in self._line if job.ready == READY_IN_LINE)
        early = (self._early_jobs[name] for _, name in self._early)
        return heapq.merge(in_line, early, key=lambda job: self._last_key(job.state))

    def audit(self) -> None:
        """Raise `AuditFailed` unless the parts agree. O(n)."""
        jobs = list(self)
        keys = [self._last_key(job.state) for job in jobs]
        if len(jobs) != self._size or keys != sorted(keys) or len(self._early) != len(self._early_jobs):
            raise AuditFailed(f"a line of {self._size} ready jobs gives {len(jobs)}, in order: "
                                  f"{keys == sorted(keys)}, of them {len(self._early)}/{len(self._early_jobs)} early")


class ReadyJobs:
    """Ready jobs of one level in their order. What `FairReadyJobs` is with tenants in turns.

    Args:
        last_key: gives a job's last key.
    """

    def __init__(self, last_key: LastKeyOf) -> None:
        self._line = Line(last_key)

    def __len__(self) -> int:
        return len(self._line)

    def add(self, job: Job) -> None:
        """Let the job wait to be assigned."""
        self._line.add(job)

    def remove(self, job: Job) -> None:
        """The job was assigned, or left."""
        self._line.remove(job)

    def in_order(self) -> Iterator[tuple[Job, Turn | None]]:
        """The jobs in the order of assignment, with the turn that each assignment means."""
        return ((job, None) for job in self._line)

    def set_turn(self, tenant: str, virtual_time: int) -> None:
        """Without tenants in turns there is nothing to set."""

    def dump(self) -> list[Any]:
        """Nothing: no turns."""
        return []

    def load(self, stored: list[Any]) -> None:
        """Nothing: no turns, also if there were some before."""

    def loaded(self) -> None:
        """Nothing: no turns."""

    def audit(self) -> None:
        """Raise `AuditFailed` unless the parts agree. O(n)."""
        self._line.audit()


class FairReadyJobs:
    """Ready jobs of one level, tenants in weighted turns: each has a virtual time, and the one with the least is next.

    An assignment moves its tenant's virtual time on by one stride over its weight. A tenant that had no jobs for a
    while starts where the others are, so that it cannot save up turns.

    Args:
        last_key: gives a job's last key.
        share: the weights.
    """

    def __init__(self, last_key: LastKeyOf, share: FairShare) -> None:
        self._last_key = last_key
        self._share = share
        self._lines: dict[str, Line] = {}
        self._virtual: dict[str, int] = {}
        self._order: SortedDict[tuple[int, str], Line] = SortedDict()
        self._now = 0
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def add(self, job: Job) -> None:
        """Let the job wait to be assigned. O(log tenants) for a tenant's first."""
        line = self._lines.get(job.tenant)
        if line is None:
            line = self._lines[job.tenant] = Line(self._last_key)
            start = max(self._virtual.get(job.tenant, 0), self._now)
            self._virtual[job.tenant] = start
            self._order[start, job.tenant] = line
        line.add(job)
        self._size += 1

    def remove(self, job: Job) -> None:
        """The job was assigned, or left. O(log tenants) for a tenant's last."""
        line = self._lines[job.tenant]
        line.remove(job)
        self._size -= 1
        if not line:
            del self._lines[job.tenant]
            del self._order[self._virtual[job.tenant], job.tenant]
            self._forget_past()

    def in_order(self) -> Iterator[tuple[Job, Turn | None]]:
        """The jobs in the order of assignment, with the turn that each assignment means. O(log tenants) a job."""
        first = iter(self._order.items())
        # Tenants that had a turn in this run, by their new virtual time.
        again: list[tuple[int, str, Iterator[Job]]] = []
        ahead = next(first, None)
        while ahead is not None or again:
            if ahead is not None and (not again or ahead[0] < again[0][:2]):
                (virtual, tenant), jobs = ahead[0], iter(ahead[1])
                ahead = next(first, None)
            else:
                virtual, tenant, jobs = heapq.heappop(again)
            job = next(jobs, None)
            if job is not None:
                virtual += _STRIDE // self._share.weight(tenant)
                yield job, (tenant, virtual)
                heapq.heappush(again, (virtual, tenant, jobs))

    def set_turn(self, tenant: str, virtual_time: int) -> None:
        """The tenant had its turn. O(log tenants)."""
        self._now = max(self._now, virtual_time - _STRIDE // self._share.weight(tenant))
        line = self._lines.get(tenant)
        if line is not None:
            del self._order[self._virtual[tenant], tenant]
            self._order[virtual_time, tenant] = line
        self._virtual[tenant] = virtual_time

    def dump(self) -> list[Any]:
        """The turns as plain values; the jobs are stored elsewhere.

        The present virtual time, that of tenants with jobs, and that of others where it lies ahead.
        """
        turns: list[list[Any]] = [[tenant, virtual] for tenant, virtual in sorted(self._virtual.items())]
        return [self._now, [turn for turn in turns if turn[0] in self._lines],
                [turn for turn in turns if turn[0] not in self._lines and turn[1] > self._now]]

    def load(self, stored: list[Any]) -> None:
        """Take what `dump` gave; the jobs are added after."""
        self._now = stored[0]
        self._virtual = dict(stored[1] + stored[2])
        for tenant, virtual in stored[1]:
            self._order[virtual, tenant] = self._lines[tenant] = Line(self._last_key)

    def loaded(self) -> None:
        """All jobs were added: tenants that have none after all, under other settings, have no turns."""
        for tenant in [tenant for tenant, line in self._lines.items() if not line]:
            del self._lines[tenant]
            del self._order[self._virtual[tenant], tenant]

    def _forget_past(self) -> None:
        """Tenants without jobs whose virtual time is over start at the present one anyway."""
        if len(self._virtual) > 2 * len(self._lines) + _SMALL:
            self._virtual = {tenant: virtual for tenant, virtual in self._virtual.items()
                             if tenant in self._lines or virtual > self._now}

    def audit(self) -> None:
        """Raise `AuditFailed` unless the parts agree. O(n)."""
        for tenant, line in self._lines.items():
            line.audit()
            if not line or self._order.get((self._virtual[tenant], tenant)) is not line:
                raise AuditFailed(f"tenant {tenant!r} with {len(line)} jobs is not in its place among the turns")
        if len(self._order) != len(self._lines) or sum(map(len, self._lines.values())) != self._size:
            raise AuditFailed(f"{self._size} ready jobs of {len(self._lines)} tenants, "
                                  f"{len(self._order)} of them have turns")
