# SPDX-License-Identifier: Apache-2.0
"""A lock that a fork is refused instead of waiting for it: the thread that held it does not exist there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from compactlib.errors import Closed


class OwnedLock:
    """A re-entrant lock of the process that made it, for `with`; a fork of that process is refused at once.

    A fork has one thread. What another thread held when it was made stays held there for ever, so that the first call
    would hang. A store guarded by this lock says instead that it is not the fork's. About 0.3
    microseconds.

    Args:
        what: what it guards as messages name it, for example `"the log in /data/a"`.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._pid = os.getpid()
        self._lock = threading.RLock()

    @property
    def is_inherited(self) -> bool:
        """Whether this process is a fork of the one that made it."""
        return self._pid != os.getpid()

    def require_mine(self) -> None:
        """Return unless this process is a fork of the one that made it.

        Raises:
            Closed: it is.
        """
        if self._pid != os.getpid():
            raise Closed(f"{self._what} was opened by process {self._pid}, and this is process {os.getpid()}; a fork "
                         f"must not use what its parent has open, open it here when it is closed there")

    # `with` looks both up before it calls the first, and both are functions of C then: an interrupt comes before the
    # lock is taken, or within the block, where a method of Python could be left with it.
    @property
    def __enter__(self) -> Callable[[], bool]:
        if self._pid != os.getpid():
            self.require_mine()
        return self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._lock.__exit__

    def __repr__(self) -> str:
        return f"<OwnedLock of {self._what}, process {self._pid}>"


class Changes(threading.Condition):
    """A `threading.Condition` whose `with` an interrupt cannot leave with the lock held, as that of `OwnedLock`."""

    def __init__(self) -> None:
        self._held = threading.RLock()
        super().__init__(self._held)

    @property
    def __enter__(self) -> Callable[[], bool]:
        return self._held.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._held.__exit__


def take_within(seconds: float, lock: threading.RLock | threading.Lock, taken: list[bool]) -> None:
    """Wait so long for a lock, and note in `taken` whether it came, for who has to release it in a `finally`.

    Functions of C alone take it and note it, in one call: an interrupt comes before or after both.
    """
    taken.extend(map(lock.acquire, (True,), (seconds,)))
