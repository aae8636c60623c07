# SPDX-License-Identifier: Apache-2.0
"""Leftovers of a crash or a compaction that opening has not removed."""

from __future__ import annotations

import re
from pathlib import Path


def leftovers_of(folder: Path, *known: str) -> list[str]:
    """Return the files and folders below a folder whose relative path matches no known pattern."""
    names = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))]
    return [name for name in names if not any(re.fullmatch(pattern, name) for pattern in known)]
