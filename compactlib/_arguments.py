# SPDX-License-Identifier: Apache-2.0
"""Checks of values that are stored or used later; each raises `InvalidInput`."""

from __future__ import annotations

from collections.abc import Callable
from sys import float_info
from typing import Any, get_args

from compactlib.errors import InvalidInput

_LONGEST_SECONDS = 2_000_000


def require_one_of(name: str, value: object, choices: Any) -> None:
    """Return if `value` is one of the texts of this `Literal`.

    Raises:
        InvalidInput: it is not.
    """
    if not isinstance(value, str) or value not in get_args(choices):
        raise InvalidInput(f"{name} is {value!r:.100}; give one of {', '.join(get_args(choices))}")


def require_seconds(name: str, value: object, *, above_zero: bool = False) -> None:
    """Return if `value` is a time that a call can wait: systems count it in milliseconds of 32 bits.

    Raises:
        InvalidInput: it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LONGEST_SECONDS or (
            above_zero and value == 0):
        least = "more than 0" if above_zero else "0 or more"
        raise InvalidInput(f"{name} is {value!r:.100}; give {least}, up to {_LONGEST_SECONDS} seconds")


def require_age(now: float, older_than_seconds: float) -> None:
    """Return if what is so old at that time may be removed: below 0 what is being made now would be, too.

    Raises:
        InvalidInput: `now` is no number, or `older_than_seconds` none from 0 on.
    """
    numbers = all(isinstance(each, int | float) for each in (now, older_than_seconds))
    if not numbers or not older_than_seconds >= 0 or now != now:
        raise InvalidInput(f"now is {now!r:.100} and older_than_seconds {older_than_seconds!r:.100}; give a time, and "
                           f"seconds from 0 on")


def require_whole(name: str, value: object, least: int = 0, *, or_none: bool = False) -> None:
    """Return if `value` is a whole number of at least `least`, or is `None`, where that may be.

    Raises:
        InvalidInput: it is not.
    """
    if not ((isinstance(value, int) and not isinstance(value, bool) and value >= least) or (or_none and value is None)):
        raise InvalidInput(f"{name} is {value!r:.100}; it must be a whole number, at least {least}"
                           + ", or None" * or_none)


def is_whole(least: int = 0, *, or_none: bool = False) -> Callable[[object, Any, Any], None]:
    """`require_whole` as a validator of `attrs`."""
    return lambda _, field, value: require_whole(field.name, value, least, or_none=or_none)


def is_seconds(least: float = 0, most: float = float_info.max) -> Callable[[object, Any, Any], None]:
    """A validator of `attrs`: `InvalidInput` if a field is no number of seconds from `least` to `most`."""
    def check(_: object, field: Any, value: object) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidInput(f"{field.name} is {value!r:.100}; it must be a number of seconds, at least {least}"
                               + f" and at most {most:.3g}" * (most < float_info.max))

    return check


def is_above(limit: float, *, or_none: bool = False) -> Callable[[object, Any, Any], None]:
    """A validator of `attrs`: `InvalidInput` if a field is no finite number above `limit`, nor `None`, where it may be.
    """
    def check(_: object, field: Any, value: object) -> None:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not ((is_number and limit < value <= float_info.max) or (or_none and value is None)):  # type: ignore[operator]
            raise InvalidInput(f"{field.name} is {value!r:.100}; it must be a number above {limit}"
                               + ", or None" * or_none)

    return check
