# SPDX-License-Identifier: Apache-2.0
"""`Files` that let a test look at, or leave out, what a compaction does to the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from compactlib.files.disk import Files, LocalFiles, OutFile, StrPath
from compactlib.raftlog.model.names import LOCK_NAME

if TYPE_CHECKING:
    from typing_extensions import Buffer

Look = Callable[[str, str], object]
"""Called with the name of an operation and the path, before it is carried out."""


class WatchedFiles:
    """Passes everything on; each change to the disk is shown to `look` first.

    Args:
        look: called with `"create"`, `"write"`, `"sync"`, `"rename"` (with the target), `"link"` (likewise),
            `"symlink"`, `"unlink"`, `"make folder"`, `"remove folder"`, `"sync folder"` or `"punch hole"`, and the
            path.
        files: what carries it out.
    """

    def __init__(self, look: Look, files: Files | None = None) -> None:
        self.look = look
        self._files: Files = LocalFiles() if files is None else files

    def create(self, path: StrPath) -> OutFile:
        self.look("create", str(path))
        return _WatchedOut(self._files.create(path), self)

    def open(self, path: StrPath) -> OutFile:
        return _WatchedOut(self._files.open(path), self)

    def rename(self, source: StrPath, target: StrPath) -> None:
        self.look("rename", str(target))
        self._files.rename(source, target)

    def link(self, source: StrPath, target: StrPath) -> None:
        self.look("link", str(target))
        self._files.link(source, target)

    def symlink(self, text: str, path: StrPath) -> None:
        self.look("symlink", str(path))
        self._files.symlink(text, path)

    def unlink(self, path: StrPath) -> None:
        self.look("unlink", str(path))
        self._files.unlink(path)

    def make_folder(self, path: StrPath) -> None:
        self.look("make folder", str(path))
        self._files.make_folder(path)

    def remove_folder(self, path: StrPath) -> None:
        self.look("remove folder", str(path))
        self._files.remove_folder(path)

    def available_bytes(self, path: StrPath) -> int | None:
        return self._files.available_bytes(path)

    def sync_folder(self, path: StrPath) -> None:
        self.look("sync folder", str(path))
        self._files.sync_folder(path)

    def sync_file(self, out: OutFile) -> None:
        """What a sync of one of the files comes to."""
        self.look("sync", out.path)
        out.sync()


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


class _WatchedOut:
    def __init__(self, out: OutFile, files: WatchedFiles) -> None:
        self._out = out
        self._files = files

    @property
    def path(self) -> str:
        return self._out.path

    def fileno(self) -> int:
        return self._out.fileno()

    def write_at(self, offset: int, pieces: Sequence[Buffer]) -> int:
        self._files.look("write", self.path)
        return self._out.write_at(offset, pieces)

    def copy_from(self, source: int, source_offset: int, length: int, offset: int) -> None:
        self._files.look("write", self.path)
        self._out.copy_from(source, source_offset, length, offset)

    def truncate(self, size: int) -> None:
        self._files.look("write", self.path)
        self._out.truncate(size)

    def punch_hole(self, offset: int, length: int) -> None:
        self._files.look("punch hole", self.path)
        self._out.punch_hole(offset, length)

    def sync(self) -> None:
        self._files.sync_file(self._out)

    def close(self) -> None:
        self._out.close()


class LocksAsideFiles(WatchedFiles):
    """Removes lock files past a recorder of crashes: they are made past it too, and mean nothing after a crash."""

    def __init__(self, files: Files) -> None:
        super().__init__(lambda operation, path: None, files)

    def unlink(self, path: StrPath) -> None:
        if os.path.basename(path) == LOCK_NAME:
            os.unlink(path)
        else:
            super().unlink(path)
