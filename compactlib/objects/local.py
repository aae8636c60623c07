# SPDX-License-Identifier: Apache-2.0
"""`LocalObjects`: objects as files of a local folder, with the keys as names."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import uuid
from collections.abc import Iterator, Sequence
from itertools import chain

from compactlib.errors import NotFound, ReadOnly, StorageError
from compactlib.files.disk import (
    Files,
    LocalFiles,
    StrPath,
    list_folder,
    local_path,
    look_at,
    make_missing_folder,
    read_exactly,
    sync_names,
)
from compactlib.lru import Lru
from compactlib.objects.errors import BadKey, ObjectExists, ObjectNotFound
from compactlib.objects.store import ObjectInfo, ObjectStore

_INCOMING = ".incoming"
_LOST_AND_FOUND = "lost+found/"
"""A folder in the root of many file systems, for the administrator alone."""
_MAX_REMEMBERED = 10_000


def is_local_objects(folder: StrPath) -> bool:
    """Return whether a folder is a store of `LocalObjects`; creates nothing."""
    return os.path.isdir(os.path.join(os.fspath(folder), _INCOMING))


class LocalObjects(ObjectStore):
    """An `ObjectStore` in a folder: the object `a/b` is the file `a/b`.

    An object is written and synced under a private name in `.incoming`, then linked to its key, which fails if the key
    exists. A crash leaves at most private names, which `sweep` removes.

    An existing name may not be durable: its process may have been killed before the sync, or may not have synced yet.
    So this store syncs each folder when it first reads it, and before a create raises `ObjectExists`.

    If the disk refuses a create (`StorageError`), the object does not exist, unless only the last sync was refused:
    then the same create raises `ObjectExists` after its sync has succeeded.

    The folder is the store's alone: it must not contain links, pipes or devices. Deletes keep its folders.

    Args:
        folder: created if absent; its parent exists.
        files: the disk.
        create: whether the store may be created. If not, a folder without an `.incoming` does not change.

    Raises:
        NotFound: there is no store in the folder, and `create` is not set.
        StorageError: the folder cannot be created.
    """

    def __init__(self, folder: StrPath, *, files: Files | None = None, create: bool = True) -> None:
        self.folder: str = local_path(folder)
        self._incoming = os.path.join(self.folder, _INCOMING)
        self._files: Files = LocalFiles() if files is None else files
        super().__init__(f"the objects in {self.folder}")
        self._settled: Lru[str, bool] = Lru(_MAX_REMEMBERED)  # folders that exist durably, with all names in them
        if not create and not is_local_objects(self.folder):
            raise NotFound(f"{self.folder} holds no objects: there is no folder {_INCOMING!r} in it; check the path, "
                           f"or open it with create=True to make a store there")
        make_missing_folder(self._files, self.folder)
        with contextlib.suppress(ReadOnly):
            # The creator of an existing folder may have been killed before the sync of its name.
            sync_names(self._files, self.folder)
        make_missing_folder(self._files, self._incoming)

    def _create(self, key: str, data: bytes | memoryview) -> None:
        path = self._path(key)
        if os.path.lexists(path):
            raise self._taken(key, path)
        private = os.path.join(self._incoming, uuid.uuid4().hex)
        out = self._files.create(private)
        try:
            try:
                out.write_at(0, [data])
                out.sync()
            finally:
                out.close()
            self._settle(os.path.dirname(path))
            self._files.link(private, path)
        except StorageError as error:
            if error.errno != errno.EEXIST:
                raise
            raise self._taken(key, path) from error
        finally:
            # If the disk refuses, `sweep` removes it later.
            with contextlib.suppress(StorageError):
                self._files.unlink(private)
        self._sync(os.path.dirname(path))

    def _taken(self, key: str, path: str) -> ObjectExists | BadKey:
        """Return the error for an existing name, after a sync of it."""
        if os.path.isdir(path):
            return BadKey(f"{key!r} is the beginning of other keys here; a folder cannot hold both")
        self._settle(os.path.dirname(path))
        self._sync(os.path.dirname(path))
        return ObjectExists(key=key)

    # --- folders

    def _settle(self, folder: str) -> None:
        """Create a folder if it is missing; sync its name and all names in it once, before a call depends on them.

        The names may be of killed processes. A running process syncs its names before `create` returns.
        """
        if self._settled.get(folder) and os.path.isdir(folder):
            return
        if folder != self.folder:
            above = os.path.dirname(folder)
            self._settle(above)
            try:
                make_missing_folder(self._files, folder)
            except StorageError as error:
                if error.errno != errno.EEXIST:
                    raise
                raise BadKey(f"a key in {folder} continues the key of an object; a folder cannot hold both") from error
            self._files.sync_folder(above)
        self._sync(folder)
        self._settled.put(folder, True)

    def _settle_for_reading(self, folder: str) -> None:
        if not self._settled.get(folder):
            # A folder without the right to sync it has no names of this process.
            with contextlib.suppress(ReadOnly):
                self._settle(folder)

    def _sync(self, folder: str) -> None:
        try:
            self._files.sync_folder(folder)
        except BaseException:
            # The names in it are readable, and not durable.
            self._settled.drop(folder)
            raise

    # --- reading

    def _read(self, key: str, start: int, stop: int | None) -> bytes:
        path = self._path(key)
        try:
            with open(path, "rb", buffering=0) as file:
                self._settle_for_reading(os.path.dirname(path))
                # `read` allocates all the bytes of its argument first.
                size = os.fstat(file.fileno()).st_size
                stop = size if stop is None else min(stop, size)
                return read_exactly(file.fileno(), stop - start, start) if start < stop else b""
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise ObjectNotFound(key=key) from None
        except StorageError:
            raise
        except OSError as error:
            raise StorageError.from_os(error, "read", path) from error

    def _info(self, key: str) -> ObjectInfo:
        path = self._path(key)
        status = look_at(path)
        if status is None or stat.S_ISDIR(status.st_mode):
            raise ObjectNotFound(key=key)
        self._settle_for_reading(os.path.dirname(path))
        return ObjectInfo(key, status.st_size, status.st_mtime)

    def _list(self, prefix: str, above: str = "") -> Iterator[ObjectInfo]:
        folder = os.path.join(self.folder, above)
        try:
            # One call opens, reads and closes: an interrupt leaves no open iterator.
            entries = list(chain.from_iterable(map(os.scandir, [folder])))
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            if above == _LOST_AND_FOUND:
                return
            raise StorageError.from_os(error, "list", folder) from error
        self._settle_for_reading(os.path.normpath(folder))
        # With a slash at its end, a folder sorts where its keys do.
        named = sorted((entry.name + "/" * entry.is_dir(follow_symlinks=False), entry)
                       for entry in entries if entry.name[0] != ".")
        for name, entry in named:
            key = above + name
            if name[-1] == "/":
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from self._list(prefix, key)
            elif key.startswith(prefix):
                status = look_at(entry.path)
                if status is not None and stat.S_ISREG(status.st_mode):
                    yield ObjectInfo(key, status.st_size, status.st_mtime)

    # --- removing

    def _delete(self, keys: Sequence[str]) -> None:
        paths = [self._path(key) for key in keys]
        for path in filter(os.path.isfile, paths):
            try:
                self._files.unlink(path)
            except StorageError as error:
                if error.errno != errno.ENOENT:
                    raise
        for folder in dict.fromkeys(map(os.path.dirname, paths)):
            if os.path.isdir(folder):
                self._sync(folder)

    def sweep(self, older_than: float) -> int:
        """Remove private files of crashed writers that were written before `older_than`; return their number.

        Args:
            older_than: seconds since the epoch; before the start of every running writer.

        Raises:
            StorageError: the disk refused.
        """
        self._require_open()
        removed = 0
        for name in list_folder(self._incoming):
            path = os.path.join(self._incoming, name)
            try:
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode) and status.st_mtime < older_than:
                    self._files.unlink(path)
                    removed += 1
            except OSError as error:
                if error.errno != errno.ENOENT:  # removed by another sweep, or by its writer
                    raise StorageError.from_os(error, "sweep", path) from error
        return removed

    def _path(self, key: str) -> str:
        return os.path.join(self.folder, key)

    def available_bytes(self) -> int | None:
        self._require_open()
        return self._files.available_bytes(self.folder)
