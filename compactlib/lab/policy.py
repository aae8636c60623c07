# SPDX-License-Identifier: Apache-2.0
"""The contract of a placement, with its values and helpers.

A placement decides which open segment of a simulated blob store takes a record. It has a number of classes, and makes
a `Placer`, which is called at each write and at each compaction.
"""

from __future__ import annotations

from compactlib.lab.placement import NEVER, Contents, Placement, Placer, Victim, grown

__all__ = ["Contents", "NEVER", "Placement", "Placer", "Victim", "grown"]
