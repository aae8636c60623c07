# SPDX-License-Identifier: Apache-2.0
"""Blob stores as the kits of the contract see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from compactlib.blobstore import (
    Blob,
    BlobReader,
    BlobStore,
    BlobStoreConfig,
    CompactAll,
    CostBenefit,
    Greedy,
    Hybrid,
    RecordKind,
    StatsBased,
)
from compactlib.clock import ManualClock
from compactlib.lab.policies import DChoices, DecliningCost
from compactlib.testing import Driver, Journal, World
from compactlib.testing.views import blob_views

NOW = 1_000_000.0


class BlobStores(Driver[BlobStore]):
    """Stores with small segments, of which each act leaves half dead."""

    config = BlobStoreConfig(capacity_bytes=1 << 18, segment_bytes=1 << 10, journal_max_entries=0, max_blob_bytes=0,
                             compaction_bytes_per_second=None)

    def settings(self) -> Sequence[BlobStoreConfig]:
        return [self.config]

    def open(self, world: World, settings: BlobStoreConfig) -> BlobStore:
        return BlobStore(world.folder, settings, policy=self.policy(), clock=ManualClock(NOW), files=world.files,
                         name="store")

    def reader(self, world: World) -> BlobReader:
        return BlobReader(world.folder, self.config, clock=ManualClock(NOW))

    def act(self, store: BlobStore, rng: Random, journal: Journal) -> None:
        number = len(journal.changes)
        blobs = {f"{number}.{place}": bytes([number % 256, place]) * 90 for place in range(8)}
        kept = {key: content for key, content in blobs.items() if content[1] % 2}
        with journal.trying(kept):
            for key, content in blobs.items():
                # As a peer has it: already expired, since the clock does not move.
                store.append_replicated(RecordKind.PUT, key, content, op_time=NOW,
                                        expires_at=None if key in kept else NOW - 1)
            store.close_active_segment()

    def check(self, store: BlobStore, journal: Journal, *, damage: str) -> None:
        for change in journal.changes:
            for key, content in change.what.items():
                found = store.get(key)
                assert isinstance(found, Blob), (key, found)
                assert found.content == content, key

    def policy(self) -> CompactAll:
        return CompactAll(min_used_fraction=0.0, skip_valid=True)

    def contents(self, world: World, store: BlobStore) -> Mapping[str, bytes]:
        return {path.name: path.read_bytes() for path in data_files(world.folder)}


class ErasingBlobStores(BlobStores):
    """Stores with a reclaim that overwrites deleted blobs."""

    config = BlobStoreConfig(capacity_bytes=1 << 18, segment_bytes=1 << 10, journal_max_entries=0, max_blob_bytes=0,
                             compaction_bytes_per_second=None, hard_delete=True, hard_delete_bytes_per_second=None)


def data_files(folder: Path) -> list[Path]:
    """Segments and their indexes; the record of a compaction is no data."""
    return [path for path in folder.iterdir() if path.suffix in (".log", ".index")]


COMPACTIONS = [BlobStores(), ErasingBlobStores()]
POLICIES = [(policy, blob_views(comes_to_rest=not isinstance(policy, CompactAll))) for policy in (
    StatsBased(), StatsBased(min_reclaimed_segments=3), CompactAll(),
    CompactAll(skip_valid=True), Hybrid(), Hybrid(usual=DecliningCost(), every_seconds=0.0), Greedy(), CostBenefit(),
    DChoices(choices=2, seed=3), DecliningCost())]
