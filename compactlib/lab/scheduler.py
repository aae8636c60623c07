# SPDX-License-Identifier: Apache-2.0
"""A scheduler with its workers, in simulated time: the real `SchedulerMachine`, without data.

Each put of a workload is a block that arrives (`Arrivals` draws some). Workers poll at a fixed pace, work on a job in
proportion to its bytes, report, and delete the blocks of tombstones. A worker that hangs reports after its lease has
expired, and is refused by its token.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import attrs

from compactlib._arguments import is_above, is_fraction, is_whole
from compactlib.commandlog import Command
from compactlib.lab.report import Measures
from compactlib.lab.simulation import Simulation
from compactlib.lab.workloads import PUT, Row
from compactlib.scheduler import (
    AddBlocks,
    AssignmentPolicy,
    BlockMeta,
    CompactedBlocks,
    JobPlan,
    JobStatus,
    PollRequest,
    SchedulerConfig,
    SchedulerMachine,
    StatusUpdate,
    Verdict,
    span_of,
)

_TENANTS = range(1, 5)
"""Tenant k owns a share of the blocks in proportion to 1/k."""
_PATIENCE_SECONDS = 86_400.0
"""The longest time from the last arrival to the last poll."""


@attrs.frozen(kw_only=True)
class SchedulerModel:
    """A scheduler to be replayed, and its workers. Times are seconds.

    Attributes:
        config: the scheduler's.
        workers: the number of workers, one job each.
        bytes_per_second: the speed of a worker.
        poll_seconds: time between two polls of a worker.
        hang_rate: the part of the jobs that takes twice the lease, 0 to 1.

    Raises:
        InvalidInput: a value is out of its range.
    """

    config: SchedulerConfig = attrs.field(factory=SchedulerConfig)
    workers: int = attrs.field(default=2, validator=is_whole(1))
    bytes_per_second: float = attrs.field(default=float(1 << 23), validator=is_above(0))
    poll_seconds: float = attrs.field(default=5.0, validator=is_above(0))
    hang_rate: float = attrs.field(default=0.0, validator=is_fraction)

    def start(self, policy: AssignmentPolicy, seed: int = 0) -> SchedulerSimulation:
        """Make a scheduler without blocks."""
        return SchedulerSimulation(self, policy, seed)


@attrs.define
class _Worker:
    """A worker: the tombstones that it has carried out since its last poll, and its job."""

    deleted: list[str] = attrs.field(factory=list)
    job: JobPlan | None = None
    token: int = 0
    sources: tuple[BlockMeta, ...] = ()
    done_at: float = 0.0
    hangs: bool = False

    def updates(self, is_finished: bool) -> tuple[StatusUpdate, ...]:
        """Return the report of its next poll."""
        if self.job is None or (self.hangs and not is_finished):
            return ()
        if not is_finished:
            return (StatusUpdate(self.job.name, self.token, JobStatus.IN_PROGRESS),)
        done = CompactedBlocks(tenant=self.job.tenant, shard=self.job.shard, source_blocks=self.job.source_blocks,
                               new_blocks=(self.output(self.job),))
        return (StatusUpdate(self.job.name, self.token, JobStatus.SUCCESS, done),)

    def output(self, job: JobPlan) -> BlockMeta:
        """Return the block that its job writes."""
        begin, end = span_of(self.sources)
        return BlockMeta(id=f"{job.name}-{self.token}", tenant=job.tenant, shard=job.shard,
                         level=job.compaction_level + 1, min_time=begin, max_time=end,
                         size_bytes=sum(each.size_bytes for each in self.sources))


class SchedulerSimulation(Simulation):
    """A scheduler under replay, with its workers and blocks.

    Args:
        model: the scheduler and the workers.
        policy: chooses the job that a poll assigns first.
        seed: the seed of tenants and hangs.

    Attributes:
        machine: applies the commands.
    """

    def __init__(self, model: SchedulerModel, policy: AssignmentPolicy, seed: int) -> None:
        super().__init__(policy)
        self._model = model
        self.machine: SchedulerMachine = SchedulerMachine(model.config, policy=policy)
        # Two generators, so that all policies get the same blocks.
        self._owners, self._fates = Random(f"{seed} owners"), Random(f"{seed} fates")
        self._commands = self._used = self._live = 0
        self._blocks: dict[str, BlockMeta] = {}
        self._arrived: dict[str, float] = {}
        # The size of each dead block that is not deleted yet.
        self._dead: dict[str, int] = {}
        self._workers = [_Worker() for _ in range(model.workers)]
        self._waits: list[float] = []
        # The workers poll in turn, from the time of the first block on.
        self._start: float | None = None
        self._polls = 0

    def apply(self, rows: Sequence[Row]) -> None:
        """Add these blocks, each at its time; carry out the polls in between."""
        for kind, key, size, _, at in rows:
            if self._start is None:
                self._start = at / 1000
            if kind == PUT:
                self._work_until(at / 1000)
                self.now_ms = at
                self._arrive(key, size, at / 1000)
        self.counts.operations += len(rows)

    def finish(self) -> None:
        """Continue until no block waits for a first job, no worker is busy and no dead block is left."""
        end = self.now_ms / 1000 + _PATIENCE_SECONDS
        while self._start is not None and self._next() <= end and not self._is_quiet():
            self._work_until(self._next())

    def _next(self) -> float:
        """Return the time of the next poll."""
        rounds, worker = divmod(self._polls, len(self._workers))
        pace = self._model.poll_seconds
        return (self._start or 0.0) + worker * pace / len(self._workers) + rounds * pace

    def _work_until(self, end: float) -> None:
        while (now := self._next()) <= end:
            worker = self._workers[self._polls % len(self._workers)]
            self._polls += 1
            self.advance(round(now * 1000))
            self.sample()
            self._poll(worker, now)

    def _command(self, now: float) -> Command:
        self._commands += 1
        return Command(self._commands, 1, now)

    def _arrive(self, key: int, size: int, now: float) -> None:
        [tenant] = self._owners.choices(_TENANTS, weights=[1 / each for each in _TENANTS])
        block = BlockMeta(id=f"block-{key:08d}", tenant=f"tenant-{tenant}", shard=0, level=0, min_time=now,
                          max_time=now, size_bytes=size)
        self._arrived[block.id], self._blocks[block.id] = now, block
        self.counts.user_bytes += size
        self._used += size
        self._live += size
        self.machine.carry_out(self._command(now), AddBlocks((block,)))

    # ----------------------------------------------------------------------------------------------------- one poll

    def _poll(self, worker: _Worker, now: float) -> None:
        """Report, take a job, and delete the blocks of the answer's tombstones, which the next poll confirms."""
        is_finished = worker.job is not None and now >= worker.done_at
        updates, is_free = worker.updates(is_finished), worker.job is None or is_finished
        answer = self.machine.poll(self._command(now), PollRequest(updates, int(is_free), tuple(worker.deleted)))
        self.counts.asked += 1
        if updates:
            self._reported(worker, answer.answers[0].verdict is not Verdict.ACCEPTED, is_finished, now)
        for plan in answer.compaction_jobs:
            self._take(worker, plan, next(each.token for each in answer.assignments if each.name == plan.name), now)
        worker.deleted = [tombstone.name for tombstone in answer.tombstones]
        for block in (block for tombstone in answer.tombstones for block in tombstone.blocks):
            self._used -= self._dead.pop(block, 0)

    def _take(self, worker: _Worker, plan: JobPlan, token: int, now: float) -> None:
        model = self._model
        worker.job, worker.token = plan, token
        worker.sources = tuple(self._blocks[each] for each in plan.source_blocks)
        worker.hangs = self._fates.random() < model.hang_rate
        size = sum(each.size_bytes for each in worker.sources)
        worker.done_at = now + (2 * model.config.lease_seconds if worker.hangs else size / model.bytes_per_second)
        self.counts.assigned += 1

    def _reported(self, worker: _Worker, is_late: bool, is_finished: bool, now: float) -> None:
        """Handle the answer to a report: the job goes on, or it has ended."""
        counts, job = self.counts, worker.job
        assert job is not None
        if is_late or is_finished:
            worker.job = None
        counts.refused += is_late
        if not is_finished:
            return
        output = worker.output(job)
        counts.copied_bytes += output.size_bytes
        if is_late:
            return  # a sweep removes its output
        self._used += output.size_bytes
        self._blocks[output.id] = output
        counts.compactions += 1
        counts.victims += len(worker.sources)
        counts.freed_segments += len(worker.sources) - 1
        for source in worker.sources:
            if (arrived := self._arrived.pop(source.id, None)) is not None:
                self._waits.append(now - arrived)
            del self._blocks[source.id]
            self._dead[source.id] = source.size_bytes

    # --------------------------------------------------------------------------------------------------- counting

    def _is_quiet(self) -> bool:
        """Return whether no poll can change anything any more."""
        return not (self._arrived or self._dead or any(worker.job is not None for worker in self._workers))

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def live_bytes(self) -> int:
        return self._live

    def cut(self) -> Measures:
        done = super().cut()
        done.waits, done.left_blocks = tuple(self._waits), len(self._arrived)
        self._waits.clear()
        return done
