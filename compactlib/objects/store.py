# SPDX-License-Identifier: Apache-2.0
"""`ObjectStore`: the base class of a store of immutable files under keys, for the library's stores and a host's.

An object never changes: it is created as a whole, and stays until it is deleted. So a reader may cache it for ever, and
two writers of the same key cannot overwrite each other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Self

import attrs

from compactlib._arguments import require_whole
from compactlib._forks import Handle
from compactlib.errors import InvalidInput
from compactlib.objects.errors import BadDigest, BadKey

MAX_KEY_CHARS = 512
"""The longest key; the limit of S3 and Azure is 1024 bytes, from which a host's prefix is taken."""
MAX_SEGMENT_CHARS = 200
"""The longest part between two slashes; the limit of file systems is 255 bytes."""
DIGEST_BYTES = 20

_SEGMENT = re.compile(r"[A-Za-z0-9_=+@,-][A-Za-z0-9._=+@,-]*")


@attrs.frozen
class Digest:
    """BLAKE2b of 160 bits over an object's bytes: short enough for a key, long enough to be free of collisions."""

    value: bytes = attrs.field()

    @value.validator
    def _check(self, _: object, value: bytes) -> None:
        if len(value) != DIGEST_BYTES:
            raise InvalidInput(f"a digest has {DIGEST_BYTES} bytes, found {len(value)}")

    @classmethod
    def of(cls, data: bytes | memoryview) -> Self:
        """Return the digest of these bytes. About 1 GB/s."""
        return cls(hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest())

    @classmethod
    def of_parts(cls, parts: Iterable[bytes]) -> Self:
        """Return the digest of the joined parts."""
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for part in parts:
            digest.update(part)
        return cls(digest.digest())

    @property
    def hex(self) -> str:
        """40 hexadecimal digits."""
        return self.value.hex()

    def __repr__(self) -> str:
        return f"Digest({self.hex})"


@attrs.frozen
class ObjectInfo:
    """An object of a listing; `modified_at` is its creation, in seconds since the epoch by the store's clock."""

    key: str
    size_bytes: int
    modified_at: float


@attrs.frozen
class ObjectRef:
    """The key of an object, and the size and the digest of all its bytes, for `read_checked`."""

    key: str
    size_bytes: int
    digest: Digest


class ObjectStore(Handle):
    """Immutable objects with keys. Threads may share one; several processes may use a store at the same time.

    A back-end implements `_create`, `_read`, `_info`, `_list` and `_delete`, and may override `available_bytes` and
    `_close`. They get checked arguments, and are not called after `close` or in a forked child, where every call raises
    `Closed`. A key that is another key's prefix up to a slash (`a` and `a/b`) may be refused with `BadKey`. Every
    method raises `ObjectStoreFailed` if the store cannot be reached.

    A readable object is durable, unless its `create` has not returned: a caller that depends on an object of another
    writer calls `create` too, and continues when that has returned or raised `ObjectExists`.

    Args:
        name: the store's name, for errors: `"the objects in /data"`.
    """

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self._handle_name}>"

    # ---- for a back-end to implement

    def _create(self, key: str, data: bytes | memoryview) -> None:
        """Carry out `create`."""
        raise NotImplementedError("an object store creates objects")

    def _read(self, key: str, start: int, stop: int | None) -> bytes:
        """Return the bytes from `start` up to `stop`, or to the end; `stop` may be beyond the end."""
        raise NotImplementedError("an object store reads objects")

    def _info(self, key: str) -> ObjectInfo:
        """Carry out `info`."""
        raise NotImplementedError("an object store reads sizes")

    def _list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Carry out `list`."""
        raise NotImplementedError("an object store lists objects")

    def _delete(self, keys: Sequence[str]) -> None:
        """Carry out `delete`."""
        raise NotImplementedError("an object store deletes objects")

    # ---- objects

    def create(self, key: str, data: bytes | memoryview) -> ObjectRef:
        """Create an object, durable and visible as a whole on return.

        Raises:
            ObjectExists: an object of this key exists and is durable; it does not change.
            BadKey: the key is invalid.
        """
        self._check(key)
        size_bytes = memoryview(data).nbytes
        self._create(key, data)
        return ObjectRef(key, size_bytes, Digest.of(data))

    def get(self, key: str) -> bytes:
        """Return all bytes of an object, without a check; see `read_checked`.

        Raises:
            ObjectNotFound: there is no object.
        """
        self._check(key)
        return self._read(key, 0, None)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`; fewer only at the end of the object.

        Raises:
            ObjectNotFound: there is no object.
            InvalidInput: `start` or `length` is negative.
        """
        start, length = require_whole("start", start), require_whole("length", length)
        self._check(key)
        return self._read(key, start, start + length)

    def info(self, key: str) -> ObjectInfo:
        """Return size and time of creation.

        Raises:
            ObjectNotFound: there is no object.
        """
        self._check(key)
        return self._info(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yield the objects with this prefix, ascending by key.

        Each object once, except that objects created or deleted during the listing may be missing.

        Raises:
            BadKey: no valid key has this prefix.
        """
        self._require_open()
        check_prefix(prefix)
        return self._list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """Remove any number of objects, or the one of a key, not in one step; an absent object is no error.

        Raises:
            ObjectStoreFailed: some may be removed; call again.
            BadKey: a key is invalid; nothing was removed.
        """
        self._require_open()
        wanted = [keys] if isinstance(keys, str) else [*keys]
        for key in wanted:
            check_key(key)
        self._delete(wanted)

    def available_bytes(self) -> int | None:
        """Return the room for more objects in bytes; `None` if it is unknown, as in a remote store."""
        self._require_open()
        return None

    def _check(self, key: str) -> None:
        self._require_open()
        check_key(key)


def read_checked(store: ObjectStore, ref: ObjectRef) -> bytes:
    """Return all bytes of an object after a check of its size and digest.

    Raises:
        BadDigest: size or digest do not match; nothing is returned.
        ObjectNotFound: there is no object.
    """
    data = store.get(ref.key)
    found = Digest.of(data)
    if found != ref.digest or len(data) != ref.size_bytes:
        raise BadDigest(path=ref.key, offset=0, expected=f"{ref.size_bytes} bytes of {ref.digest}",
                        found=f"{len(data)} bytes of {found}")
    return data


def check_key(key: str) -> None:
    """Validate a key: segments of letters, digits and `._=+@,-`, joined by `/`; none is empty or begins with a dot.

    Local folders, S3, GCS and Azure all store such keys unchanged.

    Raises:
        BadKey: the key has other characters, or is too long.
    """
    if not 1 <= len(key) <= MAX_KEY_CHARS:
        raise BadKey(f"a key has 1 to {MAX_KEY_CHARS} characters, found {len(key)}: {key[:100]!r}")
    for segment in key.split("/"):
        if not _SEGMENT.fullmatch(segment) or len(segment) > MAX_SEGMENT_CHARS:
            raise BadKey(f"the part {segment!r} of key {key!r} is not 1 to {MAX_SEGMENT_CHARS} letters, digits or any "
                         f"of '._=+@,-' that do not begin with a dot")


def check_prefix(prefix: str) -> None:
    """Validate a prefix of a key, the empty one included.

    Raises:
        BadKey: no valid key has this prefix.
    """
    if prefix:
        check_key(prefix + "x" if prefix.endswith("/") else prefix)
