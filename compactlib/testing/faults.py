"""A disk that refuses: `FailingFiles` lets the n-th change fail, once or from there on.

Run the work once with no failure to learn `count`, then once for each n, and look each time whether the error is
named, what was complete is still there, and a second call finishes the work.
"""

from __future__ import annotations

import errno as _errno
import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from compactlib.errors import InvalidInput, StorageError
from compactlib.files import Files, LocalFiles, OutFile, StrPath

if TYPE_CHECKING:
    from typing_extensions import Buffer

_FULL = frozenset({_errno.ENOSPC, _errno.EDQUOT, _errno.EFBIG})
_NEEDS_SPACE = frozenset({"create", "write", "copy", "link", "symlink", "make folder"})


class FailingFiles:
    """A `Files` whose `fail_at`-th change to the disk is refused. Threads may share it.

    Changes are counted from 1 over all methods, those of the files it opens included; opening an existing file and
    closing are none. A change that the disk itself refuses counts too.

    Args:
        files: what carries out the others; the local disk if not given.
        fail_at: the number of the change that is refused, >= 1; none if `None`, which only counts.
        errno: the system's error number: `ENOSPC` gives `DiskFull`, `EROFS` gives `ReadOnly`, `EIO` a `StorageError`.
        short_write: if the refused change is a write or a copy, half of its bytes arrive first.
        sticky: the disk stays so. One that is full (`ENOSPC`, `EDQUOT`, `EFBIG`) goes on refusing what needs space
            (to create, write, copy, link or make a folder, or to extend a file) and does the rest; any other refuses
            everything, opening for writing included.

    Raises:
        InvalidInput: `fail_at` is less than 1.
    """

    def __init__(self, files: Files | None = None, *, fail_at: int | None = None, errno: int = _errno.ENOSPC,
                 short_write: bool = False, sticky: bool = False) -> None:
        if fail_at is not None and fail_at < 1:
            raise InvalidInput(f"changes are counted from 1, found fail_at={fail_at}")
        self._files: Files = LocalFiles() if files is None else files
        self._fail_at = fail_at
        self._errno = errno
        self._short_write = short_write
        self._sticky = sticky
        self._count = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many changes were asked for so far, those refused included."""
        return self._count

    def create(self, path: StrPath) -> OutFile:
        """See `Files.create`."""
        self._change("create", path)
        return _FailingOutFile(self._files.create(path), self)

    def open(self, path: StrPath) -> OutFile:
        """See `Files.open`."""
        if self._failed() and self._sticky and self._errno not in _FULL:
            raise self._error("open", path)
        return _FailingOutFile(self._files.open(path), self)

    def rename(self, source: StrPath, target: StrPath) -> None:
        """See `Files.rename`."""
        self._change("rename", source)
        self._files.rename(source, target)

    def link(self, source: StrPath, target: StrPath) -> None:
        """See `Files.link`."""
        self._change("link", source)
        self._files.link(source, target)

    def symlink(self, text: str, path: StrPath) -> None:
        """See `Files.symlink`."""
        self._change("symlink", path)
        self._files.symlink(text, path)

    def unlink(self, path: StrPath) -> None:
        """See `Files.unlink`."""
        self._change("unlink", path)
        self._files.unlink(path)

    def make_folder(self, path: StrPath) -> None:
        """See `Files.make_folder`."""
        self._change("make folder", path)
        self._files.make_folder(path)

    def remove_folder(self, path: StrPath) -> None:
        """See `Files.remove_folder`."""
        self._change("remove folder", path)
        self._files.remove_folder(path)

    def sync_folder(self, path: StrPath) -> None:
        """See `Files.sync_folder`."""
        self._change("sync folder", path)
        self._files.sync_folder(path)

    def __repr__(self) -> str:
        return (f"FailingFiles({self._files!r}, fail_at={self._fail_at}, errno={_errno.errorcode.get(self._errno)}, "
                f"sticky={self._sticky}, count={self._count})")

    def _failed(self) -> bool:
        return self._fail_at is not None and self._count >= self._fail_at

    def _error(self, operation: str, path: StrPath) -> StorageError:
        return StorageError.from_os(OSError(self._errno, os.strerror(self._errno)), operation, path)

    def _refuses(self, operation: str) -> bool:
        """Count one change, and say whether it is refused."""
        with self._lock:
            self._count += 1
            if self._count == self._fail_at:
                return True
            return self._sticky and self._failed() and (self._errno not in _FULL or operation in _NEEDS_SPACE)

    def _change(self, operation: str, path: StrPath) -> None:
        if self._refuses(operation):
            raise self._error(operation, path)


class _FailingOutFile:
    """An `OutFile` whose changes count with those of the `FailingFiles` it comes from."""

    def __init__(self, out: OutFile, files: FailingFiles) -> None:
        self._out = out
        self._files = files

    @property
    def path(self) -> str:
        return self._out.path

    def fileno(self) -> int:
        return self._out.fileno()

    def write_at(self, offset: int, pieces: Sequence[Buffer]) -> int:
        if self._files._refuses("write"):
            if self._files._short_write:
                data = b"".join(pieces)
                self._out.write_at(offset, [data[:len(data) // 2]])
            raise self._files._error("write", self.path)
        return self._out.write_at(offset, pieces)

    def copy_from(self, source: int, source_offset: int, length: int, offset: int) -> None:
        if self._files._refuses("copy"):
            if self._files._short_write:
                self._out.copy_from(source, source_offset, length // 2, offset)
            raise self._files._error("copy", self.path)
        self._out.copy_from(source, source_offset, length, offset)

    def truncate(self, size: int) -> None:
        grows = size > os.fstat(self.fileno()).st_size
        if self._files._refuses("write" if grows else "truncate"):
            raise self._files._error("truncate", self.path)
        self._out.truncate(size)

    def punch_hole(self, offset: int, length: int) -> None:
        self._files._change("punch hole", self.path)
        self._out.punch_hole(offset, length)

    def sync(self) -> None:
        self._files._change("sync", self.path)
        self._out.sync()

    def close(self) -> None:
        self._out.close()
