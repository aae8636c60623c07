# SPDX-License-Identifier: Apache-2.0
"""The `ObjectStore` protocol: immutable files under keys, created once, read in ranges, listed in order.

An object never changes: it is created whole or not at all, and stays until it is deleted. So a reader that has seen one
may cache it for ever, and two writers that create the same key cannot destroy each other's bytes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol, Self

import attrs

from compactlib._arguments import require_whole
from compactlib.errors import InvalidInput
from compactlib.objects.errors import BadDigest, BadKey

MAX_KEY_CHARS = 512
"""Longest key; S3 and Azure take 1024 bytes, of which a host's own prefix may need some."""
MAX_SEGMENT_CHARS = 200
"""Longest part between two slashes; file systems take 255 bytes."""
DIGEST_BYTES = 20

_SEGMENT = re.compile(r"[A-Za-z0-9_=+@,-][A-Za-z0-9._=+@,-]*")


@attrs.frozen
class Digest:
    """BLAKE2b of 160 bits over an object's bytes: short enough for a key, long enough that no two alike are found.

    Attributes:
        value: the 20 bytes.
    """

    value: bytes = attrs.field()

    @value.validator
    def _check(self, _: object, value: bytes) -> None:
        if len(value) != DIGEST_BYTES:
            raise InvalidInput(f"a digest has {DIGEST_BYTES} bytes, found {len(value)}")

    @classmethod
    def of(cls, data: bytes | memoryview) -> Self:
        """The digest of these bytes. About 1 GB/s."""
        return cls(hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest())

    @classmethod
    def of_parts(cls, parts: Iterable[bytes]) -> Self:
        """The digest of bytes that come one part after the other."""
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for part in parts:
            digest.update(part)
        return cls(digest.digest())

    @classmethod
    def from_hex(cls, text: str) -> Self:
        """The inverse of `hex`.

        Raises:
            InvalidInput: this is no digest.
        """
        try:
            return cls(bytes.fromhex(text))
        except ValueError as error:
            raise InvalidInput(f"{text!r} is no digest of {2 * DIGEST_BYTES} hexadecimal digits") from error

    @property
    def hex(self) -> str:
        """40 hexadecimal digits."""
        return self.value.hex()

    def __repr__(self) -> str:
        return f"Digest({self.hex})"


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

    Keys are what `check_key` passes. A key that continues another one's with a slash (`a` and `a/b`) may be
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
        """Return all bytes of an object. Nothing checks them; `read_checked` does.

        Raises:
            ObjectNotFound: there is none.
        """

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`; fewer only where the object ends.

        Raises:
            ObjectNotFound: there is none.
            InvalidInput: `start` or `length` is negative.
        """

    def info(self, key: str) -> ObjectInfo:
        """Return size and age.

        Raises:
            ObjectNotFound: there is none.
        """

    def list(self, prefix: str = "", *, after: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects whose key begins with `prefix` and lies above `after`, ascending by key.

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
        """Return how much room there is for more objects now; `None` where it is unknown, as in a remote store."""

    def close(self) -> None:
        """Release connections and files; closing again does nothing."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None: ...


def read_checked(store: ObjectStore, ref: ObjectRef) -> bytes:
    """Return all bytes of an object, if they are the ones that were created.

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


def check_key(key: str) -> None:
    """Validate a key: segments of letters, digits and `._=+@,-`, joined by `/`; none is empty or begins with a dot.

    Local folders, S3, GCS and Azure all take such keys as they are.

    Raises:
        BadKey: it is something else, or too long; says what.
    """
    if not 1 <= len(key) <= MAX_KEY_CHARS:
        raise BadKey(f"a key has 1 to {MAX_KEY_CHARS} characters, found {len(key)}: {key[:100]!r}", key=key)
    for segment in key.split("/"):
        if not _SEGMENT.fullmatch(segment) or len(segment) > MAX_SEGMENT_CHARS:
            raise BadKey(f"the part {segment!r} of key {key!r} is not 1 to {MAX_SEGMENT_CHARS} letters, digits or any "
                         f"of '._=+@,-' that do not begin with a dot", key=key)


def checked_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys of one `delete`.

    Raises:
        BadKey: one is no key.
        InvalidInput: `keys` is one text, which would be read as a key for each of its letters.
    """
    if isinstance(keys, str):
        raise InvalidInput(f"keys is {keys!r:.100}; give a list of keys")
    checked = list(keys)
    for key in checked:
        check_key(key)
    return checked


def check_prefix(prefix: str) -> None:
    """Validate a prefix of a key, the empty one included.

    Raises:
        BadKey: no key can begin with it.
    """
    if prefix:
        check_key(prefix + "x" if prefix.endswith("/") else prefix)


def check_range(start: int, length: int) -> None:
    """Validate a range of an object: `InvalidInput` if a number is negative."""
    require_whole("start", start)
    require_whole("length", length)
