# SPDX-License-Identifier: Apache-2.0
"""The placements that come with the lab; `docs/lab.md` compares them."""

from __future__ import annotations

from compactlib.lab.blobstore.placement.by_lifetime import ByLifetime
from compactlib.lab.blobstore.placement.fadac import FADaC
from compactlib.lab.blobstore.placement.mixed import Mixed
from compactlib.lab.blobstore.placement.user_and_survivors import UserAndSurvivors

__all__ = [
    "ByLifetime", "FADaC", "Mixed", "UserAndSurvivors",
]
