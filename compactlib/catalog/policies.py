# SPDX-License-Identifier: Apache-2.0
"""The policies that come with the catalog; `docs/catalog.md` compares them."""

from __future__ import annotations

from compactlib.catalog.plan import CutToBound, KeepSeconds, KeepVersions

__all__ = [
    "CutToBound", "KeepSeconds", "KeepVersions",
]
