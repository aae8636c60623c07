# SPDX-License-Identifier: Apache-2.0
"""A disk that refuses `lstat` and `stat` of names for a moment; reading files still works."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


class Unseen:
    """Refuses one `lstat` or `stat` of a name in a folder.

    Args:
        folder: the folder.
        refused: the number of the refused call, from 1; 0: no call.

    Attributes:
        looks: the number of calls so far.
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
        """Patch `os` for the time of the block."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "lstat", self._counted(os.lstat))
            patch.setattr(os, "stat", self._counted(os.stat))
            yield
