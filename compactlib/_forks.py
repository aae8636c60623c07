# SPDX-License-Identifier: Apache-2.0
"""One hook of the process that marks, in a forked child, each object that its parent has open.

A child must not write what its parent has open, nor wait for a lock: the thread that held it does not exist there.
"""

from __future__ import annotations

import os
import weakref
from typing import Final

from compactlib.errors import Closed


class OfOneProcess:
    """An object of the process that made it; a forked child of that process refuses it.

    Attributes:
        is_inherited: whether this process is a fork of the one that made it.
    """

    is_inherited: bool = False

    def __init__(self) -> None:
        self._made_by = os.getpid()
        _OPEN.add(self)

    def _inherit(self) -> None:
        """Mark it as the parent's. Called in the child before anything else runs there, and must not raise."""
        self.is_inherited = True

    def refusal(self, what: str, advice: str = "open it here when it is closed there") -> Closed:
        """Return the error for a call in a child; `what` names the object: `"the log in /data/a"`."""
        return Closed(f"{what} was opened by process {self._made_by}, and this is process {os.getpid()}, a fork of it; "
                      f"a fork must not use what its parent has open, {advice}")


_OPEN: Final = weakref.WeakSet[OfOneProcess]()


def _inherit_all() -> None:
    for each in tuple(_OPEN):
        each._inherit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_inherit_all)
