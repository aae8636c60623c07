# SPDX-License-Identifier: Apache-2.0
"""A peer that applies another store's changes answers as that store, from any earlier state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import (
    Blob,
    BlobStore,
    BlobStoreConfig,
    CompactAll,
    Deleted,
    GetOptions,
    Missing,
    RecordKind,
)
from compactlib.clock import ManualClock

EVERYTHING = GetOptions(include_deleted=True, include_expired=True)
CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12)
LIVES = {
    "replaced": ["put", "replace"],
    "deleted": ["put", "delete"],
    "undeleted": ["put", "delete", "undelete"],
    "replaced after a delete": ["put", "delete", "replace"],
    "deleted after that": ["put", "delete", "replace", "delete"],
    "undeleted and replaced": ["put", "delete", "undelete", "delete", "replace"],
}


@pytest.mark.parametrize("told", range(6))
@pytest.mark.parametrize("name", LIVES)
def test_peer_follows_a_blob(name: str, told: int, tmp_path: Path) -> None:
    """The peer is updated after each step from `told` on, and at the end."""
    clock = ManualClock(1_700_000_000.0)
    with (BlobStore(tmp_path / "one", CONFIG, clock=clock) as one,
          BlobStore(tmp_path / "two", CONFIG, clock=clock) as two):
        for number, step in enumerate(LIVES[name]):
            clock.advance(1.0)
            if step in ("put", "replace"):
                one.put(b"id", b"content %d" % number, replace=step == "replace")
            else:
                (one.delete if step == "delete" else one.undelete)(b"id")
            if number >= told:
                _take_over(one, two)
        _take_over(one, two)
        assert type(one.get(b"id")) is type(two.get(b"id"))
        found, expected = (store.get(b"id", EVERYTHING) for store in (two, one))
        assert isinstance(found, Blob)
        assert isinstance(expected, Blob)
        assert found.content == expected.content
        assert isinstance(two.get(b"id"), Deleted) == (LIVES[name][-1] == "delete")


def test_peer_keeps_its_own_delete(tmp_path: Path) -> None:
    """The repeated change of the other store is older than the delete, and of the same life."""
    with BlobStore(tmp_path / "one", CONFIG) as one, BlobStore(tmp_path / "two", CONFIG) as two:
        one.put(b"id", b"content")
        one.delete(b"id")
        one.undelete(b"id")
        _take_over(one, two)
        two.delete(b"id")
        _take_over(one, two)
        assert isinstance(two.get(b"id"), Deleted)


def test_blob_without_a_put_can_be_put(tmp_path: Path) -> None:
    """A blob with a DELETE and an UNDELETE of a peer, and no PUT, is missing."""
    config = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, journal_max_entries=0, max_blob_bytes=0,
                             deleted_retention_seconds=0.0)
    for is_compacted in (False, True):
        clock = ManualClock(1_700_000_000.0)
        with BlobStore(tmp_path / str(is_compacted), config, clock=clock) as store:
            store.append_replicated(RecordKind.DELETE, b"id", op_time=clock.now())
            store.append_replicated(RecordKind.UNDELETE, b"id", op_time=clock.now() + 1.0, life_version=1)
            if is_compacted:
                clock.advance(10.0)
                store.close_active_segment()
                assert not store.compact(policy=CompactAll(min_used_fraction=0.0)).is_empty
            assert isinstance(store.get(b"id", EVERYTHING), Missing)
            store.put(b"id", b"content")
            found = store.get(b"id")
            assert isinstance(found, Blob)
            assert (found.content, found.info.life_version) == (b"content", 1)


def _take_over(one: BlobStore, two: BlobStore) -> None:
    for entry in one.entries_since(None).entries:
        _take_over_entry(one, two, entry)


def _take_over_entry(one: BlobStore, two: BlobStore, entry: Any) -> None:
    """As the documentation advises a host."""
    def append(kind: RecordKind, at: float, content: bytes = b"") -> None:
        two.append_replicated(kind, entry.id, content, op_time=at, life_version=entry.life_version,
                              permanent=entry.is_permanent, expires_at=entry.expires_at)

    blob = one.get(entry.id, EVERYTHING)
    assert isinstance(blob, Blob)
    append(RecordKind.PUT, blob.info.put_at, blob.content)
    if entry.is_deleted:
        append(RecordKind.DELETE, entry.changed_at)
    elif entry.life_version:
        append(RecordKind.UNDELETE, entry.changed_at)
