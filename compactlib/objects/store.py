# SPDX-License-Identifier: Apache-2.0
"""The `ObjectStore` protocol: immutable files under keys, created once, read in ranges, listed in order.

An object never changes: it is created whole or not at all, and stays until it is deleted. So a reader that has seen one
may cache it for ever, and two writers that create the same key cannot destroy each other's bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol, Self

import attrs

from compactlib.objects.digest import Digest
from compactlib.objects.errors import BadDigest


@attrs.frozen
class ObjectInfo:
    """One object of a listing.

    Attributes:
        key: its key.
        size_bytes: its length.
        modified_at: when it was created, in seconds since the epoch by the store's clock.
    """

    key: str
    size_bytes: int
    modified_at: float


@attrs.frozen
class ObjectRef:
    """An object by key, size and digest: what to keep of an object in order to know it again.

    Attributes:
        key: its key.
        size_bytes: its length.
        digest: of all its bytes.
    """

    key: str
    size_bytes: int
    digest: Digest


class ObjectStore(Protocol):
    """Immutable objects under keys. Threads may share one; several processes may use one store at once.

    Keys are those of `compactlib.objects.keys`. A key that continues another one's with a slash (`a` and `a/b`) may be
    refused with `BadKey`: a folder on a disk cannot hold both. Every method raises `ObjectStoreFailed` when the store
    cannot be asked, and `Closed` after `close`.

    What reading shows is durable, except where its creator is still at work: a caller about to rely on an object that
    another is making creates it as well, and goes on when that has returned or raised `ObjectExists`.
    """

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        """Create an object, durable and visible as a whole when this returns.

        Raises:
            ObjectExists: there is one, and it is as durable as if this call had created it; it stays as it is.
            BadKey: the key cannot be stored.
        """

    def get(self, key: str) -> bytes:
        """All bytes of an object. Nothing checks them; `read_checked` does.

        Raises:
            ObjectNotFound: there is none.
        """

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """`length` bytes from `start`; fewer only where the object ends.

        Raises:
            ObjectNotFound: there is none.
            InvalidInput: `start` or `length` is negative, or no whole number.
        """

    def info(self, key: str) -> ObjectInfo:
        """Size and age.

        Raises:
            ObjectNotFound: there is none.
        """

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """The objects whose key begins with `prefix` and lies above `after`, ascending by key.

        Objects that are created or deleted meanwhile may or may not be seen; all others are, once.
        """

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, any number of them and not in one step; no error for one that is not there.

        Nothing is removed if one of the keys is none.

        Raises:
            ObjectStoreFailed: some may be gone; the same call may be made again.
            InvalidInput: `keys` is one text.
        """

    def available_bytes(self) -> int | None:
        """How much room there is for more objects now; `None` where it is unknown, as in a remote store."""

    def close(self) -> None:
        """Release connections and files; closing again does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None: ...


def read_checked(store: ObjectStore, ref: ObjectRef) -> bytes:
    """All bytes of an object, if they are the ones that were created.

    Raises:
        BadDigest: they are not; nothing is returned.
        ObjectNotFound: there is no such object.
    """
    data = store.get(ref.key)
    found = Digest.of(data)
    if found != ref.digest or len(data) != ref.size_bytes:
        raise BadDigest(path=ref.key, offset=0, expected=f"{ref.size_bytes} bytes of {ref.digest}",
                        found=f"{len(data)} bytes of {found}")
    return data
