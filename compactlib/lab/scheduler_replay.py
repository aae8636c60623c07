"""Replays arriving blocks against a scheduler's configuration: the real `SchedulerService`, without data.

A seed draws when blocks arrive, how large they are, and which jobs hang. Workers poll at a fixed pace, hold a job for
as long as its bytes take, and report; one that hangs reports late, after its lease, and is refused by its token.
"""

from __future__ import annotations

import heapq
import math
from random import Random
from typing import Any

import attrs

from compactlib.errors import InvalidInput
from compactlib.report import Printed
from compactlib.scheduler.config import SchedulerConfig
from compactlib.scheduler.model import BlockMeta, Command, CompactedBlocks, JobPlan, JobStatus
from compactlib.scheduler.poll import PollRequest, StatusUpdate, Verdict
from compactlib.scheduler.service import SchedulerService
from compactlib.scheduler.update import AddBlocks, Tick


@attrs.frozen(kw_only=True)
class SchedulerLoad:
    """What arrives, and who works. Times are seconds.

    Attributes:
        blocks: blocks of level 0 that arrive.
        blocks_per_second: how many arrive in a second, on average.
        tenants: tenants; the k-th has a share in proportion to 1/k.
        block_bytes: size of a block, on average.
        workers: workers, one job each.
        bytes_per_second: how fast a worker is.
        poll_seconds: time between two polls of a worker.
        tick_seconds: how often the host lets time pass in the log, so that old batches are flushed.
        hang_rate: which part of the jobs takes twice the lease.

    Raises:
        InvalidInput: a number is out of its range.
    """

    blocks: int = 1_000
    blocks_per_second: float = 2.0
    tenants: int = 4
    block_bytes: int = 1 << 20
    workers: int = 2
    bytes_per_second: float = float(1 << 23)
    poll_seconds: float = 5.0
    tick_seconds: float = 10.0
    hang_rate: float = 0.0

    def __attrs_post_init__(self) -> None:
        for name in ("blocks", "blocks_per_second", "tenants", "block_bytes", "workers", "bytes_per_second",
                     "poll_seconds", "tick_seconds"):
            if getattr(self, name) <= 0:
                raise InvalidInput(f"{name} is {getattr(self, name)}; give a number above 0")
        if not 0 <= self.hang_rate < 1:
            raise InvalidInput(f"hang_rate is {self.hang_rate}; a part of the jobs hangs, 0 to less than 1")


@attrs.frozen(kw_only=True, repr=False)
class SchedulerReport(Printed):
    """What a configuration made of a load.

    Attributes:
        blocks: blocks that arrived.
        jobs: jobs that were completed.
        assigned: assignments; more than `jobs` if leases ran out.
        refused: reports that came too late and were refused.
        written_bytes: bytes of the outputs.
        arrived_bytes: bytes of the blocks that arrived.
        left_blocks: blocks that no job has taken in the end.
        peak_jobs: the most jobs that were queued or running.
        wait_seconds: from a block's arrival to the end of its first job, one a block that got there, ascending.
        seconds: how long everything took.
    """

    blocks: int
    jobs: int
    assigned: int
    refused: int
    written_bytes: int
    arrived_bytes: int
    left_blocks: int
    peak_jobs: int
    wait_seconds: tuple[float, ...]
    seconds: float

    @property
    def write_amplification(self) -> float:
        """Bytes written, arrivals included, for each byte that arrived."""
        return (self.arrived_bytes + self.written_bytes) / self.arrived_bytes

    def wait_quantile(self, part: float) -> float:
        """The wait that this part of the blocks does not exceed; NaN if none got there."""
        waits = self.wait_seconds
        return waits[min(int(part * len(waits)), len(waits) - 1)] if waits else math.nan

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row."""
        return [{"blocks": self.blocks, "jobs": self.jobs, "assigned": self.assigned, "refused": self.refused,
                 "write_amplification": self.write_amplification, "left_blocks": self.left_blocks,
                 "peak_jobs": self.peak_jobs, "median_wait_seconds": self.wait_quantile(0.5),
                 "wait_99_seconds": self.wait_quantile(0.99), "seconds": self.seconds}]

    def _summary(self) -> str:
        return (f"{self.blocks:,} blocks in {self.jobs:,} jobs, {self.assigned - self.jobs:,} assigned in vain; half "
                f"waited at most {self.wait_quantile(0.5):,.1f} s")


def replay_scheduler(config: SchedulerConfig, load: SchedulerLoad, *, seed: int = 0,
                     patience_seconds: float = 86_400.0) -> SchedulerReport:
    """What `config` makes of `load`. Equal arguments give equal reports.

    Args:
        config: the scheduler's.
        load: what arrives, and who works.
        seed: of arrivals, sizes and hangs.
        patience_seconds: how long after the last arrival workers go on polling, at most.
    """
    return _World(config, load, Random(seed)).run(patience_seconds)


@attrs.define
class _Held:
    plan: JobPlan
    sources: tuple[BlockMeta, ...]
    token: int
    done_at: float
    hangs: bool


class _World:
    def __init__(self, config: SchedulerConfig, load: SchedulerLoad, random: Random) -> None:
        self.service = SchedulerService(config)
        self.load, self.random = load, random
        self.index = 0
        self.arrived: dict[str, float] = {}
        self.waits: list[float] = []
        self.sizes: dict[str, BlockMeta] = {}
        self.held: list[_Held | None] = [None] * load.workers
        self.jobs = self.assigned = self.refused = self.written = self.peak = 0

    def command(self, now: float) -> Command:
        self.index += 1
        return Command(self.index, 1, now)

    def run(self, patience: float) -> SchedulerReport:
        load = self.load
        events: list[tuple[float, int, int]] = []
        at = 0.0
        for number in range(load.blocks):
            at += self.random.expovariate(load.blocks_per_second)
            events.append((at, 0, number))
        end = at + patience
        events += [(worker * load.poll_seconds / load.workers, 1, worker) for worker in range(load.workers)]
        events.append((load.tick_seconds, 2, 0))
        heapq.heapify(events)
        now = 0.0
        arrived_bytes, left = 0, load.blocks
        while events:
            now, kind, number = heapq.heappop(events)
            if kind == 0:
                arrived_bytes += self.arrive(number, now)
                left = load.blocks - number - 1
            elif now <= end and not (left == 0 and self.is_quiet()):
                if kind == 1:
                    self.work(number, now)
                else:
                    self.service.apply(self.command(now), Tick())
                heapq.heappush(events, (now + (load.poll_seconds if kind == 1 else load.tick_seconds), kind, number))
        return SchedulerReport(blocks=load.blocks, jobs=self.jobs, assigned=self.assigned, refused=self.refused,
                               written_bytes=self.written, arrived_bytes=arrived_bytes,
                               left_blocks=len(self.arrived), peak_jobs=self.peak,
                               wait_seconds=tuple(sorted(self.waits)), seconds=now)

    def is_quiet(self) -> bool:
        """Whether nothing is left that a poll could bring: no block that waits for its first job, nobody at work."""
        return not self.arrived and not any(self.held)

    def arrive(self, number: int, now: float) -> int:
        load = self.load
        tenants = range(1, load.tenants + 1)
        tenant = self.random.choices(tenants, weights=[1 / each for each in tenants])[0]
        size = max(round(self.random.uniform(0.5, 1.5) * load.block_bytes), 1)
        block = BlockMeta(id=f"block-{number:08d}", tenant=f"tenant-{tenant}", shard=0, level=0, min_time=now,
                          max_time=now, size_bytes=size)
        self.arrived[block.id], self.sizes[block.id] = now, block
        self.service.apply(self.command(now), AddBlocks((block,)))
        return size

    def work(self, worker: int, now: float) -> None:
        job = self.held[worker]
        updates: tuple[StatusUpdate, ...] = ()
        finished = job is not None and now >= job.done_at
        if job is not None and finished:
            updates = (StatusUpdate(job.plan.name, job.token, JobStatus.SUCCESS, self.results(job)),)
        elif job is not None and not job.hangs:
            updates = (StatusUpdate(job.plan.name, job.token, JobStatus.IN_PROGRESS),)
        answer = self.service.poll(self.command(now), PollRequest(updates, int(job is None or finished)))
        if job is not None and updates:
            if answer.answers[0].verdict is not Verdict.ACCEPTED:
                self.refused += 1
                self.held[worker] = None
            elif finished:
                self.completed(job, now)
                self.held[worker] = None
        for plan in answer.compaction_jobs:
            token = next(each.token for each in answer.assignments if each.name == plan.name)
            self.held[worker] = self.begun(plan, token, now)
        self.peak = max(self.peak, len(self.service.state.jobs))

    def begun(self, plan: JobPlan, token: int, now: float) -> _Held:
        self.assigned += 1
        hangs = self.random.random() < self.load.hang_rate
        sources = tuple(self.sizes[each] for each in plan.source_blocks)
        seconds = sum(each.size_bytes for each in sources) / self.load.bytes_per_second
        return _Held(plan, sources, token, now + (2 * self.service.config.lease_seconds if hangs else seconds), hangs)

    def results(self, job: _Held) -> CompactedBlocks:
        plan, sources = job.plan, job.sources
        output = BlockMeta(id=f"{plan.name}-{job.token}", tenant=plan.tenant, shard=plan.shard,
                           level=plan.compaction_level + 1, min_time=min(each.min_time for each in sources),
                           max_time=max(each.max_time for each in sources),
                           size_bytes=sum(each.size_bytes for each in sources))
        return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=plan.source_blocks,
                               new_blocks=(output,))

    def completed(self, job: _Held, now: float) -> None:
        self.jobs += 1
        [output] = self.results(job).new_blocks
        self.sizes[output.id] = output
        self.written += output.size_bytes
        for block in job.plan.source_blocks:
            arrived = self.arrived.pop(block, None)
            if arrived is not None:
                self.waits.append(now - arrived)
            del self.sizes[block]
