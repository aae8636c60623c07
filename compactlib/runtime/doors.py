# SPDX-License-Identifier: Apache-2.0
"""What listens on sockets: to whom, and within which bounds. `docs/security.md` tells it for users.

In plain text only this machine talks to itself, unless the host says otherwise in so many words. With TLS both sides
show a certificate, and the name in it must be the name that a node gives itself. A `Door` counts the connections of one
listening service: one a node, each with deadlines, and all of them with one bound of bytes that are being read.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import ssl
from collections.abc import AsyncIterator, Callable
from typing import TypeAlias

import attrs

from compactlib.errors import CompactlibError, InvalidInput

MAX_HELLO_BYTES = 1024
"""The longest first frame of a connection, its length not counted."""
_LENGTH_BYTES = 4
_BUFFER_BYTES = 16 << 10

Measure: TypeAlias = Callable[[bytes], int]
"""Reads the length of a frame from its first 4 bytes; raises if it is none, or too long."""


class TurnedAway(CompactlibError):
    """A connection was not accepted, or is ended: who opened it is not who it says, or keeps to no bound."""


@attrs.frozen(kw_only=True)
class DoorLimits:
    """Bounds of what listens.

    Attributes:
        max_connections: at once; more are turned away.
        max_bytes_in_flight: of frames that are being read or handled, all connections together; others wait their turn.
            One larger frame is read alone.
        hello_seconds: for the TLS handshake, and for the first frame.
        frame_seconds: from a frame's first bytes to its last, waiting for its turn included.
        idle_seconds: between two frames.

    Raises:
        InvalidInput: a limit is not above 0.
    """

    max_connections: int = 1000
    max_bytes_in_flight: int = 128 << 20
    hello_seconds: float = 5.0
    frame_seconds: float = 60.0
    idle_seconds: float = 600.0

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            if not value > 0:
                raise InvalidInput(f"{name} is {value}; give a number above 0")


def require_guarded(what: str, host: str, *, guard: str, is_guarded: bool, insecure: bool) -> None:
    """Return if `what` may listen at `host`, or connect to it.

    Args:
        what: as messages name it, for example `"the snapshot server"`.
        host: the address or name; only `localhost` and addresses of the loopback range are this machine's alone.
        guard: the argument that would say who talks, for example `"tls="`.
        is_guarded: whether it was given.
        insecure: whether the host wants it all the same.

    Raises:
        InvalidInput: it would be open to every host that reaches the address, and nothing was said of that.
    """
    if not (is_guarded or insecure or is_loopback(host)):
        raise InvalidInput(f"{what} was given {host or 'every address'!r} without {guard}, where whoever reaches it is "
                           f"believed; give {guard}, stay on 127.0.0.1, or say insecure=True")


def is_loopback(host: str) -> bool:
    """Whether an address, or the name `localhost`, is reached from this machine alone. Other names are not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_mutual(what: str, tls: ssl.SSLContext | None) -> None:
    """Return if TLS has the other side show a certificate.

    Raises:
        InvalidInput: it has not, so it stays unknown who talks.
    """
    if tls is not None and tls.verify_mode is not ssl.CERT_REQUIRED:
        raise InvalidInput(f"{what} asks for no certificate, so whoever reaches it is believed; load the authority's "
                           f"and set verify_mode to ssl.CERT_REQUIRED")


def require_name(writer: asyncio.StreamWriter, name: str) -> None:
    """Return if the other side is the node `name`: in plain text it is believed, with TLS its certificate says so.

    The certificate's DNS names count; its common name does if there are none.

    Raises:
        TurnedAway: it is the certificate of another one.
    """
    line = writer.get_extra_info("ssl_object")
    if line is None:
        return
    shown = line.getpeercert() or {}
    names = [value for kind, value in shown.get("subjectAltName", ()) if kind == "DNS"]
    names = names or [value for part in shown.get("subject", ()) for kind, value in part if kind == "commonName"]
    if name not in names:
        raise TurnedAway(f"the node {name!r} shows the certificate of {', '.join(map(repr, names)) or 'no node'}; "
                         f"issue one whose DNS name is the node's name")


class Line:
    """One connection that was taken; `Door.line` makes it."""

    def __init__(self, door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._door = door
        self._reader = reader
        self.writer: asyncio.StreamWriter = writer
        self.ended: asyncio.Event = asyncio.Event()
        self._name: str | None = None

    async def introduce(self, name: str) -> None:
        """Take the node's word for its name, if its certificate says the same and it has no other connection.

        With TLS the newest connection of a node is the one that counts. In plain text anybody may say a name, so the
        first one does, and another waits for its end.

        Raises:
            TurnedAway: it is another node's certificate.
        """
        require_name(self.writer, name)
        lines = self._door.lines
        while (older := lines.get(name)) is not None:
            if self._door.is_guarded:
                older.writer.close()
                break
            await older.ended.wait()
        lines[name] = self
        self._name = name

    @contextlib.asynccontextmanager
    async def frame(self, measure: Measure) -> AsyncIterator[bytes | None]:
        """The next frame without its length, `None` where the connection ends between two. It counts as in flight
        until the block is left.

        Raises:
            TurnedAway: it did not come in time.
            asyncio.IncompleteReadError: the connection ended within it.
            OSError: the connection broke.
            CompactlibError: what `measure` raises.
        """
        door, limits = self._door, self._door.limits
        async with in_time("the next frame", "idle_seconds", limits.idle_seconds):
            try:
                size = measure(await self._reader.readexactly(_LENGTH_BYTES))
            except asyncio.IncompleteReadError as error:
                if error.partial:
                    raise
                size = -1
        if size < 0:
            yield None
            return
        taken = False
        try:
            async with in_time(f"a frame of {size} bytes", "frame_seconds", limits.frame_seconds):
                await door.take(size)
                taken = True
                data = await self._reader.readexactly(size)
            yield data
        finally:
            if taken:
                door.give_back(size)

    def end(self) -> None:
        """The connection is over."""
        if self._name is not None and self._door.lines.get(self._name) is self:
            del self._door.lines[self._name]
        self.ended.set()


class Door:
    """The connections of one listening service, in one event loop.

    Args:
        limits: their bounds.
        is_guarded: whether TLS says who talks.
    """

    def __init__(self, limits: DoorLimits, *, is_guarded: bool) -> None:
        self.limits: DoorLimits = limits
        self.is_guarded: bool = is_guarded
        self.lines: dict[str, Line] = {}
        self._count = 0
        self._in_flight = 0
        self._freed = asyncio.Event()

    async def listen(self, accept: Callable[[asyncio.StreamReader, asyncio.StreamWriter], None],
                     address: tuple[str, int], tls: ssl.SSLContext | None) -> asyncio.Server:
        """Listen. Raises `OSError`."""
        return await asyncio.start_server(accept, *address, ssl=tls, limit=_BUFFER_BYTES,
                                          ssl_handshake_timeout=None if tls is None else self.limits.hello_seconds)

    @contextlib.asynccontextmanager
    async def line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> AsyncIterator[Line]:
        """A connection, which is closed when the block is left.

        Raises:
            TurnedAway: there are too many.
        """
        made = Line(self, reader, writer)
        self._count += 1
        try:
            if self._count > self.limits.max_connections:
                raise TurnedAway(f"too many connections: max_connections={self.limits.max_connections} of them are "
                                 f"open")
            yield made
        finally:
            self._count -= 1
            made.end()
            await hang_up(writer)

    async def take(self, size: int) -> None:
        """Wait until there is room for a frame."""
        while self._in_flight and self._in_flight + size > self.limits.max_bytes_in_flight:
            self._freed.clear()
            await self._freed.wait()
        self._in_flight += size

    def give_back(self, size: int) -> None:
        """A frame has been dealt with."""
        self._in_flight -= size
        self._freed.set()


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a connection, also one that is gone already."""
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):
        await writer.wait_closed()


@contextlib.asynccontextmanager
async def in_time(what: str, name: str, seconds: float) -> AsyncIterator[None]:
    """Leave the block in time.

    Raises:
        TurnedAway: it took longer; the message names the limit.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TurnedAway(f"{what} did not come in time: {name}={seconds}") from None
