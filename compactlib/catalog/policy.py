# SPDX-License-Identifier: Apache-2.0
"""What a policy of the catalog sees and answers, and what helps to write one.

A policy chooses the version that becomes the earliest one, at or below what `CatalogView.decision` allows
(`CatalogPolicy`). `decide` makes that decision of a view, without a catalog; `limits_of` says what forbids one version.
"""

from __future__ import annotations

from compactlib.catalog.decision import CatalogView, Decision, Limit, decide, limits_of, version_at
from compactlib.catalog.plan import CatalogPlan, CatalogPolicy, Cut

__all__ = [
    "CatalogPlan", "CatalogPolicy", "CatalogView", "Cut", "Decision", "Limit", "decide", "limits_of", "version_at",
]
