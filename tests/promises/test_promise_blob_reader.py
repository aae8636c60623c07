# SPDX-License-Identifier: Apache-2.0
"""A reader of a blob store that an owner has open lists the blobs and plans as the owner does."""

from __future__ import annotations

import hashlib
from pathlib import Path

from compactlib.blobstore import BlobReader, BlobStore, BlobStoreConfig, CompactAll

CONFIG = BlobStoreConfig(capacity_bytes=1 << 20, segment_bytes=1 << 14, deleted_retention_seconds=0.0,
                         journal_max_entries=0, max_blob_bytes=0, durability="group")
POLICY = CompactAll(min_used_fraction=0.0)
COUNT = 60


def filled(folder: Path) -> BlobStore:
    """A store of several segments in which every third blob is deleted; it stays open."""
    store = BlobStore(folder, CONFIG)
    for number in range(COUNT):
        store.put(b"k%d" % number, b"%d " % number * 300)
    for number in range(0, COUNT, 3):
        store.delete(b"k%d" % number)
    store.flush()
    return store


def digest_of(folder: Path) -> str:
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return hashlib.sha256(b"".join(path.name.encode() + path.read_bytes() for path in files)).hexdigest()


def test_reader_lists_the_live_blobs_of_an_open_store(tmp_path: Path) -> None:
    with filled(tmp_path / "store"), BlobReader(tmp_path / "store", CONFIG) as reader:
        assert set(reader.keys()) == {b"k%d" % number for number in range(COUNT) if number % 3}


def test_reader_sees_new_blobs_when_it_is_refreshed(tmp_path: Path) -> None:
    with filled(tmp_path / "store") as store, BlobReader(tmp_path / "store", CONFIG) as reader:
        store.put(b"later", b"content")
        store.compact(policy=POLICY)
        reader.refresh()
        assert set(reader.keys()) == {b"later", *(b"k%d" % number for number in range(COUNT) if number % 3)}


def test_reader_plans_as_the_owner(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    with filled(folder) as store, BlobReader(folder, CONFIG) as reader:
        before = digest_of(folder)
        dry, real = reader.plan(POLICY), store.plan(POLICY)
        assert not dry.is_empty
        assert (sorted(dry.names), dry.bytes_to_copy, dry.bytes_freed) == (
            sorted(real.names), real.bytes_to_copy, real.bytes_freed)
        assert digest_of(folder) == before
        assert reader.view().to_dicts() == store.view().to_dicts()
        store.compact(policy=POLICY)
        reader.refresh()
        assert reader.plan(POLICY).is_empty == store.plan(POLICY).is_empty
