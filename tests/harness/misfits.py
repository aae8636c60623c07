# SPDX-License-Identifier: Apache-2.0
"""Walks the public calls of a package, and gives each argument something that it is not."""

from __future__ import annotations

import contextlib
import inspect
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from compactlib.errors import CompactlibError

Calls = Mapping[str, tuple[Any, ...]]
"""Names of methods or functions, each with arguments that are fine."""


class Strange:
    """Nothing that anybody asks for."""

    def __repr__(self) -> str:
        return "Strange()"


class Hostile:
    """Raises whatever it is asked."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError("it is compared")

    def __len__(self) -> int:
        raise ZeroDivisionError("it is counted")

    def __repr__(self) -> str:
        return "Hostile()"


STRANGE: tuple[Any, ...] = (Strange(), 3.5, "text", b"bytes", None, (Strange(),), [b"x"], -7, {"a": Strange()})
ODD: tuple[Any, ...] = ("\ud800", "a\0b", ("\ud800",), b"\0", 1 << 80)
"""Of the right type now and then, and still not what anybody can store, or send."""
HOSTILE: tuple[Any, ...] = (
    float("nan"), float("inf"), True, 10 ** 400, np.array(3), np.array([1, 2]), np.array(["a"]), np.int64(3),
    np.float32(2.5), np.bool_(True), bytearray(b"ab"), memoryview(b"ab"), (each for each in (Hostile(),)), Hostile(),
    (Hostile(),))
"""What behaves like something else, up to a point."""


def public_calls(owner: Any) -> Iterator[str]:
    """The names of a class's public methods that take arguments."""
    for name, value in inspect.getmembers(owner, inspect.isfunction):
        if not name.startswith("_") and len(inspect.signature(value).parameters) > 1:
            yield name


def misfits(make: Callable[[], Any], calls: Calls,
            state: Callable[[Any], object] = lambda owner: None, *,
            given: tuple[Any, ...] = (*STRANGE, *ODD, *HOSTILE)) -> Iterator[str]:
    """What ends in an error that is not the library's, or in one and a change, as text: call, argument, and what was
    given.

    Args:
        make: the object whose methods are called, or a module; made anew for each call.
        calls: which.
        state: of the object, which no call changes that ends in an error.
        given: for each argument.
    """
    for name, fine in calls.items():
        parameters = [each for each in inspect.signature(getattr(make(), name)).parameters.values()
                      if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
        for place, parameter in enumerate(parameters):
            for strange in given:
                args, kwargs = list(fine), {}
                if parameter.kind is parameter.KEYWORD_ONLY or place >= len(args):
                    kwargs[parameter.name] = strange
                else:
                    args[place] = strange
                owner = make()
                before = state(owner)
                error = _raised(getattr(owner, name), args, kwargs)
                if isinstance(error, CompactlibError):
                    if state(owner) != before:
                        yield f"{name}({parameter.name}={strange!r}): something has changed, and {error!r}"
                elif error is not None:
                    yield f"{name}({parameter.name}={strange!r}): {type(error).__name__}: {error}"


def _raised(call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Exception | None:
    try:
        # What is taken for the name of a folder is made elsewhere, and goes.
        with tempfile.TemporaryDirectory() as elsewhere, contextlib.chdir(elsewhere), contextlib.ExitStack() as used:
            answer = call(*args, **kwargs)
            if isinstance(answer, contextlib.AbstractContextManager):
                used.enter_context(answer)
            elif inspect.isgenerator(answer):
                list(answer)
    except Exception as error:
        return error
    return None
