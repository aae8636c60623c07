"""Sets of indexes: immutable, in runs, with their algebra and their stored form."""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.indexset.index_set import (
        MAX_INDEX,
        Engine,
        IndexSet,
        IndexSetBuilder,
        common_positions,
        merge_positions,
    )

__all__ = [
    "Engine",
    "IndexSet",
    "IndexSetBuilder",
    "MAX_INDEX",
    "common_positions",
    "merge_positions",
]

load_lazily(__name__, {
    ".index_set": ("MAX_INDEX", "Engine", "IndexSet", "IndexSetBuilder", "common_positions", "merge_positions"),
})
