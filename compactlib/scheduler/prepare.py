# SPDX-License-Identifier: Apache-2.0
"""Prepare, the first phase of a poll: from the state and a request to a `PlanUpdate`; changes nothing.

1. *Status updates* are first, so that a slot of a lost job can be used in the same poll.
2. *Assignments* are before new jobs, so that queued jobs are not starved. A policy chooses among them.
3. *New jobs* are assigned from the next poll on. If the queue is full, excluded jobs are evicted for them.
4. *Tombstones* are sent to workers with free slots.

`docs/internals/differences.md` has the differences from Pyroscope.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import islice

from compactlib.commandlog.protocol import Command
from compactlib.errors import InvalidInput
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.job_queue import Job, JobQueue
from compactlib.scheduler.policies import BY_AGE
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
from compactlib.scheduler.update import JobAsSeen, PlanUpdate
from compactlib.scheduler.values import (
    ANONYMOUS_TENANT,
    CompactedBlocks,
    JobPlan,
    JobStatus,
    PollRequest,
    PollResponse,
    StatusAnswer,
    StatusUpdate,
    Verdict,
)

TAKES_EFFECT = frozenset({Verdict.ACCEPTED, Verdict.BAD_RESULT, Verdict.SOURCES_GONE})
"""Verdicts on a report of the job's holder; other verdicts do not change the job."""
MAX_UPDATES = 10_000
"""The most status updates, and the most confirmations, of a request."""
_NO_ROOM = JobChoice((), "the worker has no room: job_capacity=0, and it has lost no job in this poll")


def prepare(state: SchedulerState, command: Command, request: PollRequest,
            policy: AssignmentPolicy | None = None) -> tuple[PlanUpdate, PollResponse]:
    """Return the update of a poll, and the answer to a poll without changes.

    O(updates + log n for each assignment and new job), and the cost of the policy, by default `ByPriority`.
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
        room += _frees_slot(said, answer)
        if answer.verdict in TAKES_EFFECT:
            has_effect = True
            touched.add(said.name)
            completed += said.status == JobStatus.SUCCESS and answer.verdict is not Verdict.BAD_RESULT

    # 2. Jobs for its free slots, and for the slots of lost jobs.
    capacity = min(room, config.max_jobs_per_poll)
    choice = _NO_ROOM
    if capacity:
        choice = _choose(policy, state, capacity, now, touched)
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


# ------------------------------------------------------------------------------------------------------ 1. reports


def judge(state: SchedulerState, command: Command, said: StatusUpdate, reported: Collection[str]) -> StatusAnswer:
    """Return the answer to a report; `reported` are the jobs that earlier reports of this poll have changed.

    O(sources + outputs).
    """
    job, now, lease_seconds = state.jobs.get(said.name), command.appended_at, state.config.lease_seconds
    if said.name in reported:
        verdict, detail = Verdict.DUPLICATE, ""
    elif job is None:
        verdict, detail = Verdict.NOT_FOUND, ""
    elif said.token < job.token:
        verdict, detail = Verdict.STALE_TOKEN, f"token {said.token} is below the job's {job.token}"
    elif said.token > command.index:
        verdict, detail = Verdict.FUTURE_TOKEN, f"token {said.token} is above the log's index {command.index}"
    elif not JobStatus.IN_PROGRESS <= said.status <= JobStatus.RELEASED:
        verdict, detail = Verdict.BAD_STATUS, f"a worker may not send the status {said.status}"
    elif job.status is not JobStatus.IN_PROGRESS:
        verdict, detail = Verdict.WRONG_STATE, "the job is not assigned"
    else:
        verdict, detail = _judge_results(state, job.plan, said)
        until = now + lease_seconds if said.status == JobStatus.IN_PROGRESS else None
        return StatusAnswer(said.name, verdict, until, detail)
    is_leased = job is not None and job.status is JobStatus.IN_PROGRESS
    return StatusAnswer(said.name, verdict, min(job.lease_expires_at, now + lease_seconds)
                        if job is not None and is_leased else None, detail)


def _frees_slot(said: StatusUpdate, answer: StatusAnswer) -> bool:
    """Return whether the answer stops a job that occupies a slot of the worker.

    The worker's capacity already has the slot of a job that it reports as ended, so a SUCCESS for an unknown job frees
    none.
    """
    return (answer.verdict not in TAKES_EFFECT and answer.verdict is not Verdict.DUPLICATE
            and said.status not in (JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.RELEASED))


def _judge_results(state: SchedulerState, plan: JobPlan, said: StatusUpdate) -> tuple[Verdict, str]:
    results = said.compacted_blocks
    if said.status != JobStatus.SUCCESS:
        return Verdict.ACCEPTED, ""
    if results is None:
        return Verdict.BAD_RESULT, "no results were given; send compacted_blocks with SUCCESS"
    problem = _problem(state, plan, results)
    if problem is not None:
        return Verdict.BAD_RESULT, problem
    if len(state.index.find(plan.tenant, plan.shard, results.source_blocks)) < len(results.source_blocks):
        return Verdict.SOURCES_GONE, ""
    return Verdict.ACCEPTED, ""


def _problem(state: SchedulerState, plan: JobPlan, results: CompactedBlocks) -> str | None:
    """Return why the results do not fit the job, or `None` if they do."""
    tenant, shard, level = plan.tenant, plan.shard, plan.compaction_level + 1
    sources, blocks = results.source_blocks, results.new_blocks
    if results.tenant != tenant or results.shard != shard:
        return (f"results are for tenant {results.tenant!r} and shard {results.shard}, the job is for {tenant!r} and "
                f"{shard}")
    known = set(plan.source_blocks)
    strange = set(sources) - known
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
        if block.tenant == tenant and block.id in known:
            return f"new block {block.id!r} has the id of a source, whose object is deleted; write blocks with new ids"
        if state.tombstones.covers(block):
            return f"new block {block.id!r} has a tombstone, so its object will be deleted; write blocks with new ids"
    return None


# -------------------------------------------------------------------------------------------------- 2. assignments


def _choose(policy: AssignmentPolicy | None, state: SchedulerState, capacity: int, now: float,
            touched: set[str]) -> JobChoice:
    jobs, config = state.jobs, state.config
    if policy is None:
        # As `ByPriority` with an unlimited window, without the cost of a view.
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
            names = (name for *_, name in level.tenants.get(tenant, ()) if name not in touched)
            ready = (job for job in map(jobs.get, names) if job is not None)
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
