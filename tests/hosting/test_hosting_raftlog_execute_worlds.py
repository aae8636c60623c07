# SPDX-License-Identifier: Apache-2.0
"""Random worlds of workers that rewrite the segments of Raft logs: appends and snapshots in between, polls whose
answers are lost, workers that die or lose their job in the middle of the copying, disks that refuse, readers that hold
a lease, logs, fences and schedulers that are opened again.

At any time each log holds what is alive in it, and each segment with something alive that the scheduler was given is a
block of its index, once; who has lost a job changes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import random
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs

from compactlib.clock import ManualClock
from compactlib.errors import StorageError
from compactlib.executors import LocalExecutor, RewriteTask
from compactlib.fences import FileFence, LockingFence, MemoryFence
from compactlib.hosting import NoAnswer, RaftlogExecute, segment_block_id
from compactlib.hosting.raftlog_execute import segment_of_block
from compactlib.kv import MemoryStore
from compactlib.outcome import Done
from compactlib.raftlog import Entry, LogOptions, SegmentLimits, SegmentLog
from compactlib.raftlog.model.values import SegmentRef
from compactlib.rewrite import RewriteOutcome
from compactlib.runtime import Budget, Observer
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    LevelConfig,
    PollRequest,
    PollResponse,
    RunningJob,
    SchedulerConfig,
    StoredScheduler,
    Worker,
)
from tests.harness.effort import Effort
from tests.raftlog.wrapped_files import WatchedFiles

CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=2), LevelConfig(max_blocks=3), LevelConfig(max_blocks=2)),
                         lease_seconds=10.0, max_failures=1000, max_releases=1000, max_jobs_per_poll=2)


class Killed(BaseException):
    """The end of a worker in the middle of its work."""


@attrs.define
class Tenant:
    """A log, what is alive in it, and which of its segments are blocks."""

    name: str
    log: SegmentLog
    entries: dict[int, bytes] = attrs.field(factory=dict)
    last: int = 0
    snapshot: int = 0
    added: set[int] = attrs.field(factory=set)


class World:
    """One life, drawn from a seed. It is the transport of its workers, and the executor of their rewrites."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.folder = folder
        folder.mkdir()
        self.clock = ManualClock(1e6)
        self.kv = MemoryStore()
        self.chance = self.rng.choice([0.0, 0.03, 0.1])
        self.is_refusing = False
        self.jobs = 0
        self.wrong: list[str] = []
        self.running: RunningJob
        # The segments as they were when the job went to another worker.
        self.overtaken: list[Sequence[SegmentRef]] = []
        self.memory = MemoryFence() if self.rng.random() < 0.5 else None
        self.scheduler = self.open_scheduler()
        self.tenants = {name: Tenant(name, self.open_log(name)) for name in "AB"}
        self.leases: list[contextlib.ExitStack] = []
        self.workers = [self.worker() for _ in range(2)]

    # -- opening

    def open_scheduler(self) -> StoredScheduler:
        return StoredScheduler(self.kv, CONFIG, clock=self.clock, rng=random.Random(self.rng.random()))

    def open_log(self, name: str) -> SegmentLog:
        return SegmentLog(self.folder / name, LogOptions(
            limits=SegmentLimits(max_entries=4), clock=self.clock, files=WatchedFiles(self.refuse),
            keep_links_seconds=0.0))

    def refuse(self, operation: str, path: str) -> None:
        if self.is_refusing and self.rng.random() < self.chance / 5:
            raise StorageError(operation=operation, path=path, errno=errno.EIO, detail="not now")

    def fence(self) -> LockingFence:
        return self.memory or FileFence(self.folder / "fence")

    def worker(self) -> Worker:
        execute = RaftlogExecute(lambda tenant: self.tenants[tenant].log, self.fence(), self)
        return Worker(self, lambda job: self.execute(execute, job), clock=self.clock,
                      rng=random.Random(self.rng.random()))

    # -- what the workers need

    def poll(self, request: PollRequest) -> PollResponse:
        if self.rng.random() < self.chance:
            raise NoAnswer(waited_seconds=1.0, reason="the request is lost")
        response = self.scheduler.poll(request)
        if self.rng.random() < self.chance:
            raise NoAnswer(waited_seconds=1.0, reason="the answer is lost")
        return response

    def execute(self, execute: RaftlogExecute, job: RunningJob) -> CompactedBlocks:
        tenant = self.tenants[job.plan.tenant]
        self.running, self.overtaken = job, []
        self.is_refusing = True
        try:
            done = execute(job)
        finally:
            self.is_refusing = False
            if any(refs != tenant.log.refs for refs in self.overtaken):
                self.wrong.append("who lost the job has changed the log")
        self.jobs += 1
        if self.overtaken:
            self.wrong.append("who lost the job says it is done")
        found = {ref.number for ref in tenant.log.refs}
        if {segment_of_block(block.id) for block in done.new_blocks} != found & set(
                map(segment_of_block, done.source_blocks)):
            self.wrong.append("what is reported is not what is there")
        return done

    def run(self, tasks: Iterable[RewriteTask], *, budget: Budget | None = None,
            observer: Observer | None = None) -> Iterator[RewriteOutcome]:
        for outcome in LocalExecutor().run(tasks, budget=budget, observer=observer):
            luck, job = self.rng.random(), self.running
            if luck < self.chance:
                # It took too long, and another worker has begun.
                self.clock.advance(11.0)
                self.fence().admit(job.plan.name, job.token + 1)
                self.overtaken.append(self.tenants[job.plan.tenant].log.refs)
            elif luck < 2 * self.chance:
                raise Killed
            elif luck < 3 * self.chance:
                raise ZeroDivisionError
            elif luck < 4 * self.chance and budget is not None:
                budget.cancel()
            yield outcome

    # -- what happens

    def step(self) -> None:
        kind = self.rng.choices(["append", "snapshot", "work", "wait", "lease", "reopen"], [30, 15, 45, 5, 5, 4])[0]
        tenant = self.rng.choice([*self.tenants.values()])
        if kind == "append":
            self.append(tenant)
        elif kind == "snapshot":
            self.record_snapshot(tenant)
        elif kind == "work":
            self.work(self.rng.randrange(2))
        elif kind == "wait":
            self.clock.advance(self.rng.choice([1.0, 11.0, 40.0]))
        elif kind == "lease":
            self.lease(tenant)
        else:
            self.reopen(tenant)

    def append(self, tenant: Tenant) -> None:
        for _ in range(self.rng.randint(1, 9)):
            tenant.last += 1
            tenant.entries[tenant.last] = b"%d of %s" % (tenant.last, tenant.name.encode())
            tenant.log.append(tenant.last, 1, tenant.entries[tenant.last])
        tenant.log.sync()

    def record_snapshot(self, tenant: Tenant) -> None:
        if tenant.last <= tenant.snapshot:
            return
        tenant.snapshot = self.rng.randint(tenant.snapshot + 1, tenant.last)
        share = self.rng.choice([0.0, 0.2, 0.6, 0.9])
        live = [index for index in tenant.entries if index <= tenant.snapshot and self.rng.random() < share]
        tenant.log.record_snapshot(tenant.snapshot, live=live)
        tenant.entries = {index: payload for index, payload in tenant.entries.items()
                          if index in live or index > tenant.snapshot}
        covered = [ref.number for ref in tenant.log.refs[:-1]
                   if ref.last <= tenant.snapshot and ref.number not in tenant.added]
        tenant.added.update(covered)
        self.scheduler.add_blocks(BlockMeta(id=segment_block_id(number), tenant=tenant.name, shard=0, level=0)
                                  for number in covered)

    def work(self, number: int) -> None:
        try:
            self.workers[number].run_pending()
        except Killed:
            self.workers[number] = self.worker()

    def lease(self, tenant: Tenant) -> None:
        if self.leases:
            self.leases.pop().close()
        else:
            held = contextlib.ExitStack()
            held.enter_context(tenant.log.lease())
            self.leases.append(held)

    def reopen(self, tenant: Tenant) -> None:
        if self.rng.random() < 0.3:
            self.scheduler.close()
            self.scheduler = self.open_scheduler()
            return
        while self.leases:
            self.leases.pop().close()
        tenant.log.close()
        tenant.log = self.open_log(tenant.name)

    # -- what holds

    def check(self) -> None:
        def at(service: Any) -> list[BlockMeta]:
            service.audit()
            return list(service.state.index.blocks())

        # What is raised within a job, the worker keeps.
        assert not self.wrong
        blocks = self.scheduler.look(at)
        for tenant in self.tenants.values():
            for index in range(1, tenant.last + 1):
                answer = tenant.log.read(index)
                payload = tenant.entries.get(index)
                assert payload is None or answer == Entry(index, 1, payload), (tenant.name, index, answer)
                assert payload is not None or not isinstance(answer, Entry), (tenant.name, index, answer)
            tenant.log.audit()
            numbers = Counter(segment_of_block(block.id) for block in blocks if block.tenant == tenant.name)
            assert set(numbers.values()) <= {1}, "a segment is two blocks"
            # Files of those without may come back with an opening, where a lease has held them.
            present = {stats.number for stats in tenant.log.stats() if stats.live_entries} & tenant.added
            assert present <= numbers.keys(), "a segment is no block any more"

    def end(self) -> None:
        self.chance = 0.0
        while self.leases:
            self.leases.pop().close()
        for _ in range(60):
            self.clock.advance(11.0)
            for number in range(2):
                self.work(number)
        self.check()
        assert not self.scheduler.look(lambda service: list(service.jobs(now=self.clock.now()))), "a job is left"
        for worker in self.workers:
            assert worker.is_idle
            assert isinstance(worker.stop(), Done)
        for tenant in self.tenants.values():
            assert tenant.log.verify().is_sound
            tenant.log.close()
        self.scheduler.close()


def live_through(seed: int, folder: Path) -> int:
    world = World(seed, folder)
    for _ in range(12):
        for _ in range(8):
            world.step()
        world.check()
    world.end()
    return world.jobs


def test_logs_whose_segments_are_the_blocks_of_a_scheduler_hold_what_is_alive(memory_path: Path,
                                                                              effort: Effort) -> None:
    jobs = 0
    for seed in range(effort(8, 1_000)):
        try:
            jobs += live_through(seed, memory_path / str(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
    assert jobs > 60
