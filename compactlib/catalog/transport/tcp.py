# SPDX-License-Identifier: Apache-2.0
"""Messages over TCP, with asyncio: one connection in each direction, opened when there is something to send.

Who connects says `Hello` first, and gets one back if it may talk: its cluster is this one and, with TLS, its
certificate carries the name that it gives itself, and `set_peers` has that name. A stranger is told nothing. A frame
of an unknown type or version is skipped and its sender notified; damaged bytes end the connection. Lost connections
are opened again with growing pauses, and messages that cannot be sent meanwhile are lost, which the protocol expects.

There is no authentication but what `server_tls` and `client_tls` bring: without them only loopback addresses are taken,
unless `insecure=True` says that every host of the network is trusted. `docs/security.md` has all bounds.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Mapping
from functools import partial

import attrs

from compactlib.catalog.errors import MessageDamaged, MessageTooLarge, WrongCluster
from compactlib.catalog.model.values import NodeId
from compactlib.catalog.round.messages import Hello, Message, checked_name
from compactlib.catalog.transport import wire
from compactlib.catalog.transport.interface import Receive
from compactlib.errors import Closed, CompactlibError, Unsupported
from compactlib.runtime.doors import (
    MAX_HELLO_BYTES,
    Address,
    Arrival,
    Door,
    DoorLimits,
    Line,
    TurnedAway,
    drained,
    end_in_silence,
    hang_up,
    require_address,
    require_guarded,
    require_mutual,
    require_name,
)
from compactlib.runtime.observe import Observer, telling
from compactlib.runtime.services.async_service import AsyncWork, KeptTask


@attrs.frozen(kw_only=True)
class TcpOptions(DoorLimits):
    """Limits of a `TcpTransport`: those of `DoorLimits`, and these.

    Attributes:
        max_message_bytes: the largest frame that is sent or read.
        max_queued: messages waiting for one node; the oldest goes when there are more.
        min_pause_seconds: before a lost connection is opened again; doubles with each failure.
        max_pause_seconds: where doubling ends.

    Raises:
        InvalidInput: a limit is not above 0.
    """

    max_message_bytes: int = wire.MAX_MESSAGE_BYTES
    max_queued: int = 1000
    min_pause_seconds: float = 0.05
    max_pause_seconds: float = 2.0


class TcpTransport:
    """See the module. A `Transport`.

    Args:
        me: this node, in this life.
        cluster: the cluster's name; nodes of other clusters are turned away.
        listen: where others reach this node.
        peers: where this node reaches others, by name.
        options: limits.
        observer: notified of connections, refusals and losses.
        server_tls: for connections from others, whose certificates it must ask for; plain TCP if `None`, which is for
            loopback addresses.
        client_tls: for connections to others; plain TCP if `None`, which is for loopback addresses.
        insecure: plain TCP with other addresses too, where every host that reaches them is believed.

    Raises:
        InvalidInput: a name is empty, too long or not printable; an address is none; plain TCP would leave this
            machine; or TLS asks for no certificate.
    """

    def __init__(self, me: NodeId, *, cluster: str, listen: Address, peers: Mapping[str, Address] | None = None,
                 options: TcpOptions | None = None, observer: Observer | None = None,
                 server_tls: ssl.SSLContext | None = None, client_tls: ssl.SSLContext | None = None,
                 insecure: bool = False) -> None:
        checked_name(me.name)
        require_address("listen", listen)
        self._insecure = insecure
        require_guarded(f"the transport of {me}", listen[0], guard="server_tls=", is_guarded=server_tls is not None,
                        insecure=insecure)
        require_mutual("server_tls", server_tls)
        require_mutual("client_tls", client_tls)
        self._hello = Hello(checked_name(cluster, what="cluster"), me)
        self._listen = listen
        self._options = options or TcpOptions()
        self._observer = telling(observer)
        self._client_tls = client_tls
        self._work = AsyncWork(f"the transport of {me}", event="catalog_connection_failed", threads=1,
                               observer=observer)
        self._door = Door("the transport", self._options, self._work, tls=server_tls)
        self._links: dict[str, _Link] = {}
        self._peers: dict[str, Address] = self._checked(peers or {})
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
        return self._door.listener.address

    def set_peers(self, peers: Mapping[str, Address]) -> None:
        """Replace the addresses: links to nodes that are gone or have moved are ended, and what waits there is lost.

        With TLS nothing more is taken from those that are gone.

        Raises:
            InvalidInput: an address is none, or plain TCP would leave this machine.
        """
        checked = self._checked(peers)
        left = [name for name in self._links if self._peers.get(name) != checked.get(name)]
        self._peers = checked
        for name in left:
            self._links.pop(name).end("its address has changed" if name in checked else "it is no peer any more")

    def _checked(self, peers: Mapping[str, Address]) -> dict[str, Address]:
        for name, address in peers.items():
            require_address(f"the address of {name}", address)
            require_guarded(f"the connection to {name}", address[0], guard="client_tls=",
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
        # An event loop that ended without a word has left links that send nothing.
        self._links.clear()
        await self._door.listen(self._listen, partial(self._serve, receive))

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

    async def _end(self) -> None:
        self._door.close()
        self._links.clear()

    # ---- incoming

    async def _serve(self, receive: Receive, arrival: Arrival) -> None:
        where = arrival.where
        try:
            async with self._door.line(arrival, partial(self._welcome, where)) as (line, name):
                while await self._read_message(receive, line, name):
                    pass
        except (CompactlibError, OSError, asyncio.IncompleteReadError) as error:
            self._observer.event("catalog_connection_ended", {"address": where, "error": _told(error)})
        except Exception as error:  # a bug, ours or the receiver's: it ends this connection and nothing else
            self._observer.event("catalog_connection_ended", {"address": where, "error": _told(error)})
            raise

    async def _welcome(self, where: str, line: Line) -> str:
        """The name of the node that has connected, which may talk; it is greeted."""
        async with line.frame(partial(_hello_length, where)) as frame:
            hello = _hello_in(frame, where)
        if hello.cluster != self._hello.cluster:
            raise WrongCluster(expected=f"cluster {self._hello.cluster!r}", found=f"cluster {hello.cluster!r}",
                               address=where)
        self._require_peer(hello.node.name)
        await line.introduce(hello.node.name)
        line.writer.write(wire.encode(self._hello))
        return hello.node.name

    def _require_peer(self, name: str) -> None:
        if self._door.is_guarded and name not in self._peers:
            raise TurnedAway(f"the node {name!r} is none of the peers; name it in set_peers")

    async def _read_message(self, receive: Receive, line: Line, sender: str) -> bool:
        """Take in one frame; whether there was one."""
        async with line.frame(partial(_length, self._options.max_message_bytes, sender)) as frame:
            if frame is None:
                return False
            return await self._take_in(receive, frame, sender)

    async def _take_in(self, receive: Receive, frame: bytes, sender: str) -> bool:
        try:
            # A small frame may be a long report: it is not made of it in the thread of the event loop.
            message = await self._work.call(wire.decode, frame, sender=sender)
            # It may have been one when it connected.
            self._require_peer(sender)
        except Unsupported as error:
            self._observer.event("catalog_message_refused", {"sender": sender, "error": str(error)})
            refusal = wire.refusal_of(error, self._hello.node)
            if refusal is not None:
                self.send(sender, refusal)
            return True
        if not isinstance(message, Hello):
            receive(sender, message)
        return True

    # ---- outgoing

    async def connect(self, name: str, address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection to a node that has introduced itself with a `Hello`.

        Raises:
            WrongCluster: another node answered.
            TurnedAway: its certificate is another node's, or it hung up without a word, as on a stranger.
            MessageDamaged: what answered speaks another language.
            OSError: no node answered.
            TimeoutError: no node answered in time.
        """
        async with asyncio.timeout(self._options.hello_seconds):
            checks_name = self._client_tls is not None and self._client_tls.check_hostname
            reader, writer = await asyncio.open_connection(*address, ssl=self._client_tls,
                                                           server_hostname=name if checks_name else None)
            try:
                end_in_silence(writer.get_extra_info("socket"), self._options.frame_seconds)
                require_name(writer, name)
                writer.write(wire.encode(self._hello))
                try:
                    size = _hello_length(name, await reader.readexactly(wire.LENGTH_BYTES))
                except (asyncio.IncompleteReadError, ConnectionError):
                    raise TurnedAway("{}:{} hung up without a word: it is of another cluster, or does not know this "
                                     "node".format(*address)) from None
                hello = _hello_in(await reader.readexactly(size), "{}:{}".format(*address))
                expected, found = (self._hello.cluster, name), (hello.cluster, hello.node.name)
                if expected != found:
                    raise WrongCluster(expected="node {1!r} of cluster {0!r}".format(*expected),
                                       found="node {1!r} of cluster {0!r}".format(*found),
                                       address="{}:{}".format(*address))
            except BaseException:
                await hang_up(writer)
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
        self._writer: asyncio.StreamWriter | None = None
        self._task: KeptTask = transport._work.spawn(self._run(), f"the link to {name}")

    def put(self, frame: bytes) -> None:
        """Queue a frame; the oldest is lost if there are too many."""
        if len(self._queue) >= self._transport._options.max_queued:
            self._queue.popleft()
            self._transport._lost(self._name, "the queue is full")
        self._queue.append(frame)
        self._filled.set()

    def end(self, why: str) -> None:
        """Send nothing more, nor what was written and not sent; what is queued is lost."""
        self._drop(why)
        self._task.cancel()
        if self._writer is not None:
            self._writer.transport.abort()

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
            reader, self._writer = await self._transport.connect(self._name, self._address)
            self._pause = options.min_pause_seconds
            try:
                await self._write(reader, self._writer)
            finally:
                await hang_up(self._writer)
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
                    await drained(writer, self._transport._options.frame_seconds)
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


def _length(limit: int, sender: str, head: bytes) -> int:
    size = int.from_bytes(head, "little")
    if size > limit:
        raise MessageTooLarge(size=size, limit=limit, sender=sender)
    return size


def _hello_length(sender: str, head: bytes) -> int:
    size = int.from_bytes(head, "little")
    if size > MAX_HELLO_BYTES:
        raise MessageDamaged(sender=sender, offset=0, expected=f"a Hello of at most {MAX_HELLO_BYTES} bytes",
                             found=f"{size} bytes")
    return size


def _hello_in(frame: bytes | None, where: str) -> Hello:
    hello = None if frame is None else wire.decode(frame, sender=where)
    if not isinstance(hello, Hello):
        raise MessageDamaged(sender=where, offset=0, expected="a Hello", found=type(hello).__name__)
    return hello


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
