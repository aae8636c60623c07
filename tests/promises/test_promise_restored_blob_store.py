# SPDX-License-Identifier: Apache-2.0
"""A blob store that was put back from a copy is another history for a peer that has seen more: it begins again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from compactlib.blobstore import BlobStore, BlobStoreConfig

CONFIG = BlobStoreConfig(capacity_bytes=1 << 22, segment_bytes=1 << 18, deleted_retention_seconds=0.0,
                         journal_max_entries=0, durability="interval")


class Peer:
    """Polls a store for changes, and restarts when its token is refused.

    Attributes:
        known: the ids that it received since it last began.
        resets: how often it began again.
    """

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.resets = 0
        self._token = None

    def follow(self, store: BlobStore) -> None:
        """Ask until there is nothing more."""
        for _ in range(1000):
            found = store.entries_since(self._token)
            self._token = found.token  # type: ignore[assignment]
            if found.was_reset:
                self.resets += 1
                self.known.clear()
            self.known.update(bytes(each.id).decode() for each in found.entries)
            if found.at_end:
                return
        raise AssertionError("the polls never reach the end of the store")


def put_many(store: BlobStore, name: str, count: int) -> set[str]:
    """Blobs of one name; their ids."""
    ids = {f"{name}{number}" for number in range(count)}
    for each in sorted(ids):
        store.put(each, b"x" * 200)
    return ids


def put_back(folder: Path, *, lost: int, written: int) -> tuple[BlobStore, Peer, set[str]]:
    """A store put back from a copy after a peer has followed it, `written` blobs later; and the ids that it holds.

    Args:
        folder: where the store and its copy lie.
        lost: how many blobs were written after the copy was taken.
        written: how many are written after it was put back.
    """
    with BlobStore(folder / "store", CONFIG) as store:
        ids = put_many(store, "old", 100)
    shutil.copytree(folder / "store", folder / "copy")
    peer = Peer()
    with BlobStore(folder / "store", CONFIG) as store:
        put_many(store, "lost", lost)
        peer.follow(store)
    shutil.rmtree(folder / "store")
    shutil.move(folder / "copy", folder / "store")
    store = BlobStore(folder / "store", CONFIG)
    return store, peer, ids | put_many(store, "new", written)


@pytest.mark.parametrize("lost", [0, 5])
def test_peer_receives_all_changes_of_a_reopened_store(tmp_path: Path, lost: int) -> None:
    with BlobStore(tmp_path / "store", CONFIG) as store:
        ids = put_many(store, "old", 100)
    peer = Peer()
    with BlobStore(tmp_path / "store", CONFIG) as store:
        ids |= put_many(store, "lost", lost)
        peer.follow(store)
    with BlobStore(tmp_path / "store", CONFIG) as store:
        ids |= put_many(store, "new", 20)
        peer.follow(store)
    assert peer.known == ids


@pytest.mark.parametrize("lost", [100, 1000])
def test_peer_restarts_when_its_token_is_ahead_of_a_restored_store(tmp_path: Path, lost: int) -> None:
    store, peer, ids = put_back(tmp_path, lost=lost, written=0)
    with store:
        peer.follow(store)
        assert peer.resets
        assert peer.known == ids


@pytest.mark.parametrize("written", [20, 100, 150])
def test_peer_receives_all_changes_of_a_restored_store(tmp_path: Path, written: int) -> None:
    store, peer, ids = put_back(tmp_path, lost=100, written=written)
    with store:
        peer.follow(store)
        assert ids <= peer.known


@pytest.mark.parametrize("written", [20, 100, 150])
def test_peer_is_refused_by_another_history_of_a_restored_store(tmp_path: Path, written: int) -> None:
    store, peer, _ = put_back(tmp_path, lost=100, written=written)
    with store:
        peer.follow(store)
        assert peer.resets
