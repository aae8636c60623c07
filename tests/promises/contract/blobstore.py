# SPDX-License-Identifier: Apache-2.0
"""Blob stores as the kits of the contract see them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compactlib.blobstore import (
    Blob,
    BlobReader,
    BlobStore,
    BlobStoreConfig,
    CompactAll,
    CopyBudget,
    CostBenefit,
    DChoices,
    ExpiryForecast,
    Greedy,
    Hybrid,
    RecordKind,
    StatsBased,
)
from compactlib.blobstore.compaction.plan.policies.declining_cost import DecliningCost
from compactlib.clock import ManualClock
from compactlib.files import Files
from compactlib.testing import CompactionFactory
from compactlib.testing.views import blob_views

NOW = 1_000_000.0


class BlobStores(CompactionFactory):
    """Stores with small segments, of which each filling leaves half dead."""

    config = BlobStoreConfig(capacity_bytes=1 << 18, segment_bytes=1 << 10, journal_max_entries=0, max_blob_bytes=0,
                             pace=None, stats_entries_per_second=None, index_max_entries=5, compaction_buffer_bytes=1)

    def open(self, folder: Path, *, files: Files) -> BlobStore:
        return BlobStore(folder, self.config, policy=self.policy(), clock=ManualClock(NOW), files=files, name="store")

    def reader(self, folder: Path) -> BlobReader:
        return BlobReader(folder, self.config, clock=ManualClock(NOW))

    def fill(self, store: BlobStore, number: int) -> dict[str, bytes]:
        told = {}
        for place in range(8):
            key = f"{number}.{place}"
            content = bytes([number % 256, place]) * 90
            dead = place % 2 == 0
            # As a peer had it: expired already, since the clock stands still.
            store.append_replicated(RecordKind.PUT, key, content, op_time=NOW, expires_at=NOW - 1 if dead else None)
            if not dead:
                told[key] = content
        store.close_active_segment()
        return told

    def check(self, store: BlobStore, acknowledged: Sequence[dict[str, bytes]]) -> None:
        for told in acknowledged:
            for key, content in told.items():
                found = store.get(key)
                assert isinstance(found, Blob), (key, found)
                assert found.content == content, key

    def policy(self) -> CompactAll:
        return CompactAll(min_used_fraction=0.0, skip_valid="all")

    def stored_bytes(self, folder: Path, store: Any) -> int:
        return sum(path.stat().st_size for path in data_files(folder))

    def watch_copies(self, folder: Path, store: Any) -> Callable[[], int]:
        before = {path.name for path in data_files(folder)}
        return lambda: sum(path.stat().st_size for path in data_files(folder) if path.name not in before)

    def damage(self, folder: Path) -> bool:
        path = next(path for path in sorted(folder.glob("*.log")) if path.stat().st_size > 200)
        data = bytearray(path.read_bytes())
        data[-10] ^= 1
        path.write_bytes(data)
        return True


class SwappingBlobStores(BlobStores):
    """Stores whose compactions come in one cycle."""

    config = BlobStoreConfig(capacity_bytes=1 << 18, segment_bytes=1 << 10, journal_max_entries=0, max_blob_bytes=0,
                             pace=None, stats_entries_per_second=None, swap_segments=100, hard_delete=True,
                             hard_delete_bytes_per_second=None)


def data_files(folder: Path) -> list[Path]:
    """Segments and their indexes; what is noted of a compaction is none of its data."""
    return [path for path in folder.iterdir() if path.suffix in (".log", ".index")]


COMPACTIONS = [BlobStores(), SwappingBlobStores()]
POLICIES = [(policy, blob_views(comes_to_rest=not isinstance(policy, CompactAll))) for policy in (
    StatsBased(), StatsBased(weight_on_benefit=True, middle_range_interval_seconds=86_400.0), CompactAll(),
    CompactAll(skip_valid="ends"), Hybrid(), Hybrid(usual=ExpiryForecast(), every_seconds=0.0, spread_seconds=10.0),
    Greedy(fill_outputs=True), CostBenefit(), ExpiryForecast(), CopyBudget(max_copied_bytes=1_500),
    DChoices(choices=2, seed=3), DecliningCost())]
