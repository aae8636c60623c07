# SPDX-License-Identifier: Apache-2.0
"""Messages of a transfer on one connection, which begins with the sender's `Hello`."""

from __future__ import annotations

import asyncio

import attrs

from compactlib.errors import InvalidInput
from compactlib.files.record_frame import RecordFrame
from compactlib.raftlog.replication.errors import FrameDamaged
from compactlib.raftlog.replication.messages import TransferMessage
from compactlib.raftlog.replication.wire import LENGTH_BYTES, decode, frame_length
from compactlib.runtime.doors import MAX_HELLO_BYTES

_MAX_NAME_BYTES = 255
_HELLO = RecordFrame("hello of a transfer", b"CLRAFHEL", 1, "<HH", damaged=FrameDamaged)
"""The length of the cluster's name; the body is both names."""


@attrs.frozen
class Hello:
    """What a sender says first.

    Attributes:
        cluster: the name of the group, at most 255 bytes of UTF-8.
        sender: the name of the member, likewise.

    Raises:
        InvalidInput: a name is too long.
    """

    cluster: str
    sender: str

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            size = len(value.encode("utf-8", "surrogatepass"))
            if size > _MAX_NAME_BYTES:
                raise InvalidInput(f"{name} has {size} bytes; at most {_MAX_NAME_BYTES} fit")
            if size > len(value.encode("utf-8", "ignore")):
                raise InvalidInput(f"{name} is {value!r:.100}, which is not valid Unicode; give a name without lone "
                                   f"surrogates")

    def encode(self) -> bytes:
        """The frame, its length first."""
        cluster = self.cluster.encode()
        frame = _HELLO.encode(len(cluster), body=cluster + self.sender.encode())
        return len(frame).to_bytes(LENGTH_BYTES, "little") + frame

    @classmethod
    def decode(cls, frame: bytes, *, source: str) -> Hello:
        """The Hello in a frame, without its length.

        Raises:
            FrameDamaged: it is none.
            Unsupported: another release sent it.
        """
        size, body = _HELLO.decode(frame, source)
        try:
            return cls(bytes(body[:size]).decode(), bytes(body[size:]).decode())
        except (UnicodeDecodeError, InvalidInput) as error:
            raise FrameDamaged(path=source, offset=0, expected="two names", found=str(error)) from None


def hello_length(head: bytes, *, source: str) -> int:
    """The length of a `Hello`, from its first 4 bytes.

    Raises:
        FrameDamaged: no Hello is so long.
    """
    size = int.from_bytes(head, "little")
    if size > MAX_HELLO_BYTES:
        raise FrameDamaged(path=source, offset=0, expected=f"a Hello of at most {MAX_HELLO_BYTES} bytes",
                           found=f"{size} bytes")
    return size


async def read_message(reader: asyncio.StreamReader) -> TransferMessage | None:
    """The next message of a connection, `None` where it ends between two.

    Raises:
        FrameDamaged: a frame is too long, cut, or not what was sent.
        Unsupported: a later release sent it.
        OSError: the connection broke.
    """
    try:
        length = frame_length(await reader.readexactly(LENGTH_BYTES), source="<peer>")
        return decode(await reader.readexactly(length), source="<peer>")
    except asyncio.IncompleteReadError:
        return None
