# SPDX-License-Identifier: Apache-2.0
"""One hook of the process that marks, in a forked child, each object that its parent has open.

A child must neither write its parent's files nor wait for a lock: the thread that held it does not exist in the child.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final

from compactlib._closing import Closing
from compactlib.errors import Closed

forking: Final = threading.RLock()
"""Held during a fork. Hold it to keep forks out, for example while an open descriptor is in no list yet."""


class _Reference(weakref.ref["OfOneProcess"]):
    """A reference that equals itself alone: stores of a host may be equal, or have no hash."""

    __slots__ = ()
    __eq__ = object.__eq__
    __hash__ = object.__hash__


# References remove themselves. Each use of the set is one call of C, which no thread and no interrupt divides.
_open: Final[set[_Reference]] = set()


class OfOneProcess:
    """An object of the process that made it; a forked child of that process refuses it.

    A subclass with an `_inherit` of its own calls `super().__init__()` last: a fork may come right after it.

    Attributes:
        is_inherited: whether this process is a fork of the process that made it.
    """

    is_inherited: bool = False

    def __init__(self) -> None:
        self._made_by = os.getpid()
        _open.add(_Reference(self, _open.discard))

    def _inherit(self) -> None:
        """Mark it as the parent's. Runs first in the child, and must not raise."""
        self.is_inherited = True

    def _why_refused(self, advice: str = "open it here when it is closed there") -> str:
        """Return the predicate of the sentence that begins with the object's name."""
        return (f"was opened by process {self._made_by}, and this is process {os.getpid()}, a fork of it; a fork must "
                f"not use what its parent has open, {advice}")


class Handle(OfOneProcess, Closing):
    """An open store, in the process that opened it; the base class of key-value and object stores.

    A connection must not cross a fork: a child that uses it would damage the file, mix its requests with its parent's,
    take its parent's answers, or wait for threads that it does not have.

    Args:
        name: the store's name, for messages: `"the store in /data"`.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._handle_name = name
        self._is_closed = False

    def close(self) -> None:
        """Release the store's resources; closing again does nothing. In a forked child they belong to the parent."""
        if not self._is_closed and not self.is_inherited:
            self._is_closed = True
            self._close()

    def _close(self) -> None:
        """Release connections and files; called once, in the process that opened the store."""

    def _require_open(self) -> None:
        """Check that the store can be used.

        Raises:
            Closed: it was closed, or it was opened by another process.
        """
        if self._is_closed:
            raise Closed(f"{self._handle_name} was closed; open it again")
        if self.is_inherited:
            raise Closed(f"{self._handle_name} {self._why_refused('open it again here')}")


def _inherit_all() -> None:
    forking.release()
    for reference in tuple(_open):
        each = reference()
        if each is not None:
            each._inherit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=forking.acquire, after_in_parent=forking.release, after_in_child=_inherit_all)
