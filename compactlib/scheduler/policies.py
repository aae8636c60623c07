# SPDX-License-Identifier: Apache-2.0
"""The policies that come with the scheduler; `docs/scheduler.md` compares them."""

from __future__ import annotations

from compactlib.scheduler.plan.policies.by_priority import ByPriority
from compactlib.scheduler.plan.policies.fair_tenants import FairTenants
from compactlib.scheduler.plan.policies.smallest_first import SmallestFirst

__all__ = [
    "ByPriority", "FairTenants", "SmallestFirst",
]
