# SPDX-License-Identifier: Apache-2.0
"""Blocks, jobs and plans in few words, for the tests of the scheduler."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from compactlib.runtime.store_numbers import StoreLevels
from compactlib.scheduler import (
    AddBlocks,
    AssignmentPolicy,
    BlockMeta,
    ByPriority,
    Command,
    CompactedBlocks,
    JobPlan,
    JobStatus,
    LevelConfig,
    PollRequest,
    PollResponse,
    SchedulerConfig,
    SchedulerService,
    StatusUpdate,
)
from compactlib.scheduler.model.update import Applied, AssignedJob
from compactlib.scheduler.model.values import BlockEntry, JobPhase, JobState
from compactlib.scheduler.persistence.state_rows import encode_state
from compactlib.scheduler.plan.planner import PlanCursor
from compactlib.scheduler.plan.schedule import Schedule
from compactlib.scheduler.queue.block_queue import BlockQueue, Pushed
from compactlib.scheduler.queue.job_queue import JobQueue
from compactlib.scheduler.service.numbers import levels_of

Limits = tuple[int, float]
U, P, S = JobStatus.UNSPECIFIED, JobStatus.IN_PROGRESS, JobStatus.SUCCESS


def levels(*limits: Limits) -> tuple[LevelConfig, ...]:
    """Levels of a configuration, each as `(max_blocks, max_age)`."""
    return tuple(LevelConfig(max_blocks=blocks, max_age_seconds=age) for blocks, age in limits)


def at_once(**changes: Any) -> SchedulerConfig:
    """No back-off, and the last level's age as the widest span of a job at any level."""
    config = SchedulerConfig(**{"backoff_seconds": 0.0, **changes})
    span = config.levels[-1].max_age_seconds
    return attrs.evolve(config, levels=tuple(attrs.evolve(level, max_range_seconds=span) for level in config.levels))


CFG3 = at_once(levels=levels((3, 0), (2, 0), (2, 0)), cleanup_batch_size=0)


def queue_of(config: SchedulerConfig = CFG3) -> BlockQueue:
    return BlockQueue(config.levels)


def push(queue: BlockQueue, key: tuple[str, int, int], *ids: object, at: float = 0.0) -> list[Pushed]:
    """Push blocks of (tenant, shard, level) at a time."""
    tenant, shard, level = key
    pushed = [queue.push(BlockEntry(index=1, appended_at=at, id=str(block_id), tenant=tenant, shard=shard, level=level))
              for block_id in ids]
    queue.audit()
    return pushed


def batches(queue: BlockQueue, level: int = 0) -> list[list[str]]:
    """The flushed batches of a level; a hole is `-`."""
    return [["-" if block is None else block.id for block in batch.slots] for batch in queue.batches(level)]


def flushed_ids(queue: BlockQueue, level: int = 0) -> list[str]:
    return [block_id for batch in batches(queue, level) for block_id in batch if block_id != "-"]


def cursor(queue: BlockQueue, config: SchedulerConfig = CFG3, now: float = 0.0) -> PlanCursor:
    return PlanCursor(queue, config, now)


def drained(plan: PlanCursor) -> list[JobPlan]:
    jobs = []
    while (job := plan.next_job()) is not None:
        jobs.append(job)
    return jobs


def planned(queue: BlockQueue, config: SchedulerConfig = CFG3, now: float = 0.0) -> list[tuple[str, list[str]]]:
    """Name and sources of every job; twice, since planning changes nothing."""
    first = [(job.name, list(job.source_blocks)) for job in drained(cursor(queue, config, now))]
    assert [(job.name, list(job.source_blocks)) for job in drained(cursor(queue, config, now))] == first
    queue.audit()
    return first


# ------------------------------------------------------------------------------------------------------------ jobs


def job_state(name: str, level: int = 0, status: JobStatus = U, *, token: int = 1, lease: float = 0.0,
              failures: int = 0, sequence: int = 0) -> JobState:
    return JobState(name=name, compaction_level=level, status=status, token=token, lease_expires_at=lease,
                    failures=failures, sequence=sequence)


def job_plan(name: str, level: int = 0, tenant: str = "A", sources: Sequence[str] = ()) -> JobPlan:
    return JobPlan(name=name, tenant=tenant, shard=1, compaction_level=level,
                   source_blocks=tuple(sources) or (f"{name}-source",))


def jobs_of(config: SchedulerConfig, *states: JobState) -> JobQueue:
    queue = JobQueue(config)
    for state in states:
        assert queue.add(state, job_plan(state.name, state.compaction_level))
    queue.audit()
    return queue


def given_out(schedule: Schedule, count: int = 1_000, policy: AssignmentPolicy | None = None) -> list[AssignedJob]:
    """So many jobs, or all that may be assigned."""
    return [schedule.assignment(job) for job in schedule.choose(policy or ByPriority(), count)[0]]


def assigned_names(queue: JobQueue, config: SchedulerConfig, command: Command,
                   policy: AssignmentPolicy | None = None) -> list[str]:
    """The jobs that a schedule assigns, until it has no more; the same if they are asked for one by one."""
    names = [job.state.name for job in given_out(Schedule(queue, config, command), policy=policy)]
    if policy is None:
        schedule = Schedule(queue, config, command)
        one_by_one = [job.state.name for _ in names for job in given_out(schedule, 1)]
        assert (one_by_one, given_out(schedule, 1)) == (names, [])
    return names


# --------------------------------------------------------------------------------------------------------- services


class Host:
    """A service with a log of its own: each call is the next command, and everything is audited.

    A second one gets the same commands, and each poll in its two phases.
    """

    def __init__(self, config: SchedulerConfig | None = None, service: SchedulerService | None = None,
                 now: float = 1000.0) -> None:
        self.service = service or SchedulerService(config)
        self._twin: SchedulerService | None = None if service else SchedulerService(config)
        self.now = now
        self.term = 1
        self.index = 0

    def command(self) -> Command:
        self.index += 1
        return Command(self.index, self.term, self.now)

    def add(self, *ids: str, tenant: str = "A", shard: int = 1, level: int = 0) -> object:
        return self.apply(AddBlocks(tuple(BlockMeta(id=block_id, tenant=tenant, shard=shard, level=level)
                                          for block_id in ids)))

    def apply(self, operation: object) -> object:
        command = self.command()
        result = self.service.apply(command, operation)  # type: ignore[arg-type]
        twin = self._same()
        if twin is not None:
            assert twin.apply(command, operation) == result  # type: ignore[arg-type]
        self.audit()
        return result

    def poll(self, capacity: int = 0, *updates: StatusUpdate, deleted: Sequence[str] = ()) -> PollResponse:
        command, request = self.command(), PollRequest(updates, capacity, tuple(deleted))
        response = self.service.poll(command, request)
        twin = self._same()
        if twin is not None:
            assert twin.apply(command, twin.prepare(command, request)) == Applied(response)
            assert (encode_state(twin.state), twin.events) == (encode_state(self.service.state), self.service.events)
            assert twin.stats(self.now) == self.service.stats(self.now)
        self.audit()
        return response

    def _same(self) -> SchedulerService | None:
        """The second one, unless the first has been given something by itself."""
        if self._twin is not None and self._twin.state.applied_index != self.index - 1:
            self._twin = None
        if self._twin is not None:
            self._twin.policy = self.service.policy
        return self._twin

    def assigned(self, capacity: int = 1) -> PollResponse:
        """What a poll gives after one that has made the jobs."""
        self.poll(capacity)
        return self.poll(capacity)

    def audit(self) -> None:
        self.service.audit()
        check_numbers(self.service, self.now)
        if not self.service.state.quarantine_dropped:
            assert self.service.state.unaccounted_blocks() == []


def check_numbers(service: SchedulerService, now: float) -> None:
    """What is told of a scheduler at a time is what a look at all that it holds says."""
    state = service.state
    jobs = list(state.jobs)
    phases = Counter((job.state.compaction_level, state.jobs.phase(job.state, now)) for job in jobs)
    assert all(row[phase.value] == phases[row["level"], phase] for row in service.stats(now) for phase in JobPhase)
    ends = sorted(job.state.lease_expires_at for job in jobs if job.state.lease_expires_at)
    assert [job.state.lease_expires_at for job in state.jobs.leased()] == ends
    assert len({job.state.name for job in state.jobs.leased()}) == state.jobs.lease_count == len(ends)
    assert [(entry.index, entry.position) for entry in state.tombstones] == sorted(
        (entry.index, entry.position) for entry in state.tombstones)
    assert levels_of(state) == StoreLevels(
        live_bytes=sum(job.size_bytes for job in jobs),
        oldest_lease_seconds=ends[0] - state.config.lease_seconds if ends else None,
        oldest_unreclaimed_seconds=min((entry.appended_at for entry in state.tombstones), default=None))


def say(response: PollResponse, status: JobStatus | int, *, token: int | None = None, which: int = 0,
        results: CompactedBlocks | None = None, reason: str = "") -> StatusUpdate:
    """What a worker says about a job that it was assigned."""
    job = response.compaction_jobs[which]
    lease = {lease.name: lease for lease in response.assignments}[job.name]
    return StatusUpdate(job.name, lease.token if token is None else token, status, results, reason)


def output(plan: JobPlan, *ids: str, tenant: str | None = None) -> CompactedBlocks:
    """Results of a job that has read all its sources and written these blocks."""
    blocks = tuple(BlockMeta(id=block_id, tenant=plan.tenant if tenant is None else tenant, shard=plan.shard,
                             level=plan.compaction_level + 1) for block_id in ids)
    return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks, new_blocks=blocks)


def commands(term: int = 1, at: float = 0.0) -> Iterator[Command]:
    index = 0
    while True:
        index += 1
        yield Command(index, term, at)
