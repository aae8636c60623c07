# SPDX-License-Identifier: Apache-2.0
"""Content as it is given to a put: bytes, or a stream that is read in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import attrs

from compactlib.errors import InvalidInput

HELD_BYTES = 8 << 20
"""How much of a stream is read before the lock is taken; a shorter stream blocks no other writer and needs no size."""
_PIECE_BYTES = 1 << 20


@attrs.frozen
class Content:
    """What is to be written.

    Attributes:
        size: how many bytes.
        head: the bytes at hand.
        rest: the stream of those that come behind; `None` if `head` is everything.
    """

    size: int
    head: bytes
    rest: BinaryIO | None = None

    def all(self) -> Iterator[bytes]:
        """Everything in pieces."""
        yield self.head
        if self.rest is not None:
            while piece := _bytes_of(self.rest.read(_PIECE_BYTES)):
                yield piece


def read_stream(content: bytes | bytearray | memoryview | BinaryIO, size: int | None) -> Content:
    """What a put was given, a stream read as far as it is held.

    Raises:
        InvalidInput: the content is neither bytes nor a stream of bytes, a long stream comes without its size, or the
            size is not that of the content.
    """
    if size is not None and not isinstance(size, int):
        raise InvalidInput(f"the size of a stream is a whole number of bytes, not {type(size).__name__}")
    if isinstance(content, bytes | bytearray | memoryview):
        held = bytes(content)
        if size is not None and size != len(held):
            raise InvalidInput(f"the content has {len(held)} bytes, not the {size} that were said")
        return Content(len(held), held)
    if not hasattr(content, "read"):
        raise InvalidInput(f"the content of a blob is bytes or a file open for reading, not {type(content).__name__}")
    if size is not None and size < 0:
        raise InvalidInput(f"a stream cannot have {size} bytes")
    pieces: list[bytes] = []
    got = 0
    wanted = HELD_BYTES + 1 if size is None else min(size, HELD_BYTES) + 1
    while got < wanted and (piece := _bytes_of(content.read(min(_PIECE_BYTES, wanted - got)))):
        pieces.append(piece)
        got += len(piece)
    head = b"".join(pieces)
    if got < wanted:
        if size is not None and size != got:
            raise InvalidInput(f"the stream ends after {got} bytes, not the {size} that were said")
        return Content(got, head)
    if size is None:
        raise InvalidInput(f"a stream of more than {HELD_BYTES} bytes needs its size, so that memory stays bounded")
    if got > size:
        raise InvalidInput(f"the stream goes on behind the {size} bytes that were said")
    return Content(size, head, content)


def _bytes_of(piece: object) -> bytes:
    if not isinstance(piece, bytes):
        raise InvalidInput(f"the stream gives {type(piece).__name__}; open it in binary mode, and so that it waits")
    return piece
