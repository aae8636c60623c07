# SPDX-License-Identifier: Apache-2.0
"""A disk that refuses one change after the other: named errors, nothing acknowledged lost, nothing refused kept."""

from __future__ import annotations

import copy
import errno
import itertools
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, GetOptions, Missing
from compactlib.blobstore.config import Durability
from compactlib.blobstore.errors import WritesStopped
from compactlib.clock import ManualClock
from compactlib.errors import StorageError
from compactlib.files import Files, LocalFiles, OutFile
from compactlib.files.disk import StrPath
from compactlib.runtime import Observer
from tests.harness.plain_blob_store import PlainStore, told
from tests.tools.faults.plan import FailingFiles

NOW = 1000.0
NOW_MS = 1_000_000
KEYS = [b"a", b"b", b"c", b"d"]


def opened(folder: Path, files: Files | None, durability: Durability) -> BlobStore:
    config = BlobStoreConfig(capacity_bytes=1 << 14, segment_bytes=1 << 10, index_max_entries=2, durability=durability,
                             ttl_update_buffer_seconds=1)
    return BlobStore(folder / "store", config, files=files, clock=ManualClock(NOW))


def run(folder: Path, files: Files, durability: Durability) -> list[StorageError]:
    """Work on a store, counting only what it acknowledges; the errors that it raised."""
    model = PlainStore(10_000_000_000, 1000)
    in_flight: PlainStore | None = None
    refused = []
    try:
        store = opened(folder, files, durability)
    except StorageError as error:
        return [error]
    steps = [("put", key, number) for number, key in enumerate(KEYS)]
    steps += [("delete", b"a", 0), ("undelete", b"a", 0), ("ttl_update", b"b", 0), ("delete", b"c", 0)]
    for name, key, number in steps:
        content = key * (number * 250)
        after = copy.deepcopy(model)
        arguments = (content, NOW_MS, 900_000) if name == "put" else (NOW_MS,)
        if getattr(after, name)(key, *arguments) is not None:
            # What it builds on was refused.
            continue
        try:
            if name == "put":
                store.put(key, content, ttl_seconds=900)
            else:
                getattr(store, name)(key)
        except StorageError as error:
            refused.append(error)
            if durability == "group" or store.status().stopped:
                # The record may be found there when the store is opened again: the disk would not even take it back.
                in_flight = after
                store.audit()
                break
        else:
            model = after
        store.audit()
        if durability == "each":
            check(store, model)
    try:
        store.close()
    except StorageError as error:
        refused.append(error)
    with opened(folder, None, durability) as again:
        again.audit()
        assert not again.recovery.damage
        check(again, model, in_flight)
        again.put(b"later", b"1")
        assert isinstance(again.get(b"later"), Blob)
    return refused


def check(store: BlobStore, model: PlainStore, in_flight: PlainStore | None = None) -> None:
    """Each blob is as the model has it, or as it would be with what was in flight."""
    models = [model] if in_flight is None else [model, in_flight]
    for key in KEYS:
        assert told(store.get(key)) in [each.expect(key, NOW_MS, GetOptions()) for each in models]


@pytest.mark.parametrize(("number", "short"), [(errno.ENOSPC, False), (errno.ENOSPC, True), (errno.EIO, True)])
@pytest.mark.parametrize("sticky", [False, True])
def test_each_change_that_the_disk_refuses_is_told_and_harms_nothing(number: int, short: bool, sticky: bool,
                                                                     scratch: Path) -> None:
    for fail_at in itertools.count(1):
        files = FailingFiles(fail_at=fail_at, errno=number, short_write=short, sticky=sticky)
        (scratch / f"{fail_at}").mkdir()
        run(scratch / f"{fail_at}", files, "each")
        if files.count < fail_at:
            break
    assert fail_at > 30


def test_a_refused_sync_of_several_waiting_writes_is_told(scratch: Path) -> None:
    for fail_at in itertools.count(1):
        files = FailingFiles(fail_at=fail_at, errno=errno.EIO)
        (scratch / f"{fail_at}").mkdir()
        run(scratch / f"{fail_at}", files, "group")
        if files.count < fail_at:
            break
    assert fail_at > 30


class RefusingSync(FailingFiles):
    """Refuses the next change when told to."""

    def arm(self) -> None:
        self._fail_at = self.count + 2


def test_after_a_refused_sync_nothing_more_is_written_and_reading_goes_on(tmp_path: Path) -> None:
    files = RefusingSync()
    with opened(tmp_path, files, "each") as store:
        store.put(b"a", b"1")
        files.arm()
        with pytest.raises(StorageError):
            store.put(b"b", b"2")
        assert store.get(b"b") == Missing(b"b")
        with pytest.raises(WritesStopped, match="open it again"):
            store.put(b"c", b"3")
        assert isinstance(store.get(b"a"), Blob)
        assert store.status().stopped
    with opened(tmp_path, None, "each") as store:
        assert isinstance(store.get(b"a"), Blob)
        store.put(b"c", b"3")


class NoSync(LocalFiles):
    """Refuses to sync segments while it is armed; `before` is called first."""

    def __init__(self) -> None:
        self.armed = False
        self.before: Callable[[], object] = lambda: None

    def create(self, path: StrPath) -> OutFile:
        return NoSyncFile(super().create(path), self)

    def open(self, path: StrPath) -> OutFile:
        return NoSyncFile(super().open(path), self)


class NoSyncFile:
    def __init__(self, out: OutFile, files: NoSync) -> None:
        self._out, self._files = out, files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)

    def sync(self) -> None:
        if self._files.armed and self._out.path.endswith(".log"):
            before, self._files.before = self._files.before, lambda: None
            before()
            raise StorageError(operation="sync", path=self._out.path, errno=errno.EIO)
        self._out.sync()


def test_what_could_not_be_synced_is_told_when_the_store_is_closed_at_the_latest(tmp_path: Path) -> None:
    """The sync that was refused was that of an index which is sealed, and no write's."""
    files = NoSync()
    store = opened(tmp_path, files, "interval")
    store.put(b"a", b"1")
    files.armed = True
    store.put(b"b", b"2")
    assert store.status().stopped
    with pytest.raises(WritesStopped, match="open it again"):
        store.close()
    store.close()
    with opened(tmp_path, None, "interval") as store:
        assert isinstance(store.get(b"a"), Blob)


@pytest.mark.parametrize("entries", [2, 100])
@pytest.mark.parametrize("durability", ["each", "group", "interval"])
def test_a_write_refused_by_a_failed_sync_leaves_no_trace(durability: Durability, entries: int, tmp_path: Path) -> None:
    files, clock = NoSync(), ManualClock(NOW)
    config = BlobStoreConfig(capacity_bytes=1 << 14, segment_bytes=1 << 12, durability=durability,
                             index_max_entries=entries, sync_interval_seconds=5)
    store = BlobStore(tmp_path / "store", config, files=files, clock=clock)
    store.put(b"a", b"1")
    clock.advance(6)
    before = store.snapshot()
    files.armed = True
    with pytest.raises(StorageError):
        store.put(b"b", b"2")
    assert isinstance(store.get(b"b"), Missing)
    assert isinstance(store.info(b"b"), Missing)
    assert store.snapshot().segments == before.segments
    if durability == "interval":
        # It was not synced either: its number may be given again, so no peer hears of it.
        with pytest.raises(WritesStopped):
            store.entries_since(None)
    else:
        assert [entry.id for entry in store.entries_since(None).entries] == [b"a"]
    store.audit()
    for refused in (lambda: store.delete(b"a"), lambda: store.put(b"c", b"3"), store.flush):
        with pytest.raises(WritesStopped):
            refused()
    assert isinstance(store.get(b"a"), Blob)
    store.audit()
    files.armed = False
    if durability == "interval":
        with pytest.raises(WritesStopped):
            store.close()
    store.close()
    with BlobStore(tmp_path / "store", config, clock=clock) as again:
        assert isinstance(again.get(b"a"), Blob)
        assert isinstance(again.get(b"b"), Missing)
        assert not again.recovery.damage


def test_whoever_waits_for_the_same_refused_sync_is_taken_back_too(tmp_path: Path) -> None:
    """While one thread syncs, another writes on top of what it sees; the sync is refused, and so are both."""
    files, clock = NoSync(), ManualClock(NOW)
    config = BlobStoreConfig(capacity_bytes=1 << 14, segment_bytes=1 << 12, durability="group")
    store = BlobStore(tmp_path / "store", config, files=files, clock=clock)
    store.put(b"a", b"1")
    store.put(b"b", b"1")
    errors: list[StorageError] = []

    def second() -> None:
        try:
            store.delete(b"a")
        except StorageError as error:
            errors.append(error)

    other = threading.Thread(target=second)

    def write_meanwhile() -> None:
        other.start()
        while isinstance(store.get(b"a"), Blob):
            pass

    files.armed, files.before = True, write_meanwhile
    with pytest.raises(StorageError):
        store.delete(b"b")
    other.join()
    assert isinstance(errors[0], WritesStopped)
    assert isinstance(store.get(b"a"), Blob)
    assert isinstance(store.get(b"b"), Blob)
    store.audit()
    store.close()


def test_a_group_write_does_not_need_a_second_descriptor(tmp_path: Path) -> None:
    class NoneLeft(LocalFiles):
        armed = False

        def open(self, path: StrPath) -> OutFile:
            if self.armed:
                raise StorageError(operation="open", path=path, errno=errno.EMFILE)
            return super().open(path)

    files = NoneLeft()
    with BlobStore(tmp_path / "store", BlobStoreConfig(durability="group"), files=files) as store:
        files.armed = True
        store.put(b"a", b"1")
        assert isinstance(store.get(b"a"), Blob)
        assert not store.status().stopped



def test_an_observer_is_told_outside_of_the_lock_and_breaks_nothing(tmp_path: Path) -> None:
    """It asks another thread to write, which waits for the lock; then it raises."""
    told: list[str] = []

    class Curious(Observer):
        def event(self, name: str, fields: Mapping[str, Any]) -> None:
            told.append(name)
            thread = threading.Thread(target=lambda: store.put(b"by the observer %d" % len(told), b""))
            thread.start()
            thread.join(10)
            assert not thread.is_alive()
            raise RuntimeError("an observer's own")

    files = FailingFiles()
    config = BlobStoreConfig(capacity_bytes=1 << 14, segment_bytes=1 << 12, index_max_entries=4)
    store = BlobStore(tmp_path / "store", config, files=files, clock=ManualClock(NOW), observer=Curious())
    for name in ("0_0.80.index.tmp", "0_0.80.index.tmp/in the way"):
        (tmp_path / "store" / name).mkdir()
    for number in range(4):
        store.put(b"%d" % number, b"x")
    assert told == ["blobstore_index_not_written"]
    assert isinstance(store.get(b"by the observer 1"), Blob)
    store.audit()
    store.close()
