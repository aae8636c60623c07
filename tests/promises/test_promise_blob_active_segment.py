# SPDX-License-Identifier: Apache-2.0
"""The newest segment of a blob store that was cut to nothing: its blobs are damaged, and were put all the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from compactlib.blobstore import BlobStore, BlobStoreConfig, Deleted
from compactlib.clock import ManualClock
from compactlib.errors import CorruptData


def opened(folder: Path) -> BlobStore:
    return BlobStore(folder, BlobStoreConfig(capacity_bytes=1 << 14, segment_bytes=1 << 10), clock=ManualClock(1e9))


@pytest.mark.parametrize("size", [0, 10, 79, 80])
def test_blobs_are_damaged_when_their_segment_is_cut(tmp_path: Path, size: int) -> None:
    with opened(tmp_path) as store:
        for number in range(4):
            store.put(f"blob {number}", b"content" * 50)
        store.delete("blob 0")
    newest = max(tmp_path.glob("*.log"))
    newest.write_bytes(newest.read_bytes()[:size])
    for _ in range(2):
        with opened(tmp_path) as store:
            assert isinstance(store.get("blob 0"), Deleted)
            with pytest.raises(CorruptData):
                store.get("blob 3")
            assert not store.verify().is_sound
    with opened(tmp_path) as store:
        store.put("later", b"more")
    with opened(tmp_path) as store:
        assert store.info("later").size_bytes == 4  # type: ignore[union-attr]
