# SPDX-License-Identifier: Apache-2.0
"""A disk that does not let a blob store look at its files for a moment: nothing is lost, nor said that is not done."""

from __future__ import annotations

import contextlib
from pathlib import Path

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, CompactAll
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, StorageError
from compactlib.outcome import Done, Failed
from tests.harness.unseen import Unseen

CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, journal_max_entries=3, max_blob_bytes=0,
                         deleted_retention_seconds=0, index_max_entries=4, purge_tombstones=True)


class Life:
    """A store that puts, deletes, overwrites and compacts, and what it has said of that.

    Attributes:
        kept: what must be there.
        gone: what was deleted.
        erased: what is overwritten, if the store says so.
    """

    def __init__(self, folder: Path) -> None:
        self.kept: dict[bytes, bytes] = {}
        self.gone: dict[bytes, bytes] = {}
        self.erased: dict[bytes, bytes] = {}
        self._folder = folder
        self._clock = ManualClock(1e6)

    def opened(self) -> BlobStore:
        """The store."""
        return BlobStore(self._folder, CONFIG, policy=CompactAll(), clock=self._clock)

    def work(self, store: BlobStore) -> None:
        """What is refused is left at that."""
        for number in range(12):
            key, content = b"%d" % number, b"<%d>" % number * 200
            with contextlib.suppress(CompactlibError):
                store.put(key, content, ttl_seconds=1e9)
                self.kept[key] = content
        # Of the first segment, whatever was refused: no hard delete overwrites what lies in the one that is written to.
        for number in (0, 3):
            key = b"%d" % number
            content = self.kept.pop(key, b"")
            with contextlib.suppress(CompactlibError):
                store.delete(key)
                self.gone[key] = content
        self._clock.advance(10)
        with contextlib.suppress(CompactlibError):
            if isinstance(store.hard_delete(), Done):
                self.erased = dict(self.gone)
        for _ in range(2):
            with contextlib.suppress(CompactlibError):
                store.compact()
        with contextlib.suppress(CompactlibError):
            store.reclaim()

    def check(self, store: BlobStore) -> None:
        """It is whole, has what it has acknowledged, and nothing that was deleted."""
        store.audit()
        assert store.verify().is_sound
        for key, content in self.kept.items():
            found = store.get(key)
            assert isinstance(found, Blob), key
            assert found.content == content
        assert not [key for key in self.gone if isinstance(store.get(key), Blob)]
        data = b"".join(path.read_bytes() for path in self._folder.iterdir() if ".log" in path.name)
        assert not [key for key, content in self.erased.items() if content in data], "said to be overwritten"


def test_a_look_that_the_disk_refuses_at_work_is_told_and_loses_nothing(tmp_path: Path) -> None:
    looks = 1
    number = 0
    while number <= looks:
        folder = tmp_path / str(number)
        life = Life(folder)
        with life.opened() as store:
            unseen = Unseen(folder, number)
            with unseen.in_force():
                life.work(store)
            life.check(store)
            assert not isinstance(again := store.compact(), Failed), again
        for _ in range(2):
            with life.opened() as store:
                assert not store.recovery.damage
                life.check(store)
        if number == 0:
            looks = unseen.looks
            assert life.erased
        number += 1
    assert looks > 10


def test_a_look_that_the_disk_refuses_at_opening_takes_nothing_for_damaged(tmp_path: Path) -> None:
    life = Life(tmp_path / "store")
    with life.opened() as store:
        life.work(store)
    looks = 1
    number = 0
    while number <= looks:
        unseen = Unseen(tmp_path / "store", number)
        with contextlib.suppress(StorageError), unseen.in_force(), life.opened() as store:
            assert not store.recovery.damage
            life.check(store)
        with life.opened() as store:
            life.check(store)
        if number == 0:
            looks = unseen.looks
        number += 1
    assert looks > 5
