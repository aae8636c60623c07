# SPDX-License-Identifier: Apache-2.0
"""An observer is called under no lock of the store: it may write to the store, and close it."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, RecordKind, StoreFull
from compactlib.clock import ManualClock
from compactlib.errors import Closed, DiskFull, StorageError
from compactlib.observer import EventRecorder
from compactlib.testing import FilesInFront, Request

NOW = 1_000_000.0


class At(EventRecorder):
    """Makes a call at the first event of a name, once it is armed."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.call: Callable[[], object] | None = None
        self.is_done = False

    def event(self, name: str, /, **fields: Any) -> None:
        super().event(name, **fields)
        if name == self.name and self.call is not None:
            call, self.call = self.call, None
            call()
            self.is_done = True


def refusing(*endings: str) -> FilesInFront:
    """Return a disk that has no room for new files with such a name."""
    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "create" and request.path.endswith(endings):
            raise StorageError.from_os(OSError(errno.ENOSPC, "no room"), "create", request.path)
        return act()

    return FilesInFront(step)


def put(store: BlobStore) -> None:
    assert store.put(b"other", b"content").size_bytes == 7


def get(store: BlobStore) -> None:
    found = store.get(b"key")
    assert isinstance(found, Blob)
    assert found.content == b"content"


def miss(store: BlobStore) -> None:
    assert not store.get(b"unknown")


def replicate(store: BlobStore) -> None:
    counted = store.append_replicated(RecordKind.PUT, b"key", b"of a peer", op_time=NOW + 1.0)
    assert counted.op_time_ms == 1000 * (NOW + 1.0)


def fill_a_part(store: BlobStore) -> None:
    """Put as many records as a part of the index has; its file is refused."""
    for number in range(15):
        assert store.put(b"%d" % number, b"content").size_bytes == 7


@pytest.mark.parametrize("durability", ["each", "group"])
@pytest.mark.parametrize(("call", "event"), [
    (put, "blobstore_put_bytes"), (get, "blobstore_hits"), (miss, "blobstore_misses"),
    (replicate, "blobstore_put_twice"), (fill_a_part, "blobstore_index_not_written")])
def test_observer_closes_the_store(call: Callable[[BlobStore], None], event: str, durability: Any,
                                   tmp_path: Path) -> None:
    """The call whose event it is returns its result, and the next one is refused."""
    config = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, durability=durability)
    observer = At(event)
    with BlobStore(tmp_path / "store", config, clock=ManualClock(NOW), observer=observer,
                   files=refusing(".index") if call is fill_a_part else None) as store:
        store.put(b"key", b"content")
        observer.call = store.close
        call(store)
        assert observer.is_done
        with pytest.raises(Closed):
            store.get(b"key")
    with BlobStore(tmp_path / "store", config) as store:
        assert isinstance(store.get(b"key"), Blob)


def test_put_of_an_observer_during_an_eviction_is_refused(tmp_path: Path) -> None:
    """The disk has no room for the compaction of an eviction, and the observer puts a blob into the full log."""
    observer, refusals = At("store_compactions"), list[StoreFull]()
    config = BlobStoreConfig.cache(1 << 16, max_blob_bytes=600)
    with BlobStore(tmp_path / "store", config, observer=observer, files=refusing(".temp")) as store:

        def put_more() -> None:
            with pytest.raises(StoreFull) as refused:
                store.put(b"of the observer", bytes(3900))
            refusals.append(refused.value)

        observer.call = put_more
        with contextlib.suppress(DiskFull):
            for number in range(1000):
                store.put(b"%d" % number, bytes(900), ttl_seconds=None if number % 2 else 1000.0 + number)
        assert refusals
        assert isinstance(store.get(b"1"), Blob)


def test_interrupt_while_an_opening_reports_a_repair_leaves_no_lock(tmp_path: Path) -> None:
    """Also while the exception, and with it what was being opened, is kept."""
    with BlobStore(tmp_path / "store") as store:
        store.put(b"key", b"content")
    log_file, = (tmp_path / "store").glob("*.log")
    with log_file.open("ab") as file:
        file.write(b"torn")

    def interrupted() -> None:
        raise KeyboardInterrupt

    observer = At("blobstore_tail_cut")
    observer.call = interrupted
    with pytest.raises(KeyboardInterrupt) as kept:
        BlobStore(tmp_path / "store", observer=observer)
    with BlobStore(tmp_path / "store") as store:
        assert isinstance(store.get(b"key"), Blob)
        assert kept.tb is not None
