# SPDX-License-Identifier: Apache-2.0
"""A compaction clears away what compactions have left, and nothing that the store is writing meanwhile."""

from __future__ import annotations

from pathlib import Path

from compactlib.blobstore import BlobStore, BlobStoreConfig
from compactlib.blobstore.compaction.commit.recover import leftovers


def test_the_index_that_the_store_is_writing_is_no_leftover(scratch: Path) -> None:
    """Found by killing processes: the compactor took away the store's own half-written index file, or stumbled over it
    when it had got its name meanwhile."""
    with BlobStore(scratch / "store", BlobStoreConfig()) as store:
        store.put("x", b"")
        (scratch / "store" / "0_0.80.index.tmp").write_bytes(b"half of the store's own")
        (scratch / "store" / "0_1.80.index.tmp").write_bytes(b"half of that of a segment that a compaction builds")
        assert list(leftovers(store.folder, None)) == []
    with BlobStore(scratch / "store", BlobStoreConfig()):
        assert not list((scratch / "store").glob("*.tmp"))
