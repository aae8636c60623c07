"""The time inside a ULID."""

from __future__ import annotations

NO_TIME = -1e-9
"""What an id without a time counts as (notes 1.3: -1 nanosecond)."""

_CHARS = 26
_TIME_CHARS = 10
_DIGITS = {char: value for value, char in enumerate("0123456789ABCDEFGHJKMNPQRSTVWXYZ")}
_DIGITS |= {char.lower(): value for char, value in _DIGITS.items()}


def ulid_seconds(block_id: str) -> float:
    """The time of a ULID in seconds since the epoch, or `NO_TIME` if it is none."""
    # The first digit holds 3 bits only: 10 digits of 5 bits are two more than a time's 48.
    if len(block_id) != _CHARS or block_id[0] > "7":
        return NO_TIME
    milliseconds = 0
    try:
        for char in block_id[:_TIME_CHARS]:
            milliseconds = milliseconds << 5 | _DIGITS[char]
    except KeyError:
        return NO_TIME
    return milliseconds / 1000 if all(char in _DIGITS for char in block_id[_TIME_CHARS:]) else NO_TIME
