# SPDX-License-Identifier: Apache-2.0
"""One hook of the process that marks, in a forked child, each object that its parent has open.

A child must not write what its parent has open, nor wait for a lock: the thread that held it does not exist there.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Final

from compactlib.errors import Closed

forking: Final = threading.RLock()
"""Held while a fork is made. Hold it where a fork must not come: while a descriptor is open and in no list, say."""
# References that remove themselves: all that is done with the set is one call of a function of C, which neither another
# thread nor an interrupt can divide.
_open: Final[set[weakref.ref[OfOneProcess]]] = set()


class OfOneProcess:
    """An object of the process that made it; a forked child of that process refuses it.

    A subclass with an `_inherit` of its own calls `super().__init__()` last: a fork may come right after it.

    Attributes:
        is_inherited: whether this process is a fork of the one that made it.
    """

    is_inherited: bool = False

    def __init__(self) -> None:
        self._made_by = os.getpid()
        _open.add(weakref.ref(self, _open.discard))

    def _inherit(self) -> None:
        """Mark it as the parent's. Called in the child before anything else runs there, and must not raise."""
        self.is_inherited = True

    def refusal(self, what: str, advice: str = "open it here when it is closed there") -> Closed:
        """Return the error for a call in a child; `what` names the object: `"the log in /data/a"`."""
        return Closed(f"{what} {self._why_refused(advice)}")

    def _why_refused(self, advice: str = "open it here when it is closed there") -> str:
        """Return the predicate of the sentence that begins with the object's name."""
        return (f"was opened by process {self._made_by}, and this is process {os.getpid()}, a fork of it; a fork must "
                f"not use what its parent has open, {advice}")


class OpenState(OfOneProcess):
    """Open until it is closed, in one process only.

    A connection must not cross a fork: the child's use of it would damage the file, garble what is sent to the server,
    take its parent's answers, or wait for threads that it does not have.

    Args:
        name: of what it is, for messages: `"the store in /data"`.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self._closed = False

    @property
    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def close(self) -> None:
        """From now on `require` raises."""
        self._closed = True

    def require(self) -> None:
        """Check that it may be used.

        Raises:
            Closed: it was closed, or it was opened by another process.
        """
        if self._closed:
            raise Closed(f"{self._name} was closed; open it again")
        if self.is_inherited:
            raise self.refusal(self._name, "open it anew here")


def _inherit_all() -> None:
    forking.release()
    for reference in tuple(_open):
        each = reference()
        if each is not None:
            each._inherit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=forking.acquire, after_in_parent=forking.release, after_in_child=_inherit_all)
