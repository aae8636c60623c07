# SPDX-License-Identifier: Apache-2.0
"""The creation of a store, and what readers see of it meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.blobstore import BlobReader, BlobStore, BlobStoreConfig, CompactAll, Hybrid
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput
from compactlib.files import list_folder

CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, journal_max_entries=0)


@pytest.mark.parametrize("size", [1 << 63, 1 << 64])
def test_capacity_that_no_file_can_say_is_refused_before_anything_is_made(size: int, tmp_path: Path) -> None:
    """Otherwise the folder would be a store that no opening can read."""
    with pytest.raises(InvalidInput):
        BlobStore(tmp_path / "store", BlobStoreConfig(capacity_bytes=size, segment_bytes=size))
    assert not (tmp_path / "store").exists()
    (tmp_path / "store").mkdir()
    with pytest.raises(InvalidInput):
        BlobStore(tmp_path / "store", BlobStoreConfig(capacity_bytes=size, segment_bytes=size))
    BlobStore(tmp_path / "store", CONFIG).close()


@pytest.mark.parametrize("has_blobs", [False, True], ids=["empty", "with blobs"])
def test_reader_of_a_store_that_is_created_meanwhile_finds_no_damage(
        has_blobs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store is made after the reader has looked for its list, and before it lists the folder."""
    place, made = tmp_path / "store", list[BlobStore]()
    place.mkdir()
    is_first = True

    def creating(folder: str) -> list[str]:
        nonlocal is_first
        if is_first:
            is_first = False
            made.append(BlobStore(folder, CONFIG))
            if has_blobs:
                made[0].put(b"key", b"content")
        return list_folder(folder)

    monkeypatch.setattr("compactlib.blobstore.folder.list_folder", creating)
    with BlobReader(place, CONFIG) as reader, made[0]:
        assert not reader.damage
        assert list(reader.keys()) == [b"key"] * has_blobs


def test_full_rounds_are_due_in_a_store_created_by_a_clock_that_was_ahead(tmp_path: Path) -> None:
    clock = ManualClock(4e9)
    BlobStore(tmp_path / "store", CONFIG, clock=clock).close()
    clock.set_now(1e9)
    policy = Hybrid(thorough=CompactAll(min_used_fraction=0.0), every_seconds=60.0)
    with BlobStore(tmp_path / "store", CONFIG, clock=clock, policy=policy) as store:
        for number in range(100):
            store.put(b"%d" % number, bytes(200))
        assert store.plan().kind == "full"
        store.compact()
        assert store.plan().kind == "normal"
        clock.advance(61.0)
        assert store.plan().kind == "full"
