# SPDX-License-Identifier: Apache-2.0
"""A blob that is revived while a compaction is dropping it keeps its content."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, CompactAll, RecordKind
from compactlib.clock import ManualClock
from compactlib.errors import CompactlibError

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
