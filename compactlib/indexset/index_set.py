# SPDX-License-Identifier: Apache-2.0
"""The names under their old place, until the last importer names `compactlib.indexset`."""

from compactlib.indexset import (
    MAX_INDEX as MAX_INDEX,
    IndexSet as IndexSet,
    IndexSetBuilder as IndexSetBuilder,
    merge_positions as merge_positions,
)
