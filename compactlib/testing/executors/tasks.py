# SPDX-License-Identifier: Apache-2.0
"""The tasks of the executor conformance kit: they write, report, raise or die. Picklable, for other processes."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import attrs

from compactlib.errors import CompactlibError, CorruptData, InvalidInput
from compactlib.files.checksum import crc32
from compactlib.files.disk import LocalFiles
from compactlib.rewrite import Attempt, RewriteResult, RewrittenFile


class UnpicklableError(Exception):
    """An error that holds what cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock: threading.Lock = threading.Lock()


class UnrevivableError(Exception):
    """An error that pickles, but whose pickle cannot be loaded: revival would call it with one argument."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")


class UnpicklableLibraryError(CompactlibError):
    """An error of the library's tree with a field that cannot be pickled."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.lock: threading.Lock = threading.Lock()


class UnrevivableLibraryError(CompactlibError):
    """An error of the library's tree that pickles, but whose pickle cannot be loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return UnrevivableError, (str(self),)


@attrs.frozen
class WriteTask:
    """Writes one file, `<name>.<attempt id>`, in pieces of a thousand bytes.

    Attributes:
        name: the task's name.
        folder: where the file goes.
        size: its length in bytes.
    """

    name: str
    folder: str
    size: int = 1000

    def run(self, attempt: Attempt) -> RewriteResult:
        """Write, sync and report."""
        out = LocalFiles().create(os.path.join(self.folder, f"{self.name}.{attempt.id}"))
        checksum = 0
        try:
            for start in range(0, self.size, 1000):
                piece = bytes(min(1000, self.size - start))
                attempt.budget.spend(len(piece))
                out.write_at(start, [piece])
                checksum = crc32(piece, checksum)
            out.sync()
        finally:
            out.close()
        attempt.observer.count("conformance_files")
        file = RewrittenFile(out.path, self.size, 1, checksum)
        return RewriteResult(task=self.name, attempt=attempt.id, files=(file,), bytes_read=self.size,
                             bytes_written=self.size, seconds=0.5)


@attrs.frozen
class FixedTask:
    """Writes nothing and returns a result with the given fields.

    Attributes:
        name: the task's name.
        files: what the result names.
        number: its bytes read and written.
        seconds: its seconds.
    """

    name: str
    files: tuple[RewrittenFile, ...]
    number: int
    seconds: float

    def run(self, attempt: Attempt) -> RewriteResult:
        """Report."""
        return RewriteResult(task=self.name, attempt=attempt.id, files=self.files, bytes_read=self.number,
                             bytes_written=self.number, seconds=self.seconds)


@attrs.frozen
class RaiseTask:
    """Raises one of the errors that `known_errors` names.

    Attributes:
        name: the task's name.
        error: which error.
    """

    name: str
    error: str

    def run(self, attempt: Attempt) -> RewriteResult:
        """Raise."""
        raise known_errors()[self.error]


def known_errors() -> dict[str, Exception]:
    """The errors that `RaiseTask` can raise, made anew."""
    return {
        "corrupt": CorruptData(path="/log/0007.segment", offset=4711, expected="CRC 0x01", found="CRC 0x02", index=42),
        "foreign": ValueError("the flux is out of phase"),
        "unpicklable": UnpicklableError("the flux holds a lock"),
        "unrevivable": UnrevivableError(7, "the flux wants two arguments"),
        "unpicklable-library": UnpicklableLibraryError("the library's flux holds a lock"),
        "unrevivable-library": UnrevivableLibraryError("the library's flux does not come back"),
    }


@attrs.frozen
class DieTask:
    """Kills the process it runs in with SIGKILL, in its first `deaths` attempts; afterwards writes like `WriteTask`.

    Attributes:
        name: the task's name.
        folder: where it leaves a mark, `<name>.died.<attempt id>`, before each death, and then writes its file.
        deaths: how many attempts die.
        spared_process: the id of the process that it must not kill: the caller's.
    """

    name: str
    folder: str
    deaths: int
    spared_process: int

    def run(self, attempt: Attempt) -> RewriteResult:
        """Die or write.

        Raises:
            InvalidInput: it runs in the process to be spared.
        """
        if os.getpid() == self.spared_process:
            raise InvalidInput("this task kills its process, and the executor runs it in the caller's own")
        marks = [path for path in os.listdir(self.folder) if path.startswith(f"{self.name}.died.")]
        if len(marks) < self.deaths:
            LocalFiles().create(os.path.join(self.folder, f"{self.name}.died.{attempt.id}")).close()
            os.kill(os.getpid(), signal.SIGKILL)
        return WriteTask(self.name, self.folder).run(attempt)
