# SPDX-License-Identifier: Apache-2.0
"""A lock that an interrupt cannot leave held, and that a forked child is refused instead of waiting for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from compactlib._forks import OfOneProcess


class OwnedLock(OfOneProcess):
    """A re-entrant lock of the process that made it, for `with`; a fork of that process is refused at once.

    Args:
        what: what it guards as messages name it, for example `"the log in /data/a"`.
    """

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what
        self._lock = threading.RLock()

    def require_mine(self) -> None:
        """Return unless this process is a fork of the one that made it.

        Raises:
            Closed: it is.
        """
        if self.is_inherited:
            raise self.refusal(self._what)

    # `with` looks both up before it calls the first, and both are functions of C then: an interrupt comes before the
    # lock is taken, or within the block, where a method of Python could be left with it.
    @property
    def __enter__(self) -> Callable[[], bool]:
        if self.is_inherited:
            raise self.refusal(self._what)
        return self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._lock.__exit__

    def __repr__(self) -> str:
        return f"<OwnedLock of {self._what}>"
