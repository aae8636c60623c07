# SPDX-License-Identifier: Apache-2.0
"""`Files` that let a test look at, or leave out, what a compaction does to the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compactlib.files import Files, OutFile
from compactlib.files.disk import StrPath
from compactlib.raftlog.model.names import LOCK_NAME
from tests.tools.faults.files_in_front import FilesInFront

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
        super().__init__(files)
        self.look = look

    @contextmanager
    def step(self, operation: str, path: StrPath, *, target: StrPath | None = None, **more: object) -> Iterator[None]:
        self.look("write" if operation in ("copy", "truncate") else operation, str(path if target is None else target))
        yield


class SwallowSync(WatchedFiles):
    """Leaves out syncs.

    Args:
        file: the number, counted from 1, of the file sync in a private folder to leave out; 0 for none.
        folder: the number of the folder sync to leave out; 0 for none.
        files: what carries out the others.
    """

    def __init__(self, *, file: int = 0, folder: int = 0, files: Files) -> None:
        super().__init__(lambda operation, path: None, files)
        self.left_out = 0
        self._file, self._folder = file, folder

    def sync_folder(self, path: StrPath) -> None:
        self._folder -= 1
        if self._folder:
            self._files.sync_folder(path)
        else:
            self.left_out += 1

    def sync_file(self, out: OutFile) -> None:
        self._file -= "rewrite-" in out.path
        if self._file or "rewrite-" not in out.path:
            out.sync()
        else:
            self.left_out += 1


class UnsyncedFiles(WatchedFiles):
    """Leaves out every sync: for tests in which nothing crashes, and which would wait for the disk otherwise."""

    def __init__(self) -> None:
        super().__init__(lambda operation, path: None)

    def sync_folder(self, path: StrPath) -> None:
        """Nothing."""

    def sync_file(self, out: OutFile) -> None:
        """Nothing."""


class LocksAsideFiles(WatchedFiles):
    """Removes lock files past a recorder of crashes: they are made past it too, and mean nothing after a crash."""

    def __init__(self, files: Files) -> None:
        super().__init__(lambda operation, path: None, files)

    def unlink(self, path: StrPath) -> None:
        if os.path.basename(path) == LOCK_NAME:
            os.unlink(path)
        else:
            super().unlink(path)
