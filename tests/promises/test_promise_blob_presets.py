# SPDX-License-Identifier: Apache-2.0
"""The settings for an archive and for one of several replicas keep what their names say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import Blob, BlobReader, BlobStore, BlobStoreConfig, CompactAll, Deleted, Missing
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.testing import RecordingFiles, explore_crashes, record

CAPACITY = 1 << 18
DAY = 86_400.0
SMALL = {"journal_max_entries": 0, "max_blob_bytes": 0, "compaction_bytes_per_second": None}
PRESETS = [BlobStoreConfig.archive, BlobStoreConfig.replicated]


def compact_all(store: BlobStore, **asked: Any) -> None:
    store.close_active_segment()
    for _ in range(3):
        store.compact(policy=CompactAll(min_used_fraction=0.0, **asked))


@pytest.mark.parametrize("preset", PRESETS, ids=["archive", "replicated"])
def test_put_and_delete_survive_a_power_failure(tmp_path: Path, preset: Any) -> None:
    def work(folder: Path, files: RecordingFiles) -> None:
        with BlobStore(folder, preset(CAPACITY, **SMALL), files=files) as store:
            for number in range(3):
                store.put(b"%d" % number, b"content of %d" % number)
                files.acknowledge(number)

    def check(folder: Path, acknowledged: Any) -> None:
        if not acknowledged:
            return
        with BlobReader(folder, preset(CAPACITY, **SMALL)) as reader:
            for number in acknowledged:
                found = reader.get(b"%d" % number)
                assert isinstance(found, Blob)
                assert found.content == b"content of %d" % number

    assert explore_crashes(record(tmp_path, work), check, limit_per_point=8) > 10


@pytest.mark.parametrize(("days", "is_there"), [(29.0, True), (31.0, False)])
def test_archive_undoes_a_delete_for_a_month(tmp_path: Path, days: float, is_there: bool) -> None:
    clock = ManualClock(1_700_000_000.0)
    with BlobStore(tmp_path / "store", BlobStoreConfig.archive(CAPACITY, **SMALL), clock=clock) as store:
        store.put(b"a", b"content")
        store.delete(b"a")
        clock.advance(days * DAY)
        compact_all(store)
        if is_there:
            store.undelete(b"a")
        found = store.get(b"a")
        assert isinstance(found, Blob if is_there else Deleted)


@pytest.mark.parametrize("is_seen", [False, True])
def test_tombstone_of_a_replica_goes_once_all_peers_have_read_it(tmp_path: Path, is_seen: bool) -> None:
    clock = ManualClock(1_700_000_000.0)
    config = BlobStoreConfig.replicated(CAPACITY, **SMALL)
    with BlobStore(tmp_path / "store", config, clock=clock,
                   seen_by_all_peers=lambda tombstone: is_seen) as store:
        store.put(b"a", b"content")
        store.put(b"b", b"content")
        store.delete(b"a")
        clock.advance(60 * DAY)
        compact_all(store)
        compact_all(store)
        assert isinstance(store.get(b"a"), Missing if is_seen else Deleted)
        assert isinstance(store.get(b"b"), Blob)


def test_capacity_of_more_segments_than_a_list_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="segments"):
        BlobStore(tmp_path / "store", BlobStoreConfig(capacity_bytes=1 << 43, segment_bytes=1 << 10))
    assert not (tmp_path / "store").exists()
