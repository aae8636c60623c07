# SPDX-License-Identifier: Apache-2.0
"""A bit of ordinary work with every package, under one observer: what a host's dashboards would see of it."""

from __future__ import annotations

from pathlib import Path
from random import Random

from compactlib.blobstore import BlobStore, BlobStoreConfig, Greedy
from compactlib.catalog import (
    CatalogService,
    HybridClock,
    NodeId,
    NodeReport,
    PutObject,
    Schema,
    Topology,
    UpdateLog,
    Zone,
)
from compactlib.clock import ManualClock
from compactlib.commandlog import KVLog
from compactlib.kv import MemoryStore
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
from compactlib.metered import metered
from compactlib.objects import MemoryObjects
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
from compactlib.staging import CommittedRanges, PressurePolicy, Repository, StagingOptions


def ordinary_work(folder: Path, observer: Observer) -> None:
    """All of it, one after the other."""
    for work in (raftlog, blobstore, scheduler, staging, catalog, lab):
        work(folder / work.__name__, observer)


def raftlog(folder: Path, observer: Observer) -> None:
    limits = SegmentLimits(max_entries=10)
    with SegmentLog(folder, LogOptions(limits=limits, observer=observer)) as log:
        log.append([(index, 1, bytes(100)) for index in range(1, 101)])
        log.snapshot(100, live=range(3, 98, 5))
        assert not log.compact(policy=SeedPolicy()).is_empty


def blobstore(folder: Path, observer: Observer) -> None:
    clock = ManualClock(1_700_000_000.0)
    config = BlobStoreConfig(capacity_bytes=40 * 4096, segment_bytes=4096, durability="interval", journal_max_entries=0,
                             max_blob_bytes=0, deleted_retention_seconds=0.0)
    with BlobStore(folder, config, clock=clock, observer=observer) as store:
        for number in range(60):
            store.put(b"%08d" % number, bytes(500), ttl_seconds=1.0 if number % 3 else None)
        store.delete(b"%08d" % 0)
        clock.advance(60)
        assert not store.compact(policy=Greedy(min_used_fraction=0.0)).is_empty


def scheduler(folder: Path, observer: Observer) -> None:
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


def staging(folder: Path, observer: Observer) -> None:
    clock = ManualClock(1_700_000_000.0)
    store = metered(MemoryStore(), observer, name="branches", clock=clock)
    objects = metered(MemoryObjects(clock=clock), observer, name="ranges", clock=clock)
    repo = Repository(store, CommittedRanges(objects), clock=clock, rng=Random(1), observer=observer,
                      options=StagingOptions(owns_ranges=True))
    main = repo.create_branch("main")
    main.put_many({b"%03d" % number: b"v" for number in range(200)})
    main.commit("everything")
    main.delete_many([b"%03d" % number for number in range(150)])
    main.list(limit=1)
    assert not repo.compact().is_empty
    clock.advance(1e6)
    assert not repo.reclaim().is_empty


def catalog(folder: Path, observer: Observer) -> None:
    service = CatalogService(UpdateLog(MemoryStore()), HybridClock(ManualClock(1000.0)), observer=observer)
    service.execute([PutObject(Schema("PUBLIC")), PutObject(Zone("Z", partitions=4))])
    for number in range(3):
        service.execute([PutObject(Schema(f"S{number}"))])
    time = service.catalog(2).activation
    view = service.view(reports=[NodeReport(node=NodeId("A"), transactions_from=time)], topology=Topology.of("A"),
                        low_watermark=time)
    assert service.compact(service.plan(view=view)).earliest == 2
    service.close()


def lab(folder: Path, observer: Observer) -> None:
    workload = Uniform(keys=50, writes=200)
    compare([Greedy()], [workload], BlobLogModel.of_slots(10, 16), observer=observer)
    replay(workload, SeedPolicy(), RaftLogModel(snapshot_every=50), observer=observer)
    replay(workload, PressurePolicy(deletes=5), BranchModel(base_keys=10), observer=observer)
    replay(Arrivals(blocks=20), ByPriority(), SchedulerModel(), observer=observer)
