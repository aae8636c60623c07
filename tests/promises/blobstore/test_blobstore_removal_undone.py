# SPDX-License-Identifier: Apache-2.0
"""A power failure that brings back the sources of an earlier compaction, after a later one that wrote nothing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compactlib.blobstore import BlobStore, BlobStoreConfig, CompactAll
from compactlib.blobstore.policy import BlobChoice, BlobView, SegmentName
from compactlib.clock import ManualClock
from compactlib.testing import FilesInFront, Request

CONFIG = BlobStoreConfig(capacity_bytes=1 << 18, segment_bytes=1 << 13, deleted_retention_seconds=0.0,
                         journal_max_entries=0, max_blob_bytes=0, compaction_bytes_per_second=None)


class Takes:
    """Takes the segments of these names."""

    name = "takes"

    def __init__(self, *names: SegmentName) -> None:
        self.names = names

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        return BlobChoice(self.names, why="these")


def test_files_of_an_earlier_step_that_come_back_are_no_damage(tmp_path: Path) -> None:
    folder, kept = tmp_path / "store", tmp_path / "kept"
    kept.mkdir()

    def step(request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "unlink" and request.path.endswith((".log", ".index")):
            shutil.copy(request.path, kept)
        answer = act()
        if request.kind == "sync folder":
            for path in kept.iterdir():
                path.unlink()
        return answer

    clock = ManualClock(1_000_000.0)
    with BlobStore(folder, CONFIG, policy=CompactAll(min_used_fraction=0.0), files=FilesInFront(step),
                   clock=clock) as store:
        for number in range(40):
            store.put(b"%d" % number, bytes(1000))
        for number in range(0, 20, 2):
            store.delete(b"%d" % number)
        first = store.plan().names[:2]
        assert store.compact(policy=Takes(*first)).targets
        for number in range(40):
            store.discard(b"%d" % number)
        clock.advance(1.0)
        dead = [each.name for each in store.view().eligible if not each.valid_bytes and each.name.position > 1]
        report = store.compact(policy=Takes(dead[0]))
        assert report.sources
        assert not report.targets
        copy = shutil.copytree(folder, tmp_path / "copy")
    for name in os.listdir(kept):
        shutil.copy(kept / name, copy)
    with BlobStore(copy, CONFIG) as store:
        assert not store.recovery.damage
        assert store.verify().is_sound
