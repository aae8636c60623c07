# SPDX-License-Identifier: Apache-2.0
"""The configuration: bounds, and the page that maps each name to Ambry's key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore import BlobStore, BlobStoreConfig, CompactAll
from compactlib.errors import InvalidInput
from compactlib.outcome import Done, Skipped


@pytest.mark.parametrize("change", [
    {"durability": "sometimes"}, {"capacity_bytes": 10}, {"segment_bytes": 0}, {"capacity_bytes": 1 << 70},
    {"index_max_entries": 0}, {"swap_segments": 0}, {"pace": 5.0}, {"sync_interval_seconds": -1},
    {"deleted_retention_seconds": float("nan")}, {"deleted_retention_seconds": 1e16}, {"stats_bucket_seconds": 5e-324},
    {"ttl_update_buffer_seconds": 1e16}, {"sync_interval_seconds": 10**400},
    {"hard_delete_bytes_per_second": -5.0},
])
def test_a_number_out_of_its_range_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        BlobStoreConfig(**change)


def test_what_the_longest_times_are_given_to_works(tmp_path: Path) -> None:
    config = BlobStoreConfig(capacity_bytes=1 << 16, segment_bytes=1 << 12, journal_max_entries=0, max_blob_bytes=0,
                             deleted_retention_seconds=1e15, ttl_update_buffer_seconds=1e15,
                             sync_interval_seconds=1e15)
    with BlobStore(tmp_path / "store", config) as store:
        store.put("a", bytes(3000))
        store.delete("a")
        store.undelete("a")
        store.delete("a")
        store.close_active_segment()
        assert isinstance(store.compact(policy=CompactAll(min_used_fraction=0.0)), Done)
        assert isinstance(store.hard_delete(), Done)
        assert isinstance(store.reclaim(), Skipped)


def test_every_setting_stands_in_the_docs_with_its_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "design" / "blobstore.md").read_text()
    missing = [field.name for field in attrs.fields(BlobStoreConfig) if f"| `{field.name}` |" not in page]
    assert not missing
