# SPDX-License-Identifier: Apache-2.0
"""Writes while a compaction copies: only a blob whose dropped content counts again makes it choose again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from compactlib.blobstore import Blob, BlobStore, RecordKind
from compactlib.clock import ManualClock
from compactlib.executors import LocalExecutor, RewriteTask
from tests.harness.blob_stores import START, open_store


@attrs.define
class Meanwhile:
    """Copies correctly, and writes to the store during each copy."""

    write: Callable[[int], object]
    runs: int = 0

    def run(self, tasks: Iterable[RewriteTask], *, budget: Any = None, observer: Any = None) -> Iterator[Any]:
        yield from LocalExecutor().run(tasks, budget=budget, observer=observer)
        self.write(self.runs)
        self.runs += 1


def expired_blobs(folder: Path, clock: ManualClock) -> BlobStore:
    """Return a store with five expired blobs, and one that stays."""
    store = open_store(folder, clock)
    for number in range(5):
        store.put(f"blob {number}", b"old", ttl_seconds=10)
    store.put("other", b"stays")
    store.close_active_segment()
    store.put("newest", b"in the journal")
    clock.advance(20)
    return store


def test_an_expired_blob_that_is_put_again_and_made_permanent_is_no_revival(tmp_path: Path) -> None:
    clock = ManualClock(START)
    with expired_blobs(tmp_path / "store", clock) as store:
        def put_again(number: int) -> None:
            store.put(f"blob {number}", b"new", ttl_seconds=10_000)
            store.ttl_update(f"blob {number}")

        executor = Meanwhile(put_again)
        report = store.compact(executor=executor)
        assert (report.steps, executor.runs) == (1, 1)
        found = store.get("blob 0")
        assert isinstance(found, Blob)
        assert found.content == b"new"
        assert store.verify().is_sound


def test_a_dropped_blob_that_a_peer_makes_permanent_is_chosen_again_and_kept(tmp_path: Path) -> None:
    clock = ManualClock(START)
    with expired_blobs(tmp_path / "store", clock) as store:
        def make_permanent(number: int) -> None:
            if not number:
                store.append_replicated(RecordKind.TTL_UPDATE, "blob 0", op_time=START + 5)

        executor = Meanwhile(make_permanent)
        report = store.compact(executor=executor)
        assert (report.steps, executor.runs) == (1, 2)
        found = store.get("blob 0")
        assert isinstance(found, Blob)
        assert found.content == b"old"
