"""What a host may give for a number, a folder or a payload; anything else is `InvalidInput`, and nothing was done."""

from __future__ import annotations

import operator
import os
from typing import Any

from compactlib.errors import InvalidInput
from compactlib.files import StrPath
from compactlib.indexset import IndexSet


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


def require_kind(name: str, value: object, kind: type, *, optional: bool = False) -> None:
    """Return if `value` is a `kind` (or `None`, where that may be); raises `InvalidInput` otherwise."""
    if not (isinstance(value, kind) or (optional and value is None)):
        raise InvalidInput(f"{name} is {value!r:.100}; give a {kind.__name__}")


def folder_path(folder: StrPath) -> str:
    """A folder as an absolute path.

    Raises:
        InvalidInput: it is no path.
    """
    try:
        path = os.path.abspath(os.fsdecode(os.fspath(folder)))
    except TypeError:
        raise InvalidInput(f"the folder is {folder!r:.100}; give a path") from None
    if "\0" in path:
        raise InvalidInput(f"the folder is {path!r:.100}; a path has no zero byte")
    return path


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


def require_method(name: str, value: object, method: str) -> None:
    """Return if `value` has the method.

    Raises:
        InvalidInput: it has not.
    """
    # A class has its instances' methods too, and only `__call__` is its own.
    is_class = isinstance(value, type) and method != "__call__"
    if is_class or not callable(getattr(value, method, None)):
        raise InvalidInput(f"{name} is {value!r:.100}; give an object with the method {method}()")


def require_budget(budget: object) -> None:
    """Return if `budget` is one, or `None`; raises `InvalidInput` otherwise."""
    if budget is not None:
        require_method("the budget", budget, "lend")


def require_policy(policy: object) -> None:
    """Return if `policy` is one, or `None`; raises `InvalidInput` otherwise."""
    if policy is None:
        return
    require_method("the policy", policy, "choose")
    if isinstance(policy, type) or not isinstance(getattr(policy, "name", None), str):
        raise InvalidInput(f"the policy is {policy!r:.100}; give an object with a name and choose(view, now)")
