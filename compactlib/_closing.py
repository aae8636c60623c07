# SPDX-License-Identifier: Apache-2.0
"""`Closing`: the base of objects that `with` closes."""

from __future__ import annotations

import abc
from typing import Self


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
