# SPDX-License-Identifier: Apache-2.0
"""A bit of ordinary work with every package, under one observer, as a host's dashboard would receive it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from compactlib.blobstore import BlobStore, BlobStoreConfig, Greedy
from compactlib.budget import Budget
from compactlib.catalog import (
    CatalogService,
    HybridClock,
    NodeId,
    NodeReport,
    PutObject,
    Schema,
    Topology,
    UpdateLog,
)
from compactlib.clock import ManualClock
from compactlib.commandlog import KVLog
from compactlib.errors import BudgetSpent
from compactlib.kv import MemoryStore, SnapshotStore
from compactlib.lab import (
    Arrivals,
    BlobLogModel,
    BranchModel,
    RaftLogModel,
    SchedulerModel,
    Uniform,
    compare,
    replay,
)
from compactlib.objects import LocalObjects
from compactlib.observer import Observer
from compactlib.raftlog import LogOptions, SeedPolicy, SegmentLimits, SegmentLog
from compactlib.scheduler import (
    BlockMeta,
    ByPriority,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    PollRequest,
    Scheduler,
    SchedulerConfig,
    StatusUpdate,
)
from compactlib.staging import AlwaysPolicy, CommittedRanges, PressurePolicy, Repository, StagingOptions

NOW = 1_700_000_000.0


def ordinary_work(folder: Path, observer: Observer) -> None:
    """All of it, one after the other."""
    for work in (*STORES.values(), late_worker, lab):
        work(folder / work.__name__, observer)


def raftlog(folder: Path, observer: Observer) -> None:
    options = LogOptions(limits=SegmentLimits(max_entries=10), observer=observer, clock=ManualClock(NOW))
    with SegmentLog(folder, options) as log:
        assert log.compact().is_empty
        log.append([(index, 1, bytes(100)) for index in range(1, 101)])
        log.snapshot(100, live=range(23, 98, 5))
        spent = Budget()
        spent.cancel()
        with pytest.raises(BudgetSpent):
            log.compact(policy=SeedPolicy(), budget=spent)
        with log.lease():
            assert not log.compact(policy=SeedPolicy()).is_empty
            log.snapshot(100, live=())
            log.compact(policy=SeedPolicy())


def blobstore(folder: Path, observer: Observer) -> None:
    clock = ManualClock(NOW)
    config = BlobStoreConfig(capacity_bytes=40 * 4096, segment_bytes=4096, durability="interval", journal_max_entries=0,
                             max_blob_bytes=0, deleted_retention_seconds=0.0)
    with BlobStore(folder, config, clock=clock, observer=observer) as store:
        for number in range(60):
            store.put(b"%08d" % number, bytes(500), ttl_seconds=1.0 if number % 3 else None)
        store.delete(b"%08d" % 0)
        clock.advance(60)
        assert store.compact(policy=Greedy(min_used_fraction=1.0)).is_empty
        assert not store.compact(policy=Greedy(min_used_fraction=0.0)).is_empty


def staging(folder: Path, observer: Observer) -> None:
    clock = ManualClock(NOW)
    with Repository(MemoryStore(), CommittedRanges(LocalObjects(folder)), clock=clock, observer=observer, rng=Random(1),
                    policy=AlwaysPolicy(window_seconds=0),
                    options=StagingOptions(owns_ranges=True, range_grace_seconds=1e8)) as repository:
        main = repository.create_branch("main")
        main.put_many({b"%03d" % number: b"value" for number in range(200)})
        main.commit("everything")
        for number in range(3):
            main.delete(b"%03d" % number)
            main.list(limit=1)
            assert not repository.compact().is_empty
        assert repository.compact().is_empty
        repository.reclaim()
        clock.advance(1e9)
        assert not repository.reclaim().is_empty


def catalog(folder: Path, observer: Observer) -> None:
    with CatalogService(UpdateLog(MemoryStore()), HybridClock(ManualClock(NOW)), observer=observer) as service:
        for number in range(6):
            service.execute([PutObject(Schema(f"S{number}"))])
        assert service.compact().is_empty
        service.pins.pin("backup", 3, service.history, ttl_seconds=60)
        time = service.catalog(5).activation
        view = service.view(reports=[NodeReport(node=NodeId("A"), transactions_from=time)], topology=Topology.of("A"),
                            low_watermark=time)
        assert service.compact(service.plan(view=view)).earliest == 3


def scheduler(folder: Path, observer: Observer) -> None:
    config = SchedulerConfig(levels=(LevelConfig(max_blocks=2),), max_failures=1)
    store = MemoryStore()
    service = Scheduler(KVLog(store, clock=ManualClock(NOW)), SnapshotStore(store), config, observer=observer)
    names = ("a", "b", "c", "d", "e", "f")
    service.add_blocks(BlockMeta(id=name, tenant="t", shard=0, level=0, size_bytes=100) for name in names)
    service.poll(PollRequest(job_capacity=3))
    polled = service.poll(PollRequest(job_capacity=3))
    leases = {lease.name: lease.token for lease in polled.assignments}
    done, failed, _ = polled.compaction_jobs
    output = BlockMeta(id="output", tenant="t", shard=0, level=1, size_bytes=150)
    results = CompactedBlocks(tenant="t", shard=0, source_blocks=done.source_blocks, new_blocks=(output,))
    service.poll(PollRequest((StatusUpdate(done.name, leases[done.name], JobStatus.SUCCESS, results),
                              StatusUpdate(failed.name, leases[failed.name], JobStatus.FAILED))))
    service.snapshot()
    service.close()


STORES: dict[str, Callable[[Path, Observer], None]] = {
    "raftlog": raftlog, "blobstore": blobstore, "staging": staging, "catalog": catalog, "scheduler": scheduler}


def late_worker(folder: Path, observer: Observer) -> None:
    """A worker is silent for too long, another one does its job, and the first reports after all."""
    clock = ManualClock(0.0)
    config = SchedulerConfig(levels=(LevelConfig(max_blocks=2),))
    scheduler = Scheduler(KVLog(MemoryStore(), clock=clock), None, config, observer=observer)
    scheduler.add_blocks(BlockMeta(id=name, tenant="acme", shard=0, level=0) for name in "ab")
    scheduler.poll(PollRequest(job_capacity=1))
    [plan] = (first := scheduler.poll(PollRequest(job_capacity=1))).compaction_jobs
    clock.advance(60.0)
    second = scheduler.poll(PollRequest(job_capacity=1))
    for answer in (first, second):
        token = answer.assignments[0].token
        output = BlockMeta(id=f"output-{token}", tenant="acme", shard=0, level=1)
        done = CompactedBlocks(tenant="acme", shard=0, source_blocks=plan.source_blocks, new_blocks=(output,))
        scheduler.poll(PollRequest((StatusUpdate(plan.name, token, JobStatus.SUCCESS, done),)))


def lab(folder: Path, observer: Observer) -> None:
    workload = Uniform(keys=50, writes=200)
    compare([Greedy()], [workload], BlobLogModel.of_slots(10, 16), observer=observer)
    replay(workload, SeedPolicy(), RaftLogModel(snapshot_every=50), observer=observer)
    replay(workload, PressurePolicy(deletes=5), BranchModel(base_keys=10), observer=observer)
    replay(Arrivals(blocks=20), ByPriority(), SchedulerModel(), observer=observer)
