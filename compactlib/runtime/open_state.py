# SPDX-License-Identifier: Apache-2.0
"""Whether what is connected to elsewhere may still be used: not once closed, nor in a child of who opened it."""

from __future__ import annotations

import os

from compactlib.errors import Closed


class OpenState:
    """Open until it is closed, in one process only.

    A connection must not cross a fork: the child's use of it would damage the file, garble what is sent to the server,
    take its parent's answers, or wait for threads that it does not have.

    Args:
        name: of what it is, for messages: `"the store in /data"`.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._closed = False
        self._process = os.getpid()

    @property
    def is_foreign(self) -> bool:
        """Whether this is a child of the process that opened it."""
        return self._process != os.getpid()

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
        if self.is_foreign:
            raise Closed(f"{self._name} was opened by process {self._process}, this is its child "
                         f"{os.getpid()}; open it anew here")
