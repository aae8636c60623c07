# SPDX-License-Identifier: Apache-2.0
"""What listens on sockets: to whom, and within which bounds. `docs/security.md` tells it for users.

In plain text only this machine talks to itself, unless the host says otherwise in so many words. With TLS both sides
show a certificate, and the name in it must be the name that a node gives itself. A `Door` counts the connections of one
listening service: one a node, each with deadlines, and all of them with one bound of bytes that are being read.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from functools import lru_cache, partial
from typing import TypeAlias

import attrs

from compactlib._arguments import require_above_zero
from compactlib.errors import Closed, CompactlibError, InvalidInput, StorageError
from compactlib.runtime.services.async_service import AsyncWork, KeptTask

MAX_HELLO_BYTES = 1024
"""The longest first frame of a connection, its length not counted."""
_LENGTH_BYTES = 4
_BUFFER_BYTES = 16 << 10
_BACKLOG = 100
"""Connections that may wait to be taken."""
_LAST_WORDS_SECONDS = 2.0
"""How long a connection that is closed waits for the other side to take the rest."""
_LONGEST_SILENCE_SECONDS = 30_000
"""What systems take."""
_LONGEST_PAUSE_SECONDS = 1.0
"""Between two tries to accept, while the process has no descriptor left, for example."""

Address: TypeAlias = tuple[str, int]
"""A host and a port; port 0 lets the system choose when listening."""
Measure: TypeAlias = Callable[[bytes], int]
"""Reads the length of a frame from its first 4 bytes; raises if it is none, or too long."""


class TurnedAway(CompactlibError):
    """A connection was not accepted, or is ended: who opened it is not who it says, or keeps to no bound."""


@attrs.frozen(kw_only=True)
class DoorLimits:
    """Bounds of what listens.

    Attributes:
        max_connections: at once; of more, the oldest is turned away that has not introduced itself, or the newest if
            all have.
        max_greetings: connections at once that have begun to speak and have not introduced themselves, each of which
            may cost most of a MiB with TLS; of more, the oldest is turned away.
        max_bytes_in_flight: of frames that are being read or handled, all connections together; others wait their turn.
            One larger frame is read alone.
        hello_seconds: from the connection's beginning to the end of its first frame, TLS handshake included.
        frame_seconds: from a frame's first bytes to its last, waiting for its turn included. A connection whose other
            side gives no sign for so long, as a machine that has lost its power, is over, too.
        idle_seconds: between two frames.

    Raises:
        InvalidInput: a limit is not above 0.
    """

    max_connections: int = 1000
    max_greetings: int = 50
    max_bytes_in_flight: int = 128 << 20
    hello_seconds: float = 5.0
    frame_seconds: float = 60.0
    idle_seconds: float = 600.0

    def __attrs_post_init__(self) -> None:
        require_above_zero(self)


def require_address(name: str, address: object) -> None:
    """Return if it is a host and a port.

    Raises:
        InvalidInput: it is not, or no host can have that name.
    """
    if not (isinstance(address, tuple) and len(address) == 2 and isinstance(address[0], str)
            and isinstance(address[1], int) and 0 <= address[1] < 1 << 16 and can_be_host(address[0])):
        raise InvalidInput(f"{name} is {address!r:.100}; give a host and a port, as in ('127.0.0.1', 7000)")


def can_be_host(name: str) -> bool:
    """Whether a resolver takes the name: its labels are neither empty nor too long, and of letters that can be had."""
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return "\0" not in name


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


@lru_cache
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


def names_of(line: asyncio.StreamWriter | asyncio.BaseTransport) -> list[str]:
    """Whose certificate the other side of a connection has shown: its DNS names, or its common name if it has none.

    Empty in plain text, and where it was asked for none.
    """
    tls = line.get_extra_info("ssl_object")
    shown = {} if tls is None else tls.getpeercert() or {}
    names = [value for kind, value in shown.get("subjectAltName", ()) if kind == "DNS"]
    return names or [value for part in shown.get("subject", ()) for kind, value in part if kind == "commonName"]


def require_name(writer: asyncio.StreamWriter, name: str) -> None:
    """Return if the other side is the node `name`: in plain text it is believed, with TLS its certificate says so.

    Raises:
        TurnedAway: it is the certificate of another one.
    """
    names = names_of(writer)
    if writer.get_extra_info("ssl_object") is not None and name not in names:
        raise TurnedAway(f"the node {name!r} shows the certificate of {', '.join(map(repr, names)) or 'no node'}; "
                         f"issue one whose DNS name is the node's name")


class BytesInFlight:
    """A bound of bytes that are being read or handled, all connections of an event loop together.

    Args:
        most: so many; one larger frame is taken alone.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._freed = asyncio.Event()

    @contextlib.asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[None]:
        """Wait until there is room for a frame, which is in flight until the block is left."""
        while self._count and self._count + size > self._most:
            if self._freed.is_set():
                # Another one, since this one may be of another event loop.
                self._freed = asyncio.Event()
            await self._freed.wait()
        self._count += size
        try:
            yield
        finally:
            self._count -= size
            self._freed.set()


class Listener:
    """What listens at one address, in the event loop of its service.

    Args:
        what: as messages name it, for example `"the snapshot server"`.
        work: the service's, which `listen` needs running.
    """

    def __init__(self, what: str, work: AsyncWork) -> None:
        self._what = what
        self._work = work
        self._listening: list[tuple[socket.socket, KeptTask]] = []
        # Connections whose answer has not begun.
        self._taken: set[socket.socket] = set()

    async def listen(self, address: Address,
                     answer: Callable[[socket.socket, str], Coroutine[None, None, object]]) -> None:
        """Listen, and have each connection answered, in a task of its own.

        Args:
            address: where.
            answer: is given the socket of a connection, and where it comes from.

        Raises:
            StorageError: the address cannot be listened on.
        """
        # An event loop that ended without a word left its own open.
        for left in (*(made for made, _ in self._listening), *self._taken):
            left.close()
        self._listening.clear()
        self._taken.clear()
        host, port = address
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host or None, port, type=socket.SOCK_STREAM,
                                                                 flags=socket.AI_PASSIVE)
            for family, at in dict.fromkeys((family, at) for family, *_, at in found):
                made = socket.create_server(at, family=family, backlog=_BACKLOG)
                made.setblocking(False)
                self._listening.append((made, self._work.keep_on(
                    partial(self._accept, made, answer), "listening", longest_pause_seconds=_LONGEST_PAUSE_SECONDS)))
        except socket.gaierror as error:
            # Its numbers are not the system's.
            raise StorageError(operation="listen on", path=f"{host}:{port}", detail=error.strerror or "",
                               errno=errno.EADDRNOTAVAIL, advice="give an address or a name of this machine") from None
        except OSError as error:
            self.close()
            raise StorageError.from_os(error, "listen on", f"{host}:{port}") from None

    @property
    def address(self) -> Address:
        """Where it listens, with the port that the system chose.

        Raises:
            Closed: it was not started, or is closed.
        """
        if not self._listening:
            raise Closed(f"{self._what} does not listen: start it first")
        host, port = self._listening[0][0].getsockname()[:2]
        return str(host), int(port)

    def close(self) -> None:
        """Listen no more."""
        listening, self._listening = self._listening, []
        for made, task in listening:
            task.cancel()
            # The cancelled call would do so only later, and meanwhile take what comes at the closed socket.
            asyncio.get_running_loop().remove_reader(made)
            made.close()
        while self._taken:
            self._taken.pop().close()

    async def _accept(self, listening: socket.socket,
                      answer: Callable[[socket.socket, str], Coroutine[None, None, object]]) -> None:
        # Not by asyncio, which loses a connection that it has taken while its caller is cancelled.
        await spoken(listening)
        with contextlib.suppress(BlockingIOError):
            for _ in range(_BACKLOG):
                self._take(*listening.accept(), answer)

    def _take(self, line: socket.socket, where: object,
              answer: Callable[[socket.socket, str], Coroutine[None, None, object]]) -> None:
        self._taken.add(line)
        try:
            line.setblocking(False)
            # asyncio does so only for sockets that it has opened itself; else an answer in two parts takes 40 ms.
            line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._work.spawn(self._answered(line, str(where), answer), "a connection")
        except BaseException:
            self._taken.discard(line)
            line.close()
            raise

    async def _answered(self, line: socket.socket, where: str,
                        answer: Callable[[socket.socket, str], Coroutine[None, None, object]]) -> None:
        if line in self._taken:
            self._taken.discard(line)
            await answer(line, where)


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
        async with contextlib.AsyncExitStack() as taken:
            async with in_time(f"a frame of {size} bytes", "frame_seconds", limits.frame_seconds):
                await taken.enter_async_context(door.in_flight.take(size))
                data = await self._reader.readexactly(size)
            yield data

    def end(self) -> None:
        """The connection is over."""
        if self._name is not None and self._door.lines.get(self._name) is self:
            del self._door.lines[self._name]
        self.ended.set()
        self.writer.close()


@attrs.define(eq=False)
class Arrival:
    """A connection that nothing is known of yet.

    Attributes:
        line: its socket.
        where: its address, for messages.
        turned_away: the limit for which it has to make room for another one; empty if it has not.
    """

    line: socket.socket
    where: str
    turned_away: str = ""


Welcome: TypeAlias = Callable[[Line], Awaitable[str]]
"""Reads the Hello of a connection, has it `introduce` its node, and answers the node's name."""


class Door:
    """What listens, and its connections; in the event loop of its service.

    Args:
        what: as messages name it, for example `"the snapshot server"`.
        limits: bounds.
        work: the service's, which `listen` needs running.
        tls: says who talks, if it is given.
    """

    def __init__(self, what: str, limits: DoorLimits, work: AsyncWork, *, tls: ssl.SSLContext | None) -> None:
        self.limits: DoorLimits = limits
        self.is_guarded: bool = tls is not None
        self.lines: dict[str, Line] = {}
        self.listener: Listener = Listener(what, work)
        self.in_flight: BytesInFlight = BytesInFlight(limits.max_bytes_in_flight)
        self._what = what
        self._tls = tls
        self._arrived: set[Arrival] = set()
        self._open: set[Line] = set()
        self._count = 0
        self._strangers: dict[Arrival, asyncio.Timeout] = {}
        self._greeting: dict[Arrival, asyncio.Timeout] = {}

    async def listen(self, address: Address, answer: Callable[[Arrival], Coroutine[None, None, object]]) -> None:
        """Listen, and have each connection answered, in a task of its own.

        Raises:
            StorageError: the address cannot be listened on.
        """
        def arrive(line: socket.socket, where: str) -> Coroutine[None, None, object]:
            arrival = Arrival(line, where)
            self._arrived.add(arrival)
            return answer(arrival)

        await self.listener.listen(address, arrive)

    def close(self) -> None:
        """Listen no more, and end the connections."""
        self.listener.close()
        for arrival in self._arrived:
            # The cancelled task would do so only later, when the descriptor may be another one's.
            asyncio.get_running_loop().remove_reader(arrival.line)
            arrival.line.close()
        self._arrived.clear()
        for line in self._open:
            line.writer.close()

    @contextlib.asynccontextmanager
    async def line(self, arrival: Arrival, welcome: Welcome) -> AsyncIterator[tuple[Line, str]]:
        """A connection and the name of its node, which has introduced itself; it is closed when the block is left.

        Raises:
            TurnedAway: there are too many, or it did not introduce itself in time.
            asyncio.IncompleteReadError: the connection ended within the Hello.
            OSError: it broke, or TLS did not come about.
            CompactlibError: what `welcome` raises.
        """
        made: Line | None = None
        self._count += 1
        try:
            if arrival not in self._arrived:
                raise TurnedAway(f"{self._what} is closing")
            if self._count > self.limits.max_connections and not self._turn_away(
                    self._strangers, f"max_connections={self.limits.max_connections}"):
                raise TurnedAway(f"too many connections: max_connections={self.limits.max_connections} of them are "
                                 f"open")
            try:
                async with asyncio.timeout(self.limits.hello_seconds) as deadline:
                    self._strangers[arrival] = deadline
                    await spoken(arrival.line)
                    self._greeting[arrival] = deadline
                    if len(self._greeting) > self.limits.max_greetings:
                        self._turn_away(self._greeting, f"max_greetings={self.limits.max_greetings}")
                    await asyncio.sleep(0)  # of many that come at once, none costs anything that has to go
                    if arrival.turned_away:
                        raise TimeoutError
                    self._arrived.discard(arrival)
                    end_in_silence(arrival.line, self.limits.frame_seconds)
                    made = Line(self, *await _streams(arrival.line, self._tls, self.limits.hello_seconds))
                    self._open.add(made)
                    name = await welcome(made)
            except TimeoutError:
                raise TurnedAway(
                    f"too many connections: it had to make room for another one, {arrival.turned_away}; it had not "
                    f"said who it is" if arrival.turned_away else
                    f"a Hello did not come in time: hello_seconds={self.limits.hello_seconds}") from None
            finally:
                self._strangers.pop(arrival, None)
                self._greeting.pop(arrival, None)
            yield made, name
        finally:
            self._count -= 1
            self._arrived.discard(arrival)
            if made is None:
                arrival.line.close()
            else:
                made.end()
                self._open.discard(made)
                await hang_up(made.writer)

    def _turn_away(self, strangers: dict[Arrival, asyncio.Timeout], limit: str) -> bool:
        """End the oldest of these; whether there is one."""
        for oldest in list(strangers):
            deadline = self._strangers.pop(oldest)
            self._greeting.pop(oldest, None)
            if not deadline.expired():
                oldest.turned_away = limit
                deadline.reschedule(0.0)
                return True
        return False


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a connection, also one that is gone already; what the other side does not take soon is lost."""
    writer.close()
    try:
        async with asyncio.timeout(_LAST_WORDS_SECONDS):
            # Shielded: to cancel it would cancel what everybody who waits for this end waits for.
            await asyncio.shield(asyncio.ensure_future(writer.wait_closed()))
    except TimeoutError:
        # One that reads no more would keep what is unsent, and the socket, for ever.
        writer.transport.abort()
    except (OSError, ssl.SSLError):
        pass
    except BaseException:
        writer.transport.abort()
        raise


async def drained(writer: asyncio.StreamWriter, seconds: float) -> None:
    """Wait until the other side has taken what was written, but for a buffer full.

    Raises:
        TimeoutError: it reads no more; the connection is ended.
        OSError: the connection broke.
    """
    try:
        async with asyncio.timeout(seconds):
            await writer.drain()
    except TimeoutError:
        if not writer.is_closing():
            writer.transport.abort()
        raise


def end_in_silence(line: socket.socket, seconds: float) -> None:
    """Have the system end a connection soon after the other side's has given no sign for so long: it neither takes what
    is sent, nor answers when it is asked whether it is there. Each time on a second, and only as far as the system can.
    """
    whole = max(int(min(seconds, _LONGEST_SILENCE_SECONDS)), 1)
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", max(whole // 2, 1)), ("TCP_KEEPINTVL", max(whole // 6, 1)),
                        ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 1000 * whole)):
        if hasattr(socket, name):
            line.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


async def spoken(line: socket.socket) -> None:
    """Wait for the first byte, or the end: until then a connection has no buffers, those of TLS least of all."""
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(line, heard.set)
    try:
        await heard.wait()
    finally:
        if line.fileno() >= 0:
            loop.remove_reader(line)


async def _streams(line: socket.socket, tls: ssl.SSLContext | None,
                   hello_seconds: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_BUFFER_BYTES, loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, line, ssl=tls, ssl_handshake_timeout=None if tls is None else hello_seconds)
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)


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
