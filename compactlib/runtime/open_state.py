# SPDX-License-Identifier: Apache-2.0
"""Whether what is connected to elsewhere may still be used: not once closed, nor in a child of who opened it."""

from __future__ import annotations

from compactlib._forks import OfOneProcess
from compactlib.errors import Closed


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
