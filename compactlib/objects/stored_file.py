# SPDX-License-Identifier: Apache-2.0
"""A file that lies in an object store: parts of bounded size, each an object that is checked when it is taken whole.

Parts are what keeps memory bounded, whatever the size of the file and whichever the store: a multipart upload would do
so too, but not every store creates one on the condition that there is no such object yet.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, Self

import attrs

from compactlib.errors import InvalidInput, StorageError
from compactlib.files.disk import Files, read_exactly
from compactlib.objects.digest import Digest
from compactlib.objects.errors import BadDigest, ObjectExists
from compactlib.objects.store import ObjectRef, ObjectStore, read_checked

DEFAULT_PART_BYTES = 32 << 20
"""Larger files become several objects. Large enough that a request more hardly counts, small beside a worker's
memory."""
_GAP_BYTES = 1 << 20
"""Nearer ranges are read together: about what goes over a network while another request waits for its answer."""


@attrs.frozen
class StoredFile:
    """A file in an object store.

    Attributes:
        parts: the objects that hold its bytes, in order; one at least.
        head_bytes: how much of its beginning says what it holds, for who plans without its contents; `None` if nothing
            less than all of it does.
    """

    parts: tuple[ObjectRef, ...]
    head_bytes: int | None = None

    @property
    def size_bytes(self) -> int:
        """How long it is."""
        return sum(ref.size_bytes for ref in self.parts)

    def told(self) -> list[Any]:
        """As plain data, for JSON."""
        return [self.head_bytes, *([ref.key, ref.size_bytes, ref.digest.hex] for ref in self.parts)]

    @classmethod
    def of(cls, told: list[Any]) -> Self:
        """The inverse of `told`.

        Raises:
            InvalidInput: this is no such data.
        """
        try:
            head, *parts = told
            file = cls(tuple(ObjectRef(key, size, Digest.from_hex(digest)) for key, size, digest in parts), head)
            sizes = [ref.size_bytes for ref in file.parts]
            if not sizes or any(type(size) is not int or size < 0 for size in (*sizes, 0 if head is None else head)):
                raise ValueError(sizes, head)
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"{told!r:.200} names no file in an object store") from error
        return file


def put_file(store: ObjectStore, key: str, path: str, part_bytes: int = DEFAULT_PART_BYTES, *,
             head_bytes: int | None = None) -> StoredFile:
    """Create the objects `key/0`, `key/1`, ... of a file's bytes; one part is in memory at a time.

    Args:
        store: where.
        key: no other file's; what a part that exists already holds is taken for what an earlier request of this very
            call has left, whose answer was lost. The reader checks the digest.
        path: the file.
        part_bytes: the largest part, >= 1.
        head_bytes: see `StoredFile`.

    Raises:
        StorageError: the file cannot be read.
        ObjectStoreFailed: the store does not take it; parts may be there.
    """
    parts: list[ObjectRef] = []
    try:
        with open(path, "rb", buffering=0) as source:
            for number in itertools.count():
                data = read_exactly(source.fileno(), part_bytes, number * part_bytes)
                if not data and number:
                    break
                parts.append(_created(store, f"{key}/{number}", data))
    except OSError as error:
        raise StorageError.from_os(error, "read", path) from error
    return StoredFile(tuple(parts), head_bytes)


def take_file(store: ObjectStore, stored: StoredFile, path: str, files: Files, *, only_head: bool = False) -> None:
    """Write a stored file's bytes to a new file, durably; one part is in memory at a time.

    Args:
        store: where it is.
        stored: the file.
        path: the new file.
        files: its disk.
        only_head: whether only its head is read, and the rest becomes a hole: of the same size, and empty.

    Raises:
        BadDigest: a part is not what was put there. What is read of a part is not checked: a head has CRCs of its own.
        ObjectNotFound, ObjectStoreFailed: the store does not give it.
        StorageError: the disk refused. In each case the file is removed.
    """
    wanted = stored.head_bytes if only_head and stored.head_bytes is not None else stored.size_bytes
    out = files.create(path)
    try:
        try:
            offset = 0
            for ref in stored.parts:
                if offset >= wanted and offset:
                    break
                offset += out.write_at(offset, [_taken(store, ref, 0, wanted - offset)])
            if offset < stored.size_bytes:
                out.truncate(stored.size_bytes)
            out.sync()
        finally:
            out.close()
    except BaseException:
        files.unlink(path)
        raise


def take_ranges(store: ObjectStore, stored: StoredFile, path: str, files: Files,
                ranges: Iterable[tuple[int, int]]) -> None:
    """Fill in what `take_file` has left out; those that lie close together are read with one request.

    Args:
        store: where the file is.
        stored: the file.
        path: the new file, of which there is the head.
        files: its disk.
        ranges: where each begins and ends, ascending.

    Raises:
        BadDigest: a part is not what was put there. What is read of a part is not checked.
        ObjectNotFound, ObjectStoreFailed: the store does not give it.
        StorageError: the disk refused.
    """
    out = files.open(path)
    try:
        for start, end in _joined(ranges):
            at = 0
            for ref in stored.parts:
                first, last = max(start, at), min(end, at + ref.size_bytes)
                if first < last:
                    out.write_at(first, [_taken(store, ref, first - at, last - first)])
                at += ref.size_bytes
    finally:
        out.close()


def _joined(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    begin = stop = -_GAP_BYTES - 1
    for start, end in ranges:
        if start > stop + _GAP_BYTES:
            yield begin, stop
            begin = start
        stop = max(stop, end)
    yield begin, stop


def _taken(store: ObjectStore, ref: ObjectRef, start: int, most: int) -> bytes:
    if start == 0 and most >= ref.size_bytes:
        return read_checked(store, ref)
    data = store.get_range(ref.key, start, most)
    if len(data) != most:
        raise BadDigest(path=ref.key, offset=start, expected=f"{ref.size_bytes} bytes of {ref.digest}",
                        found=f"the end after {len(data)} bytes")
    return data


def _created(store: ObjectStore, key: str, data: bytes) -> ObjectRef:
    try:
        return store.create(key, data)
    except ObjectExists:
        return ObjectRef(key, len(data), Digest.of(data))
