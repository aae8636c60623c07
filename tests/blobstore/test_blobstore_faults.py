"""A disk that refuses one change after the other: named errors, nothing acknowledged lost, nothing refused kept."""

from __future__ import annotations

import copy
import errno
import itertools
from pathlib import Path

import pytest

from compactlib.blobstore.config import BlobStoreConfig, Durability
from compactlib.blobstore.errors import WritesStopped
from compactlib.blobstore.model import Blob, GetOptions, Missing
from compactlib.blobstore.store import BlobStore
from compactlib.clock import ManualClock
from compactlib.errors import StorageError
from compactlib.files import Files
from compactlib.testing import FailingFiles
from tests.blobstore.plain_store import PlainStore, told

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
