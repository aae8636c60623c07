# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments: what a host may give for a number, a folder or a payload; anything else is `InvalidInput`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from compactlib._arguments import require_method
from compactlib.errors import InvalidInput, Unsorted
from compactlib.indexset.index_set import IndexSet


def whole(name: str, value: Any) -> int:
    """`value` as a whole number.

    Raises:
        InvalidInput: it is none.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidInput(f"{name} is {value!r:.100}; give a whole number") from None


def listed(name: str, values: Any) -> list[Any]:
    """The members of an iterable, of whatever kind they are.

    Raises:
        InvalidInput: it is no iterable.
    """
    try:
        return list(values)
    except TypeError:
        raise InvalidInput(f"{name} are {values!r:.100}; give an iterable") from None


def index_set(name: str, indexes: Any) -> IndexSet:
    """`indexes` as a set: one, or strictly ascending whole numbers.

    Raises:
        InvalidInput: they are neither; `Unsorted` if they do not ascend.
    """
    try:
        return indexes if isinstance(indexes, IndexSet) else IndexSet.from_sorted(indexes)
    except TypeError:
        raise InvalidInput(f"{name} are {indexes!r:.100}; give an IndexSet, or ascending indexes") from None


def require_ascending(indexes: Sequence[int]) -> None:
    """Return if the indexes ascend strictly.

    Raises:
        Unsorted: they do not.
    """
    for previous, index in pairwise(indexes):
        if index <= previous:
            raise Unsorted(f"index {index} follows {previous}; sort the indexes and drop duplicates",
                           previous=previous, found=index)


def payload_bytes(payload: Any) -> int:
    """How many bytes a payload has that is no `bytes`.

    Raises:
        InvalidInput: it is no bytes-like object, or one in pieces.
    """
    try:
        view = memoryview(payload)
    except TypeError:
        raise InvalidInput(f"a payload of type {type(payload).__name__}; give bytes, or another object that has its "
                           f"bytes in one piece") from None
    if not view.c_contiguous:
        raise InvalidInput("a payload whose bytes do not lie in one piece; give bytes(payload)")
    return view.nbytes


def require_budget(budget: object) -> None:
    """Return if `budget` is one, or `None`; raises `InvalidInput` otherwise."""
    require_method("the budget", budget, "lend", or_none=True)
