# SPDX-License-Identifier: Apache-2.0
"""The only module that changes the disk: the `Files` protocol, the local disk, and durable idioms.

The caller passes a `Files` object, through which the library creates, writes, renames, links and removes files. So the
crash harness (`compactlib.testing.crash`) can record each operation and cut after it. Reading is not part of the
protocol: readers use file descriptors (`pread`) directly.

Rules of durability, for every caller:

* written bytes are durable after `OutFile.sync`;
* a name (created, renamed, linked, removed) is durable after `sync_folder` of its folder;
* nothing else is ordered: a crash keeps or loses each change that was not synced, independently of the others;
* a failed sync proves nothing, and neither does a later sync of the same file: write the file again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, BinaryIO, Protocol, TypeAlias

from compactlib._closing import Closing
from compactlib.errors import Closed, InvalidInput, NotFound, ReadOnly, StorageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

StrPath: TypeAlias = str | os.PathLike[str]
"""A path, as text or as an `os.PathLike`."""

_IOV_MAX = 1024
_NBYTES = attrgetter("nbytes")
_SIZED_IN_BYTES = frozenset({bytes, bytearray})
_COPY_CHUNK_BYTES = 1 << 20
# One slash is enough: `pathlib` turns `s3://bucket` into `s3:/bucket`.
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


class OutFile(Protocol):
    """A file open for writing, used by one thread at a time. Methods raise `StorageError` when the disk refuses."""

    @property
    def path(self) -> str:
        """The name under which it was opened."""

    def fileno(self) -> int:
        """The descriptor, for reading back with `os.pread`."""

    def write_at(self, offset: int, pieces: Sequence[Buffer]) -> int:
        """Write all `pieces` in a row from `offset`; return their size in bytes. Durable after `sync`."""

    def copy_from(self, source: int, source_offset: int, length: int, offset: int) -> None:
        """Copy `length` bytes from the descriptor `source` to `offset`, in the kernel if possible."""

    def truncate(self, size: int) -> None:
        """Cut or extend (with zeros) to `size` bytes."""

    def sync(self) -> None:
        """Make all bytes written so far durable (fsync). After an error write a new file: a retry proves nothing."""

    def close(self) -> None:
        """Close the descriptor, without a sync; closing again does nothing. Later calls raise `Closed`."""


class Files(Protocol):
    """The operations that change a disk. Methods raise `StorageError` (or a subclass) when the disk refuses."""

    def create(self, path: StrPath) -> OutFile:
        """Create `path`, which must not exist, and open it for reading and writing."""

    def open(self, path: StrPath) -> OutFile:
        """Open the existing file `path` for reading and writing."""

    def rename(self, source: StrPath, target: StrPath) -> None:
        """Rename a file in one step, and replace the file under `target`.

        If both names are links to one file, both stay, and nothing changes (POSIX).
        """

    def link(self, source: StrPath, target: StrPath) -> None:
        """Give a file a second name, which must not exist. For a symbolic link, link the link and not its target."""

    def symlink(self, text: str, path: StrPath) -> None:
        """Create a symbolic link with the target `text` at `path`, which must not exist."""

    def unlink(self, path: StrPath) -> None:
        """Remove a name."""

    def make_folder(self, path: StrPath) -> None:
        """Create a folder, which must not exist."""

    def remove_folder(self, path: StrPath) -> None:
        """Remove an empty folder."""

    def sync_folder(self, path: StrPath) -> None:
        """Make the names in a folder durable."""

    def available_bytes(self, path: StrPath) -> int | None:
        """Return the room for new files of this process in a folder; `None` if it is unknown."""


class _Named:
    """Adds operation and path to an `OSError`. A class, because a generator costs more than a call."""

    __slots__ = ("_operation", "_path")

    def __init__(self, operation: str, path: StrPath) -> None:
        self._operation: str = operation
        self._path: StrPath = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if isinstance(error, OSError):
            raise StorageError.from_os(error, self._operation, self._path) from error


def _size_of(pieces: Sequence[Buffer]) -> int:
    if len(pieces) == 1 and type(pieces[0]) is bytes:
        return len(pieces[0])
    # There may be thousands of pieces: a sum in C if the types allow it, else a view of each.
    kinds = set(map(type, pieces))
    if kinds <= _SIZED_IN_BYTES:
        return sum(map(len, pieces))  # type: ignore[arg-type]
    if kinds == {memoryview}:
        return sum(map(_NBYTES, pieces))
    return sum(memoryview(piece).nbytes for piece in pieces)


class LocalOutFile:
    """An `OutFile` on the local disk. The last reference closes it: after an interrupt there may be no owner."""

    _descriptors: list[int] | tuple[()] = ()  # one, while it is open

    def __init__(self, path: StrPath, flags: int, mode: int = 0) -> None:
        self._path = os.fspath(path)
        self._descriptors = []
        with _Named("create" if flags & os.O_CREAT else "open", path):
            open_into(self._descriptors, path, flags | os.O_RDWR, mode)

    @property
    def path(self) -> str:
        return self._path

    def fileno(self) -> int:
        if not self._descriptors:
            raise Closed(f"{self._path} was closed; open it again to change it")
        return self._descriptors[0]

    def write_at(self, offset: int, pieces: Sequence[Buffer]) -> int:
        # Without `_Named`, for speed: a small append makes three of these calls.
        try:
            if len(pieces) <= _IOV_MAX:
                return self._write_batch(offset, pieces)
            start = offset
            for first in range(0, len(pieces), _IOV_MAX):
                offset += self._write_batch(offset, pieces[first:first + _IOV_MAX])
        except OSError as error:
            raise StorageError.from_os(error, "write", self._path) from error
        return offset - start

    def _write_batch(self, offset: int, pieces: Sequence[Buffer]) -> int:
        written = os.pwritev(self.fileno(), pieces, offset) if pieces else 0
        if written == _size_of(pieces):
            return written
        # A short write is rare (a nearly full disk, more than 2 GiB): finish it piece by piece.
        end = offset
        for piece in pieces:
            view = memoryview(piece).cast("B")
            done = max(offset + written - end, 0)
            _write_all(self.fileno(), view[done:], end + done)
            end += len(view)
        return end - offset

    def copy_from(self, source: int, source_offset: int, length: int, offset: int) -> None:
        with _Named("copy", self._path):
            copy_range(source, self.fileno(), source_offset, offset, length)

    def truncate(self, size: int) -> None:
        with _Named("truncate", self._path):
            os.ftruncate(self.fileno(), size)

    def sync(self) -> None:
        with _Named("sync", self._path):
            os.fsync(self.fileno())

    def close(self) -> None:
        if self._descriptors:
            with _Named("close", self._path):
                # Removed first: the system may give the number to another file at once, which must not be written to.
                # A single call of C does both, so that no interrupt comes between them.
                list(map(os.close, map(self._descriptors.pop, [-1])))

    def __del__(self) -> None:
        if self._descriptors:
            os.close(self._descriptors[0])

    def __repr__(self) -> str:
        return f"LocalOutFile({self._path!r})"


class LocalFiles:
    """The local disk. Has no state; all instances are equal and picklable.

    A subclass may have a state of its own, which is pickled and compared too. Files are created with the mode 0644 and
    folders with 0777, less the process's umask.
    """

    def create(self, path: StrPath) -> OutFile:
        return LocalOutFile(path, os.O_CREAT | os.O_EXCL, 0o644)

    def open(self, path: StrPath) -> OutFile:
        return LocalOutFile(path, 0)

    def rename(self, source: StrPath, target: StrPath) -> None:
        with _Named("rename", source):
            os.rename(source, target)

    def link(self, source: StrPath, target: StrPath) -> None:
        with _Named("link", source):
            os.link(source, target, follow_symlinks=False)

    def symlink(self, text: str, path: StrPath) -> None:
        with _Named("symlink", path):
            os.symlink(text, path)

    def unlink(self, path: StrPath) -> None:
        with _Named("unlink", path):
            os.unlink(path)

    def make_folder(self, path: StrPath) -> None:
        with _Named("make folder", path):
            os.mkdir(path)

    def remove_folder(self, path: StrPath) -> None:
        with _Named("remove folder", path):
            os.rmdir(path)

    def sync_folder(self, path: StrPath) -> None:
        descriptors: list[int] = []
        with _Named("sync folder", path):
            try:
                open_into(descriptors, path, os.O_RDONLY | os.O_DIRECTORY)
                os.fsync(descriptors[0])
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)

    def available_bytes(self, path: StrPath) -> int | None:
        try:
            room = os.statvfs(path)
        except OSError:
            return None
        return room.f_bavail * room.f_frsize

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def require_folder(path: StrPath, what: str, *, create: bool) -> None:
    """Raise `NotFound` if a folder does not exist and may not be made; `what` names its content, for the message."""
    if not create and not os.path.isdir(path):
        raise NotFound(f"{os.fspath(path)} is not there, and {what} would be in it; check the path, or open it with "
                       f"create=True to make it")


def make_missing_folder(files: Files, path: StrPath) -> bool:
    """Make a folder if it does not exist; return whether it did not. Another process may make it at the same time.

    Raises:
        StorageError: the disk refused, or the name is not a folder's.
    """
    if os.path.isdir(path):
        return False
    try:
        files.make_folder(path)
    except StorageError:
        if not os.path.isdir(path):
            raise
    return True


def sync_names(files: Files, folder: StrPath) -> None:
    """Make the names in a folder durable, and the folder's own name in its parent.

    An earlier process may have been killed between a rename and its sync; then the name exists, and a power failure
    would take it. Every opening for writing calls this once, before it acknowledges anything that depends on these
    names. A parent that this process may not read is skipped: another user made the folder there.

    Raises:
        StorageError: the disk refused.
    """
    files.sync_folder(folder)
    with contextlib.suppress(ReadOnly):
        files.sync_folder(os.path.dirname(os.path.abspath(folder)))


def write_durably(files: Files, path: StrPath, pieces: Sequence[Buffer], *, temporary_suffix: str = ".tmp") -> None:
    """Replace a file as a whole: after a crash `path` has either all of the new bytes or its old content.

    Writes a temporary file in the same folder, syncs it, renames it, syncs the folder. Replaces the temporary file of
    an earlier crash; so only one caller at a time may write a `path`.

    Raises:
        StorageError: the disk refused; `path` is unchanged and the temporary file removed. Only if the sync of the
            folder was refused does `path` hold the new bytes, which may then be lost in a crash.
    """
    temporary = _unused(files, path, temporary_suffix)
    out = files.create(temporary)
    with removed_on_failure(files, temporary):
        with contextlib.closing(out):
            out.write_at(0, pieces)
            out.sync()
        files.rename(temporary, path)
    files.sync_folder(os.path.dirname(os.fspath(path)) or ".")


def replace_with_symlink(files: Files, text: str, path: StrPath, *, temporary_suffix: str = ".link") -> None:
    """Make `path` a symbolic link to `text` in one step, and replace the file of this name.

    Durable after `sync_folder`.

    Raises:
        StorageError: the disk refused; `path` is unchanged and the temporary file removed.
    """
    temporary = _unused(files, path, temporary_suffix)
    files.symlink(text, temporary)
    with removed_on_failure(files, temporary):
        files.rename(temporary, path)


def replace_with_link(files: Files, source: StrPath, path: StrPath, *, temporary_suffix: str = ".swap") -> None:
    """Make `path` a second (hard) name of `source` in one step, and replace the file of this name.

    Durable after `sync_folder`. If `path` is such a name already, only a temporary name of an earlier crash is removed.

    Raises:
        StorageError: the disk refused; `path` is unchanged and the temporary file removed.
    """
    temporary = _unused(files, path, temporary_suffix)
    if _same_file(source, path):
        # A rename between two names of a file does nothing, and would keep the temporary name as a third.
        return
    files.link(source, temporary)
    with removed_on_failure(files, temporary):
        files.rename(temporary, path)


def _unused(files: Files, path: StrPath, temporary_suffix: str) -> str:
    """Return the temporary name of `path`, after a leftover of this name was removed."""
    temporary = os.fspath(path) + temporary_suffix
    if look_at(temporary) is not None:
        files.unlink(temporary)
    return temporary


@contextlib.contextmanager
def removed_on_failure(files: Files, path: StrPath) -> Iterator[None]:
    """Remove the file at `path`, which the block makes or fills, if the block fails: a full disk needs its room."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(StorageError):
            files.unlink(path)
        raise


def _same_file(one: StrPath, other: StrPath) -> bool:
    try:
        return os.path.samestat(os.lstat(one), os.lstat(other))
    except OSError:
        return False


def copy_range(source: int, target: int, source_offset: int, target_offset: int, length: int) -> None:
    """Copy `length` bytes between two descriptors, in the kernel if the platform can, else in a loop.

    Ranges of one file must not overlap.

    Raises:
        InvalidInput: the source ends before `length` bytes; its bytes were copied.
        OSError: reading or writing failed.
    """
    copied = 0
    if hasattr(os, "copy_file_range"):
        # If the kernel refuses (other file system, old kernel, sandbox, append mode), the loop below continues. A full
        # or broken disk gives the same error there.
        with contextlib.suppress(OSError):
            while copied < length:
                step = os.copy_file_range(source, target, length - copied, source_offset + copied,
                                          target_offset + copied)
                if step == 0:
                    break
                copied += step
    while copied < length:
        chunk = os.pread(source, min(_COPY_CHUNK_BYTES, length - copied), source_offset + copied)
        if not chunk:
            raise InvalidInput(f"the source ends {length - copied} bytes before the {length} bytes requested at "
                               f"offset {source_offset}")
        _write_all(target, memoryview(chunk), target_offset + copied)
        copied += len(chunk)


def _write_all(descriptor: int, view: memoryview, offset: int) -> None:
    while view:
        step = os.pwrite(descriptor, view, offset)
        if step == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        offset += step
        view = view[step:]


def local_path(path: StrPath, what: str = "the folder") -> str:
    """Return the absolute path of a folder or a file.

    Args:
        path: the caller's path.
        what: name of the argument, for the message.

    Raises:
        InvalidInput: the path is a URI, which the disk would take for a relative path.
    """
    text = os.fsdecode(path)
    if _URI.match(text):
        raise InvalidInput(f"{what} is {text!r:.200}, a URI; give the path under which it is mounted, or open an "
                           f"object store with compactlib.objects (a relative path of this form is ./{text:.50})")
    return os.path.abspath(text)


def list_folder(path: StrPath) -> list[str]:
    """Return the names in a folder, sorted.

    Raises:
        StorageError: the folder cannot be read.
    """
    with _Named("list", path):
        return sorted(os.listdir(path))


def look_at(path: StrPath) -> os.stat_result | None:
    """Return `os.lstat` of a path; `None` if nothing has this name.

    Raises:
        StorageError: the disk refused.
    """
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError.from_os(error, "look at", path) from error


def may_be_there(path: StrPath) -> bool:
    """Return whether the name is in use, also `True` if the disk cannot answer."""
    try:
        return look_at(path) is not None
    except StorageError:
        return True


def open_into(descriptors: list[int], path: StrPath, flags: int, mode: int = 0o600) -> None:
    """Open a file, and append its descriptor to a list, in one step that no interrupt divides.

    Raises:
        OSError: it cannot be opened.
    """
    descriptors.extend(map(os.open, [path], [flags | os.O_CLOEXEC], [mode]))


def read_if_there(path: StrPath, most: int = -1) -> bytes | None:
    """Return the first `most` bytes of a file, by default all; `None` if the file does not exist.

    Raises:
        StorageError: it cannot be read.
    """
    files: list[BinaryIO] = []
    try:
        # One step, which no interrupt divides: an open file is in the list.
        files.extend(map(open, [path], ["rb"]))  # type: ignore[arg-type]
        return files[0].read(most)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
    finally:
        for file in files:
            file.close()


class ReadDescriptor(Closing):
    """A descriptor for reading. The last reference closes it, after the last reader in another thread."""

    __slots__ = ("__weakref__", "_descriptor")

    def __init__(self) -> None:
        self._descriptor = -1

    def close(self) -> None:
        # Reset first: the system may give the number to another file at once.
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        # An interrupt may have come before `__init__`.
        if hasattr(self, "_descriptor"):
            self.close()


def read_exactly(descriptor: int, length: int, offset: int) -> bytes:
    """Return `length` bytes from `offset`; fewer only at the end of the file. Repeats short reads.

    Raises:
        OSError: reading failed.
    """
    data = os.pread(descriptor, length, offset)
    while len(data) < length and (more := os.pread(descriptor, length - len(data), offset + len(data))):
        data += more
    return data


def read_into(descriptor: int, memory: memoryview, offset: int) -> int:
    """Fill memory with the bytes from `offset` on; return their number, which is less only at the end of the file.

    Raises:
        OSError: reading failed.
    """
    got = 0
    while got < len(memory) and (step := os.preadv(descriptor, [memory[got:]], offset + got)):
        got += step
    return got
