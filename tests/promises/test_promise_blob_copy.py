# SPDX-License-Identifier: Apache-2.0
"""A copy of a blob store with other segments answers as the store does, or is not made."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import (
    Blob,
    BlobReader,
    BlobStore,
    BlobStoreConfig,
    CompactAll,
    Deleted,
    Expired,
    GetOptions,
    RecordKind,
    StoreFull,
    copy_store,
)
from compactlib.clock import ManualClock
from compactlib.errors import InvalidInput, StorageError
from compactlib.files import LocalFiles, StrPath
from compactlib.testing import FilesInFront, Request

CONFIG = BlobStoreConfig(capacity_bytes=1 << 18, segment_bytes=1 << 13, journal_max_entries=0, max_blob_bytes=0)
LARGER = BlobStoreConfig(capacity_bytes=1 << 20, segment_bytes=1 << 16, journal_max_entries=0, max_blob_bytes=0)
EVERYTHING = GetOptions(include_deleted=True, include_expired=True)
IDS = [b"%d" % number for number in range(40)]


def filled(folder: Path, clock: ManualClock) -> BlobStore:
    """A store with live, deleted, undeleted, permanent and expired blobs; it stays open."""
    store = BlobStore(folder, CONFIG, clock=clock)
    for number, blob_id in enumerate(IDS):
        ttl = [None, 1.0, 1e6][number % 3]
        store.put(blob_id, blob_id * 300, ttl_seconds=ttl, account=number, container=number % 7)
    for blob_id in IDS[::4]:
        store.delete(blob_id)
    for blob_id in IDS[::8]:
        store.undelete(blob_id)
    store.ttl_update(IDS[2])
    clock.advance(60.0)
    return store


@pytest.mark.parametrize("is_read", [False, True], ids=["open store", "reader"])
def test_copy_answers_as_its_source(tmp_path: Path, is_read: bool) -> None:
    clock = ManualClock(1_700_000_000.0)
    with filled(tmp_path / "store", clock) as store, BlobReader(tmp_path / "store", CONFIG, clock=clock) as reader:
        done = copy_store(reader if is_read else store, tmp_path / "copy", LARGER, clock=clock)
        assert done.left_out == 0
        assert done.records >= len(IDS)
        with BlobStore(tmp_path / "copy", LARGER, clock=clock) as copy:
            kinds = set()
            for blob_id in IDS:
                for options in (GetOptions(), EVERYTHING):
                    found, wanted = copy.get(blob_id, options), store.get(blob_id, options)
                    assert found == wanted
                    kinds.add(type(found))
            assert kinds == {Blob, Deleted, Expired}
            assert copy.verify().is_sound


def test_nothing_is_left_of_a_copy_without_room(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000.0)
    tiny = BlobStoreConfig(capacity_bytes=1 << 13, segment_bytes=1 << 12, max_blob_bytes=0)
    with filled(tmp_path / "store", clock) as store:
        with pytest.raises(StoreFull):
            copy_store(store, tmp_path / "copy", tiny, clock=clock)
        assert [path.name for path in tmp_path.iterdir()] == ["store"]


class RefusesRenames(LocalFiles):
    """A disk that gives no folder another name."""

    def rename(self, source: StrPath, target: StrPath) -> None:
        if os.path.isdir(source):
            raise StorageError.from_os(OSError(errno.EIO, "refused"), "rename", target)
        super().rename(source, target)


def test_nothing_is_left_of_a_copy_that_cannot_get_its_name(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000.0)
    with filled(tmp_path / "store", clock) as store:
        with pytest.raises(StorageError, match=r"refused|rename"):
            copy_store(store, tmp_path / "copy", LARGER, files=RefusesRenames(), clock=clock)
        assert [path.name for path in tmp_path.iterdir()] == ["store"]
        copy_store(store, tmp_path / "copy", LARGER, clock=clock)


def test_copy_into_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    clock = ManualClock(1_700_000_000.0)
    (tmp_path / "copy").mkdir()
    with filled(tmp_path / "store", clock) as store, pytest.raises(InvalidInput):
        copy_store(store, tmp_path / "copy", LARGER, clock=clock)
    assert list((tmp_path / "copy").iterdir()) == []


@pytest.mark.parametrize("is_deleted", [False, True])
def test_copy_of_a_blob_that_a_peer_replaces_meanwhile(tmp_path: Path, is_deleted: bool) -> None:
    """At each write of the copy in turn. The copy answers as the store did before, or as it does afterwards."""
    for number in count():
        clock, writes = ManualClock(1_700_000_000.0), count()
        with BlobStore(tmp_path / f"store {number}", CONFIG, clock=clock) as store:

            def step(request: Request, act: Callable[[], Any], store: BlobStore = store, number: int = number,
                     writes: count[int] = writes) -> Any:
                if request.kind == "write" and next(writes) == number:
                    store.append_replicated(RecordKind.PUT, b"x", b"new", op_time=1_700_000_100.0, life_version=1)
                return act()

            store.put(b"another", b"record")
            store.put(b"x", b"old")
            store.put(b"third", b"record")
            if is_deleted:
                store.delete(b"x")
            before = store.get(b"x")
            copy_store(store, tmp_path / f"copy {number}", LARGER, files=FilesInFront(step), clock=clock)
            with BlobStore(tmp_path / f"copy {number}", LARGER, clock=clock) as copy:
                assert copy.get(b"x") in (before, store.get(b"x"))
        if next(writes) <= number:
            break


def test_copy_of_a_blob_that_was_replaced_since_the_reader_has_read(tmp_path: Path) -> None:
    """Its old record is gone from the folder, which the reader reads again during the copy."""
    clock = ManualClock(1_700_000_000.0)
    with filled(tmp_path / "store", clock) as store, BlobReader(tmp_path / "store", CONFIG, clock=clock) as reader:
        store.put(IDS[0], b"new", replace=True)
        assert not store.compact(policy=CompactAll(min_used_fraction=0.0)).is_empty
        copy_store(reader, tmp_path / "copy", LARGER, clock=clock)
        with BlobStore(tmp_path / "copy", LARGER, clock=clock) as copy:
            assert copy.get(IDS[0]) == store.get(IDS[0])
