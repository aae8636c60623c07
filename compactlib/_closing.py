# SPDX-License-Identifier: Apache-2.0
"""`Closing`: the base of objects that `with` closes; `closed_on_failure` closes an object that is not complete."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Iterator
from typing import Protocol, Self


class Closable(Protocol):
    """An object with `close`."""

    def close(self) -> None:
        """Close it; may be called again."""


class Closing:
    """Calls `close` at the end of a `with`."""

    __slots__ = ()

    @abc.abstractmethod
    def close(self) -> None:
        """Release all resources; closing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def closed_on_failure(unfinished: Closable) -> Iterator[None]:
    """Close an object if the block, which completes it, fails: a kept traceback would keep its files open.

    The error of the block is raised, with that of a failed close as a note.
    """
    try:
        yield
    except BaseException as error:
        try:
            unfinished.close()
        except Exception as second:
            error.add_note(f"closing it failed too: {type(second).__name__}: {second}")
        raise
