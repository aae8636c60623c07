# SPDX-License-Identifier: Apache-2.0
"""Checks of values that are stored or used later, as functions and as validators of `attrs`; they raise `InvalidInput`.

They check ranges. Where a value that is not a number cannot be compared, Python's `TypeError` is the answer.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from operator import index
from sys import float_info
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

from compactlib.errors import InvalidInput

if TYPE_CHECKING:
    from typing_extensions import Buffer

Validator: TypeAlias = Callable[[object, Any, Any], None]
"""Takes an instance, one of its fields, and the field's value, as `attrs` passes them."""

_LONGEST_WAIT_SECONDS = 2_000_000  # systems count waits in milliseconds of 32 bits


def require_one_of(name: str, value: object, choices: Any) -> None:
    """Check that a value is one of the texts of a `Literal`."""
    if value not in get_args(choices):
        _refuse(name, value, f"one of {', '.join(get_args(choices))}")


def is_one_of(choices: Any) -> Validator:
    """Return `require_one_of` as a validator."""
    return lambda _, field, value: require_one_of(field.name, value, choices)


def require_seconds(name: str, value: float, *, above_zero: bool = False) -> None:
    """Check a number of seconds to wait."""
    if not 0 <= value <= _LONGEST_WAIT_SECONDS or (above_zero and value == 0):
        _refuse(name, value, f"seconds, {'more than 0' if above_zero else '0 or more'}, up to {_LONGEST_WAIT_SECONDS}")


def require_age(now: float, older_than_seconds: float) -> None:
    """Check an age limit: with a negative one, objects that are being written now would count as old."""
    if now != now:
        _refuse("now", now, "seconds since the epoch")
    if not older_than_seconds >= 0:
        _refuse("older_than_seconds", older_than_seconds, "seconds, 0 or more")


def require_whole(name: str, value: Any, least: int = 0, most: float = inf, *, or_none: bool = False) -> Any:
    """Return a whole number from `least` to `most` as an `int`; also `None`, with `or_none`.

    It may be one of NumPy's integers, whose sums would overflow.
    """
    if or_none and value is None:
        return None
    if not (hasattr(value, "__index__") and least <= index(value) <= most):
        _refuse(name, value, f"a whole number, at least {least}" + f", at most {most}" * (most < inf)
                + ", or None" * or_none)
    return index(value)


def is_whole(least: int = 0, most: float = inf, *, or_none: bool = False) -> Validator:
    """Return `require_whole` as a validator, which keeps the `int` in the field."""
    return lambda each, field, value: object.__setattr__(
        each, field.name, require_whole(field.name, value, least, most, or_none=or_none))


def is_seconds(least: float = 0, most: float = float_info.max) -> Validator:
    """Return a validator for seconds from `least` to `most`, both finite."""
    def check(_: object, field: Any, value: float) -> None:
        if not least <= value <= most:
            _refuse(field.name, value, f"seconds, at least {least}" + f", at most {most:.3g}" * (most < float_info.max))

    return check


def is_fraction(_: object, field: Any, value: float) -> None:
    """Validate a part of a whole, 0 to 1."""
    if not 0 <= value <= 1:
        _refuse(field.name, value, "a part of the whole, 0 to 1")


def is_above(limit: float, *, or_none: bool = False) -> Validator:
    """Return a validator for finite numbers above `limit`; also for `None`, with `or_none`."""
    def check(_: object, field: Any, value: float | None) -> None:
        if not (or_none if value is None else limit < value <= float_info.max):
            _refuse(field.name, value, f"a finite number above {limit}" + ", or None" * or_none)

    return check


def own_bytes(value: Buffer) -> bytes:
    """Return a buffer's bytes: the same object, unless its owner could change it later.

    Raises:
        TypeError: it is no buffer. `bytes` would make zeros of a number.
    """
    return b"".join((value,))


def _refuse(name: str, value: object, expected: str) -> None:
    raise InvalidInput(f"{name} is {value!r:.100}; give {expected}")
