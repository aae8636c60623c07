# SPDX-License-Identifier: Apache-2.0
"""Prepare, the first phase of a poll: from the state and a request to a `PlanUpdate`; changes nothing.

1. *Status updates* are first, so that a slot of a lost job can be used in the same poll.
2. *Assignments* are before new jobs, so that queued jobs are not starved. A policy chooses among them.
3. *New jobs* are assigned from the next poll on. If the queue is full, excluded jobs are evicted for them.
4. *Tombstones* are sent to workers with free slots.

`docs/internals/differences.md` has the differences from Pyroscope.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from compactlib.commandlog.protocol import Command
from compactlib.errors import InvalidInput
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.job_queue import Job, JobQueue
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
from compactlib.scheduler.reports import TAKES_EFFECT, frees_slot, judge, leaves_outputs
from compactlib.scheduler.state import SchedulerState
from compactlib.scheduler.update import JobAsSeen, PlanUpdate
from compactlib.scheduler.values import JobPlan, JobStatus, PollRequest, PollResponse, StatusAnswer, Verdict

MAX_UPDATES = 10_000
"""The most status updates, and the most confirmations, of a request."""
_NO_ROOM = JobChoice((), "the worker has no room: job_capacity=0, and it has lost no job in this poll")


def prepare(state: SchedulerState, command: Command, request: PollRequest,
            policy: AssignmentPolicy | None = None) -> tuple[PlanUpdate, PollResponse]:
    """Return the update of a poll, and the answer to a poll without changes.

    O(updates + log n for each assignment and new job), and the cost of the policy.

    Args:
        state: the scheduler's state.
        command: the poll's command.
        request: the request from the worker.
        policy: orders the jobs that may be assigned; default `ByPriority`.

    Raises:
        InvalidInput: the policy chose a job that cannot be assigned, the capacity is negative, or the request has more
            than `MAX_UPDATES` updates or confirmations.
    """
    _check(request)
    config, now, jobs = state.config, command.appended_at, state.jobs

    # 1. The worker's reports.
    touched: set[str] = set()  # reported or assigned jobs, with which this poll does nothing else
    room = request.job_capacity
    completed, has_effect = 0, False
    answers: list[StatusAnswer] = []
    for said in request.status_updates:
        answer = judge(state, command, said, touched)
        answers.append(answer)
        room += frees_slot(said, answer)
        has_effect = has_effect or answer.verdict in TAKES_EFFECT or leaves_outputs(said, answer)
        if answer.verdict in TAKES_EFFECT:
            touched.add(said.name)
            completed += said.status == JobStatus.SUCCESS and answer.verdict is not Verdict.BAD_RESULT

    # 2. Jobs for its free slots, and for the slots of lost jobs.
    capacity = min(room, config.max_jobs_per_poll)
    choice = _NO_ROOM
    if capacity:
        choice = _choose(ByPriority() if policy is None else policy, state, capacity, now, touched)
        touched.update(choice.jobs)

    # 3. As many new jobs, if there is room in the queue, or excluded jobs can be evicted.
    created: list[JobPlan] = []
    evicted: list[JobAsSeen] = []
    if capacity:
        excluded = (job for job in jobs.excluded(now) if job.name not in touched)
        for plan in state.blocks.planned_jobs(now):
            if len(created) == capacity:
                break
            if jobs.get(plan.name) is not None:
                continue  # its blocks were queued a second time; they wait until the job is done
            queued = len(jobs) + len(created) - len(evicted) - completed
            if config.max_queue_size and queued >= config.max_queue_size:
                worst = next(excluded, None)
                if worst is None:
                    break
                evicted.append(JobAsSeen(worst.name, worst.token))
            created.append(plan)

    # 4. A number of tombstones for each slot.
    leased = islice(state.tombstones.due(now), capacity * config.cleanup_batch_size)

    update = PlanUpdate(
        term=command.term, reports=request.status_updates,
        has_effect=has_effect or bool(jobs.leases_beyond(now + config.lease_seconds)),
        evicted=tuple(evicted), created=tuple(created),
        assigned=tuple(_as_seen(jobs, name) for name in choice.jobs),
        excluded=tuple(name for name in jobs.lost_last_attempts(now) if name not in touched),
        cleaned=tuple(name for name in request.deleted_tombstones if name in state.tombstones),
        leased=tuple(tombstone.name for tombstone in leased),
        why=choice.why)
    return update, PollResponse(answers=tuple(answers), now=now, why=choice.why)


def _check(request: PollRequest) -> None:
    if type(request.job_capacity) is not int or request.job_capacity < 0:
        raise InvalidInput(f"job_capacity is {request.job_capacity}; a worker has room for 0 jobs or more")
    if len(request.status_updates) > MAX_UPDATES or len(request.deleted_tombstones) > MAX_UPDATES:
        raise InvalidInput(f"{len(request.status_updates)} updates, {len(request.deleted_tombstones)} confirmations; a "
                           f"request has at most {MAX_UPDATES} of each")


# -------------------------------------------------------------------------------------------------- 2. assignments


def _choose(policy: AssignmentPolicy, state: SchedulerState, capacity: int, now: float,
            touched: set[str]) -> JobChoice:
    jobs, config = state.jobs, state.config
    if type(policy) is ByPriority and not policy.higher_level_share:
        # As `policy.choose` with an unlimited window, without the cost of a view.
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
