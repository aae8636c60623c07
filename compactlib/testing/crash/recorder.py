# SPDX-License-Identifier: Apache-2.0
"""Record what a function does to a folder: `record`, and the `RecordingFiles` it works through.

The operations are carried out on the real folder and noted as frozen values, in one order whatever threads they
come from. They hold the bytes that were written, once; reads are not noted.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import attrs

from compactlib.errors import InvalidInput, StorageError, Unsupported
from compactlib.files.disk import Files, LocalFiles, OutFile, StrPath, read_exactly
from compactlib.testing.crash.model import CrashModel
from compactlib.testing.crash.operations import (
    Create,
    Link,
    MakeFolder,
    Operation,
    Recording,
    RemoveFolder,
    Rename,
    Symlink,
    Sync,
    SyncFolder,
    Truncate,
    Unlink,
    Write,
)
from compactlib.testing.crash.tree import ROOT, read_image

if TYPE_CHECKING:
    from typing_extensions import Buffer

LOCK_NAME = "LOCK"
"""The file that `compactlib.files.folder_lock` locks; its content means nothing."""

Parts: TypeAlias = tuple[str, ...]


@attrs.frozen
class _Entry:
    """A name in a recorded folder: the folder's number, the name, and the whole path as shown to the reader."""

    folder: int
    name: str
    path: str


class RecordingFiles:
    """A `Files` that carries everything out in a real folder and notes it. Threads may share it, processes cannot.

    Args:
        folder: what may be changed; everything in it is read into memory, as it is the state before.
        files: what carries the operations out; the local disk if not given.
        ignore: see `record`.

    Raises:
        InvalidInput: on a path outside `folder`, one that was made without this object, or an ignored name.
        Unsupported: on moving a folder into another folder, which the crash model leaves out; on pickling.
        StorageError: whatever `files` raises; bytes it had written by then are noted.
    """

    def __init__(self, folder: StrPath, files: Files | None = None, *,
                 ignore: Iterable[str] = (LOCK_NAME,)) -> None:
        self._files: Files = LocalFiles() if files is None else files
        self._root = os.path.realpath(folder)
        self._ignore = frozenset(ignore)
        self._initial = read_image(self._root, self._ignore)
        self._folders = {number: dict(names) for number, names in self._initial.tree.folders.items()}
        self._next_inode = 1 + max([ROOT, *self._folders, *self._initial.tree.texts, *self._initial.contents])
        self._operations: list[Operation] = []
        self._acknowledgements: list[tuple[int, Any]] = []
        self._lock = threading.RLock()

    def acknowledge(self, value: Any) -> None:
        """Note that `value` is acknowledged now: checks get it for every crash from here on."""
        with self._lock:
            self._acknowledgements.append((len(self._operations), value))

    @property
    def done(self) -> int:
        """How many operations were noted so far."""
        return len(self._operations)

    def recording(self) -> Recording:
        """All that was noted so far. Reads the folder once more to see that nothing went past this object.

        Raises:
            InvalidInput: the folder is not what the noted operations made of it.
        """
        with self._lock:
            recording = Recording(self._initial, tuple(self._operations), tuple(self._acknowledgements), self._ignore)
            noted, found = CrashModel(recording).final_image(), read_image(self._root, self._ignore)
        if noted.fingerprint() != found.fingerprint():
            raise InvalidInput(f"{self._root} was changed without the Files given to the function: "
                               f"{noted.first_difference(found)}; a crash could not be rebuilt from the recording")
        return recording

    def create(self, path: StrPath) -> OutFile:
        """See `Files.create`."""
        parts = self._inside(path)
        with self._lock:
            out = self._files.create(path)
            entry = self._entry(parts)
            inode = self._add(entry)
            self._operations.append(Create(entry.path, entry.folder, inode))
            return _RecordingOutFile(out, self._operations, self._lock, entry.path, inode)

    def open(self, path: StrPath) -> OutFile:
        """See `Files.open`."""
        parts = self._inside(os.path.realpath(path))
        with self._lock:
            out = self._files.open(path)
            entry = self._entry(parts)
            return _RecordingOutFile(out, self._operations, self._lock, entry.path, self._inode(entry))

    def rename(self, source: StrPath, target: StrPath) -> None:
        """See `Files.rename`."""
        source_parts, target_parts = self._inside(source), self._inside(target)
        with self._lock:
            if source_parts[:-1] != target_parts[:-1] and os.path.isdir(source) and not os.path.islink(source):
                raise Unsupported(f"the crash model has no folder moved into another one ({os.fspath(source)} to "
                                  f"{os.fspath(target)}); rename folders within their parent only")
            self._files.rename(source, target)
            old, new = self._entry(source_parts), self._entry(target_parts)
            inode = self._inode(old)
            if self._folders[new.folder].get(new.name) == inode:
                return  # two names of one file: the system has kept both
            del self._folders[old.folder][old.name]
            self._folders[new.folder][new.name] = inode
            self._operations.append(Rename(old.path, old.folder, new.path, new.folder, inode))

    def link(self, source: StrPath, target: StrPath) -> None:
        """See `Files.link`."""
        source_parts, target_parts = self._inside(source), self._inside(target)
        with self._lock:
            self._files.link(source, target)
            old, new = self._entry(source_parts), self._entry(target_parts)
            inode = self._folders[new.folder][new.name] = self._inode(old)
            self._operations.append(Link(old.path, new.path, new.folder, inode))

    def symlink(self, text: str, path: StrPath) -> None:
        """See `Files.symlink`."""
        parts = self._inside(path)
        with self._lock:
            self._files.symlink(text, path)
            entry = self._entry(parts)
            self._operations.append(Symlink(text, entry.path, entry.folder, self._add(entry)))

    def unlink(self, path: StrPath) -> None:
        """See `Files.unlink`."""
        parts = self._inside(path)
        with self._lock:
            self._files.unlink(path)
            entry = self._entry(parts)
            self._operations.append(Unlink(entry.path, entry.folder, self._drop(entry)))

    def make_folder(self, path: StrPath) -> None:
        """See `Files.make_folder`."""
        parts = self._inside(path)
        with self._lock:
            self._files.make_folder(path)
            entry = self._entry(parts)
            inode = self._add(entry)
            self._folders[inode] = {}
            self._operations.append(MakeFolder(entry.path, entry.folder, inode))

    def remove_folder(self, path: StrPath) -> None:
        """See `Files.remove_folder`."""
        parts = self._inside(path)
        with self._lock:
            self._files.remove_folder(path)
            entry = self._entry(parts)
            self._operations.append(RemoveFolder(entry.path, entry.folder, self._drop(entry)))

    def available_bytes(self, path: StrPath) -> int | None:
        """See `Files.available_bytes`."""
        return self._files.available_bytes(path)

    def sync_folder(self, path: StrPath) -> None:
        """See `Files.sync_folder`. A folder above the recorded one is synced and not noted: no state differs in it."""
        real = os.path.realpath(path)
        if os.path.commonpath((real, self._root)) == real != self._root:
            self._files.sync_folder(path)
            return
        parts = self._inside(real, root_too=True)
        with self._lock:
            self._files.sync_folder(path)
            self._operations.append(SyncFolder("/".join(parts) or ".", self._folder(parts)))

    def __reduce__(self) -> NoReturn:
        raise Unsupported("RecordingFiles stays in the process that records; run the work with a LocalExecutor")

    def __repr__(self) -> str:
        return f"RecordingFiles({self._root!r}, {len(self._operations)} operations)"

    def _inside(self, path: StrPath, *, root_too: bool = False) -> Parts:
        """The names that lead to `path` from the folder; links in all but the last one are followed."""
        whole = os.path.abspath(path)
        whole = os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))
        relative = os.path.relpath(whole, self._root)
        parts = tuple(relative.split(os.sep))
        if parts[0] == os.pardir or (relative == os.curdir and not root_too):
            raise InvalidInput(f"{os.fspath(path)} is not below {self._root}, the folder that is recorded")
        if not self._ignore.isdisjoint(parts):
            raise InvalidInput(f"{os.fspath(path)} is among the names to ignore ({', '.join(sorted(self._ignore))}), "
                               "but the function changes it through its files; record with ignore=()")
        return () if relative == os.curdir else parts

    def _folder(self, parts: Parts) -> int:
        number = ROOT
        for name in parts:
            found = self._folders[number].get(name)
            if found is None:
                self._foreign("/".join(parts))
            number = found
        return number

    def _entry(self, parts: Parts) -> _Entry:
        return _Entry(self._folder(parts[:-1]), parts[-1], "/".join(parts))

    def _inode(self, entry: _Entry) -> int:
        inode = self._folders[entry.folder].get(entry.name)
        if inode is None:
            self._foreign(entry.path)
        return inode

    def _add(self, entry: _Entry) -> int:
        inode, self._next_inode = self._next_inode, self._next_inode + 1
        self._folders[entry.folder][entry.name] = inode
        return inode

    def _drop(self, entry: _Entry) -> int:
        inode = self._inode(entry)
        del self._folders[entry.folder][entry.name]
        return inode

    def _foreign(self, path: str) -> NoReturn:
        raise InvalidInput(f"{path} in {self._root} was made without the Files given to the function; "
                           "a crash could not be rebuilt from the recording")


class _RecordingOutFile:
    """An `OutFile` that notes what is done to it."""

    def __init__(self, out: OutFile, operations: list[Operation], lock: threading.RLock, path: str,
                 inode: int) -> None:
        self._out = out
        self._operations = operations
        self._lock = lock
        self._shown = path
        self._inode = inode

    @property
    def path(self) -> str:
        return self._out.path

    def fileno(self) -> int:
        return self._out.fileno()

    def write_at(self, offset: int, pieces: Sequence[Buffer]) -> int:
        data = b"".join(pieces)
        with self._lock:
            try:
                written = self._out.write_at(offset, pieces)
            except StorageError:
                self._note_write(offset, _written_part(self._out.fileno(), offset, data))
                raise
            self._note_write(offset, data)
            return written

    def copy_from(self, source: int, source_offset: int, length: int, offset: int) -> None:
        with self._lock:
            try:
                self._out.copy_from(source, source_offset, length, offset)
            except (StorageError, InvalidInput):
                wanted = read_exactly(source, length, source_offset)
                self._note_write(offset, _written_part(self._out.fileno(), offset, wanted))
                raise
            self._note_write(offset, read_exactly(self._out.fileno(), length, offset))

    def truncate(self, size: int) -> None:
        with self._lock:
            self._out.truncate(size)
            self._operations.append(Truncate(self._shown, self._inode, size))

    def punch_hole(self, offset: int, length: int) -> None:
        # After a crash a hole may be there, or not, or in part: as if its zeros had been written.
        with self._lock:
            self._out.punch_hole(offset, length)
            self._note_write(offset, bytes(length))

    def sync(self) -> None:
        with self._lock:
            self._out.sync()
            self._operations.append(Sync(self._shown, self._inode))

    def close(self) -> None:
        self._out.close()

    def __repr__(self) -> str:
        return f"RecordingOutFile({self._shown!r})"

    def _note_write(self, offset: int, data: bytes) -> None:
        if data:
            self._operations.append(Write(self._shown, self._inode, offset, data))


def _written_part(descriptor: int, offset: int, data: bytes) -> bytes:
    """As much of `data`, from its start, as a refused write has left in the file."""
    found = read_exactly(descriptor, len(data), offset)
    equal = next((place for place, (ours, theirs) in enumerate(zip(data, found, strict=False)) if ours != theirs),
                 len(found))
    return data[:equal]


def record(folder: StrPath, function: Callable[[Path, RecordingFiles], object], *,
           files: Files | None = None, ignore: Iterable[str] = (LOCK_NAME,)) -> Recording:
    """Let `function` work on `folder` and record every change it makes through the `RecordingFiles` it is given.

    Args:
        folder: an existing folder; what it holds before counts as durable. It is changed for real.
        function: called once with the folder and the files; it calls `files.acknowledge(value)` when it promises
            something, for example that an entry is durable. What it returns is ignored.
        files: what carries the operations out, for example a `FailingFiles`; the local disk if not given.
        ignore: names that the function may make in other ways than through its files, because they mean nothing after
            a crash: they are not there in rebuilt folders. By default that of the library's own lock file.

    Raises:
        InvalidInput: the function changed the folder in another way than through its files, or changed an ignored
            name through them.
        Exception: whatever the function raises.
    """
    recorder = RecordingFiles(folder, files, ignore=ignore)
    function(Path(folder), recorder)
    return recorder.recording()
