# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the library, a tree under `CompactlibError`.

Errors have their numbers as attributes, and pickling keeps all of them, since errors come from worker processes and
Spark. A message has the value found, the value expected, and advice.
"""

from __future__ import annotations

import errno as _errno
import os
from collections.abc import Mapping
from typing import Any


def _revive(cls: type[CompactlibError], args: tuple[Any, ...], state: dict[str, Any]) -> CompactlibError:
    error = cls.__new__(cls, *args)
    error.args = args
    for name, value in state.items():
        setattr(error, name, value)
    return error


class CompactlibError(Exception):
    """The root of the tree: catch it to catch every error that the library raises on purpose."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __str__(self) -> str:
        # KeyError, a base of `NotFound`, would print the repr of its argument.
        return str(self.args[0]) if self.args else type(self).__name__

    def _state(self) -> dict[str, Any]:
        return dict(self.__dict__)

    def __reduce__(self) -> tuple[Any, ...]:
        return _revive, (type(self), self.args, self._state())


class Rejected(CompactlibError):
    """The parent of all errors of calls that changed nothing.

    Other errors may leave part of the work done: `StorageError`, `CorruptData`, `CompactionFailed`, `Closed` of an
    object that closed itself, and every error with an unknown outcome.
    """


class InvalidInput(Rejected, ValueError):
    """An argument is invalid, or a file is in the wrong place. Correct it and call again."""


class Unsorted(InvalidInput):
    """Indexes do not ascend strictly. Sort them, or build with `IndexSet.from_iterable`."""

    def __init__(self, message: str, *, previous: int, found: int) -> None:
        super().__init__(message)
        self.previous = previous
        self.found = found


class NotFound(Rejected, KeyError):
    """The object does not exist."""


class CorruptData(CompactlibError):
    """Stored bytes are damaged. Restore the file from a replica or a backup; nothing was cut or hidden.

    Attributes:
        path: the damaged file.
        offset: the offset of the failed check in the file, in bytes.
        expected: the expected content.
        found: the content found.
        index: the log index, if the damage belongs to an entry.
    """

    def __init__(self, *, path: str | os.PathLike[str], offset: int, expected: str, found: str,
                 index: int | None = None) -> None:
        place = f"{os.fspath(path)} at offset {offset}" + ("" if index is None else f" (index {index})")
        super().__init__(f"corrupt data in {place}: expected {expected}, found {found}; restore the file from a copy")
        self.path: str = os.fspath(path)
        self.offset = offset
        self.expected = expected
        self.found = found
        self.index = index


class Conflict(Rejected):
    """A compare-and-set or a fencing check lost against another writer. Re-read and decide again."""


class Stale(Rejected):
    """A token, lease or view is outdated. Take a new token, lease or view, and retry."""


class Closed(CompactlibError):
    """The object was closed. Open it again."""


class Busy(Rejected):
    """Another thread or process holds a lock, or work is in progress. Wait for the holder in the message."""


class BudgetSpent(Busy):
    """The budget ran out, or the work was cancelled, before anything could be committed.

    After a commit the call returns a partial report instead.

    Attributes:
        reason: `"bytes"`, `"deadline"` or `"cancelled"`.
        spent_bytes: bytes that the budget had granted before.
        needed_bytes: the rest of the budget that the work needs to make progress, if it had less; else `None`.
    """

    def __init__(self, message: str, *, reason: str, spent_bytes: int, needed_bytes: int | None = None) -> None:
        super().__init__(message)
        self.reason = reason
        self.spent_bytes = spent_bytes
        self.needed_bytes = needed_bytes


class AuditFailed(CompactlibError, AssertionError):
    """A state breaks an invariant: a bug in the library, or another program has changed stored data.

    Raised by `audit`, also under `python -O`. Keep the state and report it with the message.
    """


class Unsupported(Rejected):
    """This release or platform does not support a format version or an operation. The message names what does."""


class MissingDependency(Rejected, ImportError):
    """An optional package is not installed. The message has the pip command."""

    def __init__(self, *, package: str, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the package {package!r}: pip install 'compactlib[{extra}]'")
        self.package = package
        self.extra = extra
        self.purpose = purpose


class CompactionFailed(CompactlibError):
    """Some parts of a compaction or a reclaim failed; the others were done.

    Attributes:
        report: the report, as it would have been returned.
        failures: the error of each failed task, group or record, by name.
    """

    def __init__(self, *, report: Any, failures: Mapping[str, CompactlibError]) -> None:
        self.report = report
        self.failures: dict[str, CompactlibError] = dict(failures)
        named = [f"{name}: {type(error).__name__}: {error}" for name, error in self.failures.items()]
        more = f"; and {len(named) - 3} more" if len(named) > 3 else ""
        super().__init__(f"a compaction or reclaim failed in part, and the rest is done: {'; '.join(named[:3])}{more}; "
                         f"what failed is untouched, call again")


class TaskFailed(CompactlibError):
    """A rewrite task raised an exception that is not the library's. Its inputs are unchanged.

    Attributes:
        task: the task's name.
        kind: the class name of the original error.
        detail: the original traceback as text.
    """

    def __init__(self, message: str, *, task: str, kind: str, detail: str) -> None:
        super().__init__(message)
        self.task = task
        self.kind = kind
        self.detail = detail


class StorageError(CompactlibError, OSError):
    """The operating system refused a change to the disk. Earlier changes stay complete.

    Attributes:
        operation: `"write"`, `"rename"`, ...
        path: the file or folder.
        errno: the operating system's number.
        detail: the problem; by default the system's text for `errno`.
        advice: a remedy; default the usual remedy.
    """

    _advice = ""  # the usual remedy of a subclass; by default that of the number

    def __init__(self, *, operation: str, path: str | os.PathLike[str], errno: int, detail: str = "",
                 advice: str = "") -> None:
        self.operation = operation
        self.path: str = os.fspath(path)
        self.detail: str = detail or os.strerror(errno)
        self.advice: str = (advice or self._advice
                            or (_KNOWN[errno][1] if errno in _KNOWN else "see the operating system's error"))
        super().__init__(f"{operation} {self.path}: {self.detail}; {self.advice}")
        self.errno: int | None = errno

    def _state(self) -> dict[str, Any]:
        return {**super()._state(), "errno": self.errno}

    @staticmethod
    def from_os(error: OSError, operation: str, path: str | os.PathLike[str]) -> StorageError:
        """Return `DiskFull`, `ReadOnly`, or for other numbers `StorageError`."""
        number = error.errno or _errno.EIO
        kind = _KNOWN.get(number, (StorageError, ""))[0]
        return kind(operation=operation, path=path, errno=number)


class DiskFull(StorageError):
    """No space is left, or a quota or a size limit is reached; the message says which, with advice.

    A later call continues after the last commit.
    """


class ReadOnly(StorageError):
    """The disk, the file or the folder cannot be written by this process. Give it permission, or another disk."""


# The class and the advice for the numbers of the operating system.
_KNOWN: dict[int, tuple[type[StorageError], str]] = {
    _errno.ENOSPC: (DiskFull, "free some space and call again; open the object again if it has closed"),
    _errno.EDQUOT: (DiskFull, "the disk may have room: remove what counts towards this quota, or have it raised, and "
                              "call again; open the object again if it has closed"),
    _errno.EFBIG: (DiskFull, "the disk may have room: use smaller files, or raise the limit of this process "
                             "(ulimit -f) or of the file system"),
    _errno.ENOENT: (StorageError, "check the path; a folder is made only inside a folder that exists"),
    _errno.EROFS: (ReadOnly, "mount the file system for writing, or use another folder"),
    _errno.EACCES: (ReadOnly, "give this process the permission for that"),
    _errno.EPERM: (ReadOnly, "give this process the permission for that"),
}
