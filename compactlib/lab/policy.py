# SPDX-License-Identifier: Apache-2.0
"""What a placement sees and answers, and what helps to write one.

A placement decides in which open segment of a simulated blob store a record goes. It has a number of classes, and makes
a `Placer`, which is notified of each write and of each compaction.
"""

from __future__ import annotations

from compactlib.lab.placement import NEVER, Contents, Placement, Placer, Victim, grown

__all__ = ["Contents", "NEVER", "Placement", "Placer", "Victim", "grown"]
