# SPDX-License-Identifier: Apache-2.0
"""Digests of whole objects."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Self

import attrs

from compactlib.errors import InvalidInput

DIGEST_BYTES = 20


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


def size_and_digest(data: bytes | memoryview) -> tuple[int, Digest]:
    """The bytes of an object to be created, counted, and their digest.

    Raises:
        InvalidInput: these are no bytes, or they do not lie side by side.
    """
    try:
        return memoryview(data).nbytes, Digest.of(data)
    except (TypeError, ValueError, BufferError) as error:
        raise InvalidInput(f"an object is made of bytes that lie side by side, found {type(data).__name__}: "
                           f"{error}") from None
