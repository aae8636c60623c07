# SPDX-License-Identifier: Apache-2.0
"""What arrives, workers, blocks and the real `SchedulerMachine` in a replay; `replay` decides on the order of calls."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import attrs

from compactlib.commandlog import Command
from compactlib.errors import InvalidInput
from compactlib.scheduler import (
    AddBlocks,
    AssignmentPolicy,
    BlockMeta,
    BlockTombstones,
    CompactedBlocks,
    JobPlan,
    JobStatus,
    PollRequest,
    SchedulerConfig,
    SchedulerMachine,
    StatusUpdate,
    Tick,
    Verdict,
    span_of,
)


@attrs.frozen(kw_only=True)
class SchedulerLoad:
    """What arrives, and the workers. Times are seconds.

    Attributes:
        name: a short name for tables.
        blocks: blocks of level 0 that arrive.
        blocks_per_second: how many arrive in a second, on average.
        burst_blocks: how many arrive at once; the bursts come as much more rarely.
        tenants: tenants; the k-th has a share in proportion to 1/k.
        block_bytes: size of a block, on average.
        kept_part: which part of its sources' bytes a job writes, above 0: what is left of duplicates.
        workers: workers, one job each.
        bytes_per_second: how fast a worker is.
        poll_seconds: time between two polls of a worker.
        tick_seconds: how often the host lets time pass in the log, so that old batches are flushed.
        hang_rate: which part of the jobs takes twice the lease.
        failure_rate: which part of the jobs is reported as failed once their time is over.

    Raises:
        InvalidInput: a number is out of its range.
    """

    name: str = "arrivals"
    blocks: int = 1_000
    blocks_per_second: float = 2.0
    burst_blocks: int = 1
    tenants: int = 4
    block_bytes: int = 1 << 20
    kept_part: float = 1.0
    workers: int = 2
    bytes_per_second: float = float(1 << 23)
    poll_seconds: float = 5.0
    tick_seconds: float = 10.0
    hang_rate: float = 0.0
    failure_rate: float = 0.0

    def __attrs_post_init__(self) -> None:
        for name in ("blocks", "blocks_per_second", "burst_blocks", "tenants", "block_bytes", "kept_part", "workers",
                     "bytes_per_second", "poll_seconds", "tick_seconds"):
            if not getattr(self, name) > 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}; give a number above 0")
        if not (self.hang_rate >= 0 and self.failure_rate >= 0 and self.hang_rate + self.failure_rate < 1):
            raise InvalidInput(f"hang_rate is {self.hang_rate} and failure_rate {self.failure_rate}; a part of the "
                               f"jobs hangs, another fails, and together they are less than 1")

    def __str__(self) -> str:
        return f"{self.name}({changes(self, SchedulerLoad())})"


@attrs.define(kw_only=True)
class WorldNumbers:
    """What one stretch came to so far; names are those of `SchedulerMeasures`."""

    operations: int = 0
    refused: int = 0
    user_bytes: int = 0
    copied_bytes: int = 0
    read_bytes: int = 0
    asked: int = 0
    compactions: int = 0
    victims: int = 0
    freed_segments: int = 0
    reclaimed_bytes: int = 0
    waited_byte_seconds: float = 0.0
    used_bytes: int = 0
    live_bytes: int = 0
    peak_used_bytes: int = 0
    assigned: int = 0
    failed: int = 0
    peak_jobs: int = 0
    waits: list[float] = attrs.field(factory=list)


@attrs.frozen
class _Held:
    """A job in a worker's hands."""

    plan: JobPlan
    sources: tuple[BlockMeta, ...]
    token: int
    done_at: float
    hangs: bool
    fails: bool


class SchedulerWorld:
    """The service, its workers, and every block that exists.

    Args:
        config: the scheduler's.
        load: what arrives, and the workers.
        random: of tenants and sizes.
        fates: of hangs and failures; on its own, so that all configurations meet the same blocks.
        policy: which job a poll gives out first.
    """

    def __init__(self, config: SchedulerConfig, load: SchedulerLoad, random: Random, fates: Random,
                 policy: AssignmentPolicy) -> None:
        self.service: SchedulerMachine = SchedulerMachine(config, policy=policy)
        self.load: SchedulerLoad = load
        self.numbers: WorldNumbers = WorldNumbers()
        self._random, self._fates = random, fates
        self._index = 0
        self._blocks: dict[str, BlockMeta] = {}
        self._arrived: dict[str, float] = {}
        self._dead: dict[str, tuple[int, float]] = {}
        self._held: list[_Held | None] = [None] * load.workers
        self._deleted: list[list[str]] = [[] for _ in range(load.workers)]
        self._tenants = range(1, load.tenants + 1)

    @property
    def left_blocks(self) -> int:
        """Blocks that arrived and are in no completed job."""
        return len(self._arrived)

    def _command(self, now: float) -> Command:
        self._index += 1
        return Command(self._index, 1, now)

    def is_quiet(self) -> bool:
        """Whether nothing is left that a poll could bring: no block that waits for its first job, no busy worker,
        nothing to delete."""
        if any(self._held):
            return False
        left, kept = 0, 0
        for plan, orphans in self._given_up():
            left += sum(block in self._arrived for block in plan.source_blocks)
            kept += sum(block.id in self._dead for block in orphans)
        return len(self._dead) == kept and len(self._arrived) == left

    def _given_up(self) -> Iterator[tuple[JobPlan, tuple[BlockMeta, ...]]]:
        """The jobs that are not tried any more, and what was written for them. O(jobs)."""
        state, limit = self.service.state, self.service.config.max_failures
        for given_up in state.quarantine.values():
            yield given_up.plan, given_up.orphans
        for job in state.jobs:
            if limit and job.state.failures >= limit:
                yield job.plan, job.orphans

    @property
    def given_up(self) -> int:
        """Jobs that are not tried any more. O(jobs)."""
        return sum(1 for _ in self._given_up())

    def tick(self, now: float) -> None:
        """Let time pass in the scheduler's log."""
        self.service.carry_out(self._command(now), Tick())

    def arrive(self, number: int, now: float) -> None:
        """A block of a tenant is there."""
        tenant = self._random.choices(self._tenants, weights=[1 / each for each in self._tenants])[0]
        size = max(round(self._random.uniform(0.5, 1.5) * self.load.block_bytes), 1)
        block = BlockMeta(id=f"block-{number:08d}", tenant=f"tenant-{tenant}", shard=0, level=0, min_time=now,
                          max_time=now, size_bytes=size)
        self._arrived[block.id], self._blocks[block.id] = now, block
        self.numbers.operations += 1
        self.numbers.user_bytes += size
        self._grew(size)
        self.numbers.live_bytes += size
        self.service.carry_out(self._command(now), AddBlocks((block,)))

    def _grew(self, size: int) -> None:
        self.numbers.used_bytes += size
        self.numbers.peak_used_bytes = max(self.numbers.peak_used_bytes, self.numbers.used_bytes)

    def work(self, worker: int, now: float) -> None:
        """One poll of a worker: it reports, deletes what the answer names, and may take a job."""
        job = self._held[worker]
        finished = job is not None and now >= job.done_at
        updates = () if job is None else self._report(job, finished)
        request = PollRequest(updates, int(job is None or finished), tuple(self._deleted[worker]))
        answer = self.service.poll(self._command(now), request)
        self.numbers.asked += 1
        self._deleted[worker] = []
        if job is not None and updates:
            self._answered(worker, job, answer.answers[0].verdict, finished, now)
        for plan in answer.compaction_jobs:
            token = next(each.token for each in answer.assignments if each.name == plan.name)
            self._held[worker] = self._begun(plan, token, now)
            self._delete(worker, plan.tombstones, now)
        self._delete(worker, answer.tombstones, now)
        self.numbers.peak_jobs = max(self.numbers.peak_jobs, len(self.service.state.jobs))

    def _report(self, job: _Held, finished: bool) -> tuple[StatusUpdate, ...]:
        if not finished:
            return () if job.hangs else (StatusUpdate(job.plan.name, job.token, JobStatus.IN_PROGRESS),)
        if job.fails:
            return (StatusUpdate(job.plan.name, job.token, JobStatus.FAILED, reason="the lab lets it fail"),)
        return (StatusUpdate(job.plan.name, job.token, JobStatus.SUCCESS, self._results(job)),)

    def _answered(self, worker: int, job: _Held, verdict: Verdict, finished: bool, now: float) -> None:
        if verdict is not Verdict.ACCEPTED:
            self.numbers.refused += 1
            self._held[worker] = None
            if finished and not job.fails:
                self._written_in_vain(job, now)
        elif finished:
            self._held[worker] = None
            if job.fails:
                self.numbers.failed += 1
            else:
                self._completed(job, now)

    def _begun(self, plan: JobPlan, token: int, now: float) -> _Held:
        self.numbers.assigned += 1
        draw, load = self._fates.random(), self.load
        hangs, fails = draw < load.hang_rate, load.hang_rate <= draw < load.hang_rate + load.failure_rate
        sources = tuple(self._blocks[each] for each in plan.source_blocks)
        size = sum(each.size_bytes for each in sources)
        self.numbers.read_bytes += size
        seconds = 2 * self.service.config.lease_seconds if hangs else size / load.bytes_per_second
        return _Held(plan, sources, token, now + seconds, hangs, fails)

    def _results(self, job: _Held) -> CompactedBlocks:
        plan, sources = job.plan, job.sources
        size = max(round(self.load.kept_part * sum(each.size_bytes for each in sources)), 1)
        begin, end = span_of(sources)
        output = BlockMeta(id=f"{plan.name}-{job.token}", tenant=plan.tenant, shard=plan.shard,
                           level=plan.compaction_level + 1, min_time=begin, max_time=end, size_bytes=size)
        return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks,
                               new_blocks=(output,))

    def _completed(self, job: _Held, now: float) -> None:
        numbers = self.numbers
        [output] = self._results(job).new_blocks
        self._blocks[output.id] = output
        numbers.compactions += 1
        numbers.victims += len(job.sources)
        numbers.freed_segments += len(job.sources) - 1
        numbers.copied_bytes += output.size_bytes
        self._grew(output.size_bytes)
        numbers.live_bytes += output.size_bytes
        for source in job.sources:
            arrived = self._arrived.pop(source.id, None)
            if arrived is not None:
                numbers.waits.append(now - arrived)
            del self._blocks[source.id]
            self._dead[source.id] = source.size_bytes, now
            numbers.live_bytes -= source.size_bytes

    def _written_in_vain(self, job: _Held, now: float) -> None:
        """A worker that reports too late has written its output all the same; the scheduler has it deleted."""
        [output] = self._results(job).new_blocks
        self.numbers.copied_bytes += output.size_bytes
        self._grew(output.size_bytes)
        self._dead[output.id] = output.size_bytes, now

    def _delete(self, worker: int, tombstones: tuple[object, ...], now: float) -> None:
        """Delete what they name, to be confirmed with the next poll."""
        for tombstone in tombstones:
            assert isinstance(tombstone, BlockTombstones), "spans are not deleted here"
            self._deleted[worker].append(tombstone.name)
            for block in tombstone.blocks:
                size, died = self._dead.pop(block, (0, now))
                self.numbers.used_bytes -= size
                self.numbers.reclaimed_bytes += size
                self.numbers.waited_byte_seconds += size * (now - died)


def changes(value: Any, usual: Any) -> str:
    """The settings of `value` that differ from the usual ones."""
    names = [field.name for field in attrs.fields(type(value))]
    changed = [name for name in names if name != "name" and getattr(value, name) != getattr(usual, name)]
    return ", ".join(f"{name}={_shown(getattr(value, name))}" for name in changed)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if attrs.has(type(value)):
        usual = [f"{field.name}={getattr(value, field.name)}" for field in attrs.fields(type(value))
                 if getattr(value, field.name) != field.default]
        return f"({', '.join(usual)})"
    return str(value)
