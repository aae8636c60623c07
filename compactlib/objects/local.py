"""Objects as files of a local folder, which any tool can open under the very key."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Self

from compactlib.errors import Closed, InvalidInput, StorageError
from compactlib.files import Files, LocalFiles, StrPath, read_exactly
from compactlib.objects.audit import audit_listing
from compactlib.objects.digest import Digest
from compactlib.objects.errors import BadKey, ObjectExists, ObjectNotFound
from compactlib.objects.keys import check_key, check_prefix
from compactlib.objects.store import ObjectInfo, ObjectRef

_INCOMING = ".incoming"


class LocalObjects:
    """An `ObjectStore` in a folder: the object `a/b` is the file `a/b`.

    An object is written and synced under a private name in `.incoming`, then linked to its own, which fails if that
    is taken. A crash leaves at most private names; `sweep` removes those.

    Args:
        folder: made if there is none.
        files: the disk.
        new_name: gives each private file its name; for tests that need names to repeat. Threads may call it at once.

    Raises:
        StorageError: the folder cannot be made.
    """

    def __init__(self, folder: StrPath, *, files: Files | None = None,
                 new_name: Callable[[], str] = lambda: uuid.uuid4().hex) -> None:
        self._folder = os.path.abspath(os.fspath(folder))
        self._files: Files = LocalFiles() if files is None else files
        self._new_name = new_name
        self._closed = False
        self._make_folders(os.path.join(self._folder, _INCOMING))

    @property
    def folder(self) -> str:
        """Where the objects lie."""
        return self._folder

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        """See `ObjectStore.create`. One fsync of the file, and one of its folder.

        Raises:
            StorageError: the disk refused; `DiskFull` if it is full. There is no object then, except if only the last
                sync was refused.
        """
        path = self._path(key)
        if os.path.lexists(path):
            raise self._taken(key, path)
        private = os.path.join(self._folder, _INCOMING, self._new_name())
        out = self._files.create(private)
        try:
            try:
                out.write_at(0, [data])
                out.sync()
            finally:
                out.close()
            self._make_parents(key, path)
            self._link(key, private, path)
        finally:
            # What the disk refuses to remove here is swept later.
            with contextlib.suppress(StorageError):
                self._files.unlink(private)
        self._files.sync_folder(os.path.dirname(path))
        return ObjectRef(key, memoryview(data).nbytes, Digest.of(data))

    def _link(self, key: str, private: str, path: str) -> None:
        try:
            self._files.link(private, path)
        except StorageError as error:
            if error.errno == errno.EEXIST:
                raise self._taken(key, path) from error
            raise

    def _taken(self, key: str, path: str) -> ObjectExists | BadKey:
        if os.path.isdir(path):
            return BadKey(f"{key!r} is the beginning of other keys here; a folder cannot hold both", key=key)
        return ObjectExists(key=key)

    def _make_parents(self, key: str, path: str) -> None:
        try:
            self._make_folders(os.path.dirname(path))
        except StorageError as error:
            if error.errno in (errno.ENOTDIR, errno.EEXIST):
                raise BadKey(f"the key {key!r} continues another one that is an object here; a folder cannot hold "
                             f"both", key=key) from error
            raise

    def _make_folders(self, path: str) -> None:
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for folder in reversed(missing):
            try:
                self._files.make_folder(folder)
            except StorageError:
                # Another writer may have made it a moment ago.
                if not os.path.isdir(folder):
                    raise
            self._files.sync_folder(os.path.dirname(folder))

    def get(self, key: str) -> bytes:
        """See `ObjectStore.get`."""
        descriptor = self._open(key)
        try:
            return read_exactly(descriptor, os.fstat(descriptor).st_size, 0)
        except OSError as error:
            raise StorageError.from_os(error, "read", self._path(key)) from error
        finally:
            os.close(descriptor)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See `ObjectStore.get_range`."""
        if start < 0 or length < 0:
            raise InvalidInput(f"{length} bytes from {start} were asked for; give no negative numbers")
        descriptor = self._open(key)
        try:
            return read_exactly(descriptor, length, start)
        except OSError as error:
            raise StorageError.from_os(error, "read", self._path(key)) from error
        finally:
            os.close(descriptor)

    def _open(self, key: str) -> int:
        path = self._path(key)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectNotFound(key=key) from None
        except OSError as error:
            raise StorageError.from_os(error, "open", path) from error
        if os.path.isdir(path):
            os.close(descriptor)
            raise ObjectNotFound(key=key)
        return descriptor

    def info(self, key: str) -> ObjectInfo:
        """See `ObjectStore.info`."""
        path = self._path(key)
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            raise ObjectNotFound(key=key) from None
        if os.path.isdir(path):
            raise ObjectNotFound(key=key)
        return ObjectInfo(key, status.st_size, status.st_mtime)

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """See `ObjectStore.list`. Looks only into folders that can hold such keys."""
        self._require_open()
        check_prefix(prefix)
        return self._walk("", prefix, after)

    def _walk(self, above: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        try:
            entries = list(os.scandir(os.path.join(self._folder, above)))
        except (FileNotFoundError, NotADirectoryError):
            return
        # With the slash that its keys go on with, a folder sorts where they do.
        named = sorted((entry.name + "/" * entry.is_dir(), entry) for entry in entries if entry.name[0] != ".")
        for name, entry in named:
            key = above + name
            if name[-1] == "/":
                if (key.startswith(prefix) or prefix.startswith(key)) and (key > after or after.startswith(key)):
                    yield from self._walk(key, prefix, after)
            elif key.startswith(prefix) and key > after:
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue
                yield ObjectInfo(key, status.st_size, status.st_mtime)

    def delete(self, key: str) -> None:
        """See `ObjectStore.delete`. Durable when this returns; folders stay."""
        path = self._path(key)
        if not os.path.isfile(path):
            return
        try:
            self._files.unlink(path)
        except StorageError as error:
            if error.errno != errno.ENOENT:
                raise
        self._files.sync_folder(os.path.dirname(path))

    def sweep(self, older_than: float) -> int:
        """Remove private files that crashed writers left, if they were written before `older_than`.

        Args:
            older_than: seconds since the epoch; must lie before the start of every writer that still runs.

        Returns how many were removed.
        """
        self._require_open()
        removed = 0
        folder = os.path.join(self._folder, _INCOMING)
        for entry in list(os.scandir(folder)):
            if entry.stat().st_mtime < older_than:
                self._files.unlink(entry.path)
                removed += 1
        return removed

    def _path(self, key: str) -> str:
        self._require_open()
        check_key(key)
        return os.path.join(self._folder, key)

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"{self!r} was closed; open it again")

    def audit(self) -> None:
        """See `ObjectStore.audit`. Looks at every file; those of writers at work, in `.incoming`, do not count."""
        audit_listing(repr(self), self.list())

    def close(self) -> None:
        """See `ObjectStore.close`."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LocalObjects({self._folder!r})"
