# SPDX-License-Identifier: Apache-2.0
"""Replays arriving blocks against a scheduler's configuration: the real `SchedulerMachine`, without data.

A seed draws when blocks arrive, how large they are, and which jobs hang or fail. Workers poll at a fixed pace, hold a
job for as long as its bytes take, report, and delete what the scheduler says is not read any more. One that hangs
reports late, after its lease, and is refused by its token; a job that fails is reported as failed, and tried again.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any, ClassVar

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.commandlog import Command
from compactlib.errors import InvalidInput
from compactlib.lab.report import HIDDEN, LAST, MOST, SPACE_AMPLIFICATION, MeasuredReport, Measures, part
from compactlib.observer import Observer, Observers
from compactlib.report import PolicyRecord
from compactlib.scheduler import (
    AddBlocks,
    AssignmentPolicy,
    BlockMeta,
    BlockTombstones,
    ByPriority,
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


def _numbers(values: object) -> tuple[float, ...]:
    return tuple(values)  # type: ignore[arg-type]


@attrs.frozen(kw_only=True)
class SchedulerMeasures(Measures):
    """One stretch of a scheduler's replay.

    An operation is a block's arrival, a compaction a completed job, a question a poll; `refused` are reports that came
    too late; dead are the sources of completed jobs, until a worker has deleted them.

    Attributes:
        assigned: assignments; more than `compactions` if leases ran out or jobs failed.
        failed: jobs that a worker reported as failed.
        given_up: jobs that are not tried any more at the end, as they failed too often.
        left_blocks: blocks that arrived and that no job has taken in the end.
        peak_jobs: the most jobs that were queued or running.
        waits: from a block's arrival to the end of its first job, seconds, one for each block that got there.
    """

    FIGURES: ClassVar[Mapping[str, str]] = {
        **Measures.FIGURES,
        "space_amplification": SPACE_AMPLIFICATION,
        "read_cost": "bytes read by jobs, those in vain too, for each byte that arrived",
        "vain_share": "assignments in vain, as a part of all",
        "median_wait_seconds": "seconds that half of the blocks wait at most for their first job",
        "wait_99_seconds": "seconds that 99 of 100 blocks wait at most for their first job",
    }

    assigned: int = 0
    failed: int = 0
    given_up: int = attrs.field(default=0, metadata=LAST)
    left_blocks: int = attrs.field(default=0, metadata=LAST)
    peak_jobs: int = attrs.field(default=0, metadata=MOST)
    waits: tuple[float, ...] = attrs.field(default=(), converter=_numbers, metadata=HIDDEN)

    @property
    def vain_share(self) -> float:
        """Which part of the assignments came to nothing: reported too late, or failed."""
        return part(self.refused + self.failed, self.assigned)

    @property
    def median_wait_seconds(self) -> float:
        """The wait that half of the blocks do not exceed; NaN if none got there. O(n log n)."""
        return self.wait_quantile(0.5)

    @property
    def wait_99_seconds(self) -> float:
        """The wait that 99 of 100 blocks do not exceed; NaN if none got there. O(n log n)."""
        return self.wait_quantile(0.99)

    def wait_quantile(self, share: float) -> float:
        """The least wait that this share of the blocks does not exceed; NaN if none got there. O(n log n)."""
        waits = sorted(self.waits)
        # The product may be off by its last bits.
        return waits[max(math.ceil(round(share * len(waits), 6)) - 1, 0)] if waits else math.nan


@attrs.frozen(kw_only=True, repr=False)
class SchedulerReport(MeasuredReport[SchedulerMeasures]):
    """What a configuration made of a load. See `MeasuredReport`."""

    MEASURES: ClassVar[type[Measures]] = SchedulerMeasures

    def _summary(self) -> str:
        total = self.total
        return (f"{total.operations:,} blocks in {total.compactions:,} jobs, "
                f"{total.assigned - total.compactions:,} assigned in vain; half waited at most "
                f"{total.median_wait_seconds:,.1f} s")


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
            if limit and job.failures >= limit:
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


_DEFAULT = SchedulerConfig()


@attrs.frozen(kw_only=True)
class SchedulerSettings:
    """How a scheduler is replayed.

    Attributes:
        assignment: which job a poll gives out first.
        patience_seconds: how long after the last arrival workers go on polling, at most, >= 0.
        intervals: into about how many parts the report is cut, by time, at least 1.
        capacity_bytes: of the store that holds the blocks, for `peak_fill`; nothing is refused above it. 0: unknown.

    Raises:
        InvalidInput: a value is out of its range or of another type.
    """

    assignment: AssignmentPolicy = attrs.field(factory=ByPriority)
    patience_seconds: float = attrs.field(default=86_400.0, validator=is_seconds())
    intervals: int = attrs.field(default=20, validator=is_whole(1))
    capacity_bytes: int = attrs.field(default=0, validator=is_whole())

    def replay(self, workload: SchedulerLoad, policy: SchedulerConfig, *, seed: int,
               observer: Observer | None = None) -> SchedulerReport:
        """See `replay_scheduler`, and `Setup.replay`."""
        return replay_scheduler(policy, workload, self, seed=seed, observer=observer)

    def read_report(self, text: str) -> SchedulerReport:
        """See `Setup.read_report`."""
        return SchedulerReport.from_json(text)

    def name_of(self, policy: SchedulerConfig) -> str:
        """See `Setup.name_of`: the settings that are not the default ones."""
        return changes(policy, _DEFAULT) or "default"


def replay_scheduler(config: SchedulerConfig, load: SchedulerLoad, settings: SchedulerSettings | None = None, *,
                     seed: int = 0, observer: Observer | None = None) -> SchedulerReport:
    """What `config` makes of `load`. Equal arguments give equal reports.

    The replay ends once every block that can be compacted has been, no worker is busy, and what is dead is deleted; or
    when patience runs out.

    Args:
        config: the scheduler's.
        load: what arrives, and the workers.
        settings: how long it goes on, and how the report is cut.
        seed: of arrivals, sizes, hangs and failures.
        observer: notified of progress, in blocks that arrived.
    """
    chosen = SchedulerSettings() if settings is None else settings
    return _Replay(config, load, chosen, seed, Observers() if observer is None else observer).run()


class _Replay:
    """The events in order of time, and the stretches that the report consists of."""

    def __init__(self, config: SchedulerConfig, load: SchedulerLoad, settings: SchedulerSettings, seed: int,
                 observer: Observer) -> None:
        self.random = Random(seed)
        self.world = SchedulerWorld(config, load, self.random, Random(f"{seed} fates"), settings.assignment)
        self.load, self.settings, self.observer = load, settings, observer
        chosen = "" if settings.assignment == ByPriority() else f", {PolicyRecord.of(settings.assignment)}"
        self.policy = f"scheduler({changes(config, _DEFAULT)}{chosen})"
        self.intervals: list[SchedulerMeasures] = []
        self.started = 0.0
        self.samples: list[tuple[int, int]] = []

    def run(self) -> SchedulerReport:
        load, world = self.load, self.world
        arrivals = self._arrivals()
        last = arrivals[-1]
        step = max(last / self.settings.intervals, load.poll_seconds)
        events = [(at, 0, number) for number, at in enumerate(arrivals)]
        events += [(worker * load.poll_seconds / load.workers, 1, worker) for worker in range(load.workers)]
        events.append((load.tick_seconds, 2, 0))
        heapq.heapify(events)
        now = 0.0
        while events:
            now, kind, number = heapq.heappop(events)
            while now > self.started + step and self.started + step < last:
                self._close_interval(self.started + step)
            if kind == 0:
                world.arrive(number, now)
                self._tell(number + 1)
            elif now <= last + self.settings.patience_seconds and not (now > last and world.is_quiet()):
                if kind == 1:
                    world.work(number, now)
                else:
                    world.tick(now)
                    self._sample()
                heapq.heappush(events, (now + (load.poll_seconds if kind == 1 else load.tick_seconds), kind, number))
        self._close_interval(now)
        return SchedulerReport(policy=self.policy, workload=str(load), intervals=tuple(self.intervals))

    def _arrivals(self) -> list[float]:
        load, at, times = self.load, 0.0, []
        for number in range(load.blocks):
            if number % load.burst_blocks == 0:
                at += self.random.expovariate(load.blocks_per_second / load.burst_blocks)
            times.append(at)
        return times

    def _tell(self, arrived: int) -> None:
        if arrived % 100 == 0 or arrived == self.load.blocks:
            self.observer.event("progress", work=f"replay {self.load.name} against a scheduler", done=arrived,
                                total=self.load.blocks, unit="blocks")

    def _sample(self) -> None:
        self.samples.append((self.world.numbers.used_bytes, self.world.numbers.live_bytes))

    def _close_interval(self, now: float) -> None:
        self._sample()
        numbers = self.world.numbers
        used = sum(used for used, _ in self.samples)
        self.intervals.append(SchedulerMeasures(
            start=self.started, end=now, capacity_bytes=self.settings.capacity_bytes, used_sum=used, record_sum=used,
            live_sum=sum(live for _, live in self.samples), given_up=self.world.given_up,
            left_blocks=self.world.left_blocks, **attrs.asdict(numbers)))
        self.world.numbers = WorldNumbers(used_bytes=numbers.used_bytes, live_bytes=numbers.live_bytes,
                                          peak_used_bytes=numbers.used_bytes)
        self.samples.clear()
        self.started = now
