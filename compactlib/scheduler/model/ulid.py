"""The time inside a ULID."""

from __future__ import annotations

import re

NO_TIME = -1e-9
"""What an id without a time counts as (notes 1.3: -1 nanosecond)."""

_TIME_CHARS = 10
# The first digit holds 3 bits only: 10 digits of 5 bits are two more than a time's 48.
_ULID = re.compile("[0-7][0-9A-HJKMNP-TV-Z]{25}", re.IGNORECASE | re.ASCII)
_AS_BASE_32 = str.maketrans("JKMNPQRSTVWXYZjkmnpqrstvwxyz", "IJKLMNOPQRSTUVIJKLMNOPQRSTUV")


def ulid_seconds(block_id: str) -> float:
    """The time of a ULID in seconds since the epoch, or `NO_TIME` if it is none."""
    if not _ULID.fullmatch(block_id):
        return NO_TIME
    return int(block_id[:_TIME_CHARS].translate(_AS_BASE_32), 32) / 1000
