# SPDX-License-Identifier: Apache-2.0
"""Sets of indexes: immutable, in runs, with their algebra and their stored form."""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.indexset.index_set import (
        IndexSet as IndexSet,
        IndexSetBuilder as IndexSetBuilder,
        merge_positions as merge_positions,
    )
else:
    offer(__name__, {
        "compactlib.indexset.index_set": "IndexSet IndexSetBuilder merge_positions",
    })
