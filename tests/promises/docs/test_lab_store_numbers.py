# SPDX-License-Identifier: Apache-2.0
"""Each of the five stores, run for real, tells the numbers that the page promises of it; the dashboard asks for no
others."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import prometheus_client
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
from compactlib.objects import LocalObjects
from compactlib.observer import Observer, PrometheusObserver
from compactlib.raftlog import LogOptions, RaftLogStore, SeedPolicy, SegmentLimits, SegmentLog, StoreOptions
from compactlib.scheduler import (
    BlockMeta,
    CompactedBlocks,
    JobStatus,
    LevelConfig,
    PollRequest,
    Scheduler,
    SchedulerConfig,
    StatusUpdate,
)
from compactlib.staging import AlwaysPolicy, CommittedRanges, Repository, StagingOptions
from tests.harness.recording import RecordingObserver

DOCS = Path(__file__).parents[3] / "docs"
NOW = 1_700_000_000.0


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
        clock.advance(60)
        assert store.compact(policy=Greedy(min_used_fraction=1.0)).is_empty
        assert not store.compact(policy=Greedy(min_used_fraction=0.0)).is_empty


def staging(folder: Path, observer: Observer) -> None:
    clock = ManualClock(NOW)
    options = StagingOptions(owns_ranges=True, range_grace_seconds=1e9)
    policy = AlwaysPolicy(window_seconds=0)
    with Repository(MemoryStore(), CommittedRanges(LocalObjects(folder)), clock=clock, observer=observer, policy=policy,
                    options=options) as repository:
        main = repository.create_branch("main")
        main.put_many({b"%03d" % number: b"value" for number in range(200)})
        main.commit("everything")
        for number in range(3):
            main.delete(b"%03d" % number)
            assert not repository.compact().is_empty
        assert repository.compact().is_empty
        repository.reclaim()


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


def promised() -> dict[str, set[str]]:
    """The series of each kind, as the table of the page has them: what is no dash."""
    page = (DOCS / "metrics.md").read_text()
    head, = re.findall(r"^\| series \|(.*)\|$", page, re.MULTILINE)
    kinds = [name.strip(" `") for name in head.split("|")]
    found: dict[str, set[str]] = defaultdict(set)
    for name, cells in re.findall(r"^\| `(store_\w+)` \|(.*)\|$", page, re.MULTILINE):
        if cells.count("|") == len(kinds) - 1:
            for kind, cell in zip(kinds, cells.split("|"), strict=True):
                if cell.strip() != "-":
                    found[kind].add(name)
    return found


@pytest.mark.parametrize("kind", STORES)
def test_a_store_that_runs_tells_every_series_that_the_page_promises_and_no_other(kind: str, tmp_path: Path) -> None:
    observer = RecordingObserver()
    STORES[kind](tmp_path / "store", observer)
    told = {name for name, labels in [*observer.counters, *observer.measured] if ("kind", kind) in labels}
    told |= {name for name, fields in observer.events if fields.get("kind") == kind and fields["value"] is not None}
    assert told == promised()[kind]
    names = {dict(labels)["store"] for name, labels in observer.counters if name == "store_compactions"}
    assert len(names) == 1
    outcomes = {(dict(labels)["outcome"], dict(labels)["reason"]) for name, labels in observer.counters
                if name == "store_compactions"}
    assert {"raftlog": {("skipped", "nothing"), ("failed", "BudgetSpent"), ("done", "seed")},
            "blobstore": {("skipped", "nothing"), ("done", "greedy")},
            "staging": {("skipped", "nothing"), ("done", "always")},
            "catalog": {("skipped", "nothing"), ("done", "cut_to_bound")},
            "scheduler": {("done", "job"), ("failed", "excluded")}}[kind] <= outcomes, outcomes


def test_logs_of_one_id_in_two_stores_are_told_apart(tmp_path: Path) -> None:
    observer = RecordingObserver()
    for name in ("first", "second"):
        with RaftLogStore(tmp_path / name, StoreOptions(log=LogOptions(observer=observer))) as store:
            store.log("7").compact()
    assert {dict(labels)["store"] for name, labels in observer.counters if name == "store_compactions"} == {
        "first/7", "second/7"}


def test_every_store_is_on_the_page() -> None:
    assert promised().keys() == STORES.keys()


# -- the dashboard


def queries(panel: dict[str, Any]) -> list[str]:
    return [target["expr"] for target in panel.get("targets", ())]


def test_the_dashboard_asks_for_names_that_are_told_with_labels_that_they_have(tmp_path: Path) -> None:
    observer = RecordingObserver()
    for kind, work in STORES.items():
        work(tmp_path / kind, observer)
    registry = prometheus_client.CollectorRegistry()
    exported = PrometheusObserver(registry)
    for name, fields in observer.raw:
        exported.event(name, **fields)
    labels: dict[str, set[str]] = defaultdict(set)
    for family in registry.collect():
        for sample in family.samples:
            labels[sample.name] |= sample.labels.keys()
    dashboard = json.loads((DOCS / "grafana-dashboard.json").read_text())
    asked = [query for panel in dashboard["panels"] for query in queries(panel)]
    assert len(asked) >= 8
    for query in asked:
        names = re.findall(r"compactlib_\w+", query)
        assert names, query
        for name in names:
            assert name in labels, query
        used = set(re.findall(r"(\w+)=~?\"", query)) | {
            label.strip() for group in re.findall(r"by \(([^)]*)\)", query) for label in group.split(",")}
        assert used <= set.union(*(labels[name] for name in names)), query
    shown = {name for query in asked for name in re.findall(r"compactlib_(store_\w+?)(?:_total|_bucket)?\b", query)}
    assert shown == set.union(*promised().values()), "every series has its panel"
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids)
