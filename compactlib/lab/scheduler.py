# SPDX-License-Identifier: Apache-2.0
"""A scheduler with its workers, in simulated time: the real `SchedulerMachine`, without data.

Each put of a workload is a block that arrives (`Arrivals` draws some). Workers poll at a fixed pace, work on a job in
proportion to its bytes, report, and delete the blocks of tombstones. A worker that hangs reports after its lease has
expired, and is refused by its token; a failing job is reported as failed, and assigned again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from random import Random

import attrs

from compactlib._arguments import is_above, is_whole
from compactlib.commandlog import Command
from compactlib.errors import InvalidInput
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
    Tombstone,
    Verdict,
    span_of,
)

_SAMPLE, _SAMPLE_SECONDS = -1, 10.0
"""The samples of the queue: their number in place of a worker's, and their period."""
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
        hang_rate: the part of the jobs that takes twice the lease.
        failure_rate: the part of the jobs that is reported as failed at its end.

    Raises:
        InvalidInput: a value is out of its range.
    """

    config: SchedulerConfig = attrs.field(factory=SchedulerConfig)
    workers: int = attrs.field(default=2, validator=is_whole(1))
    bytes_per_second: float = attrs.field(default=float(1 << 23), validator=is_above(0))
    poll_seconds: float = attrs.field(default=5.0, validator=is_above(0))
    hang_rate: float = 0.0
    failure_rate: float = 0.0

    def __attrs_post_init__(self) -> None:
        if not (self.hang_rate >= 0 and self.failure_rate >= 0 and self.hang_rate + self.failure_rate < 1):
            raise InvalidInput(f"hang_rate is {self.hang_rate} and failure_rate {self.failure_rate}; give two parts of "
                               f"the jobs, at least 0 and together below 1")

    def start(self, policy: AssignmentPolicy, seed: int = 0) -> SchedulerSimulation:
        """Make a scheduler without blocks."""
        return SchedulerSimulation(self, policy, seed)


@attrs.frozen
class _Held:
    """A job that a worker has taken."""

    plan: JobPlan
    sources: tuple[BlockMeta, ...]
    token: int
    done_at: float
    hangs: bool
    fails: bool


class SchedulerSimulation(Simulation):
    """A scheduler under replay, with its workers and blocks.

    Args:
        model: the scheduler and the workers.
        policy: chooses the job that a poll assigns first.
        seed: the seed of tenants, hangs and failures.

    Attributes:
        machine: applies the commands.
    """

    def __init__(self, model: SchedulerModel, policy: AssignmentPolicy, seed: int) -> None:
        super().__init__(policy)
        self._model = model
        self.machine: SchedulerMachine = SchedulerMachine(model.config, policy=policy)
        # Two generators, so that all policies get the same blocks.
        self._owners, self._fates = Random(f"{seed} owners"), Random(f"{seed} fates")
        self._index = 0
        self._used = self._live = 0
        self._blocks: dict[str, BlockMeta] = {}
        self._arrived: dict[str, float] = {}
        # The size and the time of death of each dead block that is not deleted yet.
        self._dead: dict[str, tuple[int, float]] = {}
        self._held: list[_Held | None] = [None] * model.workers
        self._deleted: list[list[str]] = [[] for _ in range(model.workers)]
        self._waits: list[float] = []
        self._began = False
        # A heap of the next poll of each worker and the next tick: (time, worker).
        self._next: list[tuple[float, int]] = []

    def apply(self, rows: Sequence[Row]) -> None:
        """Add these blocks, each at its time; carry out the polls and ticks in between."""
        if not self._began:
            self._began = True
            start, model = rows[0][4] / 1000, self._model
            self._next = [(start + worker * model.poll_seconds / model.workers, worker)
                          for worker in range(model.workers)]
            heapq.heappush(self._next, (start + _SAMPLE_SECONDS, _SAMPLE))
        for kind, key, size, _, at in rows:
            if kind == PUT:
                self._work_until(at / 1000)
                self.now_ms = at
                self._arrive(key, size, at / 1000)
        self.counts.operations += len(rows)

    def finish(self) -> None:
        """Continue until no block waits for a first job, no worker is busy and no dead block is left."""
        end = self.now_ms / 1000 + _PATIENCE_SECONDS
        while self._next and self._next[0][0] <= end and not self._is_quiet():
            self._work_until(self._next[0][0])

    def _work_until(self, end: float) -> None:
        while self._next[0][0] <= end:
            now, worker = self._next[0]
            self.advance(round(now * 1000))
            if worker == _SAMPLE:
                self.sample()
            else:
                self._work(worker, now)
            pace = _SAMPLE_SECONDS if worker == _SAMPLE else self._model.poll_seconds
            heapq.heapreplace(self._next, (now + pace, worker))

    def _command(self, now: float) -> Command:
        self._index += 1
        return Command(self._index, 1, now)

    def _arrive(self, key: int, size: int, now: float) -> None:
        [tenant] = self._owners.choices(_TENANTS, weights=[1 / each for each in _TENANTS])
        block = BlockMeta(id=f"block-{key:08d}", tenant=f"tenant-{tenant}", shard=0, level=0, min_time=now,
                          max_time=now, size_bytes=size)
        self._arrived[block.id], self._blocks[block.id] = now, block
        self.counts.user_bytes += size
        self._grow(size, live=size)
        self.machine.carry_out(self._command(now), AddBlocks((block,)))

    def _grow(self, size: int, *, live: int) -> None:
        self._used += size
        self._live += live
        self.counts.peak_used_bytes = max(self.counts.peak_used_bytes, self._used)

    # ----------------------------------------------------------------------------------------------------- one poll

    def _work(self, worker: int, now: float) -> None:
        """Carry out one poll of a worker: report, delete the blocks of the answer's tombstones, and take a job."""
        job = self._held[worker]
        finished = job is not None and now >= job.done_at
        updates = () if job is None else self._report(job, finished)
        request = PollRequest(updates, int(job is None or finished), tuple(self._deleted[worker]))
        answer = self.machine.poll(self._command(now), request)
        self.counts.asked += 1
        self._deleted[worker] = []
        if job is not None and updates:
            self._answered(worker, job, answer.answers[0].verdict, finished, now)
        for plan in answer.compaction_jobs:
            token = next(each.token for each in answer.assignments if each.name == plan.name)
            self._held[worker] = self._taken(plan, token, now)
        self._delete(worker, answer.tombstones, now)

    def _report(self, job: _Held, finished: bool) -> tuple[StatusUpdate, ...]:
        if not finished:
            return () if job.hangs else (StatusUpdate(job.plan.name, job.token, JobStatus.IN_PROGRESS),)
        if job.fails:
            return (StatusUpdate(job.plan.name, job.token, JobStatus.FAILED, reason="the lab lets it fail"),)
        return (StatusUpdate(job.plan.name, job.token, JobStatus.SUCCESS, self._results(job)),)

    def _taken(self, plan: JobPlan, token: int, now: float) -> _Held:
        self.counts.assigned += 1
        draw, model = self._fates.random(), self._model
        hangs, fails = draw < model.hang_rate, model.hang_rate <= draw < model.hang_rate + model.failure_rate
        sources = tuple(self._blocks[each] for each in plan.source_blocks)
        size = sum(each.size_bytes for each in sources)
        self.counts.read_bytes += size
        seconds = 2 * model.config.lease_seconds if hangs else size / model.bytes_per_second
        return _Held(plan, sources, token, now + seconds, hangs, fails)

    def _results(self, job: _Held) -> CompactedBlocks:
        plan, sources = job.plan, job.sources
        size, (begin, end) = sum(each.size_bytes for each in sources), span_of(sources)
        output = BlockMeta(id=f"{plan.name}-{job.token}", tenant=plan.tenant, shard=plan.shard,
                           level=plan.compaction_level + 1, min_time=begin, max_time=end, size_bytes=size)
        return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks,
                               new_blocks=(output,))

    def _answered(self, worker: int, job: _Held, verdict: Verdict, finished: bool, now: float) -> None:
        is_late = verdict is not Verdict.ACCEPTED
        if is_late or finished:
            self._held[worker] = None
        self.counts.refused += is_late
        self.counts.failed += finished and job.fails and not is_late
        if not finished or job.fails:
            return
        [output] = self._results(job).new_blocks
        self.counts.copied_bytes += output.size_bytes
        if is_late:
            # The worker has written its output anyway; the scheduler has it deleted.
            self._grow(output.size_bytes, live=0)
            self._dead[output.id] = output.size_bytes, now
        else:
            self._complete(job.sources, output, now)

    def _complete(self, sources: tuple[BlockMeta, ...], output: BlockMeta, now: float) -> None:
        self._blocks[output.id] = output
        self.counts.compactions += 1
        self.counts.victims += len(sources)
        self.counts.freed_segments += len(sources) - 1
        self._grow(output.size_bytes, live=output.size_bytes - sum(each.size_bytes for each in sources))
        for source in sources:
            arrived = self._arrived.pop(source.id, None)
            if arrived is not None:
                self._waits.append(now - arrived)
            del self._blocks[source.id]
            self._dead[source.id] = source.size_bytes, now

    def _delete(self, worker: int, tombstones: tuple[Tombstone, ...], now: float) -> None:
        """Delete the blocks of tombstones; the worker's next poll confirms it."""
        for tombstone in tombstones:
            self._deleted[worker].append(tombstone.name)
            for block in tombstone.blocks:
                size, died = self._dead.pop(block, (0, now))
                self._used -= size
                self.counts.reclaimed_bytes += size
                self.counts.waited_byte_seconds += size * (now - died)

    # --------------------------------------------------------------------------------------------------- counting

    def _given_up(self) -> Iterator[tuple[JobPlan, tuple[BlockMeta, ...]]]:
        """Yield the jobs that failed too often, each with its orphaned outputs. O(jobs)."""
        limit = self._model.config.max_failures
        for given_up in self.machine.quarantine.values():
            yield given_up.plan, given_up.orphans
        for job in self.machine.jobs:
            if limit and job.failures >= limit:
                yield job.plan, job.orphans

    def _is_quiet(self) -> bool:
        """Return whether no poll can change anything any more."""
        if any(self._held):
            return False
        left = kept = 0
        for plan, orphans in self._given_up():
            left += sum(block in self._arrived for block in plan.source_blocks)
            kept += sum(block.id in self._dead for block in orphans)
        return len(self._dead) == kept and len(self._arrived) == left

    @property
    def used_bytes(self) -> int:
        return self._used

    @property
    def live_bytes(self) -> int:
        return self._live

    def cut(self) -> Measures:
        done = super().cut()
        done.waits, done.left_blocks = tuple(self._waits), len(self._arrived)
        done.given_up = sum(1 for _ in self._given_up())
        self._waits.clear()
        return done
