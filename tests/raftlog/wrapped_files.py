# SPDX-License-Identifier: Apache-2.0
"""`Files` that let a test observe, or leave out, a compaction's changes of the disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from compactlib.files import Files
from compactlib.files.disk import StrPath
from compactlib.raftlog.names import LOCK_NAME
from compactlib.testing import FilesInFront, Request

Look = Callable[[str, str], object]
"""Called with the name of an operation and the path, before it is carried out."""


class WatchedFiles(FilesInFront):
    """Passes everything on; each change to the disk is shown to `look` first.

    Args:
        look: called with `"create"`, `"write"`, `"sync"`, `"rename"` (with the target), `"link"` (likewise),
            `"symlink"`, `"unlink"`, `"make folder"`, `"remove folder"` or `"sync folder"`, and the
            path.
        files: what carries it out.
    """

    def __init__(self, look: Look, files: Files | None = None) -> None:
        super().__init__(self._watch, files)
        self.look = look

    def _watch(self, request: Request, act: Callable[[], Any]) -> Any:
        if request.changes:
            kind = "write" if request.kind in ("copy", "truncate", "extend") else request.kind
            self.look(kind, request.target if kind in ("rename", "link") else request.path)
        return act()


class UnsyncedFiles(FilesInFront):
    """Leaves out every sync: for tests in which nothing crashes, and which would wait for the disk otherwise."""

    def __init__(self) -> None:
        super().__init__(lambda request, act: None if request.kind in ("sync", "sync folder") else act())


class LocksAsideFiles(FilesInFront):
    """Removes lock files past a recorder of crashes: they are made past it too, and mean nothing after a crash."""

    def __init__(self, files: Files) -> None:
        super().__init__(lambda request, act: act(), files)

    def unlink(self, path: StrPath) -> None:
        if os.path.basename(path) == LOCK_NAME:
            os.unlink(path)
        else:
            super().unlink(path)
