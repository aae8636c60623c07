# SPDX-License-Identifier: Apache-2.0
"""The configuration: bounds, and the page that maps each name to Ambry's key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs
import pytest

from compactlib.blobstore.config import BlobStoreConfig
from compactlib.errors import InvalidInput


@pytest.mark.parametrize("change", [
    {"durability": "sometimes"}, {"capacity_bytes": 10}, {"segment_bytes": 0}, {"capacity_bytes": 1 << 70},
    {"index_max_entries": 0}, {"swap_segments": 0}, {"pace": 5.0}, {"sync_interval_seconds": -1},
    {"deleted_retention_seconds": float("nan")}, {"hard_delete_bytes_per_second": -5.0},
])
def test_a_number_out_of_its_range_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        BlobStoreConfig(**change)


def test_every_setting_stands_in_the_docs_with_its_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "design" / "blobstore.md").read_text()
    missing = [field.name for field in attrs.fields(BlobStoreConfig) if f"| `{field.name}` |" not in page]
    assert not missing
