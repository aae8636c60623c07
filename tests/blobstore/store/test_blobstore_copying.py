# SPDX-License-Identifier: Apache-2.0
"""A store is copied into one of another shape: everything answers as before, and a failure leaves no copy."""

from __future__ import annotations

import errno
import random
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import (
    Blob,
    BlobReader,
    BlobStore,
    BlobStoreConfig,
    CompactAll,
    Deleted,
    GetOptions,
    RecordKind,
    StoreFull,
)
from compactlib.blobstore.errors import BlobTooLarge
from compactlib.blobstore.model.values import BlobInfo, RecordFlag
from compactlib.blobstore.store.copying import copy_store
from compactlib.blobstore.store.replication import records_after
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, Busy, CorruptData, InvalidInput, StorageError
from compactlib.files import LocalFiles
from compactlib.files.disk import StrPath
from compactlib.outcome import Done, Skipped
from compactlib.runtime import Budget
from tests.blobstore.compaction_stores import flip
from tests.tools.faults.plan import FailingFiles, Fault

ONE = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 16, deleted_retention_seconds=10.0, max_blob_bytes=0,
                      ttl_update_buffer_seconds=0.0, journal_max_entries=0, pace=None, durability="interval")
MANY = attrs.evolve(ONE, segment_bytes=1 << 12)
EVERYTHING = GetOptions(include_deleted=True, include_expired=True)
IDS = [f"blob {number}" for number in range(40)]


def built(folder: Path, clock: ManualClock) -> BlobStore:
    """Blobs that live, live again, are permanent, expire, are deleted, and one whose content was erased."""
    store = BlobStore(folder, ONE, clock=clock, policy=CompactAll(min_used_fraction=0.0))
    for number, blob_id in enumerate(IDS):
        store.put(blob_id, random.Random(number).randbytes(number * 30), account=number, container=7,
                  ttl_seconds=500.0 if number % 3 else None)
        clock.advance(0.125)
    for blob_id in IDS[::4]:
        store.delete(blob_id)
    for blob_id in IDS[::8]:
        store.undelete(blob_id)
    store.ttl_update(IDS[1])
    clock.advance(1.0)
    return store


def answers(store: BlobStore | BlobReader) -> list[Any]:
    return [(store.get(each), store.get(each, EVERYTHING)) for each in IDS]


def records(store: BlobStore) -> list[tuple[Any, ...]]:
    return [(entry.id, entry.kind, entry.flags & RecordFlag.TTL_UPDATED, entry.life_version, entry.op_time_ms,
             entry.expires_ms, entry.account, entry.container, entry.size)
            for entry in records_after(store.snapshot(), 0)]


def test_a_log_of_one_segment_says_why_it_is_never_compacted_and_its_copy_is(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with built(tmp_path / "one", clock) as store:
        clock.advance(11.0)
        skipped = store.compact()
        assert isinstance(skipped, Skipped)
        assert "the log has one segment" in skipped.reason
        assert "copy_store" in skipped.reason
        plain = answers(store)
        done = copy_store(store, tmp_path / "many", MANY, clock=clock)
        assert (done.records, done.left_out) == (store.status().records, 0)
        with BlobStore(tmp_path / "many", MANY, clock=clock, policy=CompactAll(min_used_fraction=0.0)) as copy:
            assert answers(copy) == plain
            assert records(copy) == records(store)
            assert copy.incarnation != store.incarnation
            assert len(copy.snapshot().segments) > 3
            assert not copy.verify().findings
            assert isinstance(copy.compact(), Done)
            assert [found for found, _ in answers(copy)] == [
                attrs.evolve(found, content_gone=True) if isinstance(found, Deleted) else found for found, _ in plain]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many", "one"]


def test_a_blob_that_expires_does_so_in_the_copy_whatever_the_one_was_that_it_outdid(tmp_path: Path) -> None:
    clock = ManualClock(1_000.0)
    with BlobStore(tmp_path / "one", ONE, clock=clock) as store:
        for kind, content, at, life, expires in (
                (RecordKind.PUT, b"1", 1_000.0, 0, None), (RecordKind.UNDELETE, b"", 1_007.0, 1, None),
                (RecordKind.PUT, b"2", 1_001.0, 1, 9_000.0)):
            store.append_replicated(kind, "a", content, op_time=at, life_version=life, expires_at=expires,
                                    permanent=expires is None)
        copy_store(store, tmp_path / "two", MANY, clock=clock)
        with BlobStore(tmp_path / "two", MANY, clock=clock) as copy:
            assert copy.get("a") == store.get("a")
            info = copy.info("a")
            assert isinstance(info, BlobInfo)
            assert info.expires_at == 9_000.0


def test_a_reader_will_do_while_the_owner_goes_on(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with built(tmp_path / "one", clock) as store, BlobReader(tmp_path / "one", ONE, clock=clock) as reader:
        plain = answers(store)
        store.put("later", b"not in it")
        copy_store(reader, tmp_path / "many", MANY, clock=clock)
        with BlobStore(tmp_path / "many", MANY, clock=clock) as copy:
            assert answers(copy) == plain
            assert copy.status().records == store.status().records - 1


def test_what_was_erased_has_no_content_in_the_copy(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with built(tmp_path / "one", clock) as store:
        copy_store(store, tmp_path / "many", MANY, clock=clock)
    with BlobStore(tmp_path / "many", MANY, clock=clock) as store:
        clock.advance(11.0)
        store.close_active_segment()
        erased = store.hard_delete(budget=Budget())
        assert isinstance(erased, Done)
        assert erased.stats.records == 5
        plain = answers(store)
        assert copy_store(store, tmp_path / "again", MANY, clock=clock).left_out == 5
        with BlobStore(tmp_path / "again", MANY, clock=clock) as copy:
            assert answers(copy) == plain


@pytest.mark.parametrize("case", ["full", "full cache", "too large", "damaged", "spent", "refused"])
def test_a_failure_leaves_no_copy(case: str, tmp_path: Path) -> None:
    clock, settings = ManualClock(1_000_000.0), MANY
    how: dict[str, Any] = {}
    expected: type[Exception] = StorageError
    with built(tmp_path / "one", clock) as store:
        if case.startswith("full"):
            # What expires is not given up for the rest: then it would not be a copy.
            settings = attrs.evolve(MANY, capacity_bytes=1 << 13, evicts=case == "full cache")
            expected = StoreFull
        elif case == "too large":
            settings, expected = attrs.evolve(MANY, segment_bytes=1024), BlobTooLarge
        elif case == "damaged":
            entry = store.snapshot().history(b"blob 30")[0]
            flip(tmp_path / "one" / entry.segment.log_file, entry.end - 5)
            expected = CorruptData
        elif case == "spent":
            how, expected = {"budget": Budget(total_bytes=5_000)}, BudgetSpent
        else:
            how = {"files": FailingFiles(fail_at=30, errno=errno.EIO, sticky=True)}
        with pytest.raises(expected):
            copy_store(store, tmp_path / "many", settings, clock=clock, **how)
        assert [path.name for path in tmp_path.iterdir() if path.name == "many"] == []
        if case != "refused":
            assert [path.name for path in tmp_path.iterdir()] == ["one"]


@pytest.mark.parametrize("carried_out", [True, False], ids=["its name", "its sync"])
def test_a_copy_whose_last_step_is_refused_is_not_there(carried_out: bool, tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    counted = FailingFiles()
    with built(tmp_path / "one", clock) as store:
        copy_store(store, tmp_path / "counted", MANY, clock=clock, files=counted)
        last, fault = (counted.count - 1, Fault.UNKNOWN_DONE) if carried_out else (counted.count, Fault.REFUSED)
        refusing = FailingFiles(faults=lambda number: fault if number == last else None)
        with pytest.raises(StorageError):
            copy_store(store, tmp_path / "many", MANY, clock=clock, files=refusing)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["counted", "one"]
        copy_store(store, tmp_path / "many", MANY, clock=clock)


def test_a_copy_that_another_one_overtakes_leaves_it_alone(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    others: list[BlobStore] = []

    class Overtaken(LocalFiles):
        def make_folder(self, path: StrPath) -> None:
            others.append(BlobStore(path, MANY, clock=clock))
            others[0].put("theirs", b"content")
            super().make_folder(path)

    with built(tmp_path / "one", clock) as store:
        with pytest.raises((StorageError, Busy)):
            copy_store(store, tmp_path / "many", MANY, clock=clock, files=Overtaken())
        others[0].close()
        with BlobStore(tmp_path / "many.copying", MANY, clock=clock) as other:
            assert isinstance(other.get("theirs"), Blob)


def test_a_folder_that_is_there_is_left_alone(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    with built(tmp_path / "one", clock) as store:
        for name in ("many", "other.copying"):
            (tmp_path / name).mkdir()
            with pytest.raises(InvalidInput, match="exists"):
                copy_store(store, tmp_path / name.removesuffix(".copying"), MANY)
