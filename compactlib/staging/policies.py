# SPDX-License-Identifier: Apache-2.0
"""The policies that come with the staging area; `docs/staging.md` compares them."""

from __future__ import annotations

from compactlib.staging.compaction.policies import AlwaysPolicy, TombstoneCostPolicy
from compactlib.staging.compaction.sense_policies import AnyOf, DeletesPolicy, ListingCostPolicy, SealedTokensPolicy

__all__ = [
    "AlwaysPolicy", "AnyOf", "DeletesPolicy", "ListingCostPolicy", "SealedTokensPolicy", "TombstoneCostPolicy",
]
