# SPDX-License-Identifier: Apache-2.0
"""The names of WAL files."""

from __future__ import annotations

import re

WAL_TEMPORARY_SUFFIX = ".tmp"

_WAL = re.compile(r"([0-9]{16})\.wal")


def wal_name(number: int) -> str:
    """The name of WAL file `number`."""
    return f"{number:016d}.wal"


def wal_number(name: str) -> int | None:
    """The number in a WAL file's name, or `None` for any other name."""
    match = _WAL.fullmatch(name)
    return int(match[1]) if match else None


def is_wal_leftover(name: str) -> bool:
    """Whether a name is that of a WAL file that was never put in place."""
    return name.endswith(WAL_TEMPORARY_SUFFIX) and wal_number(name[:-len(WAL_TEMPORARY_SUFFIX)]) is not None
