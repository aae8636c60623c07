# SPDX-License-Identifier: Apache-2.0
"""Arguments that are no good: a named error, or it works; and the store is there afterwards."""

from __future__ import annotations

import math
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import (
    Blob,
    BlobStore,
    BlobStoreConfig,
    Expired,
    GetOptions,
    Missing,
    RecordKind,
    ReplicationToken,
)
from compactlib.blobstore.errors import BlobTooLarge
from compactlib.blobstore.model.values import MAX_ID_BYTES, MAX_TIME_MS
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError, CorruptData, InvalidInput

NOW = 1_000_000.0
CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12)
END = MAX_TIME_MS / 1000 - 2
NO_NUMBERS: tuple[Any, ...] = ("5", b"5", [], 1j, object(), GetOptions)


def opened(folder: Path, config: BlobStoreConfig | None = CONFIG) -> BlobStore:
    return BlobStore(folder / "store", config, clock=ManualClock(NOW))


CALLS: list[Callable[[BlobStore, Any], object]] = [
    lambda store, bad: store.put(bad, b""),
    lambda store, bad: store.put("new", b"", ttl_seconds=bad),
    lambda store, bad: store.put("new", b"", account=bad),
    lambda store, bad: store.put("new", b"", container=bad),
    lambda store, bad: store.get("there", bad),
    lambda store, bad: store.info("there", bad),
    *[lambda store, bad, name=name: getattr(store, name)(bad)
      for name in ("get", "info", "delete", "undelete", "ttl_update")],
    lambda store, bad: store.append_replicated(bad, "new", op_time=1.0),
    *[lambda store, bad, name=name: store.append_replicated(
        RecordKind.PUT, "new", **{"op_time": 1.0, name: bad})
      for name in ("op_time", "expires_at", "life_version", "account", "container")],
    lambda store, bad: store.append_replicated(
        RecordKind.PUT, "new", "text" if isinstance(bad, bytes) else bad, op_time=1.0),  # type: ignore[arg-type]
    lambda store, bad: store.entries_since(bad),
    lambda store, bad: store.entries_since(max_bytes=bad),
    lambda store, bad: ReplicationToken(store.incarnation, bad),
    lambda store, bad: ReplicationToken(bad, 1),
    lambda store, bad: ReplicationToken.from_bytes(bad),
    *[lambda store, bad, name=field.name: attrs.evolve(CONFIG, **{name: bad})
      for field in attrs.fields(BlobStoreConfig) if str(field.type).startswith(("int", "float", "bool"))],
]


@pytest.mark.parametrize("bad", [*NO_NUMBERS, math.nan, math.inf, -math.inf, 10**400, -1],
                         ids=lambda bad: type(bad).__name__)
def test_arguments_of_another_type_or_beyond_all_bounds_are_refused_by_name(bad: Any, scratch: Path) -> None:
    with opened(scratch) as store:
        store.put("there", b"content")
        for number, call in enumerate(CALLS):
            try:
                call(store, bad)
            except CompactlibError:
                pass
            except Exception as error:
                raise AssertionError(f"call {number} of {bad!r} ended in {error!r}") from error
        store.audit()
        found = store.get("there")
        assert isinstance(found, Blob)
        assert found.content == b"content"
    with opened(scratch) as store:
        assert not store.recovery.damage


@pytest.mark.parametrize(("folder", "config"), [(3, None), (None, None), ("store", "config"), ("store", {})])
def test_a_store_is_opened_by_a_path_and_a_configuration(folder: Any, config: Any) -> None:
    with pytest.raises(InvalidInput, match=r"opened by a path and a BlobStoreConfig|(3|None); give a path"):
        BlobStore(folder, config)


def test_ids_of_every_character_and_length(scratch: Path) -> None:
    ids = [*string.printable, *map(chr, range(1, 0x250)), "\0", "\ud800", "\U0010ffff", "../../escape", "a/b", "COM1",
           "x" * MAX_ID_BYTES, b"\xff" * MAX_ID_BYTES]
    keys = {(each if isinstance(each, bytes) else each.encode("utf-8", "surrogatepass")): each for each in ids}
    with opened(scratch, attrs.evolve(CONFIG, capacity_bytes=1 << 18)) as store:
        for key, each in keys.items():
            store.put(each, key)
        store.audit()
    with opened(scratch) as store:
        for key, each in keys.items():
            found = store.get(each)
            assert isinstance(found, Blob)
            assert found.content == key
        for refused in ("", b"", "x" * (MAX_ID_BYTES + 1), "\u20ac" * 342):
            with pytest.raises(InvalidInput, match="1 to 1024 bytes"):
                store.put(refused, b"")
    assert sorted(path.name for path in scratch.iterdir()) == ["store"]


@pytest.mark.parametrize("now", [0.0, -1e9, 1e9, END - 10, -END + 10])
@pytest.mark.parametrize("life", [0.0, 0.001, 1e9, END, END * 2, 1e300])
def test_times_at_both_ends_of_their_range(now: float, life: float, scratch: Path) -> None:
    clock = ManualClock(now)
    with BlobStore(scratch / "store", CONFIG, clock=clock) as store:
        store.put("stays", b"1")
        try:
            store.put("lives", b"2", ttl_seconds=life)
            lives = True
        except InvalidInput:
            lives = False
        store.append_replicated(RecordKind.DELETE, "first", op_time=-END)
        store.append_replicated(RecordKind.DELETE, "last", op_time=END)
        store.delete("stays")
        store.audit()
        answers = [store.get(key) for key in ("stays", "lives", "first", "last")]
    with BlobStore(scratch / "store", CONFIG, clock=clock) as store:
        store.accept_clock()
        assert [store.get(key) for key in ("stays", "lives", "first", "last")] == answers
        assert isinstance(answers[1], Blob if lives else Missing)
        clock.advance(2)
        if lives and life < 1:
            assert isinstance(store.get("lives"), Expired)
        store.put("later", b"3")
        assert not store.recovery.damage


def test_empty_blobs_and_blobs_that_just_fit(scratch: Path) -> None:
    with opened(scratch) as store:
        room = CONFIG.segment_bytes - 80 - 60 - 1
        store.put("e", b"")
        store.put("f", b"x" * room)
        with pytest.raises(BlobTooLarge):
            store.put("g", b"x" * (room + 1))
        store.audit()
    with opened(scratch) as store:
        found = [store.get(key) for key in "efg"]
        assert [answer.content if isinstance(answer, Blob) else answer for answer in found] == [
            b"", b"x" * room, Missing(b"g")]


def test_a_blob_of_a_hundred_megabytes(scratch: Path) -> None:
    size = 100_000_000
    config = BlobStoreConfig(capacity_bytes=1 << 28, segment_bytes=1 << 27)
    content = b"0123456789" * (size // 10)
    with opened(scratch, config) as store:
        store.put("large", content)
        store.put("small", b"1")
    with opened(scratch, config) as store:
        found = store.get("large")
        assert isinstance(found, Blob)
        assert found.content == content
        assert isinstance(store.get("small"), Blob)


def test_a_token_that_was_tampered_with_is_damage() -> None:
    stored = ReplicationToken(b"i" * 16, 5).to_bytes()
    for place in range(len(stored)):
        with pytest.raises(CorruptData):
            ReplicationToken.from_bytes(stored[:place] + bytes([stored[place] ^ 1]) + stored[place + 1:])
        with pytest.raises(CorruptData):
            ReplicationToken.from_bytes(stored[:place])
