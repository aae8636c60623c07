# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C anywhere in a blob store's work: the store goes on, and holds what it has acknowledged."""

from __future__ import annotations

import contextlib
import itertools
import threading
from pathlib import Path

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, CompactAll
from compactlib.testing.interrupts import interruptions
from tests.harness.effort import Effort

CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, journal_max_entries=3, max_blob_bytes=0,
                         deleted_retention_seconds=0, index_max_entries=4)


def work(store: BlobStore, kept: set[bytes]) -> None:
    """Puts over several segments, deletes, a replacement, a compaction."""
    for number in range(12):
        store.put(b"%d" % number, b"%d" % number * 700, ttl_seconds=1e9)
        kept.add(b"%d" % number)
    for number in range(0, 12, 3):
        kept.discard(b"%d" % number)
        store.delete(b"%d" % number)
    store.ttl_update(b"1")
    store.put(b"2", b"2" * 700, replace=True)
    store.compact()
    store.reclaim()


def check(store: BlobStore, kept: set[bytes]) -> None:
    """It takes blobs from another thread, and holds what it had."""
    def put() -> None:
        for number in range(3):
            store.put(b"more", b"%d" % number * 300, replace=True)

    thread = threading.Thread(target=put, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive(), "a lock was left behind"
    store.audit()
    assert store.verify().is_sound
    for key in kept:
        found = store.get(key)
        assert isinstance(found, Blob), key
        assert found.content == key * 700


def test_an_interrupt_anywhere_leaves_a_store_that_goes_on(tmp_path: Path, effort: Effort) -> None:
    numbers = itertools.count()

    def opened() -> BlobStore:
        return BlobStore(tmp_path / str(next(numbers)), CONFIG, policy=CompactAll())

    with opened() as store:
        plan = list(interruptions(lambda: work(store, set()), effort(80, 4_000)))
    for interrupt in plan:
        kept: set[bytes] = set()
        with opened() as store:
            folder = store.folder
            with contextlib.suppress(KeyboardInterrupt), interrupt:
                work(store, kept)
            check(store, kept)
        with BlobStore(folder, CONFIG, policy=CompactAll()) as store:
            check(store, kept)
