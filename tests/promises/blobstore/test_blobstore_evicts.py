# SPDX-License-Identifier: Apache-2.0
"""A full cache takes each blob, and evicts the blobs that expire next, and no others."""

from __future__ import annotations

from pathlib import Path
from random import Random

from compactlib.blobstore import Blob, BlobStore, BlobStoreConfig, Missing
from compactlib.clock import ManualClock

CONFIG = BlobStoreConfig.cache(1 << 16, max_blob_bytes=600)


def test_full_cache_evicts_the_blobs_that_expire_next(tmp_path: Path) -> None:
    clock, rng = ManualClock(1_000_000.0), Random(1)
    expires = {b"%d" % key: rng.randrange(1_000, 10_000) for key in range(300)}
    with BlobStore(tmp_path / "cache", CONFIG, clock=clock) as store:
        for number in range(20):
            store.put(b"for ever %d" % number, b"y" * 500)
        for key, seconds in expires.items():
            store.put(key, key * 100, ttl_seconds=seconds)
    with BlobStore(tmp_path / "cache", CONFIG, clock=clock) as store:
        assert all(isinstance(store.get(b"for ever %d" % number), Blob) for number in range(20))
        found = {key: store.get(key) for key in expires}
        kept = {key for key, answer in found.items() if isinstance(answer, Blob) and answer.content == key * 100}
        assert all(isinstance(found[key], Missing) for key in expires.keys() - kept)
        assert len(kept) > 50
        mean_kept = sum(expires[key] for key in kept) / len(kept)
        mean_gone = sum(expires[key] for key in expires.keys() - kept) / (len(expires) - len(kept))
        assert mean_kept > mean_gone + 1_000
        assert store.verify().is_sound
