# SPDX-License-Identifier: Apache-2.0
"""A stream within this process between the sender and the receiver of a snapshot, frame by frame."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from compactlib.raftlog import RaftLog, TransferReport, receive_snapshot, send_snapshot

HEAD_BYTES, CRC_BYTES = 12, 4
KINDS = ("", "offer", "accept", "live", "entries", "state", "installed", "refuse")
CHUNK_BYTES = 64
PATIENCE_SECONDS = 60.0
"""The time limit of a transfer; the tests do not depend on durations."""

Member = RaftLog


@attrs.frozen
class Passing:
    """A frame in the stream.

    Attributes:
        number: counts the frames of both directions, from 0.
        data: its bytes.
    """

    number: int
    data: bytes

    @property
    def kind(self) -> str:
        """The kind of the frame."""
        return KINDS[self.data[4]]

    @property
    def offset(self) -> int:
        """The offset of a piece of the live set or of the state."""
        return int.from_bytes(self.data[HEAD_BYTES:HEAD_BYTES + 8], "little")


Change = Callable[[Passing], "Sequence[bytes] | None"]
"""Returns the frames that arrive in place of a frame; `None` cuts the line before it."""


def as_sent(frame: Passing) -> Sequence[bytes]:
    """Deliver the frame unchanged."""
    return [frame.data]


class Line:
    """Two ends of one stream.

    Args:
        change: replaces each frame.
    """

    def __init__(self, change: Change) -> None:
        self.change = change
        self.frames: list[Passing] = []
        self.is_cut = False
        self.readers = asyncio.StreamReader(), asyncio.StreamReader()
        self.ends: tuple[Any, Any] = ((self.readers[0], _Writer(self, self.readers[1])),
                                      (self.readers[1], _Writer(self, self.readers[0])))

    def passing(self, data: bytes) -> Sequence[bytes] | None:
        frame = Passing(len(self.frames), data)
        self.frames.append(frame)
        return self.change(frame)

    def cut(self) -> None:
        """End the stream for both sides."""
        self.is_cut = True
        for reader in self.readers:
            reader.feed_eof()


class _Writer:
    def __init__(self, line: Line, to: asyncio.StreamReader) -> None:
        self._line = line
        self._to = to
        self._waiting = b""

    def write(self, data: bytes) -> None:
        self._waiting += data
        while not self._line.is_cut and (frame := self._whole_frame()):
            arriving = self._line.passing(frame)
            if arriving is None:
                self._line.cut()
            elif not self._line.is_cut:
                for each in arriving:
                    self._to.feed_data(each)

    def _whole_frame(self) -> bytes:
        size = HEAD_BYTES + int.from_bytes(self._waiting[:4], "little") + CRC_BYTES
        if len(self._waiting) < max(size, HEAD_BYTES):
            return b""
        frame, self._waiting = self._waiting[:size], self._waiting[size:]
        return frame

    async def drain(self) -> None:
        await asyncio.sleep(0)
        if self._line.is_cut:
            raise ConnectionResetError("the line was cut")


@attrs.frozen
class Ended:
    """The end of a transfer on both sides: a report or an error each."""

    sent: Any
    received: Any
    frames: Sequence[Passing]

    @property
    def is_well(self) -> bool:
        """Return whether the follower reports the snapshot as installed."""
        return isinstance(self.received, TransferReport)

    @property
    def errors(self) -> Iterator[BaseException]:
        """Yield the errors of the two sides."""
        return (each for each in (self.sent, self.received) if isinstance(each, BaseException))


def transfer(of: Member, to: Member, *, applied: int = 0, term: int = 3, change: Change = as_sent,
             chunk_bytes: int = CHUNK_BYTES, **receiving: Any) -> Ended:
    """Send a snapshot over a new line. The side that ends first closes the line, as hosts do.

    Args:
        of: the leader's log.
        to: the follower's.
        applied: the applied index of the follower's machine.
        term: the leader's.
        change: replaces each frame.
        chunk_bytes: payload of a frame.
        receiving: further arguments of `receive_snapshot`.
    """

    async def both() -> Ended:
        line = Line(change)

        async def closing(side: Any) -> Any:
            try:
                return await side
            finally:
                line.cut()

        sending = send_snapshot(line.ends[0], of, term=term, chunk_bytes=chunk_bytes)
        taking = receive_snapshot(line.ends[1], to, last_applied=applied, **receiving)
        sent, received = await asyncio.wait_for(
            asyncio.gather(closing(sending), closing(taking), return_exceptions=True), PATIENCE_SECONDS)
        return Ended(sent, received, line.frames)

    return asyncio.run(both())
