# SPDX-License-Identifier: Apache-2.0
"""What a policy of the catalog sees and answers, and what helps to write one.

A policy chooses the version that becomes the earliest one, at or below what `CatalogView.decision` allows
(`CatalogPolicy`). `decide` makes that decision of a view, without a catalog.
"""

from __future__ import annotations

from compactlib.catalog.plan.decision import CatalogView, decide, version_at
from compactlib.catalog.plan.plan import CatalogPlan
from compactlib.catalog.plan.policy import CatalogPolicy, Cut
from compactlib.catalog.plan.verdict import Compact, Hold

__all__ = [
    "CatalogPlan", "CatalogPolicy", "CatalogView", "Compact", "Cut", "Hold", "decide", "version_at",
]
