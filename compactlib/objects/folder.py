# SPDX-License-Identifier: Apache-2.0
"""The folder of a store that nobody has open, kept in an object store: all of its files as of one moment.

Files are objects under names of their own, which never change; a manifest says which of them are the folder now, and is
replaced by compare-and-set (`ObjectRegister`). So whoever was first has changed the folder, as a whole, and whoever was
later has changed nothing. Nothing is locked, and a process that dies leaves objects that nothing names.

A store is opened in a working copy on a disk, whole, or with the mere beginnings of large files: as far as a plan needs
them. What was changed there is put back; what was not, stays where it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil  # noqa: TID251 - a working copy, whose store lies elsewhere
import stat
import tempfile  # noqa: TID251 - a working copy, whose store lies elsewhere
import uuid
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from itertools import count
from typing import Any, Self, TypeAlias

import attrs

from compactlib._arguments import require_method, require_whole
from compactlib.clock import Clock
from compactlib.contract import CommitFence, Compaction, Policy
from compactlib.errors import CorruptData, InvalidInput, NotFound, Stale, StorageError, Unsupported
from compactlib.files.disk import Files, LocalFiles, StrPath, list_folder, local_path, look_at
from compactlib.files.folder_lock import LOCK_NAME
from compactlib.objects.errors import ObjectStoreFailed
from compactlib.objects.register import NO_ID, ObjectRegister, Version
from compactlib.objects.store import ObjectStore, delete_many
from compactlib.objects.stored_file import DEFAULT_PART_BYTES, StoredFile, put_file, take_file
from compactlib.outcome import Done, Failed, Skipped
from compactlib.rewrite import Executor
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer

_AT_ONCE = 8
"""How many files are read or written at the same time: requests mostly wait. One part of each is in memory."""
_NOT_YET = StoredFile(())

Heads: TypeAlias = Callable[[str], Mapping[str, int]]
"""Says of a folder on the disk, nobody's at the time, which of its files need not be whole for a plan, by their names,
and how many bytes of their beginnings do."""


def no_heads(folder: str) -> Mapping[str, int]:
    """Every file has to be whole."""
    return {}


@attrs.frozen
class Contents:
    """What a folder holds.

    Attributes:
        files: the ordinary files, by their paths from the folder.
        links: the symbolic links, with their texts, and when they were made (nanoseconds since the epoch).
        folders: those below it, each after the one it is in.
    """

    files: Mapping[str, StoredFile] = attrs.field(factory=dict)
    links: Mapping[str, tuple[str, int]] = attrs.field(factory=dict)
    folders: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        """The stored form (`docs/formats/objects-folder.md`)."""
        told = {"files": {path: file.told() for path, file in sorted(self.files.items())},
                "links": {path: list(link) for path, link in sorted(self.links.items())}, "folders": list(self.folders)}
        return json.dumps(told, separators=(",", ":"), ensure_ascii=True).encode()

    @classmethod
    def decoded(cls, data: bytes, place: str) -> Self:
        """The inverse of `encoded`.

        Raises:
            CorruptData: it is something else, or names what lies outside the folder.
        """
        try:
            told: Any = json.loads(data)
            contents = cls({path: StoredFile.of(file) for path, file in told["files"].items()},
                           {path: (text, int(at)) for path, (text, at) in told["links"].items()},
                           tuple(told["folders"]))
            names: list[Any] = [*contents.files, *contents.links, *contents.folders]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, InvalidInput) as error:
            raise CorruptData(path=place, offset=0, expected="the manifest of a folder", found=f"{error}") from error
        for name in (*names, *(text for text, _ in contents.links.values())):
            if not isinstance(name, str) or "\0" in name:
                raise CorruptData(path=place, offset=0, expected="a path", found=repr(name))
        for name in names:
            if os.path.isabs(name) or not {"", ".", ".."}.isdisjoint(name.split("/")):
                raise CorruptData(path=place, offset=0, expected="paths within the folder", found=repr(name))
        return contents


class WorkingCopy:
    """A folder on the disk, and which of its files are still those of the object store.

    What is unchanged is known by inode, size and a time of its last change that no clock gives. A file of which only
    the beginning is here has a second name elsewhere, so that no other file gets its inode once it was removed.

    Args:
        objects: where the files are.
        prefix: what their keys begin with.
        folder: the folder on the disk.
        version: the manifest that it was made from; `None` for one that is new.
        files: the disk.
        part_bytes: see `put_file`.
        held: a folder for second names; `None` if all files are to be whole.

    Attributes:
        folder: where it is.
        prefix: what the keys of its files begin with.
        part_bytes: the largest object that is put.
        version: what it was made from, or was committed as.
        contents: what that version names.
        is_wanted: whether `ObjectFolder.opened` commits it.
        unseen: contents that were tried to commit on top of `version`, of which it is not known what became.
    """

    def __init__(self, objects: ObjectStore, prefix: str, folder: str, version: Version | None = None, *, files: Files,
                 part_bytes: int = DEFAULT_PART_BYTES, held: str | None = None) -> None:
        self.folder: str = folder
        self.prefix: str = prefix
        self.part_bytes: int = part_bytes
        self.version: Version | None = version
        self.contents: Contents = Contents()
        self.is_wanted: bool = True
        self.unseen: list[Contents] = []
        self._objects = objects
        self._files = files
        self._held = held
        self._known: dict[tuple[int, int, int, int], StoredFile] = {}
        self._hollow: set[tuple[int, int]] = set()
        self._marks = count(int.from_bytes(os.urandom(4)))

    def fill(self) -> None:
        """Write the version's files, durably, several at once.

        Raises:
            CorruptData: the manifest or a file is damaged.
            ObjectNotFound, ObjectStoreFailed: the store does not give a file.
            StorageError: the disk refused.
        """
        contents = self.contents = contents_of(self.version, self.prefix)
        for path in contents.folders:
            self._files.make_folder(os.path.join(self.folder, path))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # As a list: what one raises comes here.
            list(pool.map(self.take, contents.files.values(),
                          (os.path.join(self.folder, path) for path in contents.files)))
        for path, (text, at) in contents.links.items():
            link = os.path.join(self.folder, path)
            self._files.symlink(text, link)
            os.utime(link, ns=(at, at), follow_symlinks=False)
        for path in ("", *contents.folders):
            self._files.sync_folder(os.path.join(self.folder, path))

    def take(self, file: StoredFile, path: str) -> None:
        """Write a file of the object store to a new path: its head, where only heads are asked for.

        Raises:
            CorruptData: the file is damaged.
            ObjectNotFound, ObjectStoreFailed: the store does not give it.
            StorageError: the disk refused.
        """
        take_file(self._objects, file, path, self._files, only_head=self._held is not None)
        found, mark = self._know(path, file)
        if self._held is not None and file.head_bytes is not None and file.head_bytes < file.size_bytes:
            self._files.link(path, os.path.join(self._held, f"{mark}"))
            self._hollow.add((found.st_dev, found.st_ino))

    def _know(self, path: str, file: StoredFile) -> tuple[os.stat_result, int]:
        """From now on, what lies at this path is this file, until it is changed."""
        mark = next(self._marks)
        try:
            os.utime(path, ns=(mark, mark))
            found = os.stat(path)
        except OSError as error:
            raise StorageError.from_os(error, "set the time of", path) from error
        self._known[_identity(found)] = file
        return found, mark

    def stored(self, path: str) -> StoredFile | None:
        """The file of the object store that lies at a path, unchanged; `None` for every other. Links are followed.

        Raises:
            StorageError: there is none.
            Unsupported: a file was changed of which only the beginning is here.
        """
        try:
            found = os.stat(path)
        except OSError as error:
            raise StorageError.from_os(error, "look at", path) from error
        file = self._known.get(_identity(found))
        if file is None and (found.st_dev, found.st_ino) in self._hollow:
            raise Unsupported(f"{path} was changed, and only its beginning is here; do that in a working copy of whole "
                              f"files")
        return file

    def put(self, heads: Heads) -> Contents:
        """Put what is new or changed into the object store; gives all that the folder holds now.

        Raises:
            Unsupported: a file was changed of which only the beginning is here; or there is a device or a pipe.
            StorageError: the disk refused.
            ObjectStoreFailed: the store does.
        """
        files: dict[str, StoredFile] = {}
        links: dict[str, tuple[str, int]] = {}
        new: list[str] = []
        folders = [""]
        for folder in folders:
            here = os.path.join(self.folder, folder)
            known_heads = heads(here)
            for name in list_folder(here):
                path, full = os.path.join(folder, name), os.path.join(here, name)
                found = look_at(full)
                if found is None:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    folders.append(path)
                elif stat.S_ISLNK(found.st_mode):
                    links[path] = os.readlink(full), found.st_mtime_ns
                elif stat.S_ISREG(found.st_mode) and name != LOCK_NAME:
                    file = self.stored(full)
                    files[path] = attrs.evolve(_NOT_YET if file is None else file, head_bytes=known_heads.get(name))
                    if file is None:
                        new.append(path)
                elif not (stat.S_ISREG(found.st_mode) or stat.S_ISSOCK(found.st_mode)):
                    raise Unsupported(f"{full} is neither a file nor a folder nor a link, and cannot lie in an object "
                                      f"store; see what it is")
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            files.update(zip(new, pool.map(lambda path: put_file(
                self._objects, self.new_key(), os.path.join(self.folder, path), self.part_bytes,
                head_bytes=files[path].head_bytes), new), strict=True))
        # Whatever was never fetched is the caller's own, whose files' times are kept.
        for path in new if self.version is not None else ():
            self._know(os.path.join(self.folder, path), files[path])
        return Contents(files, links, tuple(folders[1:]))

    def new_key(self) -> str:
        """A key for a file, never used before."""
        return f"{self.prefix}/files/{uuid.uuid4().hex}"


def _identity(found: os.stat_result) -> tuple[int, int, int, int]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def contents_of(version: Version | None, place: str) -> Contents:
    """What a version of the manifest names; nothing if there is none.

    Raises:
        CorruptData: it is damaged.
    """
    return Contents() if version is None else Contents.decoded(version.value, place)


class ObjectFolder:
    """A store's folder in an object store.

    Args:
        objects: the object store.
        prefix: what the keys of this folder begin with; for it alone.
        heads: which files a plan does not need whole; see `Heads`.
        files: the disk of working copies.
        part_bytes: the largest object that is put, >= 1.
        clock: for the pauses between looks for a commit without an answer.

    Raises:
        BadKey: the prefix is none.
    """

    def __init__(self, objects: ObjectStore, prefix: str, *, heads: Heads = no_heads, files: Files | None = None,
                 part_bytes: int = DEFAULT_PART_BYTES, clock: Clock | None = None) -> None:
        require_whole("part_bytes", part_bytes, 1)
        self._register = ObjectRegister(objects, f"{prefix}/manifest", clock=clock)
        self._objects = objects
        self._prefix = prefix
        self._heads = heads
        self._files: Files = LocalFiles() if files is None else files
        self._part_bytes = part_bytes

    def read(self) -> Version | None:
        """The newest manifest, `None` if there is no folder; see `ObjectRegister.read`."""
        return self._register.read()

    def put(self, folder: StrPath, *, fence: CommitFence | None = None) -> Version:
        """Make a new folder of one on the disk, which nobody has open; all of it is copied.

        Raises:
            Stale: there is one of this name.
            Unsupported: there is a device or a pipe in it.
            StorageError: the disk refused.
            ObjectStoreFailed: the store does; see `ObjectRegister.replace`.
        """
        return self.commit(self._copy(local_path(folder), None, None), fence=fence)

    def fetch(self, folder: StrPath) -> WorkingCopy:
        """Make a new folder on the disk of the newest version; `folder` does not exist. Its files' times mean nothing.

        Raises:
            NotFound: there is no such folder in the object store.
            CorruptData: the manifest or a file is damaged, or a file that the newest version names is gone.
            Stale: files went while they were read, since newer versions were made and `reclaim` was called.
            ObjectStoreFailed: the store cannot be asked.
            StorageError: the disk refused. After each of these errors there is no such folder on the disk.
        """
        return self._fetched(local_path(folder))

    def _fetched(self, folder: str, held: str | None = None) -> WorkingCopy:
        version = self._register.read()
        if version is None:
            raise NotFound(f"there is no folder {self._prefix!r} in the object store; ObjectFolder.put makes one")
        copy = self._copy(folder, version, held)
        self._files.make_folder(copy.folder)
        try:
            copy.fill()
        except BaseException as error:
            shutil.rmtree(copy.folder, ignore_errors=True)
            if not isinstance(error, NotFound):
                raise
            if self._register.read() == version:
                raise CorruptData(path=f"{self._prefix}/manifest", offset=0, expected="files that are there",
                                  found=str(error)) from error
            raise Stale(f"{self._prefix!r} was changed, and its files were reclaimed, while they were read: {error}; "
                        f"read it again") from error
        return copy

    def _copy(self, folder: str, version: Version | None, held: str | None) -> WorkingCopy:
        return WorkingCopy(self._objects, self._prefix, folder, version, files=self._files,
                           part_bytes=self._part_bytes, held=held)

    def commit(self, copy: WorkingCopy, *, fence: CommitFence | None = None) -> Version:
        """Make a working copy, which nobody has open, the newest version, if no other has come since; in one step.

        What has not changed since it was fetched stays where it is; if nothing has, no version is made. After a commit
        without an answer it may be called again, and sees first what came of that.

        Args:
            copy: the working copy.
            fence: entered around the step that commits.

        Raises:
            Stale: another version has come; nothing was changed.
            Unsupported: a file was changed of which only the beginning is here; nothing was changed.
            StorageError: the disk refused; nothing was changed.
            ObjectStoreFailed: the store does; see `ObjectRegister.replace`.
        """
        require_method("fence", fence, "guard", or_none=True)
        contents = copy.put(self._heads)
        if copy.unseen:
            self._look_for_unseen(copy)
        while copy.version is None or contents != copy.contents:
            guard: AbstractContextManager[object] = nullcontext() if fence is None else fence.guard()
            with guard:
                # Before it is tried: whatever ends this, an interrupt too, it may be in force, now or later.
                before = list(copy.unseen)
                if contents not in before:
                    copy.unseen.append(contents)
                try:
                    version = self._register.replace(contents.encoded(), copy.version)
                except Stale:
                    copy.unseen = before
                    # Is the other version one that this copy has tried before, and that has come only now?
                    if not copy.unseen or not self._look_for_unseen(copy):
                        raise
                    continue
                copy.version, copy.contents = version, contents
                copy.unseen.clear()
        return copy.version

    def _look_for_unseen(self, copy: WorkingCopy) -> bool:
        """See whether one of the contents that were tried is the version after the copy's own."""
        number, follows = (0, NO_ID) if copy.version is None else (copy.version.number, copy.version.id)
        try:
            versions = self._register.versions()
        except (ObjectStoreFailed, StorageError) as error:
            raise ObjectStoreFailed(operation="create", key=f"{self._prefix}/manifest", detail=(
                f"an earlier commit got no answer, and whether it counts cannot be seen: {error}")) from error
        for version in versions:
            for tried in copy.unseen:
                if (version.number, version.follows, version.value) == (number + 1, follows, tried.encoded()):
                    copy.version, copy.contents = version, tried
                    copy.unseen.clear()
                    return True
        return False

    @contextlib.contextmanager
    def opened(self, *, only_heads: bool = False, fence: CommitFence | None = None,
               scratch: str | None = None) -> Generator[WorkingCopy, None, None]:
        """A working copy for the body of `with`, committed at its end, unless it raises or sets `is_wanted` to false.

        Raises what `fetch` and `commit` do.

        Args:
            only_heads: whether of files that a plan does not need whole only the beginnings are fetched, and the rest
                of them is a hole. That is for compactions whose executor reads the files where they are
                (`compactlib.spark.ObjectsExecutor`): contents cannot be read here.
            fence: as for `commit`.
            scratch: where the working copy is made; the system's own place if `None`.
        """
        try:
            made = tempfile.mkdtemp(prefix="compactlib-folder-", dir=scratch)
        except OSError as error:
            raise StorageError.from_os(error, "make a folder in", scratch or tempfile.gettempdir()) from error
        try:
            held = os.path.join(made, ".held") if only_heads else None
            if held is not None:
                self._files.make_folder(held)
            copy = self._fetched(os.path.join(made, os.path.basename(self._prefix)), held)
            yield copy
            if copy.is_wanted:
                self.commit(copy, fence=fence)
        finally:
            shutil.rmtree(made, ignore_errors=True)

    def reclaim(self, *, now: float, older_than_seconds: float) -> int:
        """Delete versions that were followed so long ago, and files so old that no version names; returns how many.

        Args:
            now: seconds since the epoch by the store's clock.
            older_than_seconds: more than any working copy is used.

        Raises:
            InvalidInput: as for `ObjectRegister.forget`.
            CorruptData: a manifest is damaged; no file was deleted.
            ObjectStoreFailed: the store refused; call again.
        """
        forgotten = self._register.forget(now=now, older_than_seconds=older_than_seconds)
        # Listed first: what a manifest comes to name after this is younger, or was named before.
        old = [info.key for info in self._objects.list(f"{self._prefix}/files/")
               if info.modified_at < now - older_than_seconds]
        named = {ref.key for version in self._register.versions()
                 for file in contents_of(version, self._prefix).files.values() for ref in file.parts}
        garbage = [key for key in old if key not in named]
        delete_many(self._objects, garbage)
        return forgotten + len(garbage)

    def __repr__(self) -> str:
        return f"ObjectFolder({self._prefix!r})"


@attrs.frozen
class OpenInObjects:
    """Gives stores whose folders lie in an object store: each `compact` is one of a working copy, and commits that.

    Made for `compactlib.spark.compact_on_workers`: a worker fetches a small store, compacts it on its own disk, and
    puts what has changed; no store passes through the driver. Picklable if its fields are.

    Attributes:
        open_objects: opens the object store.
        open_store: opens a store in a folder.
        scratch: where working copies are made; the system's own place if `None`.
        part_bytes: the largest object that is put, >= 1: eight are in memory at once, and as many of a fetched store's
            own, for each of the stores that one task has open.
    """

    open_objects: Callable[[], ObjectStore]
    open_store: Callable[[str], Compaction[Any, Any, Any, Any, Any]]
    scratch: str | None = None
    part_bytes: int = 1 << 20

    def __call__(self, prefix: str) -> StoreInObjects:
        """The store in the folder of this prefix. Nothing is asked yet."""
        return StoreInObjects(self, prefix)


@attrs.frozen
class StoreInObjects:
    """A store in an object store, to be compacted.

    Attributes:
        opener: how it is opened.
        prefix: of its folder.
    """

    opener: OpenInObjects
    prefix: str

    def compact(self, *, policy: Policy[Any, Any] | None = None, executor: Executor | None = None,
                budget: Budget | None = None, observer: Observer | None = None,
                fence: CommitFence | None = None) -> Done[Any] | Skipped | Failed:
        """See `Compaction.compact`; the fence is entered around the step that commits to the object store.

        Raises:
            NotFound: there is no such folder.
            Stale: another has changed it meanwhile; nothing was changed.
            ObjectStoreFailed: the store cannot be asked; see `ObjectRegister.replace`.
        """
        opener = self.opener
        with opener.open_objects() as objects, ObjectFolder(
                objects, self.prefix, part_bytes=opener.part_bytes).opened(fence=fence, scratch=opener.scratch) as copy:
            with contextlib.closing(opener.open_store(copy.folder)) as store:
                outcome = store.compact(policy=policy, executor=executor, budget=budget, observer=observer)
            # Opening and closing may have written something; that alone makes no version.
            copy.is_wanted = isinstance(outcome, Done) or (isinstance(outcome, Failed) and outcome.changed != "no")
        return outcome

    def close(self) -> None:
        """Nothing is open between two calls."""
