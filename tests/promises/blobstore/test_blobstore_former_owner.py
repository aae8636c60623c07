# SPDX-License-Identifier: Apache-2.0
"""No call changes a file of a store after `close`: the next owner has the folder for itself."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compactlib.blobstore import BlobStore, RecordKind, compact_many, copy_store
from compactlib.clock import ManualClock
from compactlib.errors import BudgetSpent, Closed, CompactionFailed
from compactlib.executors import LocalExecutor
from compactlib.files import Files
from tests.harness.blob_stores import config, delete_some, fill, open_store, plan_of
from tests.harness.closing import Closing, close_everywhere
from tests.harness.effort import Effort

BLOBS = 30
CALLS: dict[str, Callable[[BlobStore, Path], object]] = {
    "put": lambda store, _: store.put("new", b"content"),
    "put into a new segment": lambda store, _: store.put("new", bytes(1800)),
    "put synced at once": lambda store, _: synced_at_once(store),
    "put that evicts": lambda store, _: evicted(store),
    "replace": lambda store, _: store.put("b3", b"content", replace=True),
    "delete": lambda store, _: store.delete("b3"),
    "discard": lambda store, _: store.discard("b3"),
    "undelete": lambda store, _: store.undelete("deleted"),
    "ttl_update": lambda store, _: store.ttl_update("expires"),
    "append_replicated": lambda store, _: store.append_replicated(RecordKind.PUT, "new", b"content", op_time=2e6),
    "entries_since": lambda store, _: store.entries_since(),
    "close_active_segment": lambda store, _: store.close_active_segment(),
    "flush": lambda store, _: store.flush(),
    "compact": lambda store, _: store.compact(plan_of(store)),
    "compact in threads": lambda store, _: store.compact(executor=LocalExecutor(2)),
    "compact_many": lambda store, _: compact_many([(store, plan_of(store))]),
    "reclaim": lambda store, _: store.reclaim(),
    "verify": lambda store, _: verified(store),
    "get": lambda store, _: store.get("b3"),
    "copy_store": lambda store, scratch: copy_store(store, scratch / "copy", config(), clock=store.clock),
}


def synced_at_once(store: BlobStore, name: str = "new", content: bytes = b"content", *, replace: bool = False) -> None:
    store.put(name, content, replace=replace)
    store.flush()


def evicted(store: BlobStore) -> None:
    for number in range(6):
        store.put(f"large{number}", bytes(1800), ttl_seconds=1000)


def verified(store: BlobStore) -> None:
    assert not store.verify().findings


def prepared(folder: Path, clock: ManualClock, files: Files | None = None, **changes: Any) -> BlobStore:
    """A store with sealed segments, deletes in effect, a deleted blob that can be undeleted, and unsynced records."""
    store = open_store(folder, clock, files=files, hard_delete=True, hard_delete_bytes_per_second=None, **changes)
    for number in range(10):
        store.put(f"evictable{number}", bytes(150), ttl_seconds=1000)
    fill(store, BLOBS, random.Random(0))
    delete_some(store, [number for number in range(BLOBS) if number % 3], clock)
    store.close_active_segment()
    store.put("expires", b"content", ttl_seconds=1000)
    store.put("deleted", b"content")
    store.delete("deleted")
    return store


@pytest.mark.parametrize("closes", ["close", "interrupt"])
@pytest.mark.parametrize("call", CALLS)
def test_no_call_changes_a_store_after_a_close(call: str, closes: str, scratch: Path, effort: Effort) -> None:
    changes: dict[str, Any] = {"durability": "group"} if call.startswith(("put", "compact")) else {}
    changes |= {"evicts": True, "capacity_bytes": 12 * 2048} if call == "put that evicts" else {}

    def next_owner(store: BlobStore, clock: ManualClock, closing: Closing) -> BlobStore:
        if closes == "close":
            store.close()
        else:
            closing.interrupt(lambda: synced_at_once(store, "-", b"", replace=True))
        return open_store(Path(store.folder), clock, evicts=True, hard_delete=True, hard_delete_bytes_per_second=None)

    def work(later: BlobStore) -> None:
        with later:
            later.put("next", b"of the next owner")
            later.compact(plan_of(later))
            later.reclaim()

    def closed_before(line: int) -> Closing:
        folder, closing, clock = scratch / str(line) / "store", Closing(lambda path: False), ManualClock(1_000_000.0)
        folder.parent.mkdir()
        store = prepared(folder, clock, closing.files, **changes)
        is_done = False
        with (closing.before(line, lambda: next_owner(store, clock, closing), work),
              contextlib.suppress(Closed, BudgetSpent, CompactionFailed)):
            CALLS[call](store, folder.parent)
            is_done = True
        if closing.closed is not None:
            closing.closed.result(60)
        store.close()
        where = f"closed before line {line}"
        assert not closing.late, where
        with open_store(folder, clock) as later:
            assert not later.recovery.damage, where
            assert not later.recovery.cut_bytes, where
            later.audit()
            assert not [each for each in later.verify().findings if each.kind != "leftover"], where
            for number in range(0, BLOBS, 3):
                assert number == 3 or later.get(f"b{number}"), where
            if closing.closed is not None:
                assert later.get("next"), where
            if is_done and "put" in call and "evicts" not in call:
                assert later.get("new"), where
        copy = folder.parent / "copy"
        assert copy.exists() == (is_done and call == "copy_store"), where
        assert not copy.with_suffix(".copying").exists(), where
        return closing

    close_everywhere(closed_before, effort(20, 200))
