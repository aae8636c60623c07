# SPDX-License-Identifier: Apache-2.0
"""Jobs that wait for a time to come: the end of a lease, or of a back-off.

A heap whose entries may be early but never late: a lease that is renewed stays where it is, and is put right when
somebody looks and finds it on top. So a renewal costs nothing here, and the next job that is due is found without
looking at the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

from compactlib.errors import AuditFailed
from compactlib.scheduler.model.values import JobStatus
from compactlib.scheduler.queue.job import Job

_Entry: TypeAlias = tuple[float, int, Job]

_SMALL = 64
_IN_PROGRESS = JobStatus.IN_PROGRESS


def due_time(job: Job) -> float:
    """When the job may be assigned: after its lease, or from the end of its back-off on."""
    return job.lease_expires_at if job.status is _IN_PROGRESS else job.not_before


class DueJobs:
    """Jobs of one level, one status and one number of failures, by the time they wait for.

    Args:
        includes_end: whether a job is due at the very time, or only after.
    """

    def __init__(self, *, includes_end: bool) -> None:
        self._includes_end = includes_end
        self._heap: list[_Entry] = []
        self._size = 0

    def __len__(self) -> int:
        return self._size

    @property
    def entries(self) -> int:
        """Entries kept, those that are out of date included; at most twice the jobs and 64."""
        return len(self._heap)

    def add(self, jobs: Sequence[Job]) -> None:
        """Let the jobs wait here. O(log n) a job."""
        heap = self._heap
        for job in jobs:
            heappush(heap, (job.lease_expires_at if job.status is _IN_PROGRESS else job.not_before, job.last_key, job))
            job.waits_in = self
        self._size += len(jobs)

    def remove(self, job: Job) -> None:
        """The job waits no longer. O(1); its entry goes later."""
        job.waits_in = None
        self._size -= 1
        if len(self._heap) > 2 * self._size + _SMALL:
            self._drop_what_is_out_of_date()

    def hastened(self, job: Job) -> None:
        """The job waits for an earlier time than before; a later one needs no word. O(log n)."""
        heappush(self._heap, (due_time(job), job.last_key, job))
        if len(self._heap) > 2 * self._size + _SMALL:
            self._drop_what_is_out_of_date()

    def _drop_what_is_out_of_date(self) -> None:
        """Once it is more than half of the heap: O(1) amortized."""
        left = [entry for entry in self._heap if entry[2].waits_in is self]
        if len(left) > self._size:
            # Some jobs were hastened, or came back.
            unique = {id(entry[2]): entry for entry in left}
            left = [(due_time(job), key, job) for _, key, job in unique.values()]
        heapify(left)
        self._heap = left

    def _settle(self) -> None:
        """Put the top right. O(log n) amortized."""
        heap = self._heap
        while heap:
            due, key, job = heap[0]
            if job.waits_in is not self:
                heappop(heap)
                continue
            actual = due_time(job)
            if actual == due:
                return
            if actual > due:
                heapreplace(heap, (actual, key, job))
            else:
                heappop(heap)  # another entry of this job is not late

    def due(self, now: float) -> Iterator[Job]:
        """The jobs that are due, by time and last key; one may come twice. None may come, go or change meanwhile.

        O(log n) a job, amortized; O(1) if there is none.
        """
        heap = self._heap
        if heap and self._is_due(heap[0][0], now):
            # What is put right stays so: who looks on through another call sees the same heap.
            self._settle()
        if not heap or not self._is_due(heap[0][0], now):
            return
        # The best of the heap, without taking it apart: places whose parent was passed, and entries put right.
        frontier: list[tuple[float, int, Job, int]] = [(*heap[0], 0)]
        while frontier and self._is_due(frontier[0][0], now):
            due, key, job, place = heappop(frontier)
            if place >= 0:
                for child in (2 * place + 1, 2 * place + 2):
                    if child < len(heap):
                        heappush(frontier, (*heap[child], child))
            if job.waits_in is self:
                actual = due_time(job)
                if actual == due:
                    yield job
                elif actual > due:
                    heappush(frontier, (actual, key, job, -1))

    def _is_due(self, time: float, now: float) -> bool:
        return time < now or (self._includes_end and time == now)

    def audit(self) -> None:
        """Raise `AuditFailed` unless every job that waits here has an entry that is not late. O(n)."""
        on_time = {id(job) for due, _, job in self._heap if job.waits_in is self and due <= due_time(job)}
        members = {id(job) for _, _, job in self._heap if job.waits_in is self}
        if members != on_time or len(members) != self._size:
            raise AuditFailed(f"{self._size} jobs wait; {len(members)} have entries, {len(on_time)} in time")
        for place in range(1, len(self._heap)):
            if self._heap[place][:2] < self._heap[(place - 1) // 2][:2]:
                raise AuditFailed(f"entry {place} of {len(self._heap)} is out of order")
