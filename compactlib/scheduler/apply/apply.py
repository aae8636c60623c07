# SPDX-License-Identifier: Apache-2.0
"""Apply, the second phase of a command: carries out an operation. A function of state and operation alone, the same on
every replica.

Whatever happened between prepare and apply, nothing is done twice and nothing is undone: each part of an update says
what it is based on, and is left out if that has changed. Nothing here raises for well-formed input.

See `docs/design/scheduler.md` for how Pyroscope does it, and for the differences.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from compactlib.scheduler.apply.complete import complete, finish, queue_block, refuse_outputs
from compactlib.scheduler.apply.effects import JOB_REASSIGNED, Effects
from compactlib.scheduler.model.frozen import maker
from compactlib.scheduler.model.poll import Assignment, PollResponse, StatusAnswer, Verdict
from compactlib.scheduler.model.update import (
    AddBlocks,
    Applied,
    ApplyResult,
    AssignedJob,
    BlocksAdded,
    Configured,
    EvictedJob,
    NewJob,
    Operation,
    PlanUpdate,
    Requeue,
    Requeued,
    Retain,
    Retained,
    ReturnedJob,
    Tick,
    Ticked,
    UpdatedJob,
)
from compactlib.scheduler.model.values import BlockMeta, CompactedBlocks, JobPlan, JobStatus, Tombstone
from compactlib.scheduler.persistence.state_rows import under
from compactlib.scheduler.queue.block_queue import Pushed
from compactlib.scheduler.queue.job import Job
from compactlib.scheduler.queue.metadata_index import AddOutcome

_IN_PROGRESS = JobStatus.IN_PROGRESS
_make_assignment = maker(Assignment)
_make_response = maker(PollResponse)
_FATES = {Pushed.QUEUED: "queued", Pushed.DUPLICATE: "duplicate", Pushed.TERMINAL: "terminal"}


def carry_out(effects: Effects, operation: Operation) -> ApplyResult:
    """Change the state as the operation says. O(its parts * log n)."""
    if isinstance(operation, PlanUpdate):
        effects.cut_late_stamps()
        return Applied(_update_plan(effects, operation))
    if isinstance(operation, AddBlocks):
        return _add_blocks(effects, operation)
    if isinstance(operation, Tick):
        return Ticked(effects.state.blocks.tick(effects.command.appended_at))
    if isinstance(operation, Retain):
        return _retain(effects, operation)
    if isinstance(operation, Requeue):
        return _requeue(effects, operation)
    before = effects.state.config
    effects.state = under(effects.state, operation.config)
    return Configured(before, operation.config)


# ------------------------------------------------------------------------------------------------- one poll's update


def _update_plan(effects: Effects, update: PlanUpdate) -> PollResponse:
    state = effects.state
    for gone in update.evicted_jobs:
        _evict(effects, gone)
    for done in update.completed_jobs:
        complete(effects, done)
    for new in update.new_jobs:
        _queue_job(effects, update, new)
    assignments: list[Assignment] = []
    given: list[tuple[Job, JobPlan]] = []
    for renewed in update.updated_jobs:
        _renew(effects, renewed, assignments)
    for returned in update.returned_jobs:
        _take_back(effects, returned)
    for job in update.assigned_jobs:
        plan = _assign(effects, job)
        if plan is not None:
            given.append(plan)
    plans = _hand_out(effects, update.now, given, assignments)
    for refused in update.refused_outputs:
        refuse_outputs(effects, refused.job, refused.blocks)
    for name in update.deleted_tombstones:
        state.tombstones.confirm(name)
    leased: list[Tombstone] = []
    for lease in update.leased_tombstones:
        if lease.tombstone.name in state.tombstones:
            leased.append(lease.tombstone)
            state.tombstones.lease(lease.tombstone.name, lease.lease_expires_at)
    if update.shared:
        state.shared.update(update.shared)
    for level, tenant, before, after in update.turns:
        state.jobs.level(level).ready.set_turn(tenant, before, after)
    effects.forget_tombstones()
    state.blocks.tick(update.now)
    return PollResponse(tuple(plans), tuple(assignments), _answers(effects, update.answers),
                        tuple(leased), update.now, update.why)


def carry_out_at_once(effects: Effects, completed: Sequence[tuple[Job, CompactedBlocks | None]],
                      renewed: Iterable[Job], assigned: Sequence[Job], token: int, until: float,
                      answers: Iterable[StatusAnswer], now: float, why: str) -> PollResponse:
    """What the update of a poll would change that has no other parts, where nothing came between it and its decision:
    so nothing is looked up again. O(log n) a job.

    Args:
        effects: of its command.
        completed: jobs that are done, each with its results; none of the jobs is here twice.
        renewed: jobs whose leases go on.
        assigned: jobs that the worker is given.
        token: of what it is given.
        until: when the leases end, seconds.
        answers: to what the worker said.
        now: the command's time, seconds.
        why: by what rule the assigned jobs were chosen.
    """
    effects.cut_late_stamps()
    state = effects.state
    jobs = state.jobs
    if completed:
        finish(effects, completed)
    assignments: list[Assignment] = []
    for job in renewed:
        jobs.extend(job, until)
        assignments.append(_make_assignment(job.name, job.token, until))
    plans: list[JobPlan] = []
    if assigned:
        for job in assigned:
            if job.status is _IN_PROGRESS:
                _tell_reassigned(effects, job, token)
        jobs.assign(assigned, token, until)
        plans = _hand_out(effects, now, [(job, job.plan()) for job in assigned], assignments)
    effects.forget_tombstones()
    state.blocks.tick(now)
    return _make_response(tuple(plans), tuple(assignments), _answers(effects, tuple(answers)), (), now, why)


def _answers(effects: Effects, answers: tuple[StatusAnswer, ...]) -> tuple[StatusAnswer, ...]:
    verdicts = effects.verdicts
    if not verdicts:
        return answers
    return tuple(StatusAnswer(answer.name, verdicts[answer.name])
                 if answer.verdict is Verdict.ACCEPTED and answer.name in verdicts else answer for answer in answers)


def _evict(effects: Effects, item: EvictedJob) -> None:
    state = effects.state
    job = state.jobs.get(item.state.name)
    if job is not None and job.state == item.state:
        state.jobs.evict(job)
        reason = job.last_failure or "it was given up without a word too often"
        effects.quarantine(job.plan(), reason, job.failures, job.orphans)


def _queue_job(effects: Effects, update: PlanUpdate, item: NewJob) -> None:
    state, plan = effects.state, item.plan
    limit = effects.limits.max_queue_size
    if state.jobs.get(plan.name) is not None or (limit and len(state.jobs) >= limit):
        return
    key = plan.tenant, plan.shard, plan.compaction_level
    if plan.compaction_level < len(state.config.levels):
        if not all(state.blocks.holds(key, block_id) for block_id in plan.source_blocks):
            return
        state.blocks.remove_all(key, plan.source_blocks)
    elif not all(state.is_waiting(key, block_id) for block_id in plan.source_blocks):
        return
    state.jobs.add(item.state, plan)
    for tombstone in plan.tombstones:
        state.tombstones.lease(tombstone.name, update.now + effects.limits.cleanup_lease_seconds)


def _renew(effects: Effects, item: UpdatedJob, assignments: list[Assignment]) -> None:
    new = item.state
    job = effects.state.jobs.get(new.name)
    if job is None or job.token != new.token or job.status is not _IN_PROGRESS:
        effects.verdicts[new.name] = Verdict.SUPERSEDED
        return
    effects.state.jobs.extend(job, new.lease_expires_at)
    assignments.append(Assignment(new.name, new.token, new.lease_expires_at))


def _take_back(effects: Effects, item: ReturnedJob) -> None:
    job = effects.state.jobs.get(item.state.name)
    if job is not None and job.token == item.held_token and job.status is _IN_PROGRESS:
        effects.state.jobs.put(job, item.state)
    else:
        effects.verdicts[item.state.name] = Verdict.SUPERSEDED


def _assign(effects: Effects, item: AssignedJob) -> tuple[Job, JobPlan] | None:
    """What the worker gets, or `None` if the job went elsewhere since."""
    state, new = effects.state, item.state
    job = state.jobs.get(new.name)
    if job is None:
        return None
    before = job.state
    if before == item.replaced:
        if before.status is _IN_PROGRESS:
            _tell_reassigned(effects, job, new.token)
        state.jobs.put(job, new)
    elif before != new:
        return None
    return job, item.plan or job.plan()


def _tell_reassigned(effects: Effects, job: Job, token: int) -> None:
    effects.events.append((JOB_REASSIGNED, {"job": job.name, "token": token, "held_token": job.token,
                                            "failures": job.failures + 1}))


def _hand_out(effects: Effects, now: float, given: Iterable[tuple[Job, JobPlan]],
              assignments: list[Assignment]) -> list[JobPlan]:
    """What the worker gets that the jobs were given to: the plans, with those of their tombstones that are left."""
    index, plans = effects.state.index, []
    for job, plan in given:
        blocks = () if index is None else index.find(plan.tenant, plan.shard, plan.source_blocks)
        assignments.append(_make_assignment(job.name, job.token, job.lease_expires_at, blocks))
        plans.append(_with_what_is_left(effects, now, plan) if plan.tombstones else plan)
    return plans


def _with_what_is_left(effects: Effects, now: float, plan: JobPlan) -> JobPlan:
    """The plan with those of its tombstones that are left, which are leased."""
    tombstones = effects.state.tombstones
    left = tuple(tombstone for tombstone in plan.tombstones if tombstone.name in tombstones)
    for tombstone in left:
        tombstones.lease(tombstone.name, now + effects.limits.cleanup_lease_seconds)
    return plan if left == plan.tombstones else attrs.evolve(plan, tombstones=left)


# --------------------------------------------------------------------------------------------------- other operations


def _add_blocks(effects: Effects, operation: AddBlocks) -> BlocksAdded:
    state, command = effects.state, effects.command
    found: dict[str, list[str]] = {"queued": [], "terminal": [], "duplicate": [], "tombstoned": []}
    for block in operation.blocks:
        found[_add_block(effects, block)].append(block.id)
    state.blocks.tick(command.appended_at)
    return BlocksAdded(**{fate: tuple(ids) for fate, ids in found.items()})


def _add_block(effects: Effects, block: BlockMeta) -> str:
    state = effects.state
    if state.index is not None:
        added = state.index.add(block, state.tombstones)
        if added is not AddOutcome.ADDED:
            return "duplicate" if added is AddOutcome.DUPLICATE else "tombstoned"
    elif state.tombstones.covers(block):
        return "tombstoned"
    elif state.is_taken((block.tenant, block.shard, block.level), block.id):
        return "duplicate"
    return _FATES[state.blocks.push_meta(block, effects.command.appended_at)]


def _retain(effects: Effects, operation: Retain) -> Retained:
    state = effects.state
    if state.index is None:
        return Retained(0)
    removed, names = 0, []
    for span in state.index.expired(operation.before, name_suffix=f"@{effects.command.index}"):
        effects.delete_later(span)
        names.append(span.name)
        for block in state.index.drop(span):
            removed += 1
            if state.blocks.holds((block.tenant, block.shard, block.level), block.id):
                state.blocks.remove((block.tenant, block.shard, block.level), block.id)
    return Retained(removed, tuple(names))


def _requeue(effects: Effects, operation: Requeue) -> Requeued:
    state = effects.state
    done: list[str] = []
    unknown: list[str] = []
    blocks = 0
    for name in operation.names:
        given_up = state.quarantine.get(name)
        if given_up is None:
            fresh = begin_anew(effects, name)
            blocks += fresh
            (done if fresh else unknown).append(name)
            continue
        done.append(name)
        state.take_up(given_up)
        plan = given_up.plan
        for block_id in plan.source_blocks:
            block: BlockMeta | None = BlockMeta(id=block_id, tenant=plan.tenant, shard=plan.shard,
                                                level=plan.compaction_level)
            if state.index is not None:
                block = state.index.get(plan.tenant, plan.shard, block_id)
            blocks += block is not None and queue_block(effects, block)
        effects.throw_away(name, given_up.orphans)
    return Requeued(tuple(done), tuple(unknown), blocks)


def begin_anew(effects: Effects, name: str) -> int:
    """A queued job that has failed and has no holder counts no failure any more; how many sources it has, or 0."""
    jobs, command = effects.state.jobs, effects.command
    job = jobs.get(name)
    if job is None or not job.failures:
        return 0
    if job.status is _IN_PROGRESS and not effects.expiry > job.lease_expires_at:
        return 0
    # Under a token of its own: a worker that comes back late learns that the job is not its any more.
    jobs.put(job, attrs.evolve(job.state, status=JobStatus.UNSPECIFIED, token=command.index, lease_expires_at=0.0,
                               failures=0, releases=0, not_before=0.0))
    return job.source_count
