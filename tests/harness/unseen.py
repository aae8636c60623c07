# SPDX-License-Identifier: Apache-2.0
"""A disk that does not let anybody look at a name for a moment: `lstat` and `stat` fail, reading goes on."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Unseen:
    """The look of a number at a name in a folder is refused, and all the others are not.

    Args:
        folder: where.
        refused: which one, counted from 1; 0: none.

    Attributes:
        looks: how many there were.
    """

    def __init__(self, folder: Path, refused: int) -> None:
        self.looks: int = 0
        self._folder = str(folder)
        self._refused = refused

    def _counted(self, look: Callable[..., os.stat_result]) -> Callable[..., os.stat_result]:
        def counted(path: Any, **more: Any) -> os.stat_result:
            if not isinstance(path, int) and os.fspath(path).startswith(self._folder):
                self.looks += 1
                if self.looks == self._refused:
                    raise OSError(errno.EIO, os.strerror(errno.EIO), path)
            return look(path, **more)

        return counted

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """In the body."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "lstat", self._counted(os.lstat))
            patch.setattr(os, "stat", self._counted(os.stat))
            yield
