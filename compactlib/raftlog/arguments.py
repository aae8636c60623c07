"""What a host may give for a number, a folder or a payload; anything else is `InvalidInput`, and nothing was done."""

from __future__ import annotations

import operator
import os
from typing import Any

from compactlib.errors import InvalidInput
from compactlib.files import StrPath


def whole(name: str, value: Any) -> int:
    """`value` as a whole number.

    Raises:
        InvalidInput: it is none.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidInput(f"{name} is {value!r:.100}; give a whole number") from None


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
    if isinstance(value, type) or not callable(getattr(value, method, None)):
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
