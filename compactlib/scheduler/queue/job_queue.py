# SPDX-License-Identifier: Apache-2.0
"""All queued jobs, in the order in which they are to be assigned.

Priority: level, status, failures, then the time a job waits for, then a last key. No poll looks at more jobs than it
needs: unassigned jobs that may go at once stand in a line for each level (`ready_jobs.py`); those that wait for the end
of a back-off or of a lease wait with those of the same level, status and failures (`due_jobs.py`). Whether a lease has
run out depends on the command's time alone, so nothing here has to move when time passes.

See `docs/design/scheduler.md` for how Pyroscope does it, and for the differences.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from math import inf
from operator import itemgetter
from typing import TypeVar

import attrs
from sortedcontainers import SortedList, SortedSet

from compactlib.errors import AuditFailed
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.model.values import BlockMeta, JobPhase, JobPlan, JobState, JobStatus
from compactlib.scheduler.queue.due_jobs import DueJobs
from compactlib.scheduler.queue.job import NOT_READY, Job
from compactlib.scheduler.queue.ready_jobs import ReadyJobs

ValueT = TypeVar("ValueT")
_UNSPECIFIED = JobStatus.UNSPECIFIED
_IN_PROGRESS = JobStatus.IN_PROGRESS
_SMALL = 8
"""Numbers of failures that a level keeps room for, though no job has failed so often any more."""


def _lease_end(job: Job) -> float:
    return job.lease_expires_at


def _insert(ordered: dict[int, ValueT], key: int, value: ValueT) -> None:
    """Put a value into a dictionary that is read far more often than it grows; its keys stay ascending. O(its size)."""
    items = sorted([*ordered.items(), (key, value)], key=itemgetter(0))
    ordered.clear()
    ordered.update(items)


@attrs.define
class LevelCounts:
    """What happened to the jobs of one level since the queue was made or loaded."""

    added: int = 0
    completed: int = 0
    assigned: int = 0
    reassigned: int = 0
    evicted: int = 0


class JobLevel:
    """The jobs of one level that may be assigned now or later.

    Attributes:
        ready: unassigned, never failed, and free to go.
        delayed: unassigned, by failures; free to go at a time.
        leased: in progress, by failures; free to go once the lease has run out.
        counts: what happened so far.
    """

    def __init__(self) -> None:
        self.ready: ReadyJobs = ReadyJobs()
        self.delayed: dict[int, DueJobs] = {}
        self.leased: dict[int, DueJobs] = {}
        self.counts: LevelCounts = LevelCounts()

    def again(self, now: float) -> Iterator[Job]:
        """What may be assigned at `now` beside ready jobs, in order. One job may come twice. O(log n) a job."""
        return chain.from_iterable(waiting.due(now) for waiting in chain(self.delayed.values(), self.leased.values()))


class JobQueue:
    """Every job that was created and is neither completed nor evicted.

    Args:
        config: limits and order.
        knows_sources: whether it can tell of every block whether a job has it; else only of those that no queue and no
            index knows.
    """

    def __init__(self, config: SchedulerConfig, *, knows_sources: bool = False) -> None:
        self._config = config
        self._knows_sources = knows_sources
        self._max_failures = config.max_failures
        self._jobs: dict[str, Job] = {}
        self.get: Callable[[str], Job | None] = self._jobs.get
        """The job of a name, if it is queued. O(1)."""
        self.levels: dict[int, JobLevel] = {}
        """Ascending."""
        self.leased_count: int = 0
        """Jobs in progress, those with a lease that has run out included."""
        self.size_bytes: int = 0
        """Of the sources of all jobs."""
        self.delayed_count: int = 0
        """Unassigned jobs that came back: they wait for their back-off, or it is over."""
        # The sources of jobs: all, or those of levels that are compacted no more, which the block queue does not know.
        # By tenant, shard and level.
        self._sources: dict[tuple[str, int, int], set[str]] = {}
        # Jobs that failed too often, the worst first; their leases may still run.
        self._failed: SortedList[tuple[int, float, int, int, str]] = SortedList()
        # Of them, those that were not reported yet, by the end of their last lease; and when the first of these is.
        self._untold: SortedSet[tuple[float, str]] = SortedSet()
        self._next_untold = inf

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        """All jobs, in no order that means anything."""
        return iter(self._jobs.values())

    def level(self, number: int) -> JobLevel:
        """The jobs of a level; made if there are none yet."""
        level = self.levels.get(number)
        if level is None:
            level = JobLevel()
            _insert(self.levels, number, level)
        return level

    # ------------------------------------------------------------------------------------------------- changes

    def add(self, state: JobState, plan: JobPlan) -> bool:
        """Queue a job; `False` if one of this name is queued already, and nothing changed. O(1) for a new one."""
        if state.name in self._jobs:
            return False
        job = self._jobs[state.name] = Job(state, plan)
        self._enter(job)
        self.level(state.compaction_level).counts.added += 1
        return True

    def restore(self, state: JobState, plan: JobPlan, orphans: tuple[BlockMeta, ...]) -> None:
        """Put a stored job back; nothing is counted. O(log n)."""
        job = self._jobs[state.name] = Job(state, plan)
        job.orphans = orphans
        self._enter(job)

    def _enter(self, job: Job) -> None:
        self.size_bytes += job.size_bytes
        if self._knows_sources_of(job):
            job.neighbours = self._sources.setdefault((job.tenant, job.shard, job.compaction_level), set())
            job.neighbours.update(job.source_blocks)
        self.level(job.compaction_level)
        self._place(job)

    def put(self, job: Job, state: JobState) -> None:
        """Replace a job's state. O(log n); O(1) for a renewed lease."""
        counts = self.levels[job.compaction_level].counts
        if state.status is _IN_PROGRESS:
            if job.status is _UNSPECIFIED:
                counts.assigned += 1
            elif job.token != state.token:
                counts.reassigned += 1
            elif job.failures == state.failures:
                self.extend(job, state.lease_expires_at)
                job.become(state)
                return
        self._take(job)
        job.become(state)
        self._place(job)

    def assign(self, jobs: Iterable[Job], token: int, until: float) -> None:
        """Give jobs that may be assigned to a worker, under this token and until then, seconds. O(log n) a job."""
        ready: dict[int, list[Job]] = {}
        for job in jobs:
            if not job.ready:
                self._assign_again(job, token, until)
                continue
            # One that never failed and waits for nothing, as nearly all do.
            job.status = _IN_PROGRESS
            job.token = token
            job.lease_expires_at = until
            if job.compaction_level in ready:
                ready[job.compaction_level].append(job)
            else:
                ready[job.compaction_level] = [job]
        for number, waiting in ready.items():
            level = self.levels[number]
            level.ready.remove(waiting)
            level.counts.assigned += len(waiting)
            self.leased_count += len(waiting)
            self._wait(waiting, level.leased)

    def _assign_again(self, job: Job, token: int, until: float) -> None:
        counts = self.levels[job.compaction_level].counts
        self._take(job)
        if job.status is _IN_PROGRESS:
            counts.reassigned += 1
            job.failures += 1
        else:
            counts.assigned += 1
            job.status = _IN_PROGRESS
        job.token = token
        job.lease_expires_at = until
        self._place(job)

    def extend(self, job: Job, until: float) -> None:
        """Let the lease of a job in progress end then, seconds. O(1), O(log n) for an earlier end."""
        before, waits_in = job.lease_expires_at, job.waits_in
        if waits_in is None:
            self._take(job)
            job.lease_expires_at = until
            self._place(job)
            return
        job.lease_expires_at = until
        if until < before:
            waits_in.hastened(job)

    def complete(self, job: Job, source_blocks: tuple[str, ...] = ()) -> None:
        """The job is done, of these sources; if they are the plan's, they need not be made once more."""
        self._remove(job, source_blocks).completed += 1

    def evict(self, job: Job) -> None:
        """The job makes room."""
        self._remove(job, ()).evicted += 1

    def cut(self, lease_end: float, wait_end: float) -> None:
        """No lease ends after `lease_end`, and no job waits for longer than `wait_end`, seconds. O(n)."""
        for job in list(self):
            if job.status is _IN_PROGRESS and job.lease_expires_at > lease_end:
                self.extend(job, lease_end)
            elif job.not_before and job.not_before > wait_end:
                self.put(job, attrs.evolve(job.state, not_before=wait_end))

    def _remove(self, job: Job, source_blocks: tuple[str, ...]) -> LevelCounts:
        waits_in = job.waits_in
        if waits_in is not None and job.status is _IN_PROGRESS:
            # As nearly all are that go.
            waits_in.remove(job)
            self.leased_count -= 1
        else:
            self._take(job)
        del self._jobs[job.name]
        self.size_bytes -= job.size_bytes
        neighbours = job.neighbours
        if neighbours is not None:
            neighbours.difference_update(source_blocks if job.has_sources(source_blocks) else job.source_blocks)
            if not neighbours:
                place = job.tenant, job.shard, job.compaction_level
                if self._sources.get(place) is neighbours:
                    del self._sources[place]
        return self.levels[job.compaction_level].counts

    def _knows_sources_of(self, job: Job) -> bool:
        return self._knows_sources or job.compaction_level >= len(self._config.levels)

    def has_source(self, tenant: str, shard: int, level: int, block_id: str) -> bool:
        """Whether a job has this source; of a level that is still compacted only if all sources are known. O(1)."""
        return block_id in self._sources.get((tenant, shard, level), ())

    def _place(self, job: Job) -> None:
        failures, level = job.failures, self.levels[job.compaction_level]
        if failures and self.has_failed(job):
            self._failed.add(self._failed_key(job))
            self._untold.add((job.lease_expires_at, job.name))
            self._next_untold = self._untold[0][0]
            return
        if job.status is _IN_PROGRESS:
            self.leased_count += 1
            by_failures = level.leased
        elif failures or job.not_before:
            self.delayed_count += 1
            by_failures = level.delayed
        else:
            level.ready.add(job)
            return
        self._wait((job,), by_failures)

    @staticmethod
    def _wait(jobs: Sequence[Job], by_failures: dict[int, DueJobs]) -> None:
        """Let jobs wait that have the same status, and failed equally often."""
        job = jobs[0]
        waiting = by_failures.get(job.failures)
        if waiting is None:
            if len(by_failures) > _SMALL:
                for left in [number for number, others in by_failures.items() if not others]:
                    del by_failures[left]
            waiting = DueJobs(includes_end=job.status is not _IN_PROGRESS)
            _insert(by_failures, job.failures, waiting)
        waiting.add(jobs)

    def _take(self, job: Job) -> None:
        waits_in = job.waits_in
        if job.ready:
            self.levels[job.compaction_level].ready.remove((job,))
        elif waits_in is not None:
            waits_in.remove(job)
            if job.status is _IN_PROGRESS:
                self.leased_count -= 1
            else:
                self.delayed_count -= 1
        else:
            self._failed.remove(self._failed_key(job))
            self._untold.discard((job.lease_expires_at, job.name))
            self._next_untold = self._untold[0][0] if self._untold else inf

    @staticmethod
    def _failed_key(job: Job) -> tuple[int, float, int, int, str]:
        return -job.failures, job.lease_expires_at, -job.compaction_level, job.last_key, job.name

    # --------------------------------------------------------------------------------------------------- views

    def has_failed(self, job: Job | JobState) -> bool:
        """Whether the job failed so often that it is assigned no more."""
        return 0 < self._max_failures <= job.failures

    def phase(self, job: Job | JobState, now: float) -> JobPhase:
        """The job's phase at a time."""
        held = job.status is _IN_PROGRESS and not now > job.lease_expires_at
        if held:
            return JobPhase.IN_PROGRESS
        if self.has_failed(job):
            return JobPhase.EXCLUDED
        return JobPhase.LEASE_EXPIRED if job.status is _IN_PROGRESS else JobPhase.UNASSIGNED

    def may_be_assigned(self, job: Job, now: float) -> bool:
        """Whether the job has no holder, and waits for nothing. O(1)."""
        if self.has_failed(job):
            return False
        return now > job.lease_expires_at if job.status is _IN_PROGRESS else (
            not job.not_before or now >= job.not_before)

    @property
    def failed_count(self) -> int:
        """How many jobs failed too often, those on their last attempt included."""
        return len(self._failed)

    def phases(self, now: float) -> dict[int, Counter[JobPhase]]:
        """How many jobs of each level are in which phase.

        O(levels + jobs whose lease has run out + jobs that failed too often).
        """
        found = {}
        for number, level in self.levels.items():
            leased = sum(map(len, level.leased.values()))
            lapsed = sum(len({job.name for job in waiting.due(now)}) for waiting in level.leased.values())
            found[number] = Counter({
                JobPhase.UNASSIGNED: len(level.ready) + sum(map(len, level.delayed.values())),
                JobPhase.IN_PROGRESS: leased - lapsed, JobPhase.LEASE_EXPIRED: lapsed})
        for *_, name in self._failed:
            job = self._jobs[name]
            found[job.compaction_level][self.phase(job, now)] += 1
        return found

    def leased(self) -> Iterator[Job]:
        """Jobs with a lease, run out or not, by its end. O(log n) a job, and as much for each that failed too often."""
        failed = [job for job in (self._jobs[name] for *_, name in self._failed) if job.lease_expires_at]
        waiting = [each.due(inf) for level in self.levels.values() for each in level.leased.values()]
        seen = set()
        for job in heapq.merge(*waiting, sorted(failed, key=_lease_end), key=_lease_end):
            if job.name not in seen:
                seen.add(job.name)
                yield job

    @property
    def lease_count(self) -> int:
        """How many jobs have a lease, run out or not. O(jobs that failed too often)."""
        return self.leased_count + sum(bool(self._jobs[name].lease_expires_at) for *_, name in self._failed)

    def excluded(self, now: float) -> Iterator[Job]:
        """Jobs that failed too often and that have no holder, the worst first: most failures, longest excluded.

        O(1) a job, and as much for each that is on its last attempt.
        """
        for *_, name in self._failed:
            job = self._jobs[name]
            if self.phase(job, now) is JobPhase.EXCLUDED:
                yield job

    def has_newly_excluded(self, now: float) -> bool:
        """Whether `newly_excluded` would have something to say. O(1)."""
        return self._next_untold < now

    def newly_excluded(self, now: float) -> Iterator[Job]:
        """The jobs that were given up since this was asked last, or since they were loaded. O(log n) a job."""
        while self.has_newly_excluded(now):
            _, name = self._untold.pop(0)
            self._next_untold = self._untold[0][0] if self._untold else inf
            yield self._jobs[name]

    def in_order(self, now: float) -> list[JobState]:
        """All jobs by priority, at a time. O(n log n)."""
        def priority(job: Job) -> tuple[int, bool, int, int, float, float, int]:
            return (job.compaction_level, self.has_failed(job), job.status, job.failures, job.lease_expires_at,
                    job.not_before, job.last_key)

        return [job.state for job in sorted(self, key=priority)]

    def audit(self) -> None:
        """Check that every job stands exactly where its state says. O(n log n).

        Raises:
            AuditFailed: one does not; the message has the numbers.
        """
        placed = len(self._failed)
        for number, level in self.levels.items():
            level.ready.audit()
            placed += len(level.ready)
            for waiting in chain(level.delayed.values(), level.leased.values()):
                waiting.audit()
                placed += len(waiting)
            for job in level.ready:
                if job.compaction_level != number or self._jobs.get(job.name) is not job:
                    raise AuditFailed(f"{job!r} waits at level {number}")
        counted = [sum(len(waiting) for level in self.levels.values() for waiting in getattr(level, kind).values())
                   for kind in ("leased", "delayed")]
        if counted != [self.leased_count, self.delayed_count]:
            raise AuditFailed(f"{counted} jobs are leased and delayed, and {self.leased_count} and "
                              f"{self.delayed_count} are counted")
        if self.size_bytes != sum(job.size_bytes for job in self):
            raise AuditFailed(f"the sources of all jobs are counted as {self.size_bytes} bytes")
        known = {(*place, block_id) for place, ids in self._sources.items() for block_id in ids}
        if known != {(job.tenant, job.shard, job.compaction_level, block_id)
                     for job in self if self._knows_sources_of(job) for block_id in job.source_blocks}:
            raise AuditFailed(f"{len(known)} sources are known, which are not those of the jobs")
        if placed != len(self._jobs):
            raise AuditFailed(f"{len(self._jobs)} jobs are queued, and {placed} have a place in the order")
        for name, job in self._jobs.items():
            if job.name != name or job.status not in (_UNSPECIFIED, _IN_PROGRESS):
                raise AuditFailed(f"job {name!r} is kept with the state {job.state!r}")
            places = (job.ready != NOT_READY) + (job.waits_in is not None) + self.has_failed(job)
            if places != 1:
                raise AuditFailed(f"{job!r} has {places} places in the order")

    def __repr__(self) -> str:
        return f"JobQueue({len(self)} jobs)"
