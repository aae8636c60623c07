# SPDX-License-Identifier: Apache-2.0
"""The placements and policies that come with the lab; `docs/lab.md` compares them."""

from __future__ import annotations

from compactlib.lab.blob_policies import CopyBudget, DChoices, DecliningCost
from compactlib.lab.placement import ByLifetime, FADaC, Mixed, UserAndSurvivors
from compactlib.lab.survivors import ByAge, ByEnd, SurvivorPlacement

__all__ = [
    "ByAge", "ByEnd", "ByLifetime", "CopyBudget", "DChoices", "DecliningCost", "FADaC", "Mixed", "SurvivorPlacement",
    "UserAndSurvivors",
]
