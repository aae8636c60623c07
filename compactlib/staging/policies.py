# SPDX-License-Identifier: Apache-2.0
"""The policies that come with the staging area; `docs/staging.md` compares them."""

from __future__ import annotations

from compactlib.staging.plan_policies import AlwaysPolicy, TombstoneCostPolicy
from compactlib.staging.sense_policies import PressurePolicy

__all__ = ["AlwaysPolicy", "PressurePolicy", "TombstoneCostPolicy"]
