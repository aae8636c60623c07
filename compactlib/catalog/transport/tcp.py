# SPDX-License-Identifier: Apache-2.0
"""Messages over TCP, with asyncio: one connection in each direction, opened when there is something to send.

Each side begins with a `Hello`; a node of another cluster, or with another name than expected, is turned away. A
frame of an unknown type or version is skipped and its sender notified; damaged bytes end the connection. Lost
connections are opened again with growing pauses, and messages that cannot be sent meanwhile are lost, which the
protocol expects.

There is no authentication but what `server_tls` and `client_tls` bring: without them only loopback addresses are taken,
unless `insecure=True` says that every host of the network is trusted.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import TypeAlias

import attrs

from compactlib.catalog.errors import MessageDamaged, MessageTooLarge, WrongCluster
from compactlib.catalog.model.values import NodeId
from compactlib.catalog.round.messages import Hello, Message, checked_name
from compactlib.catalog.transport import wire
from compactlib.catalog.transport.interface import Receive
from compactlib.errors import Closed, CompactlibError, InvalidInput, StorageError, Unsupported
from compactlib.runtime.doors import require_guarded
from compactlib.runtime.observe import Observer, telling
from compactlib.runtime.services.async_service import AsyncWork, KeptTask

Address: TypeAlias = tuple[str, int]
"""A host and a port; port 0 lets the system choose when listening."""


@attrs.frozen(kw_only=True)
class TcpOptions:
    """Limits of a `TcpTransport`.

    Attributes:
        max_message_bytes: the largest frame that is sent or read.
        max_queued: messages waiting for one node; the oldest goes when there are more.
        max_connections: from other nodes at once; more are turned away.
        hello_seconds: for connecting and for the other side's `Hello`.
        min_pause_seconds: before a lost connection is opened again; doubles with each failure.
        max_pause_seconds: where doubling ends.

    Raises:
        InvalidInput: a limit is not above 0.
    """

    max_message_bytes: int = wire.MAX_MESSAGE_BYTES
    max_queued: int = 1000
    max_connections: int = 1000
    hello_seconds: float = 5.0
    min_pause_seconds: float = 0.05
    max_pause_seconds: float = 2.0

    def __attrs_post_init__(self) -> None:
        for name, value in attrs.asdict(self).items():
            if not value > 0:
                raise InvalidInput(f"{name} is {value}; give a number above 0")


class TcpTransport:
    """See the module. A `Transport`.

    Args:
        me: this node, in this life.
        cluster: the cluster's name; nodes of other clusters are turned away.
        listen: where others reach this node.
        peers: where this node reaches others, by name.
        options: limits.
        observer: notified of connections, refusals and losses.
        server_tls: for connections from others; plain TCP if `None`, which is for loopback addresses.
        client_tls: for connections to others; plain TCP if `None`, which is for loopback addresses.
        insecure: plain TCP with other addresses too, where whoever reaches them is believed.

    Raises:
        InvalidInput: a name is empty, too long or not printable; or plain TCP would leave this machine.
    """

    def __init__(self, me: NodeId, *, cluster: str, listen: Address, peers: Mapping[str, Address] | None = None,
                 options: TcpOptions | None = None, observer: Observer | None = None,
                 server_tls: ssl.SSLContext | None = None, client_tls: ssl.SSLContext | None = None,
                 insecure: bool = False) -> None:
        checked_name(me.name)
        self._insecure = insecure
        require_guarded(f"the transport of {me}", listen[0], guard="server_tls=", is_guarded=server_tls is not None,
                        insecure=insecure)
        self._hello = Hello(checked_name(cluster, what="cluster"), me)
        self._listen = listen
        self._options = options or TcpOptions()
        self._observer = telling(observer)
        self._server_tls = server_tls
        self._client_tls = client_tls
        self._work = AsyncWork(f"the transport of {me}", event="catalog_connection_failed", threads=1,
                               observer=observer)
        self._links: dict[str, _Link] = {}
        self._peers: dict[str, Address] = self._checked(peers or {})
        self._server: asyncio.Server | None = None
        self._incoming = 0
        self._closed = False

    @property
    def last_error(self) -> BaseException | None:
        """The last unexpected exception that ended a connection; the others, and the next one to that node, go on."""
        return self._work.last_error

    @property
    def failures(self) -> int:
        """How often that happened."""
        return self._work.failures

    @property
    def address(self) -> Address:
        """Where it listens, with the port that the system chose.

        Raises:
            Closed: it was not started, or is closed.
        """
        if self._server is None or not self._server.sockets:
            raise Closed("the transport does not listen: start it first")
        host, port = self._server.sockets[0].getsockname()[:2]
        return str(host), int(port)

    def set_peers(self, peers: Mapping[str, Address]) -> None:
        """Replace the addresses: links to nodes that are gone or have moved are closed.

        Raises:
            InvalidInput: plain TCP would leave this machine.
        """
        checked = self._checked(peers)
        for name in [name for name in self._links if self._peers.get(name) != peers.get(name)]:
            self._links.pop(name).task.cancel()
        self._peers = checked

    def _checked(self, peers: Mapping[str, Address]) -> dict[str, Address]:
        for name, (host, _) in peers.items():
            require_guarded(f"the connection to {name}", host, guard="client_tls=",
                            is_guarded=self._client_tls is not None, insecure=self._insecure)
        return dict(peers)

    async def start(self, receive: Receive) -> None:
        """See `Transport.start`.

        Raises:
            Closed: it was closed.
            StorageError: the address cannot be listened on.
        """
        await self._work.start(partial(self._begin, receive))

    async def _begin(self, receive: Receive) -> None:
        if self._closed:
            raise Closed("the transport was closed; make a new one")
        try:
            self._server = await asyncio.start_server(partial(self._accept, receive), *self._listen,
                                                      ssl=self._server_tls)
        except OSError as error:
            raise StorageError.from_os(error, "listen on", "{}:{}".format(*self._listen)) from None

    def send(self, to: str, message: Message) -> None:
        """See `Transport.send`."""
        address = self._peers.get(to)
        if address is None or not self._work.is_running:
            self._lost(to, "no address is known" if address is None else "the transport is closed")
            return
        try:
            frame = wire.encode(message, max_bytes=self._options.max_message_bytes)
        except MessageTooLarge as error:
            self._lost(to, str(error))
            return
        link = self._links.get(to)
        if link is None:
            link = self._links[to] = _Link(self, to, address)
        link.put(frame)

    async def close(self) -> None:
        """See `Transport.close`."""
        self._closed = True
        await self._work.stop(self._end)
        if self._server is not None:
            await self._server.wait_closed()

    async def _end(self) -> None:
        if self._server is not None:
            self._server.close()
        self._links.clear()

    # ---- incoming

    def _accept(self, receive: Receive, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._work.is_running:
            writer.close()
        elif self._incoming >= self._options.max_connections:
            error = f"too many connections: max_connections={self._options.max_connections} of them are open"
            address = str(writer.get_extra_info("peername"))
            self._observer.event("catalog_connection_ended", {"address": address, "error": error})
            writer.close()
        else:
            self._incoming += 1
            self._work.spawn(self._incoming_from(receive, reader, writer), "a connection from another node")

    async def _incoming_from(self, receive: Receive, reader: asyncio.StreamReader,
                             writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(receive, reader, writer)
        finally:
            self._incoming -= 1
            await _close(writer)

    async def _serve(self, receive: Receive, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        where = str(writer.get_extra_info("peername"))
        try:
            async with asyncio.timeout(self._options.hello_seconds):
                # Our own first: a node that has reached the wrong address can then say so.
                writer.write(wire.encode(self._hello))
                hello = await self._read_hello(reader, where)
            if hello.cluster != self._hello.cluster:
                raise WrongCluster(expected=f"cluster {self._hello.cluster!r}", found=f"cluster {hello.cluster!r}",
                                   address=where)
            while await self._read_message(receive, reader, hello.node.name):
                pass
        except (CompactlibError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            self._observer.event("catalog_connection_ended", {"address": where, "error": _told(error)})
        except Exception as error:  # a bug, ours or the receiver's: it ends this connection and nothing else
            self._observer.event("catalog_connection_ended", {"address": where, "error": _told(error)})
            raise

    async def _read_message(self, receive: Receive, reader: asyncio.StreamReader, sender: str) -> bool:
        """Take in one frame; whether there was one."""
        frame = await self._read_frame(reader, sender)
        if frame is None:
            return False
        try:
            message = wire.decode(frame, sender=sender)
        except Unsupported as error:
            self._observer.event("catalog_message_refused", {"sender": sender, "error": str(error)})
            refusal = wire.refusal_of(error, self._hello.node)
            if refusal is not None:
                self.send(sender, refusal)
            return True
        if not isinstance(message, Hello):
            receive(sender, message)
        return True

    async def _read_hello(self, reader: asyncio.StreamReader, where: str) -> Hello:
        frame = await self._read_frame(reader, where)
        hello = None if frame is None else wire.decode(frame, sender=where)
        if not isinstance(hello, Hello):
            raise MessageDamaged(sender=where, offset=0, expected="a Hello", found=type(hello).__name__)
        return hello

    async def _read_frame(self, reader: asyncio.StreamReader, sender: str) -> bytes | None:
        """The next frame without its length; `None` at the end of the connection."""
        try:
            size = int.from_bytes(await reader.readexactly(wire.LENGTH_BYTES), "little")
        except asyncio.IncompleteReadError as error:
            if error.partial:
                raise
            return None
        if size > self._options.max_message_bytes:
            raise MessageTooLarge(size=size, limit=self._options.max_message_bytes, sender=sender)
        return await reader.readexactly(size)

    # ---- outgoing

    async def connect(self, name: str, address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a node that has introduced itself with a `Hello`.

        Raises:
            WrongCluster: another node answered.
            MessageDamaged: what answered speaks another language.
            OSError: no node answered.
            TimeoutError: no node answered in time.
        """
        async with asyncio.timeout(self._options.hello_seconds):
            reader, writer = await asyncio.open_connection(*address, ssl=self._client_tls)
            try:
                writer.write(wire.encode(self._hello))
                hello = await self._read_hello(reader, "{}:{}".format(*address))
                expected, found = (self._hello.cluster, name), (hello.cluster, hello.node.name)
                if expected != found:
                    raise WrongCluster(expected="node {1!r} of cluster {0!r}".format(*expected),
                                       found="node {1!r} of cluster {0!r}".format(*found),
                                       address="{}:{}".format(*address))
            except BaseException:
                await _close(writer)
                raise
        return reader, writer

    def _lost(self, to: str, why: str, count: int = 1) -> None:
        self._observer.count("catalog_messages_lost", count, {"to": to})
        self._observer.event("catalog_message_lost", {"to": to, "reason": why})


class _Link:
    """The way to one node: a bounded queue, and a task that opens a connection when there is something to send."""

    def __init__(self, transport: TcpTransport, name: str, address: Address) -> None:
        self._transport = transport
        self._name = name
        self._address = address
        self._queue: deque[bytes] = deque()
        self._filled = asyncio.Event()
        self._pause = transport._options.min_pause_seconds
        self.task: KeptTask = transport._work.spawn(self._run(), f"the link to {name}")

    def put(self, frame: bytes) -> None:
        """Queue a frame; the oldest is lost if there are too many."""
        if len(self._queue) >= self._transport._options.max_queued:
            self._queue.popleft()
            self._transport._lost(self._name, "the queue is full")
        self._queue.append(frame)
        self._filled.set()

    async def _run(self) -> None:
        work, options = self._transport._work, self._transport._options
        while work.is_running:
            # An unexpected exception ends one connection, and the next one is tried.
            await work.retry(self._turn, f"the connection to {self._name}",
                             first_pause_seconds=options.min_pause_seconds,
                             longest_pause_seconds=options.max_pause_seconds)

    async def _turn(self) -> None:
        """One connection, from the first message to be sent to its end."""
        options = self._transport._options
        await self._filled.wait()
        try:
            reader, writer = await self._transport.connect(self._name, self._address)
            self._pause = options.min_pause_seconds
            try:
                await self._write(reader, writer)
            finally:
                await _close(writer)
        except (CompactlibError, OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            self._drop(f"no connection: {_told(error)}")
            await asyncio.sleep(self._pause)
            self._pause = min(2 * self._pause, options.max_pause_seconds)
        except Exception as error:
            self._drop(f"the connection failed: {_told(error)}")
            raise

    async def _write(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send what is queued until the other side hangs up, which shows at once because it never sends anything."""
        loop = asyncio.get_running_loop()
        hung_up = loop.create_task(reader.read(1))
        try:
            while not hung_up.done():
                while self._queue:
                    writer.write(self._queue.popleft())
                    await writer.drain()
                self._filled.clear()
                filled = loop.create_task(self._filled.wait())
                try:
                    await asyncio.wait({filled, hung_up}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    filled.cancel()
                    await asyncio.gather(filled, return_exceptions=True)
        finally:
            hung_up.cancel()
            await asyncio.gather(hung_up, return_exceptions=True)

    def _drop(self, why: str) -> None:
        if self._queue:
            self._transport._lost(self._name, why, len(self._queue))
        self._queue.clear()
        self._filled.clear()


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError, ssl.SSLError):  # it was gone already
        await writer.wait_closed()


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
