# SPDX-License-Identifier: Apache-2.0
"""`FolderLock`: one writer of a folder, by advisory locks on the folder and on a file in it.

The lock on the folder holds even if the file is removed. The file names the holder, and is locked on file systems that
cannot lock folders (NFS).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import weakref

from compactlib._forks import OfOneProcess, forking
from compactlib.errors import Busy, InvalidInput, StorageError, Unsupported
from compactlib.files.disk import StrPath, open_into

LOCK_NAME = "LOCK"
_HOLDER_BYTES = 32
_FOLDERS_HAVE_NO_LOCKS = frozenset({errno.EBADF, errno.EINVAL, errno.EISDIR, errno.ENOLCK, errno.EOPNOTSUPP,
                                    errno.ENOTSUP, errno.ENOSYS})


class FolderLock(OfOneProcess):
    """Holds `<folder>` and `<folder>/LOCK` locked; a second holder, in this process or another, is refused with `Busy`.

    The operating system releases the locks when the process ends; the file stays and means nothing. A lock without
    references, as after an interrupt, is released too. It belongs to the process that made it: a forked child neither
    holds nor releases it.

    Args:
        folder: only this process may write it.
        meanwhile: advice in the message of `Busy` for the refused process, such as "read it with a LogReader".

    Raises:
        Busy: another process or object holds it; the message names the process.
        InvalidInput: `LOCK` is not an ordinary file, but for example a symbolic link, which is never followed.
        StorageError: the lock file cannot be created (`ReadOnly` in a read-only folder).
        Unsupported: the platform has no `flock`.
    """

    def __init__(self, folder: StrPath, *, meanwhile: str = "") -> None:
        self._folder = os.fspath(folder)
        self._path = os.path.join(folder, LOCK_NAME)
        self._meanwhile = f", or {meanwhile}" if meanwhile else ""
        self._descriptors: list[int] = []
        self._finally = weakref.finalize(self, _let_go, self._descriptors)
        self._finally.atexit = False
        super().__init__()
        try:
            # Without a fork in between: a child closes the descriptors in the list.
            with forking:
                self._lock()
            # Only for messages in other processes: a full disk does not matter.
            with contextlib.suppress(OSError):
                # Not through `Files`: the name means nothing after a crash.
                os.pwrite(self._descriptors[-1], f"process {os.getpid()}".ljust(_HOLDER_BYTES).encode(), 0)  # noqa: TID251
        except BaseException:
            # Also after an interrupt: a traceback that is kept keeps this object, and so the lock.
            self.release()
            raise

    def _lock(self) -> None:
        try:
            import fcntl
        except ImportError:
            raise Unsupported("locking a folder needs flock, which this platform lacks; use Linux or macOS") from None
        try:
            open_into(self._descriptors, self._folder, os.O_RDONLY | os.O_DIRECTORY)
            self._open_file()
            for descriptor in self._descriptors:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise
                except OSError as error:
                    if descriptor == self._descriptors[-1] or error.errno not in _FOLDERS_HAVE_NO_LOCKS:
                        raise
        except BlockingIOError:
            raise Busy(f"{self._folder} is open for writing by {self._holder()}; close it there first"
                       f"{self._meanwhile}") from None
        except OSError as error:
            raise StorageError.from_os(error, "lock", self._path) from error

    def _open_file(self) -> None:
        try:
            # Non-blocking, in case the name is a pipe's.
            open_into(self._descriptors, self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise
            raise self._foreign() from None
        if not stat.S_ISREG(os.fstat(self._descriptors[-1]).st_mode):
            raise self._foreign()

    def _foreign(self) -> InvalidInput:
        return InvalidInput(f"{self._path} is not an ordinary file, and a lock is one; inspect it, and remove it")

    def _holder(self) -> str:
        text = os.pread(self._descriptors[-1], _HOLDER_BYTES, 0).decode("ascii", "replace").strip(" \0")
        return text or "a process"

    def release(self) -> None:
        """Release the lock. May be called twice, also after an interrupt in the first call."""
        if self._descriptors:
            _let_go(self._descriptors)
        self._finally.detach()

    def _inherit(self) -> None:
        # The child closes its copies without an unlock, which would take the lock from the parent.
        super()._inherit()
        while self._descriptors:
            with contextlib.suppress(OSError):
                os.close(self._descriptors.pop())

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"FolderLock({self._folder!r}, {'held' if self._descriptors else 'released'})"


def _let_go(descriptors: list[int]) -> None:
    while descriptors:
        with forking:
            if descriptors:
                import fcntl

                # Unlock first, because closing does not while a child has a copy. The descriptor leaves the list last,
                # so that a second call completes an interrupted call.
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptors[-1], fcntl.LOCK_UN)
                # One step, which no interrupt divides: a descriptor that left the list is closed.
                list(map(os.close, map(descriptors.pop, [-1])))
