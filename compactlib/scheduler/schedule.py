"""What one poll may do to the queue: a throw-away cursor that reads the queue and records what is to change.

Order of use: updates, then assignments, then new jobs and evictions. A second schedule over the same queue gives the
same answers, since nothing is changed.

Source: notes 1.5 and 1.7; 5.5 for what is different.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import floor

from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.job import Job
from compactlib.scheduler.job_queue import JobQueue
from compactlib.scheduler.model import Command, JobPlan, JobState, JobStatus
from compactlib.scheduler.poll import MAX_REASON_CHARS, Verdict
from compactlib.scheduler.ready_jobs import Turn
from compactlib.scheduler.update import AssignedJob, EvictedJob, NewJob

SEQUENCE_BITS = 20
"""A job's sequence is its command's index shifted by this, plus its place among the command's new jobs."""

_UNSPECIFIED = JobStatus.UNSPECIFIED
_IN_PROGRESS = JobStatus.IN_PROGRESS
_SUCCESS = JobStatus.SUCCESS
_RELEASED = JobStatus.RELEASED


class Schedule:
    """The cursor of one poll.

    Args:
        queue: is read only, and must not change meanwhile.
        config: limits.
        command: its index is the token of what is assigned, its time decides about leases.
        turns: per level, how many assignments it has shared with the levels above; missing ones count 0.
        expiry: up to when leases and back-offs are over, seconds; the command's time if not given.
    """

    def __init__(self, queue: JobQueue, config: SchedulerConfig, command: Command,
                 turns: dict[int, int] | None = None, *, expiry: float | None = None) -> None:
        self._queue = queue
        self._config = config
        self._command = command
        self._expiry = command.appended_at if expiry is None else expiry
        self._lease = command.appended_at + config.lease_seconds
        self._touched: set[str] = set()
        self._added = 0
        self._removed = 0
        self._evicted = 0
        self._candidates: list[_Candidates] | None = None
        self._turns_before = turns or {}
        self._excluded: Iterator[Job] | None = None
        self.turns: dict[int, int] = {}
        """The turns that this schedule has moved on."""
        self.passes: dict[tuple[int, str], int] = {}
        """The virtual times of tenants that this schedule has moved on."""

    # ------------------------------------------------------------------------------------------ what workers say

    def check(self, name: str, token: int, status: int) -> Job | Verdict:
        """The job that an update is about, or why it is refused. O(1)."""
        config = self._config
        job = self._queue.get(name)
        if config.strict_states and name in self._touched:
            return Verdict.DUPLICATE
        if job is None:
            return Verdict.NOT_FOUND
        if token < job.state.token:
            return Verdict.STALE_TOKEN
        if config.refuse_future_tokens and token > self._command.index:
            return Verdict.FUTURE_TOKEN
        if not _IN_PROGRESS <= status <= _RELEASED:
            return Verdict.BAD_STATUS
        if config.strict_states and job.state.status is not _IN_PROGRESS:
            return Verdict.WRONG_STATE
        return job

    def update_job(self, name: str, token: int, status: int, reason: str = "") -> JobState | Verdict:
        """The job's state after a worker's update, or why it is refused. O(1)."""
        job = self.check(name, token, status)
        return job if isinstance(job, Verdict) else self.updated(job.state, status, reason)

    def updated(self, state: JobState, status: int, reason: str = "") -> JobState:
        """The state after an update that `check` has let through."""
        self._touched.add(state.name)
        if status == _IN_PROGRESS:
            return changed(state, state.status, state.token, self._lease, state.failures)
        if status == _SUCCESS:
            self.completed(state)
            return changed(state, _SUCCESS, state.token, state.lease_expires_at, state.failures)
        if status == _RELEASED:
            return self.released(state, 0.0, reason)
        failures = state.failures + 1
        delay = self._config.backoff_seconds * 2.0 ** min(failures - 1, 60)
        returned = self.released(state, min(delay, self._config.max_backoff_seconds), reason)
        return changed(returned, _UNSPECIFIED, returned.token, 0.0, failures)

    def completed(self, state: JobState) -> None:
        """The job leaves the queue, and its place is free in this very poll."""
        self._touched.add(state.name)
        self._removed += 1

    def released(self, state: JobState, delay_seconds: float, reason: str) -> JobState:
        """The state of a job that a worker gives back, to be assigned after a delay."""
        self._touched.add(state.name)
        not_before = self._command.appended_at + delay_seconds if delay_seconds else 0.0
        return JobState(name=state.name, compaction_level=state.compaction_level, token=self._command.index,
                        added_at=state.added_at, failures=state.failures, sequence=state.sequence,
                        not_before=not_before, last_failure=reason[:MAX_REASON_CHARS] or state.last_failure)

    # ---------------------------------------------------------------------------------------------- assignments

    def assign_job(self) -> AssignedJob | None:
        """The next job for the worker, or `None` if there is none. O(log n), whatever the length of the queue."""
        level = self._choose(self._candidates or self._all_candidates())
        if level is None:
            return None
        job, turn = level.take()
        before = job.state
        self._touched.add(before.name)
        if turn is not None:
            self.passes[level.number, turn[0]] = turn[1]
        failures = before.failures + (before.status is _IN_PROGRESS)
        state = changed(before, _IN_PROGRESS, self._command.index, self._lease, failures)
        return AssignedJob(state, before, job.plan())

    def _all_candidates(self) -> list[_Candidates]:
        now, touched = self._expiry, self._touched
        self._candidates = [_Candidates(number, level.eligible(now), touched)
                            for number, level in self._queue.levels.items()]
        return self._candidates

    def _choose(self, levels: list[_Candidates]) -> _Candidates | None:
        """The level that is next: the lowest with a job, unless its turn goes to the ones above."""
        share = self._config.higher_level_share
        if not share:
            for level in levels:
                if level.has_next():
                    return level
            return None
        able = [level for level in levels if level.has_next()]
        for level in able[:-1]:
            number = level.number
            turn = self.turns.get(number, self._turns_before.get(number, 0))
            self.turns[number] = turn + 1
            if not floor((turn + 1) * share) > floor(turn * share):
                return level
        return able[-1] if able else None

    # ------------------------------------------------------------------------------------------ new and evicted

    def has_room(self) -> bool:
        """Whether another job may be queued."""
        limit = self._config.max_queue_size
        if not limit:
            return True
        size = len(self._queue) + self._added
        if self._config.evict_at_limit:
            size -= self._evicted + self._removed
        return size < limit

    def add_job(self, plan: JobPlan) -> NewJob | None:
        """The job to be queued, or `None` if the queue is full. It cannot be assigned in this poll. O(1)."""
        if not self.has_room():
            return None
        command = self._command
        state = JobState(name=plan.name, compaction_level=plan.compaction_level, token=command.index,
                         added_at=command.appended_at, sequence=(command.index << SEQUENCE_BITS) + self._added)
        self._added += 1
        self._touched.add(plan.name)
        return NewJob(state, plan)

    def evict_job(self) -> EvictedJob | None:
        """The worst excluded job, if the queue needs room; never one that this poll is about. O(1) amortized."""
        limit, config = self._config.max_queue_size, self._config
        if not limit or (self.has_room() if config.evict_at_limit else len(self._queue) - self._evicted <= limit):
            return None
        if self._excluded is None:
            self._excluded = self._queue.excluded(self._expiry)
        for job in self._excluded:
            if job.state.name not in self._touched:
                self._touched.add(job.state.name)
                self._evicted += 1
                return EvictedJob(job.state)
        return None


class _Candidates:
    """The jobs of one level that may be assigned, one look ahead; passes over those the poll has touched."""

    def __init__(self, number: int, jobs: Iterator[tuple[Job, Turn | None]], touched: set[str]) -> None:
        self.number: int = number
        self._jobs = jobs
        self._touched = touched
        self._next: tuple[Job, Turn | None] | None = None
        self._ended = False

    def has_next(self) -> bool:
        """Whether there is one."""
        while not self._ended:
            if self._next is not None and self._next[0].state.name not in self._touched:
                return True
            self._next = next(self._jobs, None)
            self._ended = self._next is None
        return False

    def take(self) -> tuple[Job, Turn | None]:
        """The one that `has_next` has found."""
        taken, self._next = self._next, None
        assert taken is not None
        return taken


def changed(state: JobState, status: JobStatus, token: int, lease_expires_at: float, failures: int) -> JobState:
    """The state with these fields replaced. What `attrs.evolve` does, at a sixth of its price."""
    new = JobState.__new__(JobState)
    fields = new.__dict__
    fields.update(state.__dict__)
    fields["status"] = status
    fields["token"] = token
    fields["lease_expires_at"] = lease_expires_at
    fields["failures"] = failures
    return new
