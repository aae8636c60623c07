# SPDX-License-Identifier: Apache-2.0
"""`Closing`: what is closed by leaving its `with`."""

from __future__ import annotations

import abc
from typing import Self


class Closing:
    """Has a `with` call `close` at its end."""

    __slots__ = ()

    @abc.abstractmethod
    def close(self) -> None:
        """Let go of what is held; closing again does nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
