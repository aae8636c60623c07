# SPDX-License-Identifier: Apache-2.0
"""Checks of what callers pass in: a wrong type is named as a wrong value is."""

from __future__ import annotations

from typing import Any

from compactlib.errors import InvalidInput


def whole(name: str, value: Any, *, lowest: int | None = None) -> int:
    """`value`, which must be a whole number, and not below `lowest`.

    Raises:
        InvalidInput: it is not.
    """
    if type(value) is not int or (lowest is not None and value < lowest):
        limit = "" if lowest is None else f" of at least {lowest}"
        raise InvalidInput(f"{name} is {str(value)[:100]!r} of type {type(value).__name__}; give a whole number{limit}")
    return value


def printed(name: str, value: Any) -> str:
    """`value`, which must be text that is not empty and can be stored.

    Raises:
        InvalidInput: it is not.
    """
    if type(value) is not str or not value or any("\ud800" <= one <= "\udfff" for one in value):
        raise InvalidInput(f"{name} is {ascii(value)[:100]}; give text that is not empty and has no half of a "
                           f"surrogate pair")
    return value
