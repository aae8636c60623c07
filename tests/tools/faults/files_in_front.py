# SPDX-License-Identifier: Apache-2.0
"""`FilesInFront`: a disk in front of another one, for what looks at each change, or interferes."""

from __future__ import annotations

import abc
import contextlib
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from compactlib.files.disk import Files, LocalFiles, OutFile, StrPath

if TYPE_CHECKING:
    from typing_extensions import Buffer


class FilesInFront(abc.ABC):
    """A `Files` each of whose changes is carried out inside `step`; opening an existing file and closing are none.

    Args:
        files: carries the changes out; the local disk if not given.
    """

    def __init__(self, files: Files | None) -> None:
        self._files: Files = LocalFiles() if files is None else files

    @abc.abstractmethod
    def step(self, operation: str, path: StrPath, *, target: StrPath | None = None,
             half: Callable[[], object] | None = None, grows: bool = False) -> AbstractContextManager[None]:
        """One change.

        Args:
            operation: `"create"`, `"write"`, `"copy"`, `"truncate"`, `"sync"`, `"rename"`, `"link"`,
                `"symlink"`, `"unlink"`, `"make folder"`, `"remove folder"` or `"sync folder"`.
            path: of what.
            target: the new name, if it gets one.
            half: carries out a half of it, if it has halves.
            grows: whether a file gets longer by a `"truncate"`.
        """

    def create(self, path: StrPath) -> OutFile:
        """See `Files.create`."""
        with contextlib.ExitStack() as undone:
            with self.step("create", path):
                out = self._files.create(path)
                undone.callback(out.close)
            undone.pop_all()
        return _OutFileInFront(out, self)

    def open(self, path: StrPath) -> OutFile:
        """See `Files.open`."""
        return _OutFileInFront(self._files.open(path), self)

    def rename(self, source: StrPath, target: StrPath) -> None:
        """See `Files.rename`."""
        with self.step("rename", source, target=target):
            self._files.rename(source, target)

    def link(self, source: StrPath, target: StrPath) -> None:
        """See `Files.link`."""
        with self.step("link", source, target=target):
            self._files.link(source, target)

    def symlink(self, text: str, path: StrPath) -> None:
        """See `Files.symlink`."""
        with self.step("symlink", path):
            self._files.symlink(text, path)

    def unlink(self, path: StrPath) -> None:
        """See `Files.unlink`."""
        with self.step("unlink", path):
            self._files.unlink(path)

    def make_folder(self, path: StrPath) -> None:
        """See `Files.make_folder`."""
        with self.step("make folder", path):
            self._files.make_folder(path)

    def remove_folder(self, path: StrPath) -> None:
        """See `Files.remove_folder`."""
        with self.step("remove folder", path):
            self._files.remove_folder(path)

    def available_bytes(self, path: StrPath) -> int | None:
        """See `Files.available_bytes`."""
        return self._files.available_bytes(path)

    def sync_folder(self, path: StrPath) -> None:
        """See `Files.sync_folder`."""
        with self.step("sync folder", path):
            self._files.sync_folder(path)

    def sync_file(self, out: OutFile) -> None:
        """What a sync of one of the files comes to."""
        with self.step("sync", out.path):
            out.sync()


class _OutFileInFront:
    """An `OutFile` whose changes are steps of the `FilesInFront` it comes from."""

    def __init__(self, out: OutFile, files: FilesInFront) -> None:
        self._out = out
        self._files = files

    @property
    def path(self) -> str:
        return self._out.path

    def fileno(self) -> int:
        return self._out.fileno()

    def write_at(self, offset: int, pieces: Sequence[Buffer]) -> int:
        def half() -> None:
            data = b"".join(pieces)
            self._out.write_at(offset, [data[:len(data) // 2]])

        with self._files.step("write", self.path, half=half):
            return self._out.write_at(offset, pieces)

    def copy_from(self, source: int, source_offset: int, length: int, offset: int) -> None:
        with self._files.step("copy", self.path,
                              half=lambda: self._out.copy_from(source, source_offset, length // 2, offset)):
            self._out.copy_from(source, source_offset, length, offset)

    def truncate(self, size: int) -> None:
        grows = size > os.fstat(self.fileno()).st_size
        with self._files.step("truncate", self.path, grows=grows):
            self._out.truncate(size)

    def sync(self) -> None:
        self._files.sync_file(self._out)

    def close(self) -> None:
        self._out.close()
