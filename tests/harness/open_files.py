# SPDX-License-Identifier: Apache-2.0
"""The files of a folder that this process has open."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_files(folder: Path) -> list[str]:
    """Return the open files in or below `folder`, also removed ones (their names end in ` (deleted)`)."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{number}"))
    return [path for path in found if Path(path).is_relative_to(folder.resolve())]
