"""One writer per folder: an advisory lock on a file in it, held as long as the process lives or until released."""

from __future__ import annotations

import contextlib
import os

from compactlib.errors import Busy, StorageError, Unsupported
from compactlib.files import StrPath

_HOLDER_BYTES = 32


class FolderLock:
    """Holds `<folder>/<name>` locked; a second holder, in this process or another, is refused with `Busy`.

    The operating system releases the lock when the process ends, however it ends; the file stays and means nothing.

    Args:
        folder: the folder to be written by this process alone.
        name: the lock file's name.

    Raises:
        Busy: somebody else holds it; the message names the process.
        StorageError: the lock file cannot be created (`ReadOnly` in a read-only folder).
        Unsupported: the platform has no `flock`.
    """

    def __init__(self, folder: StrPath, name: str = "LOCK") -> None:
        try:
            import fcntl
        except ImportError:
            raise Unsupported("locking a folder needs flock, which this platform lacks; use Linux or macOS") from None
        self._path = os.path.join(folder, name)
        self._descriptor = -1
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, _HOLDER_BYTES, 0).decode("ascii", "replace").strip() or "a process"
            self.release()
            raise Busy(f"{os.fspath(folder)} is open for writing by {holder}; close it there, or open it "
                       f"read-only") from None
        except OSError as error:
            self.release()
            raise StorageError.from_os(error, "lock", self._path) from error
        # Only for the message that others get: a full disk does not matter.
        with contextlib.suppress(OSError):
            # Not through `Files`: the name is for whoever is refused, and means nothing after a crash.
            os.write(self._descriptor, f"process {os.getpid()}".ljust(_HOLDER_BYTES).encode())  # noqa: TID251

    def release(self) -> None:
        """Let others in; releasing again does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> FolderLock:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __repr__(self) -> str:
        return f"FolderLock({self._path!r}, {'held' if self._descriptor >= 0 else 'released'})"
