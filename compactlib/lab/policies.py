# SPDX-License-Identifier: Apache-2.0
"""The placements and policies that come with the lab; `docs/lab.md` compares them."""

from __future__ import annotations

from compactlib.lab.blobstore.placement.by_lifetime import ByLifetime
from compactlib.lab.blobstore.placement.fadac import FADaC
from compactlib.lab.blobstore.placement.mixed import Mixed
from compactlib.lab.blobstore.placement.user_and_survivors import UserAndSurvivors
from compactlib.lab.blobstore.policies.copy_budget import CopyBudget
from compactlib.lab.blobstore.policies.d_choices import DChoices
from compactlib.lab.blobstore.policies.declining_cost import DecliningCost
from compactlib.lab.blobstore.survivors import ByAge, ByEnd, SurvivorPlacement

__all__ = [
    "ByAge", "ByEnd", "ByLifetime", "CopyBudget", "DChoices", "DecliningCost", "FADaC", "Mixed", "SurvivorPlacement",
    "UserAndSurvivors",
]
