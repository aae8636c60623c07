# SPDX-License-Identifier: Apache-2.0
"""Proxies of a disk, a key-value store and an object store: each request is one call of `step`.

`step(request, act)` carries the request out by calling `act()`, and returns its answer. It may also raise instead, act
and then raise, or call something before or after. Every part of this package that records, refuses, delays or loses
requests is such a function.

>>> def log(request, act):
...     print(request)
...     return act()
>>> from compactlib.kv import MemoryStore
>>> StoreInFront(MemoryStore(), log).set(b"p", b"k", b"value")
set p/k
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import attrs

from compactlib.files import Files, LocalFiles, OutFile, StrPath
from compactlib.kv import Changes, Conditions, KVEntry, KVStore
from compactlib.objects import ObjectInfo, ObjectRef, ObjectStore

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from compactlib.kv import Address

AnswerT = TypeVar("AnswerT")

_NEEDS_ROOM = frozenset({"create", "write", "copy", "extend", "link", "symlink", "make folder"})
_DISK_CHANGES = _NEEDS_ROOM | {"truncate", "sync", "rename", "unlink", "remove folder", "sync folder"}
_KV_READS = frozenset({"get", "get_many", "scan"})


class Killed(BaseException):
    """The process was killed at this request. Not an `Exception`, so that code under test does not catch it."""


@attrs.frozen
class Request:
    """One request to a disk, a key-value store or an object store.

    Attributes:
        edge: `"disk"`, `"kv"` or `"objects"`.
        kind: for a disk `"create"`, `"open"`, `"write"`, `"copy"`, `"truncate"`, `"extend"`,
            `"sync"`, `"rename"`, `"link"`, `"symlink"`, `"unlink"`, `"make folder"`, `"remove folder"`,
            `"sync folder"`; for the stores the name of the method, `"scan"` for each page of a scan.
        path: the file, the key, or the partition and the key.
        partition, key: of a request to a key-value store: its cell; of several cells the first, of a scan the start of
            the page.
        target: for a rename or link the new name, for a symbolic link its text.
        offset: for a write or copy its first byte in the file, for `"truncate"` and `"extend"` the new size.
        size: for a write or copy the number of bytes.
        out: for a request to an open file the real file.
        half: carries out the first half of a write or a copy.
    """

    edge: str
    kind: str
    path: str
    target: str = ""
    offset: int = 0
    size: int = 0
    partition: bytes = b""
    key: bytes = b""
    out: OutFile | None = attrs.field(default=None, repr=False)
    half: Callable[[], object] | None = attrs.field(default=None, repr=False)

    @property
    def changes(self) -> bool:
        """Whether it changes stored data, or makes a change durable."""
        if self.edge == "disk":
            return self.kind in _DISK_CHANGES
        return self.kind not in _KV_READS if self.edge == "kv" else self.kind in ("create", "delete")

    @property
    def needs_room(self) -> bool:
        """Whether a full disk refuses it."""
        return self.edge == "disk" and self.kind in _NEEDS_ROOM

    def __str__(self) -> str:
        name = os.path.basename(self.path) if self.edge == "disk" else self.path
        target = f" as {os.path.basename(self.target)}" if self.target else ""
        return f"{self.kind} {name}{target}"


class Step(Protocol):
    """The function that is called at each request."""

    def __call__(self, request: Request, act: Callable[[], Any], /) -> Any:
        """Carry the request out by `act()` and return its answer; or raise."""


def act_at_once(request: Request, act: Callable[[], Any]) -> Any:
    """Carry the request out."""
    return act()


class FilesInFront:
    """A proxy of a `Files`. Threads may share it if `step` allows that.

    Args:
        step: called for each request; closing a file and `available_bytes` are no requests.
        files: carries the requests out; the local disk if not given.
    """

    def __init__(self, step: Step, files: Files | None = None) -> None:
        self._files: Files = LocalFiles() if files is None else files
        self._step = step

    def create(self, path: StrPath) -> OutFile:
        return self._opened("create", path, self._files.create)

    def open(self, path: StrPath) -> OutFile:
        return self._opened("open", path, self._files.open)

    def rename(self, source: StrPath, target: StrPath) -> None:
        self._step(_request("rename", source, target), lambda: self._files.rename(source, target))

    def link(self, source: StrPath, target: StrPath) -> None:
        self._step(_request("link", source, target), lambda: self._files.link(source, target))

    def symlink(self, text: str, path: StrPath) -> None:
        self._step(_request("symlink", path, text), lambda: self._files.symlink(text, path))

    def unlink(self, path: StrPath) -> None:
        self._step(_request("unlink", path), lambda: self._files.unlink(path))

    def make_folder(self, path: StrPath) -> None:
        self._step(_request("make folder", path), lambda: self._files.make_folder(path))

    def remove_folder(self, path: StrPath) -> None:
        self._step(_request("remove folder", path), lambda: self._files.remove_folder(path))

    def sync_folder(self, path: StrPath) -> None:
        self._step(_request("sync folder", path), lambda: self._files.sync_folder(path))

    def available_bytes(self, path: StrPath) -> int | None:
        return self._files.available_bytes(path)

    def _opened(self, kind: str, path: StrPath, act: Callable[[StrPath], OutFile]) -> OutFile:
        made: list[OutFile] = []

        def open_it() -> OutFile:
            made.append(act(path))
            return made[0]

        try:
            out = self._step(_request(kind, path), open_it)
        except BaseException:
            for each in made:  # the file is open, but its caller does not get it
                each.close()
            raise
        return _OutFileInFront(out, self._step)


class _OutFileInFront:
    def __init__(self, out: OutFile, step: Step) -> None:
        self._out = out
        self._step = step

    @property
    def path(self) -> str:
        return self._out.path

    def fileno(self) -> int:
        return self._out.fileno()

    def write_at(self, offset: int, pieces: Sequence[Buffer]) -> int:
        size = sum(memoryview(piece).nbytes for piece in pieces)

        def half() -> None:
            self._out.write_at(offset, [b"".join(pieces)[:size // 2]])

        return cast("int", self._step(self._request("write", offset, size, half),
                                      lambda: self._out.write_at(offset, pieces)))

    def copy_from(self, source: int, source_offset: int, length: int, offset: int) -> None:
        self._step(self._request("copy", offset, length,
                                 lambda: self._out.copy_from(source, source_offset, length // 2, offset)),
                   lambda: self._out.copy_from(source, source_offset, length, offset))

    def truncate(self, size: int) -> None:
        kind = "extend" if size > os.fstat(self.fileno()).st_size else "truncate"
        self._step(self._request(kind, size), lambda: self._out.truncate(size))

    def sync(self) -> None:
        self._step(self._request("sync"), self._out.sync)

    def close(self) -> None:
        self._out.close()

    def _request(self, kind: str, offset: int = 0, size: int = 0,
                 half: Callable[[], object] | None = None) -> Request:
        return Request("disk", kind, self.path, offset=offset, size=size, out=self._out, half=half)


def _request(kind: str, path: StrPath, target: StrPath = "") -> Request:
    return Request("disk", kind, os.fspath(path), os.fspath(target))


class StoreInFront(KVStore):
    """A proxy of a `KVStore`; each page of a scan is a request. Closing the proxy leaves the store open.

    A `transact` of one key is a request `"set"`, `"set_if"`, `"delete"` or `"delete_if"`, like that call.

    Args:
        store: carries the requests out.
        step: called for each request.
        page_size: the largest number of entries of a page.
    """

    def __init__(self, store: KVStore, step: Step, *, page_size: int = 1000) -> None:
        super().__init__("the store in front", store.limits, page_size=page_size)
        self._store = store
        self._step = step

    def _get_many(self, cells: Sequence[Address]) -> Sequence[KVEntry | None]:
        kind = "get" if len(cells) == 1 else "get_many"
        found = self._request(kind, *cells[0], lambda: self._store.get_many(cells))
        return [found.get(cell) for cell in cells]

    def _page(self, partition: bytes, start: bytes, limit: int) -> tuple[Sequence[KVEntry], bool]:
        return self._request("scan", partition, start, lambda: self._store.scan(partition).load(start, limit))

    def _transact(self, conditions: Conditions, changes: Changes) -> None:
        first, *others = {**conditions, **changes}
        kind = "transact"
        if first in changes and not others:
            kind = ("delete" if changes[first] is None else "set") + "_if" * len(conditions)
        self._request(kind, *first, lambda: self._store.transact(conditions, changes))

    def place(self) -> str | None:
        return self._store.place()

    def _request(self, kind: str, partition: bytes, key: bytes, act: Callable[[], AnswerT]) -> AnswerT:
        path = b"/".join((partition, key)).decode("ascii", "backslashreplace")
        return cast("AnswerT", self._step(Request("kv", kind, path, partition=partition, key=key), act))


class ObjectsInFront(ObjectStore):
    """A proxy of an `ObjectStore`; a listing is one request. Closing the proxy leaves the store open.

    Args:
        store: carries the requests out.
        step: called for each request.
    """

    def __init__(self, store: ObjectStore, step: Step) -> None:
        super().__init__("the objects in front")
        self._store = store
        self._step = step

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        return self._request("create", key, lambda: self._store.create(key, data))

    def get(self, key: str) -> bytes:
        return self._request("get", key, lambda: self._store.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self._request("get_range", key, lambda: self._store.get_range(key, start, length))

    def info(self, key: str) -> ObjectInfo:
        return self._request("info", key, lambda: self._store.info(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return iter(self._request("list", prefix, lambda: list(self._store.list(prefix))))

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:  # each object is a request
            self._request("delete", key, functools.partial(self._store.delete, [key]))

    def available_bytes(self) -> int | None:
        return self._store.available_bytes()

    def close(self) -> None:
        pass

    def _request(self, kind: str, key: str, act: Callable[[], AnswerT]) -> AnswerT:
        return cast("AnswerT", self._step(Request("objects", kind, key), act))
