# SPDX-License-Identifier: Apache-2.0
"""Checks of the host's arguments; they raise `InvalidInput`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from sys import float_info
from typing import Any

from compactlib.errors import InvalidInput, Unsorted
from compactlib.indexset import IndexSet


def index_set(name: str, indexes: Any) -> IndexSet:
    """An `IndexSet`, or strictly ascending whole numbers, as an `IndexSet`.

    Raises:
        InvalidInput: other values; `Unsorted` if they do not ascend.
    """
    try:
        return indexes if isinstance(indexes, IndexSet) else IndexSet.from_sorted(indexes)
    except TypeError:
        raise InvalidInput(f"{name} are {indexes!r:.100}; give an IndexSet, or ascending indexes") from None


def require_ascending(indexes: Sequence[int]) -> None:
    """Raise `Unsorted` unless the indexes ascend strictly."""
    for previous, index in pairwise(indexes):
        if index <= previous:
            raise Unsorted(f"index {index} follows {previous}; sort the indexes and drop duplicates",
                           previous=previous, found=index)


def bytes_of(payload: Any, what: str = "a payload") -> bytes:
    """The payload as `bytes`; a copy of a mutable buffer, which the caller may reuse for the next payload.

    Raises:
        InvalidInput: it has no buffer of bytes.
    """
    if isinstance(payload, bytes):
        return payload
    try:
        return bytes(memoryview(payload))
    except (TypeError, ValueError):
        raise InvalidInput(f"{what} is a {type(payload).__name__}; give bytes, or what has the buffer of bytes"
                           ) from None


def is_number(least: float = 0, most: float = float_info.max) -> Callable[[object, Any, Any], None]:
    """A validator of `attrs`: raises `InvalidInput` unless the field is a number from `least` to `most`."""
    def check(_: object, field: Any, value: object) -> None:
        if not isinstance(value, int | float) or not least <= value <= most:
            raise InvalidInput(f"{field.name} is {value!r:.100}; it must be a number of at least {least}"
                               + f" and at most {most:g}" * (most < float_info.max))

    return check
