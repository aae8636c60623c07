# SPDX-License-Identifier: Apache-2.0
"""What a placement sees and answers, and what helps to write one.

A placement decides in which open segment of a simulated blob store a record goes. It has a number of classes, and makes
a `Placer`, which is notified of each write and of each compaction.
"""

from __future__ import annotations

import contextlib

from compactlib.lab.blobstore.contents import Contents
from compactlib.lab.blobstore.placement.placement import Placement, Placer, Victim, class_count, grown
from compactlib.lab.blobstore.records import AGAIN, DEAD, NEVER

with contextlib.suppress(ImportError):  # types of `Placer.ahead`, which is asked where NumPy is installed
    from compactlib.lab.blobstore.ahead import Classes, Writes

__all__ = [
    "AGAIN", "Classes", "Contents", "DEAD", "NEVER", "Placement", "Placer", "Victim", "Writes", "class_count",
    "grown",
]
