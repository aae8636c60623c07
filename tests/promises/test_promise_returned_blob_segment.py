# SPDX-License-Identifier: Apache-2.0
"""A segment that a compaction has removed and that is put back from a copy is named at opening, and answers nothing."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compactlib.blobstore import BlobStore, BlobStoreConfig, CompactAll, Deleted, Missing
from compactlib.clock import Clock, ManualClock
from compactlib.errors import CorruptData

CONFIG = BlobStoreConfig(capacity_bytes=1 << 20, segment_bytes=1 << 16, deleted_retention_seconds=0.0,
                         journal_max_entries=0, max_blob_bytes=0, durability="interval", purge_tombstones=True)
COUNT = 40

with_its_index = pytest.mark.parametrize("has_index", [False, True], ids=["segment alone", "with its index"])


def filled(folder: Path, clock: Clock | None = None) -> None:
    """A store of several full segments."""
    with BlobStore(folder, CONFIG, clock=clock) as store:
        for number in range(COUNT):
            store.put(f"k{number}", bytes([number]) * 5000)
        store.put("last", b"x")


def put_back(folder: Path, copy: Path, segment: str, *, has_index: bool) -> None:
    """Bring a segment back that the store has no more."""
    assert not (folder / f"{segment}.log").exists()
    for name in copy.glob(f"{segment}.*"):
        if has_index or name.suffix == ".log":
            shutil.copy(name, folder)


ANOTHER_HAS_ITS_PLACE = "0_0"


@with_its_index
@pytest.mark.parametrize("segment", [ANOTHER_HAS_ITS_PLACE, "1_0", "2_0"])
def test_removed_blobs_stay_removed_when_their_segment_is_back(tmp_path: Path, segment: str, has_index: bool) -> None:
    folder = tmp_path / "store"
    filled(folder)
    shutil.copytree(folder, tmp_path / "copy")
    with BlobStore(folder, CONFIG) as store:
        for number in range(COUNT):
            store.delete(f"k{number}")
    with BlobStore(folder, CONFIG) as store:
        store.close_active_segment()
        for _ in range(3):
            store.compact(policy=CompactAll(min_used_fraction=0.0))
        assert all(isinstance(store.get(f"k{number}"), Missing | Deleted) for number in range(COUNT))
    put_back(folder, tmp_path / "copy", segment, has_index=has_index)
    require_named(folder)


def require_named(folder: Path) -> None:
    """The store refuses to open, or names the segment and answers no blob by it."""
    try:
        store = BlobStore(folder, CONFIG)
    except CorruptData:
        return
    with store:
        assert store.recovery.damage, "nothing was named at opening"
        assert not store.verify().is_sound
        for number in range(COUNT):
            try:
                found = store.get(f"k{number}")
            except CorruptData:
                continue
            assert isinstance(found, Missing | Deleted), f"k{number} is back"


def test_segment_of_a_replica_with_the_same_records_is_damage(tmp_path: Path) -> None:
    """Each record says by its checksum of which store it is, and no read accepts one of another store."""
    for name in ("store", "replica"):
        filled(tmp_path / name, ManualClock(1_000_000.0))
    shutil.copy(tmp_path / "replica" / "1_0.log", tmp_path / "store")
    with BlobStore(tmp_path / "store", CONFIG) as store:
        assert store.recovery.damage
        bad = 0
        for number in range(COUNT):
            try:
                store.get(f"k{number}")
            except CorruptData:
                bad += 1
        assert bad
        assert [finding.place for finding in store.verify().findings] == ["1_0"]
