# SPDX-License-Identifier: Apache-2.0
"""What one poll may do to the queue: a throw-away cursor that reads the queue and records what is to change.

Order of use: updates, then assignments, then new jobs and evictions. A second schedule over the same queue gives the
same answers, since nothing is changed.

See `docs/design/scheduler.md` for how Pyroscope does it, and for the differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from compactlib.errors import InvalidInput
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.model.poll import MAX_REASON_CHARS, Verdict
from compactlib.scheduler.model.update import AssignedJob, EvictedJob, NewJob, UpdatedJob
from compactlib.scheduler.model.values import Command, JobPlan, JobState, JobStatus, made
from compactlib.scheduler.plan.policies.by_priority import BY_AGE, ByPriority
from compactlib.scheduler.plan.policy import (
    AssignmentPolicy,
    AssignmentView,
    JobChoice,
    Lazily,
    LevelView,
    TenantLine,
    WaitingJob,
)
from compactlib.scheduler.queue.job import Job
from compactlib.scheduler.queue.job_queue import JobLevel, JobQueue

SEQUENCE_BITS = 20
"""A job's sequence is its command's index shifted by this, plus its place among the command's new jobs."""

_IN_PROGRESS = JobStatus.IN_PROGRESS
_SUCCESS = JobStatus.SUCCESS
_RELEASED = JobStatus.RELEASED


class Schedule:
    """The cursor of one poll.

    Args:
        queue: is read only, and must not change meanwhile.
        config: limits.
        command: its index is the token of what is assigned, its time decides about leases.
        shared: per level, how many assignments it has shared with the levels above; missing ones count 0.
        expiry: up to when leases and back-offs are over, seconds; the command's time if not given.

    Attributes:
        touched: names of the jobs that something was done with; nothing else is, in this poll.
        over: of these, the jobs that are done or given back: nothing more can be said about them.
        lease_expires_at: end of the leases that this poll gives and renews, seconds.
    """

    _added = 0
    _removed = 0
    _evicted = 0
    _excluded: Iterator[Job] | None = None

    def __init__(self, queue: JobQueue, config: SchedulerConfig, command: Command,
                 shared: Mapping[int, int] | None = None, expiry: float | None = None) -> None:
        self._queue = queue
        self._config = config
        self._command = command
        self._expiry = command.appended_at if expiry is None else expiry
        self.lease_expires_at: float = command.appended_at + config.lease_seconds
        self.touched: set[str] = set()
        self._shared: Mapping[int, int] = {} if shared is None else shared

    # ------------------------------------------------------------------------------------------ what workers say

    def check(self, name: str, token: int, status: int) -> Job | Verdict:
        """The job that an update is about, or why it is refused. O(1)."""
        job = self._queue.get(name)
        if name in self.touched:
            return Verdict.DUPLICATE
        if job is None:
            return Verdict.NOT_FOUND
        if token < job.token:
            return Verdict.STALE_TOKEN
        if token > self._command.index:
            return Verdict.FUTURE_TOKEN
        if not _IN_PROGRESS <= status <= _RELEASED:
            return Verdict.BAD_STATUS
        if job.status is not _IN_PROGRESS:
            return Verdict.WRONG_STATE
        return job

    def updated(self, state: JobState, status: int, reason: str = "") -> JobState:
        """The state after an update that `check` has let through."""
        self.touched.add(state.name)
        if status == _IN_PROGRESS:
            return changed(state, state.status, state.token, self.lease_expires_at, state.failures)
        if status == _SUCCESS:
            self.completed(state.name)
            return changed(state, _SUCCESS, state.token, state.lease_expires_at, state.failures)
        releases, limit = state.releases + 1, self._config.max_releases
        if status == _RELEASED and not 0 < limit <= releases:
            # A worker that shuts down does no harm; a job that none of them can do must not go round for ever.
            return self.released(state, self._backoff(releases - 1), reason, releases=releases)
        if status == _RELEASED:
            reason = f"given back {releases} times, the last time: {reason or 'without a reason'}"
        failures = state.failures + 1
        return self.released(state, self._backoff(failures), reason, failures=failures)

    def _backoff(self, times: int) -> float:
        """Seconds to wait after the first, the second time and so on; none for no time."""
        if not times:
            return 0.0
        delay: float = self._config.backoff_seconds * 2.0 ** min(times - 1, 60)
        return min(delay, self._config.max_backoff_seconds)

    def completed(self, name: str) -> None:
        """The job leaves the queue, and its place is free in this very poll."""
        self.touched.add(name)
        self._removed += 1

    def released(self, state: JobState, delay_seconds: float, reason: str, *, failures: int | None = None,
                 releases: int = 0) -> JobState:
        """The state of a job that a worker gives back, to be assigned after a delay."""
        self.touched.add(state.name)
        not_before = self._command.appended_at + delay_seconds if delay_seconds else 0.0
        return JobState(name=state.name, compaction_level=state.compaction_level, token=self._command.index,
                        added_at=state.added_at, failures=state.failures if failures is None else failures,
                        sequence=state.sequence, not_before=not_before,
                        last_failure=reason[:MAX_REASON_CHARS] or state.last_failure, releases=releases)

    # ---------------------------------------------------------------------------------------------- assignments

    def view(self, capacity: int) -> AssignmentView:
        """What may be assigned now, for a policy. O(1); what it looks at comes on top."""
        queue, config = self._queue, self._config
        return made(AssignmentView, {
            "capacity": capacity, "levels": Lazily(self._levels, queue.levels), "queued": len(queue),
            "leased": queue.leased_count, "delayed": queue.delayed_count, "excluded": queue.failed_count,
            "lease_seconds": config.lease_seconds, "max_failures": config.max_failures})

    def _levels(self, levels: Mapping[int, JobLevel]) -> Iterator[LevelView]:
        for number in levels:
            level = levels[number]
            yield made(LevelView, {
                "level": number, "shared": self._shared.get(number, 0), "ready": Lazily(self._waiting, level.ready),
                "again": Lazily(self._again, level), "tenants": Lazily(self._tenants, level)})

    def _waiting(self, jobs: Iterable[Job]) -> Iterator[WaitingJob]:
        return map(_as_waiting, self._untouched(jobs))

    def _untouched(self, jobs: Iterable[Job]) -> Iterator[Job]:
        touched = self.touched
        return (job for job in jobs if job.name not in touched)

    def _again(self, level: JobLevel) -> Iterator[WaitingJob]:
        return map(_as_waiting, self._once_more(level))

    def _once_more(self, level: JobLevel) -> Iterator[Job]:
        seen = set(self.touched)
        for job in level.again(self._expiry):
            if job.name not in seen:
                seen.add(job.name)
                yield job

    def _tenants(self, level: JobLevel) -> Iterator[TenantLine]:
        # A generator, so that jobs are grouped by tenant only once that is asked for.
        for tenant, virtual_time, line in level.ready.turns.in_order():
            yield TenantLine(tenant, virtual_time, Lazily(self._waiting, line))

    def choose(self, policy: AssignmentPolicy, capacity: int) -> tuple[list[Job], JobChoice]:
        """The jobs that a policy gives to the worker, and its choice. O(log n) a job, and what the policy costs.

        Raises:
            InvalidInput: the choice is none, or names what may not be assigned.
        """
        if type(policy) is ByPriority and not policy.higher_level_share:
            # Without a view of what there is to choose from.
            jobs = self._by_age(capacity)
            why = BY_AGE if jobs else self.view(capacity).why_nothing()
            names = [job.name for job in jobs]
            self.touched.update(names)
            return jobs, JobChoice(tuple(names), why)
        choice: object = policy.choose(self.view(capacity), self._command.appended_at)
        if not isinstance(choice, JobChoice):
            raise InvalidInput(f"the policy {policy!r:.200} chose {choice!r:.200}; answer a JobChoice, an empty one "
                               f"with its reason if no job is worth it")
        if len(choice.jobs) > capacity:
            raise self._refused(policy, f"{len(choice.jobs)} jobs, where the poll has room for {capacity}")
        if not _are_turns(choice):
            raise self._refused(policy, f"the turns {choice.shared!r:.200} and {choice.turns!r:.200}")
        return [self._assigned(policy, name) for name in choice.jobs], choice

    def _by_age(self, capacity: int) -> list[Job]:
        """The jobs that `ByPriority` chooses."""
        found: list[Job] = []
        for level in self._queue.levels.values():
            found += level.ready.first(capacity - len(found), self.touched)
            if len(found) == capacity:
                return found
            for job in self._once_more(level):
                found.append(job)
                if len(found) == capacity:
                    return found
        return found

    def _assigned(self, policy: AssignmentPolicy, name: str) -> Job:
        job = self._queue.get(name)
        if job is None or name in self.touched or not self._queue.may_be_assigned(job, self._expiry):
            raise self._refused(policy, f"job {name!r}, which may not be assigned now, or a second time")
        self.touched.add(name)
        return job

    def assignment(self, job: Job) -> AssignedJob:
        """What gives one of the chosen jobs to the worker."""
        before = job.state
        failures = before.failures + (before.status is _IN_PROGRESS)
        state = changed(before, _IN_PROGRESS, self._command.index, self.lease_expires_at, failures)
        return AssignedJob(state, before, job.plan())

    def renewal(self, job: Job) -> UpdatedJob:
        """What renews the lease of a job in progress."""
        return UpdatedJob(changed(job.state, job.status, job.token, self.lease_expires_at, job.failures))

    @staticmethod
    def _refused(policy: AssignmentPolicy, what: str) -> InvalidInput:
        return InvalidInput(f"the policy {policy!r:.200} chose {what}; choose of the view's jobs, each once, and at "
                            f"most view.capacity; record turns as Choice says")

    # ------------------------------------------------------------------------------------------ new and evicted

    def has_room(self) -> bool:
        """Whether another job may be queued."""
        limit = self._config.max_queue_size
        if not limit:
            return True
        return len(self._queue) + self._added - self._evicted - self._removed < limit

    def add_job(self, plan: JobPlan) -> NewJob | None:
        """The job to be queued, or `None` if the queue is full. It cannot be assigned in this poll. O(1)."""
        if not self.has_room():
            return None
        command = self._command
        state = JobState(name=plan.name, compaction_level=plan.compaction_level, token=command.index,
                         added_at=command.appended_at, sequence=(command.index << SEQUENCE_BITS) + self._added)
        self._added += 1
        self.touched.add(plan.name)
        return NewJob(state, plan)

    def evict_job(self) -> EvictedJob | None:
        """The worst excluded job, if the queue needs room; never one that this poll is about. O(1) amortized."""
        if self.has_room():
            return None
        if self._excluded is None:
            self._excluded = self._queue.excluded(self._expiry)
        for job in self._excluded:
            if job.name not in self.touched:
                self.touched.add(job.name)
                self._evicted += 1
                return EvictedJob(job.state)
        return None


def _are_turns(choice: JobChoice) -> bool:
    """Whether what is to be recorded of a choice can be."""
    shared: tuple[object, ...] = choice.shared
    turns: tuple[object, ...] = choice.turns
    why: object = choice.why
    return (isinstance(why, str) and all(_has_types(item, int, int) for item in shared)
            and all(_has_types(item, int, str, int, int) for item in turns))


def _has_types(item: object, *kinds: type) -> bool:
    return isinstance(item, tuple) and len(item) == len(kinds) and all(map(isinstance, item, kinds))


def _as_waiting(job: Job) -> WaitingJob:
    return made(WaitingJob, {
        "name": job.name, "tenant": job.tenant, "shard": job.shard, "level": job.compaction_level,
        "blocks": job.source_count, "size_bytes": job.size_bytes, "added_at": job.added_at, "failures": job.failures})


def changed(state: JobState, status: JobStatus, token: int, lease_expires_at: float, failures: int) -> JobState:
    """The state with these fields replaced. What `attrs.evolve` does, at a sixth of its price."""
    fields = state.__dict__.copy()
    fields["status"] = status
    fields["token"] = token
    fields["lease_expires_at"] = lease_expires_at
    fields["failures"] = failures
    return made(JobState, fields)
