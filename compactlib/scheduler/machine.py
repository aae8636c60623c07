# SPDX-License-Identifier: Apache-2.0
"""`SchedulerMachine`: a scheduler as a state machine, without a clock and without I/O.

`Scheduler` runs it over a log. A simulation calls `poll` and `carry_out` directly.

Apply, the second phase of a command, is here. It is a function of state, command and operation alone, the same on every
replica.

The state may have changed since `prepare`. So reports of workers are judged here, and a job in the update that has
changed is skipped. Nothing here raises for an update of `prepare`.

The outputs of a report that was not accepted stay unknown, as those of a worker that died: a sweep of the objects, by
the host, removes both.

`docs/internals/differences.md` has the differences from Pyroscope.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs

from compactlib.codec import FieldError
from compactlib.commandlog.protocol import Command
from compactlib.errors import InvalidInput
from compactlib.scheduler.config import SEQUENCE_BITS, SchedulerConfig
from compactlib.scheduler.errors import PollAgain
from compactlib.scheduler.job_queue import Job
from compactlib.scheduler.policy import AssignmentPolicy
from compactlib.scheduler.prepare import TAKES_EFFECT, judge, prepare
from compactlib.scheduler.state import SchedulerState
from compactlib.scheduler.update import (
    OPERATIONS,
    AddBlocks,
    ApplyResult,
    BlocksAdded,
    Configure,
    JobAsSeen,
    Operation,
    PlanUpdate,
    Requeue,
    Requeued,
    Retain,
    Retained,
)
from compactlib.scheduler.values import (
    MAX_REASON_CHARS,
    Assignment,
    CompactedBlocks,
    JobPlan,
    JobStatus,
    NoOutput,
    PollRequest,
    PollResponse,
    QuarantinedJob,
    StatusAnswer,
    StatusUpdate,
    Tombstone,
    Verdict,
)

Event: TypeAlias = tuple[str, dict[str, Any]]
_RETAINED_AT_ONCE = 1000


class SchedulerMachine(SchedulerState):
    """The scheduler's state and its commands. A `CommandMachine`; for one thread at a time.

    Args:
        config: the settings of a new scheduler; the same on every replica.
        policy: orders the jobs of a poll. Only the leader calls it, so it may differ between replicas, and change.
            Default `ByPriority`.

    Attributes:
        policy: the policy, as given.
        events: the events of the last command, name and fields.
    """

    def __init__(self, config: SchedulerConfig | None = None, *, policy: AssignmentPolicy | None = None) -> None:
        super().__init__(SchedulerConfig() if config is None else config)
        self.policy: AssignmentPolicy | None = policy
        self.events: Sequence[Event] = ()
        self._encoded: tuple[bytes, Operation] | None = None

    def prepare(self, command: Command, request: PollRequest) -> tuple[PlanUpdate, PollResponse]:
        """Return the update of a poll, and the answer to a poll without changes; changes nothing.

        Raises:
            InvalidInput: the request or the policy's choice is out of range.
        """
        return prepare(self, command, request, self.policy)

    def carry_out(self, command: Command, operation: Operation) -> ApplyResult:
        """Carry out an operation, which is the only way to change the state.

        The result depends on state, command and operation alone. An update of another term changes nothing.
        """
        result, self.events = _apply(self, command, operation)
        return result

    def poll(self, command: Command, request: PollRequest) -> PollResponse:
        """Prepare a poll and carry it out as one command."""
        result = self.carry_out(command, self.prepare(command, request)[0])
        assert isinstance(result, PollResponse), "it was prepared in this term"
        return result

    def encode(self, operation: Operation) -> bytes:
        """Return the operation as the bytes of a command. `apply` does not decode the last encoded command.

        Raises:
            InvalidInput: a value cannot be stored, so that the log could not be read again.
        """
        try:
            payload = OPERATIONS.encode(operation)
        except (FieldError, OverflowError, ValueError) as error:
            what = "this is no request" if isinstance(operation, PlanUpdate) else "this is no operation"
            raise InvalidInput(f"{what}: {error}; nothing was changed") from error
        self._encoded = payload, operation
        return payload

    def apply(self, command: Command, payload: bytes) -> tuple[ApplyResult, Sequence[Event]]:
        """See `CommandMachine.apply`; returns the result and the events."""
        encoded, self._encoded = self._encoded, None
        operation = (encoded[1] if encoded is not None and encoded[0] is payload
                     else OPERATIONS.decode(payload, f"command {command.index}"))
        return self.carry_out(command, operation), self.events


def _apply(state: SchedulerState, command: Command, operation: Operation) -> tuple[ApplyResult, list[Event]]:
    """Carry out an operation on the state; return the result, and the events for the host.

    O(its parts * log n); O(state) for new settings.
    """
    state.applied = command
    change = _Change(state, command)
    result: ApplyResult
    match operation:
        case PlanUpdate() if operation.term != command.term:
            result = PollAgain(prepared=operation.term, found=command.term)
        case PlanUpdate():
            result = change.carry_out_poll(operation)
        case AddBlocks():
            result = change.add_blocks(operation)
        case Retain():
            result = change.retain(operation)
        case Requeue():
            result = change.requeue(operation)
        case Configure():
            result = state.config
            state.configure(operation.config)
    return result, change.events


class _Change:
    """Carries out one command."""

    def __init__(self, state: SchedulerState, command: Command) -> None:
        self.state: SchedulerState = state
        self.events: list[Event] = []
        self._command = command
        self._now = command.appended_at

    # ---------------------------------------------------------------------------------------------- a poll's update

    def carry_out_poll(self, update: PlanUpdate) -> PollResponse:
        state, config, now = self.state, self.state.config, self._now
        self._cut_long_leases(now + config.lease_seconds)
        for gone in update.evicted:
            job = state.jobs.get(gone.name)
            if job is not None and job.token == gone.token:
                state.jobs.remove(job)
                reason = job.last_failure or "its workers were lost without a word too often"
                self._quarantine(job.plan, reason, job.failures)
        answers: list[StatusAnswer] = []
        assignments: list[Assignment] = []
        reported: set[str] = set()
        for said in update.reports:
            answer = judge(state, self._command, said, reported)
            answers.append(answer)
            job = state.jobs.get(said.name)
            if job is not None and answer.verdict in TAKES_EFFECT:
                reported.add(said.name)
                self._take(job, said, answer)
                if said.status == JobStatus.IN_PROGRESS:
                    assignments.append(Assignment(said.name, job.token, job.lease_expires_at))
        for position, plan in enumerate(update.created):
            self._create(plan, position)
        plans: list[JobPlan] = []
        for assigned in update.assigned:
            job = self._assign(assigned)
            if job is not None:
                plan = job.plan
                plans.append(plan)
                assignments.append(Assignment(plan.name, job.token, job.lease_expires_at, state.index.find(
                    plan.tenant, plan.shard, plan.source_blocks)))
        for name in update.excluded:
            job = state.jobs.get(name)
            if job is not None and state.jobs.has_failed(job):
                state.jobs.note_excluded(job)
                self._exclude(job)
        for name in update.cleaned:
            state.tombstones.confirm(name)
        leased = [state.tombstones.lease(name, now + config.cleanup_lease_seconds) for name in update.leased]
        self._forget_tombstones()
        return PollResponse(tuple(plans), tuple(assignments), tuple(answers),
                            tuple(tombstone for tombstone in leased if tombstone is not None), now, update.why)

    def _cut_long_leases(self, end: float) -> None:
        """Shorten leases of a leader with a fast clock. Workers count a lease from their poll, so they lose nothing."""
        jobs = self.state.jobs.leases_beyond(end)
        for job in jobs:
            self.state.jobs.change(job, lease_expires_at=end)
        if jobs:
            self.events.append(("scheduler_leases_cut", {"jobs": len(jobs)}))

    def _create(self, plan: JobPlan, position: int) -> None:
        state, limit = self.state, self.state.config.max_queue_size
        if state.jobs.get(plan.name) is not None or (limit and len(state.jobs) >= limit):
            return
        if not all(state.blocks.holds(plan.place, block_id) for block_id in plan.source_blocks):
            return
        state.blocks.remove(plan.place, plan.source_blocks)
        state.jobs.add(Job(plan=plan, token=self._command.index, added_at=self._now,
                           sequence=(self._command.index << SEQUENCE_BITS) + position))

    # ----------------------------------------------------------------------------------- reports of a job's holder

    def _take(self, job: Job, said: StatusUpdate, answer: StatusAnswer) -> None:
        if said.status == JobStatus.IN_PROGRESS:
            self.state.jobs.change(job, lease_expires_at=self._now + self.state.config.lease_seconds)
        elif answer.verdict is Verdict.BAD_RESULT:
            self._give_back(job, released=False, reason=f"bad result: {answer.detail}")
        elif answer.verdict is Verdict.SOURCES_GONE:
            self.state.jobs.remove(job)
            self._queue_sources(job.plan)
        elif said.status != JobStatus.SUCCESS:
            self._give_back(job, released=said.status == JobStatus.RELEASED, reason=said.reason)
        elif said.compacted_blocks is not None:
            self._complete(job, said.compacted_blocks)

    def _give_back(self, job: Job, *, released: bool, reason: str) -> None:
        """Take the job back from its worker, with a back-off unless it is its first release."""
        config, releases, failures = self.state.config, job.releases + 1, job.failures
        if released and 0 < config.max_releases <= releases:
            # A release by a stopping worker is harmless, but a job that every worker releases must fail at last.
            reason = f"given back {releases} times, the last time: {reason or 'without a reason'}"
            released = False
        if released:
            times = releases - 1
        else:
            failures, releases = failures + 1, 0
            times = failures
        delay = min(config.backoff_seconds * 2.0 ** min(times - 1, 60), config.max_backoff_seconds) if times else 0.0
        self.state.jobs.change(
            job, status=JobStatus.UNSPECIFIED, token=self._command.index, lease_expires_at=0.0, failures=failures,
            releases=releases, not_before=self._now + delay if delay else 0.0,
            last_failure=reason[:MAX_REASON_CHARS] or job.last_failure)
        if self.state.jobs.has_failed(job):
            self._exclude(job)

    def _exclude(self, job: Job) -> None:
        self.events.append(("scheduler_job_excluded", {"job": job.name, "failures": job.failures,
                                           "blocks": len(job.plan.source_blocks), "reason": job.last_failure}))

    def _assign(self, item: JobAsSeen) -> Job | None:
        """Assign the job to the worker, unless it has changed since."""
        job = self.state.jobs.get(item.name)
        if job is None or (job.token, job.lease_expires_at) != (item.token, item.lease_expires_at):
            return None
        is_lost = job.status is JobStatus.IN_PROGRESS
        self.state.jobs.change(
            job, status=JobStatus.IN_PROGRESS, token=self._command.index, failures=job.failures + is_lost,
            lease_expires_at=self._now + self.state.config.lease_seconds)
        if is_lost:
            self.events.append(("scheduler_job_reassigned", {"job": item.name, "token": self._command.index,
                                                 "held_token": item.token, "failures": job.failures}))
        return job

    def _queue_sources(self, plan: JobPlan) -> int:
        """Queue the sources of a job that are in the index; return their number."""
        state = self.state
        return sum(state.blocks.push(block, self._now)
                   for block in state.index.find(plan.tenant, plan.shard, plan.source_blocks))

    def _complete(self, job: Job, results: CompactedBlocks) -> None:
        """Remove the job from the queue, and replace its blocks by the results."""
        state, plan, sources, blocks = self.state, job.plan, results.source_blocks, results.new_blocks
        state.jobs.remove(job)
        if sources and (blocks or results.no_output is NoOutput.EMPTY):
            state.tombstones.add(Tombstone(name=plan.name, tenant=plan.tenant, shard=plan.shard,
                                                 level=plan.compaction_level, blocks=sources), self._now)
            state.index.remove(plan.tenant, plan.shard, sources)
            for block in blocks:
                # A known block stays where it is, perhaps in a job.
                if state.index.add(block):
                    state.blocks.push(block, self._now)
        self.events.append(("scheduler_job_completed", {
            "job": plan.name, "level": plan.compaction_level, "source_bytes": plan.size_bytes,
            "output_bytes": sum(block.size_bytes for block in blocks),
            "seconds": max(0.0, self._now - job.added_at)}))
        self._quarantine_unread(plan, job.failures, results)

    def _quarantine_unread(self, plan: JobPlan, failures: int, results: CompactedBlocks) -> None:
        """Move the sources that the worker did not find, if any, to quarantine."""
        read = () if results.no_output is NoOutput.MISSING else results.source_blocks
        if len(read) < len(plan.source_blocks):
            # Sources that retention has removed since are not missing.
            unread = self.state.index.find(plan.tenant, plan.shard,
                                           [each for each in plan.source_blocks if each not in set(read)])
            if unread:
                self._quarantine(attrs.evolve(plan, source_blocks=tuple(block.id for block in unread)),
                                 "the worker did not find these sources", failures)

    def _quarantine(self, plan: JobPlan, reason: str, failures: int) -> None:
        """Move a job to quarantine; if that is full, remove its oldest job."""
        state = self.state
        state.quarantine[plan.name] = QuarantinedJob(plan=plan, reason=reason, failures=failures, since=self._now)
        self.events.append(("scheduler_job_quarantined", {"job": plan.name, "reason": reason, "failures": failures,
                                              "blocks": len(plan.source_blocks)}))
        while len(state.quarantine) > state.config.max_quarantine_size:
            name = next(iter(state.quarantine))
            gone = state.quarantine.pop(name)
            state.quarantine_dropped += 1
            self.events.append(("scheduler_quarantine_dropped", {"job": name, "blocks": len(gone.plan.source_blocks)}))

    def _forget_tombstones(self) -> None:
        """Remove the oldest tombstones above the limit; their objects stay for a sweep."""
        state = self.state
        while len(state.tombstones) > state.config.max_tombstones:
            gone = state.tombstones.drop_oldest()
            self.events.append(("scheduler_tombstone_dropped", {
                "tombstone": gone.name, "tenant": gone.tenant, "shard": gone.shard, "blocks": len(gone.blocks)}))

    # --------------------------------------------------------------------------------------------- other operations

    def add_blocks(self, operation: AddBlocks) -> BlocksAdded:
        state = self.state
        found: dict[str, list[str]] = {"queued": [], "terminal": [], "duplicate": [], "tombstoned": []}
        for block in operation.blocks:
            if state.index.get(block.tenant, block.shard, block.id) is not None:
                fate = "duplicate"
            elif state.index.is_expired(block) or state.tombstones.covers(block):
                fate = "tombstoned"
            else:
                state.index.add(block)
                fate = "queued" if state.blocks.push(block, self._now) else "terminal"
            found[fate].append(block.id)
        return BlocksAdded(**{fate: tuple(ids) for fate, ids in found.items()})

    def retain(self, operation: Retain) -> Retained:
        gone = self.state.index.expire(operation.before, _RETAINED_AT_ONCE)
        places: dict[tuple[str, int, int], list[str]] = {}
        for block in gone:
            self.state.blocks.remove(block.place, (block.id,))
            places.setdefault(block.place, []).append(block.id)
        names = []
        for number, ((tenant, shard, level), ids) in enumerate(places.items(), 1):
            names.append(f"retention at {self._command.index} ({tenant} {level} {number})")
            self.state.tombstones.add(Tombstone(name=names[-1], tenant=tenant, shard=shard, level=level,
                                                blocks=tuple(ids)), self._now)
        return Retained(len(gone), tuple(names))

    def requeue(self, operation: Requeue) -> Requeued:
        state = self.state
        done: list[str] = []
        unknown: list[str] = []
        blocks = 0
        for name in operation.names:
            given_up = state.quarantine.pop(name, None)
            if given_up is None:
                fresh = self._begin_anew(name)
                blocks += fresh
                (done if fresh else unknown).append(name)
                continue
            done.append(name)
            blocks += self._queue_sources(given_up.plan)
        return Requeued(tuple(done), tuple(unknown), blocks)

    def _begin_anew(self, name: str) -> int:
        """Reset a queued job without a holder that has failed or backs off; return the number of its sources, or 0."""
        jobs = self.state.jobs
        job = jobs.get(name)
        if job is None or not (job.failures or job.not_before):
            return 0
        if job.status is JobStatus.IN_PROGRESS and not self._now > job.lease_expires_at:
            return 0
        # With a new token: a late worker learns from it that it has lost the job.
        jobs.change(job, status=JobStatus.UNSPECIFIED, token=self._command.index, lease_expires_at=0.0, failures=0,
                    releases=0, not_before=0.0)
        return len(job.plan.source_blocks)
