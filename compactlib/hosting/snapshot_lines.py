"""Messages of a transfer on one connection."""

from __future__ import annotations

import asyncio
from typing import TypeAlias

from compactlib.raftlog.replication.messages import (
    TransferMessage,
)
from compactlib.raftlog.replication.wire import LENGTH_BYTES, MAX_FRAME_BYTES, decode, frame_length

Address: TypeAlias = tuple[str, int]
"""A host and a port; port 0 lets the system choose when listening."""


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
