# SPDX-License-Identifier: Apache-2.0
"""A full round that closes the active segment, while another thread closes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compactlib.blobstore import BlobStore, BlobStoreConfig, CompactAll
from compactlib.blobstore.policy import BlobChoice, BlobView
from compactlib.testing import FilesInFront, Request

CONFIG = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, close_active_segment=True,
                         journal_max_entries=0)


class MeetsAClosing:
    """`CompactAll`, but its first choice is made while another thread has begun to close the active segment."""

    name = "meets a closing"

    def __init__(self) -> None:
        self.store: BlobStore | None = None
        self.has_begun = threading.Event()
        self.goes_on = threading.Event()
        self.other = threading.Thread(target=self.close_active_segment)

    def close_active_segment(self) -> None:
        assert self.store is not None
        self.store.close_active_segment()

    def step(self, request: Request, act: Callable[[], Any]) -> Any:
        if request.kind == "create" and request.path.endswith("1_0.log"):
            self.has_begun.set()
            self.goes_on.wait(10)
        return act()

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        if not self.has_begun.is_set():
            self.other.start()
            self.has_begun.wait(10)
            threading.Timer(0.2, self.goes_on.set).start()
        return CompactAll(min_used_fraction=0.0).choose(view, now)


def test_segment_that_another_thread_has_just_begun_is_not_closed(tmp_path: Path) -> None:
    policy = MeetsAClosing()
    with BlobStore(tmp_path / "store", CONFIG, files=FilesInFront(policy.step)) as store:
        policy.store = store
        store.put(b"key", b"content")
        store.compact(policy=policy)
        policy.other.join(10)
        assert store.status().active_segment == "1_0"
