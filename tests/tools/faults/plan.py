# SPDX-License-Identifier: Apache-2.0
"""What can go wrong (`Fault`), and a disk on which it does: `FailingFiles` lets chosen changes fail.

Run the work once with no failure to learn `count`, then once for each n, and look each time whether the error is
named, what was complete is still there, and a second call finishes the work.
"""

from __future__ import annotations

import contextlib
import enum
import errno as _errno
import os
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from compactlib.errors import InvalidInput, StorageError
from compactlib.files.disk import Files, OutFile, StrPath
from compactlib.testing.in_front import Killed
from tests.tools.faults.files_in_front import FilesInFront

_FULL = frozenset({_errno.ENOSPC, _errno.EDQUOT, _errno.EFBIG})
_NEEDS_SPACE = frozenset({"create", "write", "copy", "link", "symlink", "make folder"})

Crash = Killed


class Fault(enum.Enum):
    """What happens to one operation of a disk, a key-value store or an object store; not each has all of them."""

    REFUSED = "refused"
    """Not carried out; the error says so."""
    TORN = "torn"
    """Refused, and half of the bytes of a write or a copy have arrived. Disks only."""
    FULL = "full"
    """Refused, and from here on everything that needs space. Disks only."""
    SLOW_DOWN = "slow down"
    """Not carried out; the store is busy. Key-value stores only."""
    CONFLICT = "conflict"
    """An operation with a condition finds that another writer was first. Key-value stores only."""
    CRASH_BEFORE = "crash before"
    """The process ends; not carried out, and nothing after it is."""
    CRASH_AFTER = "crash after"
    """The process ends once it was carried out; nothing after it is."""
    UNKNOWN_DONE = "unknown, done"
    """Carried out, and the error says that this is not known."""
    UNKNOWN_LOST = "unknown, lost"
    """Never carried out, and the error says that this is not known. Stores only."""
    UNKNOWN_LATE = "unknown, late"
    """Carried out a little later, and the error says that this is not known. Key-value stores only."""


FileFaultChoice: TypeAlias = Callable[[int], Fault | None]
"""Says for each change, by its number from 1 on, what happens to it; `None`: nothing."""

_REFUSALS = frozenset({Fault.REFUSED, Fault.TORN, Fault.FULL})


class FailingFiles(FilesInFront):
    """A `Files` whose `fail_at`-th change to the disk is refused, or several by choice. Threads may share it.

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
        faults: chooses further faults by the number of a change: those of `fault_plans.FILE_FAULTS`. `REFUSED` and
            `TORN` raise the error of `EIO`, `FULL` that of `ENOSPC`; after a crash every change raises `Crash`. It
            stops the process, and loses nothing that was not synced: for that see `explore_crashes`.

    Raises:
        InvalidInput: `fail_at` is less than 1.
    """

    def __init__(self, files: Files | None = None, *, fail_at: int | None = None, errno: int = _errno.ENOSPC,
                 short_write: bool = False, sticky: bool = False, faults: FileFaultChoice | None = None) -> None:
        if fail_at is not None and fail_at < 1:
            raise InvalidInput(f"changes are counted from 1, found fail_at={fail_at}")
        super().__init__(files)
        self._fail_at = fail_at
        self._errno = errno
        self._short_write = short_write
        self._sticky = sticky
        self._faults = faults
        self._full = self._crashed = False
        self._count = 0
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many changes were asked for so far, those refused included."""
        return self._count

    def open(self, path: StrPath) -> OutFile:
        """See `Files.open`."""
        if self._crashed:
            raise Crash("opening a file after the crash")
        if self._failed() and self._sticky and self._errno not in _FULL:
            raise _error(self._errno, "open", path)
        return super().open(path)

    def __repr__(self) -> str:
        return (f"FailingFiles({self._files!r}, fail_at={self._fail_at}, errno={_errno.errorcode.get(self._errno)}, "
                f"sticky={self._sticky}, count={self._count})")

    def _failed(self) -> bool:
        return self._fail_at is not None and self._count >= self._fail_at

    @contextlib.contextmanager
    def step(self, operation: str, path: StrPath, *, target: StrPath | None = None,
             half: Callable[[], object] | None = None, grows: bool = False) -> Iterator[None]:
        """Count one change, and let it meet its fault."""
        with self._lock:
            if self._crashed:
                raise Crash(f"{operation} {os.fspath(path)} after the crash")
            self._count += 1
            number, fault, error = self._count, None, None
            if self._refuses("write" if grows else operation):
                error = _errno.ENOSPC if self._full else self._errno
        if error is None and self._faults is not None:
            fault = self._faults(number)
            error = {Fault.REFUSED: _errno.EIO, Fault.TORN: _errno.EIO, Fault.FULL: _errno.ENOSPC}.get(fault) \
                if fault in _REFUSALS else None
            self._full = self._full or fault is Fault.FULL
        if fault is Fault.CRASH_BEFORE:
            raise self._crash(number, operation, path)
        if error is not None:
            if half is not None and (fault is Fault.TORN or (fault is None and self._short_write and not self._full)):
                half()
            raise _error(error, operation, path)
        yield
        if fault is Fault.CRASH_AFTER:
            raise self._crash(number, operation, path)
        if fault is Fault.UNKNOWN_DONE:
            raise _error(_errno.EIO, operation, path)

    def _refuses(self, operation: str) -> bool:
        """Whether `fail_at`, or a disk that is full since, refuses the change being counted."""
        needs_space = operation in _NEEDS_SPACE
        return self._count == self._fail_at or (self._full and needs_space) or (
            self._sticky and self._failed() and (self._errno not in _FULL or needs_space))

    def _crash(self, number: int, operation: str, path: StrPath) -> Crash:
        self._crashed = True
        return Crash(f"change {number}: {operation} {os.fspath(path)}")


def _error(number: int, operation: str, path: StrPath) -> StorageError:
    return StorageError.from_os(OSError(number, os.strerror(number)), operation, path)
