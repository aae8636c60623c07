# SPDX-License-Identifier: Apache-2.0
"""A store through its methods: what each answers, and which error it raises for what it refuses."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, Deleted, Expired, GetOptions, Missing, RecordKind
from compactlib.blobstore.errors import (
    AlreadyUndeleted,
    BlobDeleted,
    BlobExists,
    BlobExpired,
    BlobMissing,
    BlobTooLarge,
    DeletedForGood,
    NotDeleted,
    StoreFull,
    TtlAlreadyUpdated,
    TtlUpdateTooLate,
)
from compactlib.blobstore.model.values import MAX_ID_BYTES, BlobInfo
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES
from compactlib.blobstore.segment.records import record_size
from compactlib.clock import ManualClock
from compactlib.errors import DiskFull, InvalidInput

START = 1_000_000.0
DAY = 86_400.0


def small(**changes: Any) -> BlobStoreConfig:
    return BlobStoreConfig(**{"capacity_bytes": 1 << 14, "segment_bytes": 1 << 12, **changes})


def store_in(folder: Path, clock: ManualClock | None = None, **changes: Any) -> BlobStore:
    return BlobStore(folder / "store", small(**changes), clock=clock or ManualClock(START))


# ----------------------------------------------------------------------------------------------------- put and get

def test_a_blob_is_answered_with_its_properties(scratch: Path) -> None:
    with store_in(scratch) as store:
        info = store.put("photo", b"bytes", ttl_seconds=60.5, account=3, container=4)
        assert info == BlobInfo(b"photo", 5, START, START + 60.5, 0, 3, 4, START)
        assert store.get("photo") == store.get(b"photo") == Blob(info, b"bytes")
        assert store.info("photo") == info


def test_an_id_that_was_never_put_is_missing(scratch: Path) -> None:
    with store_in(scratch) as store:
        assert store.get("x") == Missing(b"x") == store.info("x")


def test_text_and_bytes_name_the_same_blob(scratch: Path) -> None:
    with store_in(scratch) as store:
        store.put("naïve", b"1")
        assert isinstance(store.get("naïve".encode()), Blob)


@pytest.mark.parametrize("blob_id", ["", b"", b"x" * (MAX_ID_BYTES + 1), "ä" * MAX_ID_BYTES, 7, None])
def test_an_id_that_is_empty_too_long_or_of_another_type_is_refused(blob_id: Any, scratch: Path) -> None:
    with store_in(scratch) as store:
        for call in (store.get, store.delete, store.undelete, store.ttl_update, store.info):
            with pytest.raises(InvalidInput, match="blob id"):
                call(blob_id)
        with pytest.raises(InvalidInput, match="blob id"):
            store.put(blob_id, b"")
        store.put(b"x" * MAX_ID_BYTES, b"as long as it may be")


@pytest.mark.parametrize("ttl", [-1, -0.001, float("nan"), float("inf"), 1e300])
def test_a_time_to_live_that_is_none_is_refused(ttl: float, scratch: Path) -> None:
    with store_in(scratch) as store:
        with pytest.raises(InvalidInput):
            store.put("x", b"", ttl_seconds=ttl)
        assert store.get("x") == Missing(b"x")


@pytest.mark.parametrize("tags", [{"account": -1}, {"container": 1 << 32}])
def test_account_and_container_have_32_bits(tags: dict[str, Any], scratch: Path) -> None:
    with store_in(scratch) as store, pytest.raises(InvalidInput, match="account"):
        store.put("x", b"", **tags)


def test_an_id_is_used_once_while_its_blob_is_live_or_deleted(scratch: Path) -> None:
    clock = ManualClock(START)
    with store_in(scratch, clock) as store:
        store.put("live", b"")
        store.put("gone", b"")
        store.delete("gone")
        store.put("old", b"", ttl_seconds=1)
        store.put("old and gone", b"", ttl_seconds=1)
        store.delete("old and gone")
        clock.advance(2)
        for blob_id, was in (("live", "put before"), ("gone", "deleted")):
            with pytest.raises(BlobExists, match=f"{was}.*replace=True"):
                store.put(blob_id, b"again")
        for blob_id, life in (("old", 0), ("old and gone", 1)):
            assert store.put(blob_id, b"again", ttl_seconds=5).life_version == life
            found = store.get(blob_id)
            assert isinstance(found, Blob)
            assert (found.content, found.info.expires_at) == (b"again", START + 7)


@pytest.mark.parametrize("steps", ["", "permanent", "delete", "delete undelete", "expire", "compact", "clock back"])
def test_a_blob_may_be_replaced_whatever_has_become_of_it(steps: str, scratch: Path) -> None:
    clock = ManualClock(START)
    with store_in(scratch, clock) as store:
        store.put("a", b"first", ttl_seconds=100_000)
        for step in steps.split():
            match step:
                case "permanent":
                    store.ttl_update("a")
                case "delete":
                    store.delete("a")
                case "undelete":
                    store.undelete("a")
                case "expire":
                    clock.advance(100_001)
                case "compact":
                    store.close_active_segment()
                case _:
                    clock.set_now(START - 30)
        before = store.snapshot().history(b"a")[-1]
        store.put("a", b"second", replace=True, ttl_seconds=50)
        for _ in range(2):
            found = store.get("a", GetOptions(include_deleted=True, include_expired=True))
            assert isinstance(found, Blob)
            assert (found.content, found.info.life_version) == (b"second", before.life_version + (steps == "delete"))
            assert found.info.expires_at == clock.now() + 50
            assert found.info.put_at * 1000 > before.op_time_ms
            store.close_active_segment()
        with pytest.raises(BlobExists):
            store.put("a", b"third")
        store.delete("a")
        store.undelete("a")
        clock.advance(51)
        assert isinstance(store.get("a"), Expired)
        store.audit()
        assert not store.verify().findings


def test_a_blob_that_fills_a_segment_fits_and_one_byte_more_does_not(scratch: Path) -> None:
    room = (1 << 12) - SEGMENT_HEADER_BYTES - record_size(1, 0)
    with store_in(scratch) as store:
        store.put("a", b"x" * room)
        with pytest.raises(BlobTooLarge) as refused:
            store.put("b", b"x" * (room + 1))
        assert (refused.value.record_bytes, refused.value.limit_bytes) == ((1 << 12) - SEGMENT_HEADER_BYTES + 1,
                                                                           (1 << 12) - SEGMENT_HEADER_BYTES)
        assert store.status().segments == 1


def test_a_full_log_refuses_writes_and_goes_on_reading(scratch: Path) -> None:
    with store_in(scratch) as store:
        for number in range(4):
            store.put(f"{number}", b"x" * 3800)
        with pytest.raises(StoreFull) as full:
            store.put("more", b"x" * 3800)
        assert isinstance(full.value, DiskFull)
        assert (full.value.capacity_bytes, full.value.wanted_bytes) == (1 << 14, record_size(4, 3800))
        assert store.get("more") == Missing(b"more")
        store.put("small", b"x")
        assert isinstance(store.get("3"), Blob)
        store.audit()


# --------------------------------------------------------------------------------------------------------- content

def test_put_takes_any_bytes(scratch: Path) -> None:
    with store_in(scratch) as store:
        assert store.put("v", memoryview(b"view")).size_bytes == store.put("w", bytearray(b"four")).size_bytes == 4
        found = [store.get(key) for key in "vw"]
        assert [answer.content for answer in found if isinstance(answer, Blob)] == [b"view", b"four"]


@pytest.mark.parametrize("content", [io.BytesIO(b"abc"), "text", 7, [1, 2]])
def test_put_refuses_what_is_no_bytes(content: Any, scratch: Path) -> None:
    with store_in(scratch) as store:
        with pytest.raises(TypeError):
            store.put("x", content)
        assert store.get("x") == Missing(b"x")


# ------------------------------------------------------------------------------------------------------ time to live

def test_a_blob_is_live_at_its_expiry_and_expired_a_millisecond_later(scratch: Path) -> None:
    clock = ManualClock(START)
    with store_in(scratch, clock) as store:
        store.put("x", b"1", ttl_seconds=1.234)
        clock.set_now(START + 1.234)
        assert isinstance(store.get("x"), Blob)
        clock.set_now(START + 1.235)
        assert store.get("x") == Expired(b"x", START + 1.234)
        assert isinstance(store.get("x", GetOptions(include_expired=True)), Blob)
        assert store.get("x", GetOptions(include_deleted=True)) == Expired(b"x", START + 1.234)


def test_a_blob_made_permanent_does_not_expire(scratch: Path) -> None:
    clock = ManualClock(START)
    with store_in(scratch, clock) as store:
        store.put("x", b"1", ttl_seconds=2 * DAY)
        assert store.ttl_update("x").expires_at is None
        clock.advance(3 * DAY)
        assert isinstance(store.get("x"), Blob)
        with pytest.raises(TtlAlreadyUpdated):
            store.ttl_update("x")


def test_a_ttl_update_has_to_come_before_the_buffer(scratch: Path) -> None:
    clock = ManualClock(START)
    with store_in(scratch, clock) as store:
        store.put("early", b"", ttl_seconds=DAY)
        store.put("late", b"", ttl_seconds=DAY - 0.001)
        store.ttl_update("early")
        with pytest.raises(TtlUpdateTooLate):
            store.ttl_update("late")
        clock.advance(DAY)
        with pytest.raises(BlobExpired):
            store.ttl_update("late")
        with pytest.raises(BlobMissing):
            store.ttl_update("never")


# -------------------------------------------------------------------------------------------- delete and undelete

def test_a_deleted_blob_says_so_and_can_be_asked_for(scratch: Path) -> None:
    clock = ManualClock(START)
    with store_in(scratch, clock) as store:
        store.put("x", b"1", ttl_seconds=10)
        clock.advance(1)
        assert store.delete("x") == store.get("x") == Deleted(b"x", START + 1, 0)
        assert isinstance(store.get("x", GetOptions(include_deleted=True)), Blob)
        clock.advance(100)
        # Deleted is the stronger word; asked for deleted blobs, it is told that the blob has expired too.
        assert isinstance(store.get("x"), Deleted)
        assert isinstance(store.get("x", GetOptions(include_expired=True)), Deleted)
        assert isinstance(store.get("x", GetOptions(include_deleted=True)), Expired)
        both = GetOptions(include_deleted=True, include_expired=True)
        assert isinstance(store.get("x", both), Blob)
        with pytest.raises(BlobDeleted):
            store.delete("x")
        with pytest.raises(BlobDeleted):
            store.ttl_update("x")
        with pytest.raises(BlobExpired):
            store.undelete("x")
        with pytest.raises(BlobMissing):
            store.delete("never")
        with pytest.raises(BlobMissing):
            store.undelete("never")


def test_an_undelete_begins_the_next_life(scratch: Path) -> None:
    with store_in(scratch) as store:
        store.put("x", b"1")
        with pytest.raises(NotDeleted) as refused:
            store.undelete("x")
        assert type(refused.value) is NotDeleted
        for life in (1, 2):
            store.delete("x")
            assert store.undelete("x").life_version == life
            found = store.get("x")
            assert isinstance(found, Blob)
            assert (found.info.life_version, found.content) == (life, b"1")
        with pytest.raises(AlreadyUndeleted):
            store.undelete("x")
        assert store.delete("x").life_version == 2


def test_a_delete_can_be_taken_back_as_long_as_the_retention_lasts(scratch: Path) -> None:
    clock = ManualClock(START)
    with store_in(scratch, clock, deleted_retention_seconds=10.0) as store:
        for blob_id in ("in time", "too late"):
            store.put(blob_id, b"")
            store.delete(blob_id)
        clock.advance(10)
        store.undelete("in time")
        clock.advance(0.001)
        with pytest.raises(DeletedForGood):
            store.undelete("too late")


def test_a_tombstone_without_content_says_that_the_content_is_gone(scratch: Path) -> None:
    with store_in(scratch) as store:
        store.append_replicated(RecordKind.DELETE, "x", op_time=START, life_version=2)
        answer = Deleted(b"x", START, 2, content_gone=True)
        assert store.get("x") == store.get("x", GetOptions(include_deleted=True)) == answer
        with pytest.raises(DeletedForGood):
            store.undelete("x")
        store.append_replicated(RecordKind.TTL_UPDATE, "y", op_time=START)
        assert store.get("y") == Missing(b"y")
        store.append_replicated(RecordKind.UNDELETE, "z", op_time=START)
        assert store.get("z") == Missing(b"z")
        with pytest.raises(BlobMissing):
            store.ttl_update("z")


def test_a_replicated_record_that_no_peer_can_have_is_refused(scratch: Path) -> None:
    with store_in(scratch) as store:
        for refused in ({"expires_at": -0.001}, {"op_time": float("inf")}, {"life_version": 1 << 16}):
            with pytest.raises(InvalidInput):
                store.append_replicated(RecordKind.PUT, "x", b"1", **{"op_time": START, **refused})  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="no content"):
            store.append_replicated(RecordKind.DELETE, "x", b"1", op_time=START)
        assert store.get("x") == Missing(b"x")
        store.audit()


def test_a_replicated_put_keeps_its_life_version(scratch: Path) -> None:
    with store_in(scratch) as store:
        store.append_replicated(RecordKind.PUT, "x", b"1", op_time=START, life_version=2, expires_at=START + 5)
        found = store.get("x")
        assert isinstance(found, Blob)
        assert (found.info.life_version, found.info.expires_at) == (2, START + 5)
        assert store.delete("x").life_version == 2
        assert store.undelete("x").life_version == 3
