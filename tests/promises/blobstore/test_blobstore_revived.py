# SPDX-License-Identifier: Apache-2.0
"""A blob that is revived while a compaction is dropping it keeps its content; no other write makes it choose again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, CompactAll, RecordKind
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError
from compactlib.executors import LocalExecutor, RewriteTask
from tests.harness.blob_stores import START, open_store

CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, deleted_retention_seconds=0.0,
                         journal_max_entries=0)
NOW = 1_000_000.0


class Hook:
    """A fence that makes a call before each of the first `times` commits."""

    def __init__(self, call: Callable[[], object], times: int) -> None:
        self.call, self.times = call, times

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        if self.times:
            self.times -= 1
            self.call()
        yield


@pytest.mark.parametrize("times", [1, 10], ids=["once", "at each commit"])
def test_blob_that_a_peer_revives_before_the_commit_keeps_its_content(times: int, tmp_path: Path) -> None:
    clock, lives = ManualClock(NOW), dict.fromkeys(range(12), 0)
    with BlobStore(tmp_path / "store", CONFIG, policy=CompactAll(min_used_fraction=0.0), clock=clock) as store:
        for number in lives:
            store.put(b"%d" % number, b"%d" % number * 100)
            store.delete(b"%d" % number)
        store.close_active_segment()
        clock.advance(1.0)

        def revive() -> None:
            number = next(number for number, life in lives.items() if not life)
            lives[number] = 1
            store.append_replicated(RecordKind.UNDELETE, b"%d" % number, op_time=clock.now(), life_version=1)

        with contextlib.suppress(CompactlibError):
            store.compact(fence=Hook(revive, times))
        assert any(lives.values())
        store.compact()
        for number, life in lives.items():
            assert isinstance(store.get(b"%d" % number), Blob) == bool(life), number
        assert store.verify().is_sound


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
