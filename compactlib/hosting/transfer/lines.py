# SPDX-License-Identifier: Apache-2.0
"""Messages of a transfer on one connection."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from compactlib.errors import InvalidInput
from compactlib.raftlog.replication.messages import (
    TransferMessage,
)
from compactlib.raftlog.replication.wire import LENGTH_BYTES, MAX_FRAME_BYTES, decode, frame_length

Address: TypeAlias = tuple[str, int]
"""A host and a port; port 0 lets the system choose when listening."""


def require_address(name: str, address: object) -> None:
    """Return if it is a host and a port.

    Raises:
        InvalidInput: it is not.
    """
    if not (isinstance(address, tuple) and len(address) == 2 and isinstance(address[0], str)
            and isinstance(address[1], int) and 0 <= address[1] < 1 << 16):
        raise InvalidInput(f"{name} is {address!r:.100}; give a host and a port, as in ('127.0.0.1', 7000)")


async def read_message(reader: asyncio.StreamReader, *, max_bytes: int = MAX_FRAME_BYTES,
                       source: str = "<peer>") -> TransferMessage | None:
    """The next message of a connection, `None` where it ends between two.

    Raises:
        FrameDamaged: a frame is too long, cut, or not what was sent.
        Unsupported: a later release sent it.
        OSError: the connection broke.
    """
    try:
        length = frame_length(await reader.readexactly(LENGTH_BYTES), max_bytes=max_bytes, source=source)
        return decode(await reader.readexactly(length), source=source)
    except asyncio.IncompleteReadError:
        return None
