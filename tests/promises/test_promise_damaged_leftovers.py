# SPDX-License-Identifier: Apache-2.0
"""A damaged leftover keeps nothing else from being reclaimed: the clean-up goes on, and then raises the damage."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from compactlib.blobstore import BlobStore, BlobStoreConfig
from compactlib.catalog import CatalogService, HybridClock, LowWatermark, PutObject, Schema, UpdateLog
from compactlib.clock import ManualClock
from compactlib.errors import CompactionFailed, CorruptData
from compactlib.fences import Fence, FileFence, KVFence
from compactlib.kv import SqliteStore
from compactlib.kv.errors import DamagedStore
from compactlib.objects import MemoryObjects
from compactlib.raftlog import LogOptions, SegmentLimits, SegmentLog
from compactlib.staging import AlwaysPolicy, CommittedRanges, Repository, StagingOptions
from compactlib.staging.errors import CommitNotFound, MetaRangeNotFound

MONTH = 30 * 86_400.0
DAMAGE = ("row", "value", "text")


@pytest.fixture
def kv(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path / "kv")) as store:
        yield store


def damage(kv: SqliteStore, folder: Path, partition: bytes, key: bytes, kind: str) -> None:
    """Damage the row of a key, its header, or the stored value under a sound row."""
    if kind == "value":
        stored = kv.get(partition, key).value
        kv.set(partition, key, stored[:-1] + bytes([stored[-1] ^ 1]))
        return
    value = "cast(x'ff' as text)" if kind == "text" else "x'00'"
    with closing(sqlite3.connect(folder / "kv")) as connection, connection:
        changed = connection.execute(f"UPDATE cells SET value = {value} WHERE partition = ? AND key = ?",
                                     (partition, key)).rowcount
    assert changed == 1


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("number", range(3))
def test_damaged_drop_mark_keeps_no_token_and_no_range(kv: SqliteStore, tmp_path: Path, kind: str, number: int,
                                                       ) -> None:
    clock = ManualClock(1_700_000_000.0)
    ranges = CommittedRanges(MemoryObjects(clock=clock), clock=clock)
    repository = Repository(kv, ranges, options=StagingOptions(owns_ranges=True), clock=clock, rng=Random(1))
    repository.reclaim()
    main = repository.create_branch("main")
    for each in range(3):
        main.put(b"%d" % each, b"data")
        repository.compact(branch="main", policy=AlwaysPolicy())
        clock.advance(1000.0)
    marks = [(partition, entry.key) for partition in kv.partitions()
             for entry in kv.scan(partition, keys_only=True) if entry.key.startswith(b"dropped/")]
    assert len(marks) == 3
    damage(kv, tmp_path, *marks[number], kind)
    assert repository.dropped_tokens() == 2
    clock.advance(MONTH)
    with pytest.raises(CompactionFailed) as failed:
        repository.reclaim()
    assert str(marks[number][1])[2:-1] in str(failed.value)
    report = failed.value.report
    assert (report.tokens_removed, report.entries_removed) == (2, 2)
    assert report.ranges.metaranges_deleted == 2
    with pytest.raises(CorruptData, match=str(marks[number][1])[2:-1]):
        repository.reclaim()
    assert [bytes(record.data) for record in main.get_many([b"0", b"1", b"2"]).values()] == [b"data"] * 3
    assert [finding.kind for finding in repository.verify().findings] == ["damage"]


@pytest.mark.parametrize("kind", ["list", "commit"])
def test_reclaim_reports_the_removed_tokens_when_a_live_part_is_missing(kv: SqliteStore, kind: str) -> None:
    clock = ManualClock(1_700_000_000.0)
    ranges = CommittedRanges(MemoryObjects(clock=clock), clock=clock)
    repository = Repository(kv, ranges, options=StagingOptions(owns_ranges=True), clock=clock, rng=Random(1))
    repository.reclaim()
    main = repository.create_branch("main")
    main.put(b"a", b"data")
    lost = main.commit("lost").commit_id
    assert lost is not None
    if kind == "list":
        ranges.objects.delete([each.key for each in ranges.objects.list("metaranges/")])
    else:
        (partition, key), = [(partition, entry.key) for partition in kv.partitions()
                             for entry in kv.scan(partition) if lost.encode() in entry.key]
        kv.delete(partition, key)
    clock.advance(MONTH)
    reopened = Repository(kv, CommittedRanges(ranges.objects, clock=clock), options=StagingOptions(owns_ranges=True),
                          clock=clock, rng=Random(2))
    expected = MetaRangeNotFound if kind == "list" else CommitNotFound
    with pytest.raises(CompactionFailed) as failed:
        reopened.reclaim()
    assert (failed.value.report.tokens_removed, failed.value.report.entries_removed) == (1, 1)
    assert [type(error) for error in failed.value.failures.values()] == [expected]
    with pytest.raises(expected):
        reopened.reclaim()
    assert sum(1 for _ in ranges.objects.list("ranges/")) == 1


def test_damaged_commit_that_no_branch_needs_keeps_no_range(kv: SqliteStore, tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000.0)
    ranges = CommittedRanges(MemoryObjects(clock=clock), clock=clock)
    repository = Repository(kv, ranges, options=StagingOptions(owns_ranges=True), clock=clock, rng=Random(1))
    repository.reclaim()
    main, other = repository.create_branch("main"), repository.create_branch("other")
    main.put(b"a", b"data")
    main.commit("kept")
    other.put(b"b", b"data")
    lost = other.commit("lost").commit_id
    assert lost is not None
    repository.delete_branch("other")
    (partition, key), = [(partition, entry.key) for partition in kv.partitions()
                         for entry in kv.scan(partition) if lost.encode() in entry.key]
    damage(kv, tmp_path, partition, key, "row")
    clock.advance(MONTH)
    report = repository.reclaim()
    assert report.ranges is not None
    assert report.ranges.metaranges_deleted == 1


@pytest.mark.parametrize("kind", [*DAMAGE, "file"])
def test_damaged_fence_record_keeps_no_other(kv: SqliteStore, tmp_path: Path, kind: str) -> None:
    fence: Fence = FileFence(tmp_path / "fence") if kind == "file" else KVFence(kv, partition=b"f")
    for number in range(5):
        fence.admit(f"old {number}", number)
    fence.admit("young", 9)
    if kind == "file":
        path, = (path for path in (tmp_path / "fence").glob("*.fence") if b"old 2" in path.read_bytes())
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    else:
        damage(kv, tmp_path, b"f", b"resource/old 2", kind)
    for _ in range(2):
        with pytest.raises(CorruptData):
            fence.raise_floor(7)
        left = [*kv.scan(b"f", prefix=b"resource/", keys_only=True), *(tmp_path / "fence").glob("*.fence")]
        assert len(left) == 2
    assert fence.admit("young", 9).token == 9


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("prefix", [b"update/", b"piece/"])
def test_damaged_leftover_of_a_catalog_is_deleted_with_the_others(kv: SqliteStore, tmp_path: Path, kind: str,
                                                                  prefix: bytes) -> None:
    clock = ManualClock(1000.0)
    service = CatalogService(UpdateLog(kv, clock=clock, rng=Random(1)), HybridClock(clock))
    for number in range(4):
        service.execute([PutObject(Schema(f"s{number}"))], wait=False)
        service.log.write_snapshot(service.catalog(service.history.latest))
    snapshot = service.log.write_snapshot(service.catalog(service.history.latest))
    service.log.cut(snapshot)
    leftovers = [entry.key for entry in kv.scan(b"catalog", prefix=prefix)]
    damage(kv, tmp_path, b"catalog", leftovers[1], kind)
    report = service.reclaim()
    assert report.deleted == 3 + 4
    assert report.bytes_freed > 0
    assert service.reclaim().is_empty
    assert service.verify().is_sound


def test_damaged_snapshot_in_force_ends_the_reclaim_of_a_catalog(kv: SqliteStore, tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    service = CatalogService(UpdateLog(kv, clock=clock, rng=Random(1)), HybridClock(clock))
    for number in range(4):
        service.execute([PutObject(Schema(f"s{number}"))], wait=False)
    service.log.cut(service.log.write_snapshot(service.catalog(service.history.latest - 1)))
    keys = [entry.key for entry in kv.scan(b"catalog", prefix=b"update/")]
    damage(kv, tmp_path, b"catalog", keys[-2], "row")
    with pytest.raises(DamagedStore):
        service.reclaim()
    assert [entry.key for entry in kv.scan(b"catalog", prefix=b"update/", keys_only=True)] == keys


def test_verify_of_a_catalog_names_every_damaged_row(kv: SqliteStore, tmp_path: Path) -> None:
    clock = ManualClock(1000.0)
    service = CatalogService(UpdateLog(kv, clock=clock, rng=Random(1)), HybridClock(clock))
    for number in range(6):
        service.execute([PutObject(Schema(f"s{number}"))], wait=False)
    for node in ("a", "b", "c"):
        LowWatermark(service, node, data_availability_seconds=1.0).advance()
    updates = [entry.key for entry in kv.scan(b"catalog", prefix=b"update/")]
    rows = [updates[1], updates[2], updates[-1], b"low_watermark/a", b"low_watermark/b"]
    for key in rows:
        damage(kv, tmp_path, b"catalog", key, "row")
    found = service.verify().findings
    assert [finding.kind for finding in found] == ["damage"] * 5
    for key, finding in zip(rows, found, strict=True):
        assert key.decode() in finding.what


@pytest.mark.parametrize("kind", ["row", "text"])
def test_damaged_row_ends_only_the_scans_that_reach_it(kv: SqliteStore, tmp_path: Path, kind: str) -> None:
    for key in (b"a/1", b"a/2", b"b/1", b"b/2", b"c/1"):
        kv.set(b"p", key, b"value")
    damage(kv, tmp_path, b"p", b"b/2", kind)
    seen: list[bytes] = []
    with pytest.raises(DamagedStore, match="b/2"):
        seen.extend(entry.key for entry in kv.scan(b"p"))
    assert seen == [b"a/1", b"a/2", b"b/1"]
    assert [[entry.key for entry in kv.scan(b"p", prefix=prefix)] for prefix in (b"a/", b"b/1", b"c/", b"b/11")] == [
        [b"a/1", b"a/2"], [b"b/1"], [b"c/1"], []]
    with pytest.raises(DamagedStore, match="b/2"):
        kv.get(b"p", b"b/2")


def test_plan_and_compaction_take_a_refused_statvfs_for_unknown_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                                     ) -> None:
    def refused(path: object) -> os.statvfs_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "statvfs", refused)
    with SegmentLog(tmp_path / "log", LogOptions(limits=SegmentLimits(max_entries=2))) as log:
        log.append([(index, 1, b"entry") for index in range(1, 8)])
        assert log.plan().bytes_available is None
        log.compact()
    with BlobStore(tmp_path / "blobs", BlobStoreConfig(capacity_bytes=1 << 20, segment_bytes=1 << 16,
                                                            max_blob_bytes=0)) as store:
        assert store.plan().bytes_available is None
        store.compact()
