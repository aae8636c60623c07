# SPDX-License-Identifier: Apache-2.0
"""Events of a scheduler as values: random histories for Hypothesis, and a service that runs through them.

>>> from compactlib.scheduler import LevelConfig
>>> world = SchedulerHistory(SchedulerConfig(levels=(LevelConfig(max_blocks=20),)))
>>> for step in (Arrive(20), Poll(1), Poll(1), Report((Said(0, JobStatus.SUCCESS),))):
...     world.step(step)
>>> world.finish()
>>> sorted(world.done)[:3], len(world.done)
(['b0', 'b1', 'b10'], 20)
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import attrs
from hypothesis import strategies as st

from compactlib.commandlog import Command
from compactlib.errors import AuditFailed
from compactlib.scheduler import (
    AddBlocks,
    AssignmentPolicy,
    BlockMeta,
    CompactedBlocks,
    JobPhase,
    JobStatus,
    NoOutput,
    PollRequest,
    PollResponse,
    Requeue,
    Retain,
    SchedulerConfig,
    SchedulerMachine,
    SmallestFirst,
    StatusUpdate,
    Verdict,
)
from tests.harness.scheduler_audit import audit


@attrs.frozen
class Pass:
    """The leader's clock moves forward, or back: a new leader's clock may be behind.

    Attributes:
        seconds: the difference.
    """

    seconds: float


@attrs.frozen
class Arrive:
    """New blocks are written.

    Attributes:
        count: the number of blocks.
        tenant: their tenant.
        shard: their shard.
    """

    count: int
    tenant: str = "A"
    shard: int = 0


@attrs.frozen
class Poll:
    """A worker without jobs polls.

    Attributes:
        capacity: the largest number of jobs.
    """

    capacity: int


@attrs.frozen
class Said:
    """A worker's update on a job that was assigned, and may have been lost.

    Attributes:
        which: the number of the assignment, from the first, modulo their count.
        status: the reported status.
        result: of a success: a block, no block because all was expired, or no block because sources are missing.
    """

    which: int
    status: JobStatus
    result: Literal["output", "empty", "missing"] = "output"


@attrs.frozen
class Report:
    """A worker reports and polls.

    Attributes:
        said: the updates, perhaps repeated.
        capacity: the largest number of new jobs.
        cleaned: whether it also reports all its tombstones as deleted.
    """

    said: tuple[Said, ...]
    capacity: int = 0
    cleaned: bool = False


@attrs.frozen
class RequeueOne:
    """An operator queues a job of the quarantine again.

    Attributes:
        which: the number of the job, in the order of names, modulo their count.
    """

    which: int


@attrs.frozen
class DropOld:
    """Retention drops old blocks.

    Attributes:
        age_seconds: the least age of a dropped block.
    """

    age_seconds: float


SchedulerStep: TypeAlias = Pass | Arrive | Poll | Report | RequeueOne | DropOld
"""One event of a scheduler."""


def scheduler_steps() -> st.SearchStrategy[SchedulerStep]:
    """Draw single steps. Shrinks to a pass of zero seconds."""
    said = st.builds(
        Said, st.integers(0, 20), st.sampled_from([JobStatus.SUCCESS, JobStatus.FAILED, JobStatus.SUCCESS,
                                                   JobStatus.IN_PROGRESS, JobStatus.FAILED, JobStatus.RELEASED]),
        st.sampled_from(["output", "output", "empty", "missing"]))
    return st.one_of(
        st.builds(Pass, st.sampled_from([0.0, 1.0, 5.0, 10.0, 10.5, 30.0, -0.5, -8.0])),
        st.builds(Arrive, st.integers(1, 5), st.sampled_from("AB"), st.integers(0, 1)),
        st.builds(Poll, st.integers(0, 3)),
        st.builds(Report, st.lists(said, min_size=1, max_size=3).map(tuple), st.integers(0, 2), st.booleans()),
        st.builds(RequeueOne, st.integers(0, 3)),
        st.builds(DropOld, st.sampled_from([20_000.0, 40_000.0])))


def scheduler_histories(*, max_steps: int = 40) -> st.SearchStrategy[tuple[SchedulerStep, ...]]:
    """Draw histories: blocks arrive, workers take jobs, lose them, and report late, twice, wrongly or never.

    Shrinks to the fewest steps.

    Args:
        max_steps: the largest number of steps.
    """
    steps = scheduler_steps()
    # Short and long histories; a list alone would draw short histories only.
    return (st.lists(steps, max_size=max_steps)
            | st.lists(steps, min_size=max_steps // 2, max_size=max_steps)).map(tuple)


@attrs.define
class _Held:
    """A job as its worker knows it; the worker may have lost it without notice."""

    name: str
    token: int
    sources: tuple[str, ...]
    tenant: str
    shard: int
    level: int


class SchedulerHistory:
    """A real service that runs through steps, and a plain model of each job's worker and lease.

    Args:
        config: the service's.
        policy: the service's; replicas that replay the log have another policy.

    Attributes:
        service: the service.
        done: the source blocks of completed jobs.
        log: the commands so far, each with its content.
    """

    def __init__(self, config: SchedulerConfig, policy: AssignmentPolicy | None = None) -> None:
        self.config: SchedulerConfig = config
        self.service: SchedulerMachine = SchedulerMachine(config, policy=policy)
        self.done: set[str] = set()
        self.log: list[tuple[Command, Any]] = []
        self._now = 1000.0
        self._blocks = 0
        self._workers: list[_Held] = []
        # The model: job to (token, end of the lease) of the last assignment, while the job exists.
        self._holder: dict[str, tuple[int, float]] = {}
        self._tokens: dict[str, int] = {}
        self._cleanup: list[str] = []

    def step(self, step: SchedulerStep) -> None:
        """Carry out one step, and check the answers and the state.

        Raises:
            AuditFailed: a rule of the scheduler was broken; the message has the rule.
        """
        match step:
            case Pass():
                self._now += step.seconds
            case Arrive():
                self._arrive(step)
            case Poll():
                self._poll(PollRequest((), step.capacity))
            case Report():
                updates = tuple(self._update(said) for said in step.said) if self._workers else ()
                self._poll(PollRequest(updates, step.capacity, tuple(self._cleanup) if step.cleaned else ()))
            case RequeueOne():
                self._requeue(step)
            case DropOld():
                self._apply(Retain(self._now - step.age_seconds))
        self._check(step)

    def finish(self) -> None:
        """Replay the log on a replica, and load the state from its stored form: both must be the same.

        Raises:
            AuditFailed: they are not.
        """
        expected = self.service.dump()
        replica = SchedulerMachine(self.config, policy=SmallestFirst())
        for command, operation in self.log:
            replica.carry_out(command, operation)
        _require(replica.dump() == expected, "a replica that replays the log differs")
        loaded = SchedulerMachine(policy=self.service.policy)
        loaded.load(expected)
        audit(loaded)
        _require(loaded.dump() == expected, "a machine that was loaded is stored in another way")
        command, request = Command(len(self.log) + 1, 1, self._now + 11), PollRequest((), 4)
        _require(loaded.prepare(command, request) == self.service.prepare(command, request),
                 "a service that was loaded would answer the next poll in another way")

    # -------------------------------------------------------------------------------------------------- operations

    def _apply(self, operation: Any) -> Any:
        command = Command(len(self.log) + 1, 1, self._now)
        self.log.append((command, operation))
        return self.service.carry_out(command, operation)

    def _arrive(self, step: Arrive) -> None:
        names = [f"b{self._blocks + number}" for number in range(step.count)]
        self._blocks += step.count
        self._apply(AddBlocks(tuple(
            BlockMeta(id=name, tenant=step.tenant, shard=step.shard, level=0, min_time=self._now, max_time=self._now)
            for name in names)))

    def _requeue(self, step: RequeueOne) -> None:
        quarantine = self.service.quarantine
        names = sorted([*quarantine, *(job.name for job in self.service.jobs if job.failures)])
        if names:
            name = names[step.which % len(names)]
            if name in quarantine:
                self._tokens.pop(name, None)
            requeued, held = self._apply(Requeue((name,))), self._holder.get(name)
            if name in getattr(requeued, "jobs", ()):
                _require(held is None or held[1] < self._now, f"{name} is queued again, its lease lasts until {held}")
                self._holder.pop(name, None)

    def _update(self, said: Said) -> StatusUpdate:
        held = self._workers[said.which % len(self._workers)]
        results = None
        if said.status is JobStatus.SUCCESS:
            output = BlockMeta(id=f"{held.name}@{held.token}", tenant=held.tenant, shard=held.shard,
                               level=held.level + 1, min_time=self._now, max_time=self._now)
            results = CompactedBlocks(
                tenant=held.tenant, shard=held.shard, source_blocks=() if said.result == "missing" else held.sources,
                new_blocks=(output,) if said.result == "output" else (),
                no_output={"empty": NoOutput.EMPTY, "missing": NoOutput.MISSING}.get(said.result))
        return StatusUpdate(held.name, held.token, said.status, results, "because")

    def _poll(self, request: PollRequest) -> None:
        command = Command(len(self.log) + 1, 1, self._now)
        before = self.service.dump()
        update, _ = self.service.prepare(command, request)
        _require(update == self.service.prepare(command, request)[0], "two equal polls were prepared in two ways")
        _require(self.service.dump() == before, "preparing a poll changed the state")
        self.log.append((command, update))
        applied = self.service.carry_out(command, update)
        if not isinstance(applied, PollResponse):
            raise AuditFailed(f"a poll was refused: {applied!r}")
        # A clock that went back cuts leases that end more than a lease from now.
        latest = self._now + self.config.lease_seconds
        self._holder = {name: (token, min(end, latest)) for name, (token, end) in self._holder.items()}
        for gone in update.evicted:  # before its reports are judged
            self._holder.pop(gone.name, None)
        self._check_answers(request, applied)
        self._take(applied, command)

    # ------------------------------------------------------------------------------------------------------ checks

    def _check_answers(self, request: PollRequest, response: PollResponse) -> None:
        """Require the verdict of the model for each update."""
        seen: set[str] = set()
        for said, answer in zip(request.status_updates, response.answers, strict=True):
            _require(said.name == answer.name, f"{said.name} was reported, and {answer.name} is answered")
            held = self._holder.get(said.name)
            told = f"{said} was answered {answer}; by the model it is held by {held}"
            if said.name in seen:
                _require(answer.verdict in (Verdict.DUPLICATE, Verdict.NOT_FOUND), told)
                continue
            if held is None:
                _require(answer.verdict in (Verdict.NOT_FOUND, Verdict.STALE_TOKEN, Verdict.WRONG_STATE), told)
            elif said.token < held[0]:
                _require(answer.verdict is Verdict.STALE_TOKEN, told)
                _require(answer.holder_deadline == held[1], told)
            elif said.status == JobStatus.IN_PROGRESS:
                _require(answer.verdict is Verdict.ACCEPTED, told)
                self._holder[said.name] = (held[0], self._now + self.config.lease_seconds)
            else:
                del self._holder[said.name]
                self._take_effect(said, answer.verdict)
            if answer.verdict is Verdict.ACCEPTED:
                seen.add(said.name)

    def _take_effect(self, said: StatusUpdate, verdict: Verdict) -> None:
        if said.compacted_blocks is not None and verdict is Verdict.ACCEPTED:
            for block_id in said.compacted_blocks.source_blocks:
                _require(block_id not in self.done, f"block {block_id} took effect twice, with {said.name}")
                self.done.add(block_id)

    def _take(self, response: PollResponse, command: Command) -> None:
        leases = {lease.name: lease for lease in response.assignments}
        for plan in response.compaction_jobs:
            lease = leases[plan.name]
            held = self._holder.get(plan.name)
            _require(lease.token == command.index, f"{plan.name} has token {lease.token} in entry {command.index}")
            _require(lease.token > self._tokens.get(plan.name, 0),
                     f"the token of {plan.name} went back to {lease.token}")
            _require(held is None or held[1] < self._now, f"{plan.name} was given away, its lease lasts until {held}")
            self._tokens[plan.name] = lease.token
            self._holder[plan.name] = (lease.token, lease.lease_expires_at)
            self._workers.append(_Held(plan.name, lease.token, plan.source_blocks, plan.tenant, plan.shard,
                                       plan.compaction_level))
        self._cleanup += [tombstone.name for tombstone in response.tombstones]

    def _check(self, step: SchedulerStep) -> None:
        audit(self.service)
        unaccounted = self.service.unaccounted_blocks()
        _require(not unaccounted or bool(self.service.quarantine_dropped),
                 f"after {step} blocks {[block.id for block in unaccounted]} wait for nothing")
        limit = self.config.max_queue_size
        _require(not limit or len(self.service.jobs) <= limit, f"after {step} more than {limit} jobs are queued")
        for phase, state in self.service.jobs.phases(self._now):
            held = self._holder.get(state.name)
            told = f"after {step} {state} is {phase}; by the model it is held by {held}"
            _require((held is None) == (state.status is JobStatus.UNSPECIFIED), told)
            if held is not None:
                _require((state.token, state.lease_expires_at) == held, told)
                _require((phase is JobPhase.IN_PROGRESS) == (self._now <= held[1]), told)


def _require(holds: bool, told: str) -> None:
    """Raise unless a rule holds; also under `python -O`."""
    if not holds:
        raise AuditFailed(told)
