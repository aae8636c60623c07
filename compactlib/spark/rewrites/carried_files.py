# SPDX-License-Identifier: Apache-2.0
"""A file on its way through an object store: parts of bounded size, each an object that is checked when it is taken.

Parts are what keeps memory bounded, whatever the size of the file and whichever the store: a multipart upload would do
so too, but not every store creates one on the condition that there is no such object yet.
"""

from __future__ import annotations

import itertools
import json
import os
from typing import Self

import attrs

from compactlib.errors import InvalidInput, StorageError
from compactlib.files.disk import Files
from compactlib.objects import Digest, ObjectExists, ObjectRef, ObjectStore
from compactlib.objects.store import read_checked

_SCHEME = "object://"


@attrs.frozen
class CarriedFile:
    """A file that lies in an object store.

    Attributes:
        name: its own name, without a folder.
        parts: the objects that hold its bytes, in order; one at least.
    """

    name: str
    parts: tuple[ObjectRef, ...]

    def to_path(self) -> str:
        """As a path, which is where a `RewriteResult` says what was written."""
        told = [self.name, *([ref.key, ref.size_bytes, ref.digest.hex] for ref in self.parts)]
        return _SCHEME + json.dumps(told, separators=(",", ":"))

    @classmethod
    def from_path(cls, path: str) -> Self:
        """The inverse of `to_path`.

        Raises:
            InvalidInput: this is no such path.
        """
        if not path.startswith(_SCHEME):
            raise InvalidInput(f"{path!r} names no file in an object store; its task ran without ObjectsExecutor")
        name, *parts = json.loads(path.removeprefix(_SCHEME))
        return cls(name, tuple(ObjectRef(key, size, Digest.from_hex(digest)) for key, size, digest in parts))


def put_file(store: ObjectStore, key: str, path: str, part_bytes: int) -> CarriedFile:
    """Create the objects `key/0`, `key/1`, ... of a file's bytes; one part is in memory at a time.

    Args:
        store: where.
        key: no other file's; what a part that exists already holds is taken for what an earlier request of this very
            call has left, whose answer was lost. The reader checks the digest.
        path: the file.
        part_bytes: the largest part, >= 1.

    Raises:
        StorageError: the file cannot be read.
        StoreFailed: the store does not take it; parts may be there.
    """
    parts: list[ObjectRef] = []
    try:
        with open(path, "rb", buffering=0) as source:
            for number in itertools.count():
                data = _read(source.fileno(), part_bytes)
                if not data and number:
                    break
                parts.append(_created(store, f"{key}/{number}", data))
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
    return CarriedFile(os.path.basename(path), tuple(parts))


def take_file(store: ObjectStore, carried: CarriedFile, path: str, files: Files) -> None:
    """Write a carried file's bytes to a new file, durably; one part is in memory at a time.

    Raises:
        BadDigest: a part is not what was put there.
        ObjectNotFound, StoreFailed: the store does not give it.
        StorageError: the disk refused. In each case the file is removed.
    """
    out = files.create(path)
    try:
        try:
            offset = 0
            for ref in carried.parts:
                offset += out.write_at(offset, [read_checked(store, ref)])
            out.sync()
        finally:
            out.close()
    except BaseException:
        files.unlink(path)
        raise


def _read(descriptor: int, most: int) -> bytes:
    """The next bytes of a file, `most` unless it ends: a single read gives at most 2 GiB, and may give less."""
    data = os.read(descriptor, most)
    while data and len(data) < most and (more := os.read(descriptor, most - len(data))):
        data += more
    return data


def _created(store: ObjectStore, key: str, data: bytes) -> ObjectRef:
    try:
        return store.create(key, data)
    except ObjectExists:
        return ObjectRef(key, len(data), Digest.of(data))
