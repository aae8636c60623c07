# SPDX-License-Identifier: Apache-2.0
"""What this process has open of a folder: whatever else it holds, and lets go of meanwhile, is others' business."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_files(folder: Path) -> list[str]:
    """The files in or below `folder` that are open, removed ones too (their names end in ` (deleted)`)."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if Path(path).is_relative_to(folder.resolve())]
