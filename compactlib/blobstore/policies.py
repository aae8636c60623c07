# SPDX-License-Identifier: Apache-2.0
"""The policies that come with the blob store; `docs/blobstore.md` compares them."""

from __future__ import annotations

from compactlib.blobstore.compaction.plan.policies.compact_all import CompactAll
from compactlib.blobstore.compaction.plan.policies.copy_budget import CopyBudget
from compactlib.blobstore.compaction.plan.policies.cost_benefit import CostBenefit
from compactlib.blobstore.compaction.plan.policies.d_choices import DChoices
from compactlib.blobstore.compaction.plan.policies.declining_cost import DecliningCost
from compactlib.blobstore.compaction.plan.policies.expiry_forecast import ExpiryForecast
from compactlib.blobstore.compaction.plan.policies.greedy import Greedy
from compactlib.blobstore.compaction.plan.policies.hybrid import Hybrid
from compactlib.blobstore.compaction.plan.policies.stats_based import StatsBased

__all__ = [
    "CompactAll", "CopyBudget", "CostBenefit", "DChoices", "DecliningCost", "ExpiryForecast", "Greedy", "Hybrid",
    "StatsBased",
]
