# SPDX-License-Identifier: Apache-2.0
"""Workers with threads against the real scheduler: work is done once, crashes change nothing."""

from __future__ import annotations

import itertools
import random
import threading
from pathlib import Path

import attrs
import pytest

from compactlib.clock import ManualClock
from compactlib.fences import FencedOff, FileFence, MemoryFence
from compactlib.kv import MemoryStore
from compactlib.outcome import Done
from compactlib.scheduler import (
    AddBlocks,
    BlockMeta,
    Command,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    NoOutput,
    PollRequest,
    PollResponse,
    Requeue,
    Retain,
    RunningJob,
    SchedulerConfig,
    SchedulerService,
    StatusUpdate,
    StoredScheduler,
    Transport,
    Worker,
    WorkerOptions,
)
from compactlib.scheduler.model.values import BlockTombstones, JobPhase, ShardTombstone, Tombstone
from compactlib.scheduler.queue.tombstones import Tombstones

PATIENCE = 60.0
OPTIONS = WorkerOptions(capacity=2, poll_seconds=0.005, jitter=0.5)


class Desk:
    """A stored scheduler behind a lock, that tells when something has changed."""

    def __init__(self, config: SchedulerConfig) -> None:
        self.scheduler = StoredScheduler(MemoryStore(), config, rng=random.Random(1))
        self.changed = threading.Condition()

    def poll(self, request: PollRequest) -> PollResponse:
        with self.changed:
            response = self.scheduler.poll(request)
            self.changed.notify_all()
            return response

    def add(self, count: int, tenant: str = "A") -> None:
        with self.changed:
            self.scheduler.apply(AddBlocks(tuple(
                BlockMeta(id=f"b{number:03}", tenant=tenant, shard=1, level=0) for number in range(count))))

    def blocks(self) -> list[BlockMeta]:
        index = self.scheduler.service.state.index
        return [] if index is None else list(index.blocks())

    def wait_until(self, blocks: int, tombstones: int | None = None) -> None:
        state = self.scheduler.service.state
        with self.changed:
            assert self.changed.wait_for(
                lambda: len(self.blocks()) == blocks and tombstones in (None, len(state.tombstones)), PATIENCE)


class Line:
    """A transport that gives so many answers, and then is cut off until somebody mends it."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        self.answers = 1

    def poll(self, request: PollRequest) -> PollResponse:
        if not self.answers:
            raise ConnectionError("cut off")
        self.answers -= 1
        return self.transport.poll(request)


class Folder:
    """Blocks as files; a block's data are the names of the blocks of level 0 that are in it."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        for number in range(count):
            (folder / f"A-b{number:03}").write_text(f"b{number:03} ")

    def path(self, tenant: str, block_id: str) -> Path:
        return self.folder / f"{tenant}-{block_id}"

    def execute(self, job: RunningJob) -> CompactedBlocks:
        plan = job.plan
        found = [source for source in plan.source_blocks if self.path(plan.tenant, source).exists()]
        if not found:
            return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=(), no_output=NoOutput.MISSING)
        data = "".join(self.path(plan.tenant, source).read_text() for source in found)
        job.check()
        output = job.output_id()
        self.path(plan.tenant, output).write_text(data)
        new = BlockMeta(id=output, tenant=plan.tenant, shard=plan.shard, level=plan.compaction_level + 1)
        return CompactedBlocks(tenant=plan.tenant, shard=plan.shard, source_blocks=tuple(found), new_blocks=(new,))

    def cleanup(self, tombstone: Tombstone) -> None:
        assert isinstance(tombstone, BlockTombstones)
        for block_id in tombstone.blocks:
            self.path(tombstone.tenant, block_id).unlink(missing_ok=True)


CONFIG = SchedulerConfig(levels=(LevelConfig(max_blocks=2), LevelConfig(max_blocks=2)), cleanup_delay_seconds=0.0,
                         backoff_seconds=0.0, lease_seconds=60.0, max_failures=0)


def work_until_done(desk: Desk, transport: Transport, folder: Folder, count: int, chaos: float) -> None:
    rng, lock = random.Random(3), threading.Lock()

    def execute(job: RunningJob) -> CompactedBlocks:
        with lock:
            unlucky = rng.random() < chaos
        if unlucky:
            raise RuntimeError("a bad day")
        return folder.execute(job)

    workers = [Worker(transport, execute, cleanup=folder.cleanup, options=OPTIONS, rng=random.Random(number))
               for number in range(3)]
    for worker in workers:
        worker.start()
    desk.wait_until(count // 4, tombstones=0)
    for worker in workers:
        assert isinstance(worker.stop(wait_seconds=PATIENCE, grace_seconds=PATIENCE), Done)
    desk.scheduler.audit()


def test_three_workers_compact_everything_once_and_delete_the_rest(tmp_path: Path) -> None:
    desk, folder = Desk(CONFIG), Folder(tmp_path, 32)
    desk.add(32)
    work_until_done(desk, desk, folder, 32, chaos=0.3)
    data = sorted("".join(folder.path("A", block.id).read_text() for block in desk.blocks()).split())
    assert data == [f"b{number:03}" for number in range(32)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"A-{block.id}" for block in desk.blocks())


# --------------------------------------- whole histories with a real worker


def test_a_job_is_done_in_its_order_and_then_reported(tmp_path: Path) -> None:
    desk, folder = Desk(CONFIG), Folder(tmp_path, 2)
    desk.add(2)
    seen: list[tuple[str, ...]] = []

    def execute(job: RunningJob) -> CompactedBlocks:
        seen.append(job.plan.source_blocks)
        return folder.execute(job)

    with Worker(desk, execute, options=OPTIONS):
        desk.wait_until(1)
    assert seen == [("b000", "b001")]
    assert folder.path("A", desk.blocks()[0].id).read_text() == "b000 b001 "


@pytest.mark.parametrize("error", [RuntimeError("no"), FileNotFoundError("gone"), KeyboardInterrupt()])
def test_a_job_that_fails_is_never_reported_as_done(error: BaseException, tmp_path: Path) -> None:
    desk, said = Desk(CONFIG), list[StatusUpdate]()
    desk.add(2)

    class Listening:
        def poll(self, request: PollRequest) -> PollResponse:
            said.extend(request.status_updates)
            return desk.poll(request)

    failed = threading.Semaphore(0)

    def execute(job: RunningJob) -> CompactedBlocks:
        failed.release()
        raise error

    with Worker(Listening(), execute, options=OPTIONS):
        assert failed.acquire(timeout=PATIENCE)
        assert failed.acquire(timeout=PATIENCE)
    # A worker that is stopped before it has taken note of the error gives the job back.
    assert JobStatus.SUCCESS not in {update.status for update in said}
    assert len(desk.blocks()) == 2


def test_a_tombstone_of_two_blocks_deletes_two_objects(tmp_path: Path) -> None:
    """Of a span, ours deletes what begins in it, and not what lies before (Pyroscope: everything before its end)."""
    desk, folder = Desk(CONFIG), Folder(tmp_path, 3)
    desk.add(2)
    with Worker(desk, folder.execute, cleanup=folder.cleanup, options=OPTIONS):
        desk.wait_until(1, tombstones=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["A-b002", f"A-{desk.blocks()[0].id}"])
    hour = 3600.0
    span = ShardTombstone(name="span", tenant="A", shard=1, timestamp=9 * hour, duration=hour)
    tombstones = Tombstones()
    tombstones.add(Command(1, 1, 0.0), span)
    covered = [tombstones.covers(BlockMeta(id="x", tenant="A", shard=1, level=0, min_time=time, max_time=time))
               for time in (8 * hour, 9 * hour, 10.5 * hour)]
    assert covered == [False, True, False]


def test_a_job_is_told_what_the_index_knows_of_its_sources_in_their_order() -> None:
    scheduler = StoredScheduler(MemoryStore(), SchedulerConfig(levels=(LevelConfig(max_blocks=3),)))
    added = tuple(BlockMeta(id=name, tenant="A", shard=1, level=0, min_time=time, max_time=time + 5, size_bytes=size)
                  for name, time, size in (("b", 90_000.0, 9), ("old", 10.0, 8), ("a", 90_500.0, 7)))
    told: list[RunningJob] = []

    def execute(job: RunningJob) -> CompactedBlocks:
        told.append(job)
        read = tuple(block.id for block in job.blocks)
        return CompactedBlocks(tenant="A", shard=1, source_blocks=read, no_output=NoOutput.EMPTY)

    scheduler.apply(AddBlocks(added))
    worker = Worker(scheduler, execute)
    worker.run_pending()                           # makes the job
    scheduler.apply(Retain(50_000.0))              # and before it is given, a source goes
    worker.run_pending()
    assert isinstance(worker.stop(), Done)
    [job] = told
    assert job.plan.source_blocks == ("b", "old", "a")
    assert job.blocks == (added[0], added[2])


def test_a_scheduler_whose_log_was_lost_goes_on_beside_a_fence_that_remembers_its_tokens(tmp_path: Path) -> None:
    fence, clock = FileFence(tmp_path), ManualClock(1000.0)
    config = SchedulerConfig(levels=(LevelConfig(max_blocks=2),), backoff_seconds=1.0, max_failures=1)
    kv, done = MemoryStore(), list[int]()

    def execute(job: RunningJob) -> CompactedBlocks:
        with fence.guard(job.plan.name, job.token):
            done.append(job.token)
        return CompactedBlocks(tenant="A", shard=1, source_blocks=job.plan.source_blocks, no_output=NoOutput.EMPTY)

    def worked(scheduler: StoredScheduler, rounds: int) -> StoredScheduler:
        worker = Worker(scheduler, execute, clock=clock)
        for _ in range(rounds):
            worker.run_pending()
            clock.advance(301)
        worker.stop()
        return scheduler

    scheduler = StoredScheduler(kv, config, clock=clock)
    scheduler.apply(AddBlocks(tuple(BlockMeta(id=name, tenant="A", shard=1, level=0) for name in "ab")))
    scheduler.poll(PollRequest(job_capacity=1))
    [(_, job)] = scheduler.service.jobs(clock.now())
    fence.admit(job.name, 70_000)            # under the scheduler before
    worked(scheduler, 20)
    [(phase, job)] = scheduler.service.jobs(clock.now())
    assert (phase, done) == (JobPhase.EXCLUDED, [])
    assert "70000" in job.last_failure       # an operator sees why
    above = attrs.evolve(config, tokens_above=1 << 20)
    again = StoredScheduler(kv, above, clock=clock)
    again.apply(Requeue((job.name,)))
    worked(again, 3)
    assert list(again.service.jobs(clock.now())) == []
    [token] = done
    assert token > 1 << 20


def test_without_an_index_nothing_is_known_of_a_job_s_sources() -> None:
    scheduler = StoredScheduler(MemoryStore(), SchedulerConfig(levels=(LevelConfig(max_blocks=1),)), with_index=False)
    scheduler.apply(AddBlocks((BlockMeta(id="a", tenant="A", shard=1, level=0),)))
    scheduler.poll(PollRequest(job_capacity=1))
    [assignment] = scheduler.poll(PollRequest(job_capacity=1)).assignments
    assert assignment.blocks == ()


def test_a_missing_source_is_left_out_and_if_all_are_missing_the_job_says_so(tmp_path: Path) -> None:
    desk, folder = Desk(CONFIG), Folder(tmp_path, 4)
    desk.add(4)
    for gone in ("b001", "b002", "b003"):
        folder.path("A", gone).unlink()
    with Worker(desk, folder.execute, options=OPTIONS):
        state = desk.scheduler.service.state
        with desk.changed:
            assert desk.changed.wait_for(lambda: len(state.quarantine) == 2, PATIENCE)
    # Unlike Pyroscope, what was not found does not stay in the index unseen, but waits in quarantine.
    missing = sorted(job.plan.source_blocks for job in state.quarantine.values())
    assert missing == [("b001",), ("b002", "b003")]
    assert [folder.path("A", block.id).read_text() for block in desk.blocks() if block.level == 1] == ["b000 "]


# ------------------------------------------------------------------------------------------- tokens and fences


def test_a_late_worker_cannot_publish_in_place_what_went_to_another(tmp_path: Path) -> None:
    """The fence closes the gap between the scheduler's answer and the rename."""
    desk, fence, published = Desk(CONFIG), FileFence(tmp_path / "fence"), tmp_path / "published"
    desk.add(2)
    desk.poll(PollRequest(job_capacity=1))
    slow_may_publish, slow_admitted, fast_done = threading.Event(), threading.Event(), threading.Event()
    refused: list[FencedOff] = []

    def slow(job: RunningJob) -> CompactedBlocks:
        fence.admit("table", job.token)
        slow_admitted.set()
        assert slow_may_publish.wait(PATIENCE)
        try:
            with fence.guard("table", job.token):
                published.write_text("slow")
        except FencedOff as error:
            refused.append(error)
            raise
        raise AssertionError("the late worker has published")

    def fast(job: RunningJob) -> CompactedBlocks:
        with fence.guard("table", job.token):
            published.write_text("fast")
        fast_done.set()
        return CompactedBlocks(tenant="A", shard=1, source_blocks=job.plan.source_blocks, no_output=NoOutput.EMPTY)

    line = Line(desk)
    one = Worker(line, slow, options=OPTIONS)
    one.start()
    assert slow_admitted.wait(PATIENCE)
    # Nobody renews the lease of the slow one; an operator's clock would say the same after a minute.
    (name,) = one.jobs
    state, _ = desk.scheduler.service.job(name)
    desk.poll(PollRequest((StatusUpdate(name, state.token, JobStatus.RELEASED),)))
    with Worker(desk, fast, options=OPTIONS):
        assert fast_done.wait(PATIENCE)
        slow_may_publish.set()
        desk.wait_until(0)
    line.answers = 99
    assert isinstance(one.stop(wait_seconds=PATIENCE), Done)
    assert published.read_text() == "fast"
    assert refused[0].token < refused[0].highest


def test_a_run_that_lost_its_job_never_goes_on_when_the_job_comes_back_in_the_same_answer() -> None:
    """Cut off; another worker gets the job, publishes and dies; then one answer says: lost, and yours again."""
    clock, fence, manifest = ManualClock(1000), MemoryFence(), ["v0"]
    service = SchedulerService(SchedulerConfig(levels=(LevelConfig(max_blocks=2),)))
    log = (Command(index, 1, clock.now()) for index in itertools.count(1))
    service.apply(next(log), AddBlocks(tuple(BlockMeta(id=name, tenant="A", shard=1, level=0) for name in "ab")))
    service.poll(next(log), PollRequest(job_capacity=1))
    began, may_go_on, tokens = threading.Semaphore(0), threading.Event(), list[tuple[int, bool]]()

    class Direct:
        def poll(self, request: PollRequest) -> PollResponse:
            return service.poll(next(log), request)

    def execute(job: RunningJob) -> CompactedBlocks:
        fence.admit(job.plan.name, job.token)
        seen = manifest[0]
        began.release()
        assert may_go_on.wait(PATIENCE)
        tokens.append((job.token, job.is_stopped))
        # Like an execute that does not look at check(): the fence alone keeps it from publishing.
        with fence.guard(job.plan.name, job.token):
            manifest[0] = f"{seen}+{job.token}"
        return CompactedBlocks(tenant="A", shard=1, source_blocks=job.plan.source_blocks, no_output=NoOutput.EMPTY)

    line = Line(Direct())
    worker = Worker(line, execute, options=WorkerOptions(capacity=2), clock=clock)
    worker.start()
    assert began.acquire(timeout=PATIENCE)
    clock.advance(20)
    [other] = Direct().poll(PollRequest(job_capacity=1)).assignments
    fence.admit(other.name, other.token)
    with fence.guard(other.name, other.token):
        manifest[0] += "+other"
    line.answers = 99
    clock.advance(20)
    assert began.acquire(timeout=PATIENCE)
    may_go_on.set()
    assert isinstance(worker.stop(wait_seconds=PATIENCE, grace_seconds=PATIENCE), Done)
    assert sorted(tokens) == [(other.token - 1, True), (other.token + 1, False)]
    assert manifest == [f"v0+other+{other.token + 1}"]
    assert service.state.jobs.get(other.name) is None
