# SPDX-License-Identifier: Apache-2.0
"""What a crash or a compaction has left in a folder, and opening has not removed."""

from __future__ import annotations

import re
from pathlib import Path


def leftovers_of(folder: Path, *known: str) -> list[str]:
    """The files and folders below a folder whose path within it is none of the known ones, which are patterns."""
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))]
    return [name for name in names if not any(re.fullmatch(pattern, name) for pattern in known)]
