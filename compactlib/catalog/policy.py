# SPDX-License-Identifier: Apache-2.0
"""The contract of a catalog policy, and functions for writing policies.

A policy (`CatalogPolicy`) chooses the version that becomes the earliest, at or below the target of
`CatalogView.decision`. `decide` makes that decision from a view, without a catalog; `limits_of` returns the limits that
forbid a version.
"""

from __future__ import annotations

from compactlib.catalog.decision import CatalogView, Decision, Limit, decide, limits_of, version_at
from compactlib.catalog.plan import CatalogPlan, CatalogPolicy, Cut

__all__ = [
    "CatalogPlan", "CatalogPolicy", "CatalogView", "Cut", "Decision", "Limit", "decide", "limits_of", "version_at",
]
