# SPDX-License-Identifier: Apache-2.0
"""Hard deletes that were interrupted: by a kill, by a full disk, or in the middle of a record."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs

from compactlib.blobstore import Blob, BlobReader, BlobStore, BlobStoreConfig, GetOptions, RecordKind
from compactlib.blobstore.policy import SEGMENT_HEADER_BYTES
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, StorageError
from compactlib.testing import FilesInFront, Killed, Request

EVERYTHING = GetOptions(include_deleted=True, include_expired=True)
CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, deleted_retention_seconds=2.0, hard_delete=True,
                         durability="interval")
LONGER = attrs.evolve(CONFIG, deleted_retention_seconds=1e6)
DELETED = [b"%d" % number for number in range(0, 20, 2)]


class Disk:
    """A step at which the process is killed at some change, and the disk may have no room, also only for folders."""

    def __init__(self) -> None:
        self.left: int | None = None
        self.is_full = False
        self.refuses_folders = False

    def __call__(self, request: Request, act: Callable[[], Any]) -> Any:
        if self.left is not None and request.changes:
            self.left -= 1
            if self.left < 0:
                raise Killed(str(request))
        if (self.is_full and request.needs_room) or (self.refuses_folders and request.kind == "sync folder"):
            raise StorageError.from_os(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), request.kind, request.path)
        return act()


def killed_in_a_hard_delete(folder: Path, clock: ManualClock, disk: Disk, left: int) -> bool:
    """Whether it was killed before it had ended."""
    store = BlobStore(folder, CONFIG, clock=clock, files=FilesInFront(disk))
    for number in range(40):
        store.put(b"%d" % number, b"content %d;" % number * 50)
    for key in DELETED:
        store.delete(key)
    store.flush()
    clock.advance(10.0)
    disk.left = left
    is_killed = False
    try:
        store.reclaim()
    except Killed:
        is_killed = True
    with contextlib.suppress(Killed):
        store.close()
    disk.left = None
    return is_killed


def test_blob_that_is_put_again_stays(tmp_path: Path) -> None:
    """A reader answers the same as the owner."""
    left, came_back = 0, 0
    while True:
        disk, clock, folder = Disk(), ManualClock(1_700_000_000.0), tmp_path / str(left)
        if not killed_in_a_hard_delete(folder, clock, disk, left):
            break
        disk.is_full = True
        with BlobStore(folder, LONGER, clock=clock, files=FilesInFront(disk)) as store:
            disk.is_full = False
            with BlobReader(folder, LONGER, clock=clock) as reader:
                assert [reader.get(key, EVERYTHING) for key in DELETED] == [store.get(key, EVERYTHING)
                                                                            for key in DELETED]
            back = []
            for key in DELETED:
                with contextlib.suppress(CompactlibError):
                    store.undelete(key)
                    back.append(key)
        with BlobStore(folder, LONGER, clock=clock) as store:
            for key in back:
                found = store.get(key)
                assert isinstance(found, Blob), (left, key, found)
                assert found.content == b"content %s;" % key * 50
            assert store.verify().is_sound
        left, came_back = left + 2, came_back + len(back)
    assert left > 20
    assert came_back


def test_blob_revived_after_a_refused_sync_of_the_folder_stays(tmp_path: Path) -> None:
    """The note of the hard delete is in the folder then, although its write was refused."""
    clock, disk = ManualClock(1_700_000_000.0), Disk()
    with BlobStore(tmp_path / "store", CONFIG, clock=clock, files=FilesInFront(disk)) as store:
        for number in range(40):
            store.put(b"%d" % number, b"content %d;" % number * 50)
        for key in DELETED:
            store.delete(key)
        clock.advance(10.0)
        disk.refuses_folders = True
        assert store.reclaim().is_partial
        disk.refuses_folders = False
        for key in DELETED:
            store.append_replicated(RecordKind.UNDELETE, key, op_time=clock.now(), life_version=1)
        before = [store.get(key, EVERYTHING) for key in DELETED]
        store.reclaim()
        assert [store.get(key, EVERYTHING) for key in DELETED] == before
        assert store.verify().is_sound


def test_folder_opens_with_a_record_torn_by_a_hard_delete(tmp_path: Path) -> None:
    """The record is named by no index; if the note of the hard delete names it, opening makes it whole."""
    left = made_whole = 0
    clock = ManualClock(1_700_000_000.0)
    while killed_in_a_hard_delete(folder := tmp_path / str(left), clock, Disk(), left):
        for path in folder.glob("*.index"):
            path.unlink()
        with open(folder / "0_0.log", "r+b") as log:
            log.seek(SEGMENT_HEADER_BYTES)
            log.write(bytes(8))
        with BlobReader(folder, CONFIG, clock=clock) as reader:
            assert reader.damage
            assert not any(reader.get(key) for key in DELETED)
        with BlobStore(folder, CONFIG, clock=clock) as store:
            assert not any(store.get(key) for key in DELETED)
            made_whole += not store.recovery.damage and store.verify().is_sound
        left += 2
    assert left > 20
    assert made_whole


def test_report_counts_what_was_overwritten(tmp_path: Path) -> None:
    """The disk fills up after the note was written: its records still hold their contents."""
    clock, disk = ManualClock(1_700_000_000.0), Disk()

    def fills_up(request: Request, act: Callable[[], Any]) -> Any:
        answer = disk(request, act)
        if "HARD_DELETE" in request.path and request.kind == "rename":
            disk.is_full = True
        return answer

    with BlobStore(tmp_path / "store", CONFIG, clock=clock, files=FilesInFront(fills_up)) as store:
        for number in range(40):
            store.put(b"%d" % number, b"content %d;" % number * 50)
        for key in DELETED:
            store.delete(key)
        clock.advance(10.0)
        report = store.reclaim()
        assert report.is_partial
        held = b"".join(path.read_bytes() for path in (tmp_path / "store").glob("*.log"))
        assert report.erased_records == sum(b"content %s;" % key * 50 not in held for key in DELETED)
        disk.is_full = False
