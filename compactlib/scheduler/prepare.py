# SPDX-License-Identifier: Apache-2.0
"""Prepare, the first phase of a poll: from the state and a request to a `PlanUpdate`. Reads only.

1. *Status updates* come first, so that a slot that the worker has lost can be given away in the same poll.
2. *Assignments* come before new jobs, so that queued jobs are not starved. A policy chooses among them.
3. *New jobs* are assigned from the next poll on. If the queue is full, excluded jobs make room for them.
4. *Cleanup* goes to workers that have room.

See `docs/design/scheduler.md` for how Pyroscope does it, and for the differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import attrs

from compactlib.commandlog.protocol import Command
from compactlib.errors import InvalidInput
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.job_queue import Job, JobQueue
from compactlib.scheduler.planner import planned_jobs
from compactlib.scheduler.policies import BY_AGE, ByPriority
from compactlib.scheduler.policy import (
    WINDOW,
    AssignmentPolicy,
    AssignmentView,
    JobChoice,
    LevelView,
    TenantLine,
    WaitingJob,
)
from compactlib.scheduler.state import SchedulerState
from compactlib.scheduler.update import CompletedJob, JobAsSeen, PlanUpdate, RefusedOutputs, ReturnedJob
from compactlib.scheduler.values import (
    ANONYMOUS_TENANT,
    CompactedBlocks,
    JobPlan,
    JobStatus,
    PollRequest,
    StatusAnswer,
    StatusUpdate,
    Verdict,
)

MAX_UPDATES = 10_000
"""Status updates and confirmations that one request may have, each."""
_NO_ROOM = JobChoice((), "the worker has no room: job_capacity=0, and it has lost no job in this poll")
_OVER = (JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.RELEASED)


def prepare(state: SchedulerState, command: Command, request: PollRequest,
            policy: AssignmentPolicy | None = None) -> PlanUpdate:
    """Return what the poll is to change; changes nothing itself.

    O(updates + log n for each assignment and new job), and what the policy costs.

    Args:
        state: of the scheduler.
        command: whose poll it is.
        request: what the worker says, and how much room it has.
        policy: which of the jobs that may be assigned go first; default `ByPriority`.

    Raises:
        InvalidInput: the policy chose what cannot be assigned, the capacity is negative, or the request has more than
            `MAX_UPDATES` updates or confirmations.
    """
    _check(request)
    config, now, jobs = state.config, command.appended_at, state.jobs

    # 1. What the worker says of its jobs.
    reports = _Reports(state, command)
    for said in request.status_updates:
        reports.take(said)
    touched = reports.touched

    # 2. Jobs for the slots that it has, and for those that it has just lost.
    capacity = min(request.job_capacity + reports.revoked, config.max_jobs_per_poll)
    choice, chosen_by = _NO_ROOM, ""
    if capacity:
        policy = ByPriority() if policy is None else policy
        choice, chosen_by = _choose(policy, state, capacity, now, touched), policy.name
        touched.update(choice.jobs)

    # 3. As many new jobs, if there is room in the queue, or excluded ones make it.
    created: list[JobPlan] = []
    evicted: list[JobAsSeen] = []
    if capacity and state.blocks.has_flushed():
        excluded = (job for job in jobs.excluded(now) if job.name not in touched)
        for plan in planned_jobs(state.blocks, now):
            if len(created) == capacity:
                break
            if jobs.get(plan.name) is not None:
                continue  # its blocks were queued a second time; they wait until the job is done
            queued = len(jobs) + len(created) - len(evicted) - len(reports.completed)
            if config.max_queue_size and queued >= config.max_queue_size:
                worst = next(excluded, None)
                if worst is None:
                    break
                evicted.append(JobAsSeen(worst.name, worst.token))
            created.append(plan)

    # 4. Tombstones, so many for each slot.
    leased = islice(state.tombstones.due(now), capacity * config.cleanup_batch_size)

    return PlanUpdate(
        index=command.index, term=command.term, now=now, evicted=tuple(evicted), completed=tuple(reports.completed),
        created=tuple(created), renewed=tuple(reports.renewed), returned=tuple(reports.returned),
        assigned=tuple(_as_seen(jobs, name) for name in choice.jobs),
        excluded=tuple(name for name in jobs.lost_last_attempts(now) if name not in touched),
        refused=tuple(reports.refused),
        cleaned=tuple(name for name in request.deleted_tombstones if name in state.tombstones),
        leased=tuple(tombstone.name for tombstone in leased),
        long_leases=len(jobs.leases_beyond(now + config.lease_seconds)), flushes=state.blocks.has_old(now),
        answers=tuple(reports.answers), policy=chosen_by, why=choice.why)


def _check(request: PollRequest) -> None:
    if type(request.job_capacity) is not int or request.job_capacity < 0:
        raise InvalidInput(f"job_capacity is {request.job_capacity}; a worker has room for 0 jobs or more")
    if len(request.status_updates) > MAX_UPDATES or len(request.deleted_tombstones) > MAX_UPDATES:
        raise InvalidInput(f"{len(request.status_updates)} updates, {len(request.deleted_tombstones)} confirmations; a "
                           f"request has at most {MAX_UPDATES} of each")


# ------------------------------------------------------------------------------------------------------ 1. reports


@attrs.define
class _Reports:
    """What a worker says of its jobs, and what it changes.

    Attributes:
        touched: names of the jobs that something was done with; nothing else is, in this poll.
        revoked: how many jobs the worker is to stop that occupy it: their slots are free. A job that it reports as over
            occupied no slot when it counted its capacity, so that a SUCCESS for an unknown job frees none.
    """

    state: SchedulerState
    command: Command
    touched: set[str] = attrs.field(factory=set)
    revoked: int = 0
    renewed: list[JobAsSeen] = attrs.field(factory=list)
    returned: list[ReturnedJob] = attrs.field(factory=list)
    completed: list[CompletedJob] = attrs.field(factory=list)
    refused: list[RefusedOutputs] = attrs.field(factory=list)
    answers: list[StatusAnswer] = attrs.field(factory=list)

    def take(self, said: StatusUpdate) -> None:
        job = self.state.jobs.get(said.name)
        verdict, detail = self._verdict(said, job)
        if verdict is not Verdict.ACCEPTED or job is None:
            self._refuse(said, job, verdict, detail)
            return
        self.touched.add(said.name)
        if said.status == JobStatus.IN_PROGRESS:
            self.renewed.append(JobAsSeen(said.name, job.token))
            self._answer(said, verdict, self.command.appended_at + self.state.config.lease_seconds)
        elif said.status == JobStatus.SUCCESS:
            self._complete(said, job)
        else:
            self._return(job, released=said.status == JobStatus.RELEASED, reason=said.reason)
            self._answer(said, verdict)

    def _verdict(self, said: StatusUpdate, job: Job | None) -> tuple[Verdict, str]:
        if said.name in self.touched:
            return Verdict.DUPLICATE, ""
        if job is None:
            return Verdict.NOT_FOUND, ""
        if said.token < job.token:
            return Verdict.STALE_TOKEN, f"token {said.token} is below the job's {job.token}"
        if said.token > self.command.index:
            return Verdict.FUTURE_TOKEN, f"token {said.token} is above the log's index {self.command.index}"
        if not JobStatus.IN_PROGRESS <= said.status <= JobStatus.RELEASED:
            return Verdict.BAD_STATUS, f"status {said.status} is none that a worker may send"
        if job.status is not JobStatus.IN_PROGRESS:
            return Verdict.WRONG_STATE, "the job is not assigned"
        return Verdict.ACCEPTED, ""

    def _answer(self, said: StatusUpdate, verdict: Verdict, deadline: float | None = None, detail: str = "") -> None:
        self.answers.append(StatusAnswer(said.name, verdict, deadline, detail))

    def _refuse(self, said: StatusUpdate, job: Job | None, verdict: Verdict, detail: str) -> None:
        if said.status not in _OVER and verdict is not Verdict.DUPLICATE:
            self.revoked += 1
        deadline = None
        if job is not None and job.status is JobStatus.IN_PROGRESS:
            deadline = min(job.lease_expires_at, self.command.appended_at + self.state.config.lease_seconds)
        self._answer(said, verdict, deadline, detail)
        # A worker that had the job before may have written something that has to be deleted.
        if verdict in (Verdict.NOT_FOUND, Verdict.STALE_TOKEN) and said.status == JobStatus.SUCCESS:
            self._refuse_outputs(said)

    def _refuse_outputs(self, said: StatusUpdate) -> None:
        if said.compacted_blocks is not None and said.compacted_blocks.new_blocks:
            self.refused.append(RefusedOutputs(said.name, said.compacted_blocks.new_blocks))

    def _complete(self, said: StatusUpdate, job: Job) -> None:
        results = said.compacted_blocks
        problem = result_problem(job.plan, results)
        if problem is not None or results is None:
            self._return(job, released=False, reason=f"bad result: {problem}")
            self._answer(said, Verdict.BAD_RESULT, detail=problem or "")
            self._refuse_outputs(said)
            return
        tombstones = self.state.tombstones
        covered = next((block.id for block in results.new_blocks if tombstones.covers(block)), None)
        if covered is not None and not are_sources_gone(self.state, job.plan, results):
            # The same outputs were thrown away before and wait for deletion: try again once they are gone.
            detail = f"new block {covered!r} waits for deletion; the job is tried again later"
            self.returned.append(ReturnedJob(
                said.name, job.token, job.failures, job.releases,
                self.command.appended_at + self.state.config.max_backoff_seconds, detail))
            self._answer(said, Verdict.BAD_RESULT, detail=detail)
            return
        self.completed.append(CompletedJob(said.name, job.token, results))
        self._answer(said, Verdict.ACCEPTED)

    def _return(self, job: Job, *, released: bool, reason: str) -> None:
        """Take the job back from its worker; it waits, unless it was given back for the first time."""
        config, releases, failures = self.state.config, job.releases + 1, job.failures
        if released and 0 < config.max_releases <= releases:
            # A worker that shuts down does no harm; a job that no worker can do must not go round for ever.
            reason = f"given back {releases} times, the last time: {reason or 'without a reason'}"
            released = False
        if released:
            times = releases - 1
        else:
            failures, releases = failures + 1, 0
            times = failures
        delay = min(config.backoff_seconds * 2.0 ** min(times - 1, 60), config.max_backoff_seconds) if times else 0.0
        self.returned.append(ReturnedJob(job.name, job.token, failures, releases,
                                         self.command.appended_at + delay if delay else 0.0, reason))


def result_problem(plan: JobPlan, results: CompactedBlocks | None) -> str | None:
    """Return why the results cannot be those of the job, or `None` if they can. O(sources + outputs)."""
    if results is None:
        return "no results were given; send compacted_blocks with SUCCESS"
    tenant, shard, level = plan.tenant, plan.shard, plan.compaction_level + 1
    sources, blocks = results.source_blocks, results.new_blocks
    if results.tenant != tenant or results.shard != shard:
        return (f"results are for tenant {results.tenant!r} and shard {results.shard}, the job is for {tenant!r} and "
                f"{shard}")
    if sources != plan.source_blocks:
        strange = set(sources) - set(plan.source_blocks)
        if strange:
            return f"{len(strange)} sources are not the job's, the first is {min(strange)!r}"
        if len(set(sources)) != len(sources):
            return "a source is named twice"
    if (results.no_output is None) != bool(blocks):
        return f"{len(blocks)} new blocks and no_output {results.no_output}; give one of the two"
    if blocks and not sources:
        return f"{len(blocks)} new blocks were made of no sources"
    if len({(block.tenant, block.id) for block in blocks}) != len(blocks):
        return f"a block is named twice among {len(blocks)} new ones"
    for block in blocks:
        if block.level != level or block.shard != shard:
            return (f"new block {block.id!r} has level {block.level} and shard {block.shard}; the job's outputs have "
                    f"{level} and {shard}")
        if block.tenant != tenant and tenant != ANONYMOUS_TENANT:
            return f"new block {block.id!r} is of tenant {block.tenant!r}, the job's is {tenant!r}"
    return None


def are_sources_gone(state: SchedulerState, plan: JobPlan, results: CompactedBlocks) -> bool:
    """Whether the index has lost a source that was read, while the job ran."""
    sources = results.source_blocks
    return len(state.index.find(plan.tenant, plan.shard, sources)) < len(sources)


# -------------------------------------------------------------------------------------------------- 2. assignments


def _choose(policy: AssignmentPolicy, state: SchedulerState, capacity: int, now: float,
            touched: set[str]) -> JobChoice:
    jobs, config = state.jobs, state.config
    if type(policy) is ByPriority and not policy.higher_level_share:
        # The same as `policy.choose` for a window without end, and without a view of each tenant's jobs.
        names = tuple(job.name for job in islice(jobs.assignable(now, touched), capacity))
        return JobChoice(names, BY_AGE if names else _view(jobs, config, capacity, ()).why_nothing())
    window = max(capacity, getattr(policy, "window", WINDOW))
    view = _view(jobs, config, capacity, tuple(_levels(jobs, window, now, touched)))
    choice: object = policy.choose(view, now)
    if not isinstance(choice, JobChoice):
        raise InvalidInput(f"the policy {policy!r:.200} chose {choice!r:.200}; return a JobChoice, an empty one with "
                           f"its reason if no job is worth it")
    given: set[str] = set()
    for name in choice.jobs:
        job = jobs.get(name)
        if (job is None or name in given or name in touched or len(given) == capacity
                or not jobs.may_be_assigned(job, now)):
            raise InvalidInput(f"the policy {policy!r:.200} chose job {name!r} in {len(choice.jobs)}; choose of the "
                               f"view's jobs, each once, and at most view.capacity={capacity}")
        given.add(name)
    return choice


def _view(jobs: JobQueue, config: SchedulerConfig, capacity: int, levels: tuple[LevelView, ...]) -> AssignmentView:
    return AssignmentView(capacity=capacity, levels=levels, queued=len(jobs), lease_seconds=config.lease_seconds,
                          max_failures=config.max_failures, **jobs.counts)


def _levels(jobs: JobQueue, window: int, now: float, touched: set[str]) -> Iterator[LevelView]:
    for number, level in jobs.levels.items():
        due = list(jobs.unassigned(level, now, touched, ()))
        lines = []
        for tenant in sorted({*level.tenants, *(job.plan.tenant for job in due)}):
            ready = jobs.unassigned(level, 0.0, touched, level.tenants.get(tenant, ()))
            waiting = [*islice(ready, window), *(job for job in due if job.plan.tenant == tenant)]
            waiting.sort(key=lambda job: (job.failures, job.sequence))
            lines.append(TenantLine(tenant, jobs.leased_by_tenant[tenant], tuple(map(_as_waiting, waiting[:window]))))
        again = islice(jobs.expired(level, now, touched), window)
        yield LevelView(number, len(level.leased), tuple(lines), tuple(map(_as_waiting, again)))


def _as_waiting(job: Job) -> WaitingJob:
    plan = job.plan
    return WaitingJob(name=plan.name, tenant=plan.tenant, shard=plan.shard, level=plan.compaction_level,
                      blocks=len(plan.source_blocks), size_bytes=plan.size_bytes, added_at=job.added_at,
                      failures=job.failures, sequence=job.sequence)


def _as_seen(jobs: JobQueue, name: str) -> JobAsSeen:
    job = jobs.get(name)
    assert job is not None, "it was chosen"
    return JobAsSeen(name, job.token, job.lease_expires_at)
