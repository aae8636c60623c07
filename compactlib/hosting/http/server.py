# SPDX-License-Identifier: Apache-2.0
"""`HttpServer`: listens for a `SchedulerApplication`, with uvicorn's HTTP/1.1 on h11 (extra `compactlib[http]`).

What uvicorn leaves open is bounded here: how many connections there are, how long a TLS handshake, a request's head and
the taking of an answer may last, and that a stuck connection is cut instead of being closed in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Collection, Sequence
from email.utils import formatdate
from typing import Any

from compactlib._arguments import require_names
from compactlib.clock import Clock, SystemClock
from compactlib.errors import MissingDependency
from compactlib.hosting.http.application import CLIENT_STATE, HttpLimits, Receive, SchedulerApplication, Scope, Send
from compactlib.outcome import Outcome, Skipped
from compactlib.runtime.doors import (
    Address,
    Listener,
    TurnedAway,
    in_time,
    names_of,
    require_address,
    require_guarded,
    spoken,
)
from compactlib.runtime.observe import Observer
from compactlib.runtime.services.async_service import AsyncServiceFace, AsyncWork

try:
    from uvicorn import Config
    from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
    from uvicorn.server import ServerState
except ImportError:
    raise MissingDependency(package="uvicorn", extra="http", purpose="a scheduler over HTTP") from None

LINE_ENDED = "scheduler_line_ended"
"""A connection was turned away or cut: `address`, `error`."""
SERVER_FAILED = "scheduler_server_failed"
"""An unexpected exception: `what`, `error`, `message`."""
_LAST_ANSWERS_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 0.01
_DATE_SECONDS = 1.0


class HttpServer(AsyncServiceFace):
    """Listens for requests: a `contract.AsyncService`, also as an async context manager.

    Args:
        application: answers them; its limits are those of the connections too.
        listen: where.
        tls: for connections. With `verify_mode=ssl.CERT_REQUIRED` a client is who its certificate says. Plain TCP if
            `None`, which is for loopback addresses.
        clients: the names in certificates that may ask; empty: all that the authority has issued.
        insecure: other addresses without TLS, or without tokens and certificates: whoever reaches them, or reads along,
            can do all that a worker can. The application needs it too, unless it has tokens.
        clock: dates the answers.
        observer: notified as `scheduler_line_ended` and `scheduler_server_failed`.

    Raises:
        InvalidInput: an argument is of another type than it should be, or strangers would be answered.
    """

    def __init__(self, application: SchedulerApplication, *, listen: Address, tls: ssl.SSLContext | None = None,
                 clients: Collection[str] = (), insecure: bool = False, clock: Clock | None = None,
                 observer: Observer | None = None) -> None:
        require_address("listen", listen)
        require_names("clients", clients)
        asks_for_names = tls is not None and tls.verify_mode is ssl.CERT_REQUIRED
        require_guarded("the scheduler's server", listen[0], guard="tls= with tokens or certificates of clients",
                        is_guarded=tls is not None and (asks_for_names or bool(application.tokens)), insecure=insecure)
        self._work = AsyncWork(f"the scheduler's server on {listen[0]}", event=SERVER_FAILED, observer=observer)
        self.listener: Listener = Listener("the scheduler's server", self._work)
        self.limits: HttpLimits = application.limits
        self.clients: frozenset[str] = frozenset(clients)
        self.lines: dict[_Line, None] = {}
        self._listen = listen
        self._tls = tls
        self._clock: Clock = SystemClock() if clock is None else clock
        self._state = ServerState()
        self._application = application
        self._greeting: dict[_Line, None] = {}
        self._turn: asyncio.Lock
        self._left: asyncio.Event
        self._config = Config(self._answer, http=H11Protocol, interface="asgi3", lifespan="off", ws="none",
                              log_config=None, access_log=False, proxy_headers=False, server_header=False,
                              h11_max_incomplete_event_size=application.limits.max_head_bytes,
                              # Longer than what is counted here.
                              timeout_keep_alive=round(2 * application.limits.idle_seconds) + 60)

    @property
    def address(self) -> Address:
        """Where it listens, with the port that the system chose.

        Raises:
            Closed: it was not started, or is closed.
        """
        return self.listener.address

    async def _begin(self) -> None:
        # Of this event loop, which may be another one than before.
        self._turn, self._left = asyncio.Lock(), asyncio.Event()
        await self.listener.listen(self._listen, self._serve)
        self._work.keep_on(self._tell_the_time, "the date of answers")

    async def _end(self) -> None:
        """Listen no more; answers under way are given, for a while."""
        self.listener.close()
        for line in list(self.lines):
            line.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_ANSWERS_SECONDS):
                while self.lines:
                    await asyncio.sleep(_LOOK_AGAIN_SECONDS)
        for line in list(self.lines):
            line.cut("the server is closing")

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._application(scope, receive, send)
        except Exception as error:
            self._work.note(error, "a request")
            raise

    async def _pending(self) -> Sequence[Outcome[Any]]:
        """Date the answers of the next second."""
        self._state.default_headers = [(b"date", formatdate(self._clock.now(), usegmt=True).encode())]
        return [Skipped("what is asked is answered at once")]

    async def _tell_the_time(self) -> None:
        await self._pending()
        await asyncio.sleep(_DATE_SECONDS)

    async def _serve(self, connection: socket.socket, where: str) -> None:
        line = _Line(self, where, config=self._config, server_state=self._state, app_state={})
        limits = self.limits
        try:
            self._admit(line)
            async with in_time("a TLS handshake", "hello_seconds", limits.hello_seconds):
                await spoken(connection)
                await self._greet(line)
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: line, connection, ssl=self._tls,
                    ssl_handshake_timeout=None if self._tls is None else limits.hello_seconds)
            await line.ended.wait()
        except (OSError, TurnedAway) as error:
            self.tell(where, error)
        finally:
            self.lines.pop(line, None)
            self.greeted(line)
            connection.close()
            # Else they keep each other, with the buffers of TLS, until garbage is collected.
            line.task = None

    def _admit(self, line: _Line) -> None:
        """Make room for a connection: the oldest ends for it that has not asked anything, or had its last answer."""
        most = f"max_connections={self.limits.max_connections}"
        if len(self.lines) >= self.limits.max_connections and not self._turn_away(self.lines, most):
            raise TurnedAway(f"too many connections: {most} of them are open")
        self.lines[line] = None

    async def _greet(self, line: _Line) -> None:
        """Wait until there is room for another one that speaks: from here on it has buffers."""
        async with self._turn:
            while len(self._greeting) >= self.limits.max_greetings:
                self._turn_away(self._greeting, f"max_greetings={self.limits.max_greetings}")
                self._left.clear()
                await self._left.wait()
            self._greeting[line] = None

    @staticmethod
    def _turn_away(lines: dict[_Line, None], limit: str) -> bool:
        """End the oldest of these that is not needed; whether there is one."""
        oldest = next((line for line in lines if line.makes_room), None)
        if oldest is not None:
            oldest.cut(f"too many connections: it had to make room for another one, {limit}; it had "
                       f"{'had its last answer' if oldest.has_asked else 'not asked anything'}")
        return oldest is not None

    def greeted(self, line: _Line) -> None:
        """A connection has made its first request, so it is no stranger's any more, or has ended."""
        self._greeting.pop(line, None)
        self._left.set()

    def tell(self, where: str, error: object) -> None:
        """Notify the observer of how a connection ended."""
        self._work.observer.event(LINE_ENDED, {"address": where, "error": f"{type(error).__name__}: {error}"})


class _Line(H11Protocol):
    """One connection. Each of its waits has an end, at which it is cut."""

    def __init__(self, server: HttpServer, where: str, **given: Any) -> None:
        super().__init__(**given)
        self.ended: asyncio.Event = asyncio.Event()
        self.has_asked: bool = False
        self.is_cut: bool = False
        self._server = server
        self._where = where
        self.task: asyncio.Task[Any] | None = asyncio.current_task()
        self._awaited = ""
        self._end: asyncio.TimerHandle | None = None

    @property
    def makes_room(self) -> bool:
        """Whether it may end for another one: it has not asked anything, or was answered, and is being closed."""
        transport: asyncio.Transport | None = self.transport
        is_leaving = transport is not None and transport.is_closing()
        return not self.is_cut and (is_leaving or not self.has_asked)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        shown = names_of(transport)
        clients = self._server.clients
        if clients and clients.isdisjoint(shown):
            self.cut(f"it shows the certificate of {', '.join(map(repr, shown)) or 'nobody'}, and those that may ask "
                     f"are {', '.join(map(repr, sorted(clients)))}")
            return
        self.app_state[CLIENT_STATE] = ", ".join(shown)
        self._await("a request's head", "hello_seconds")

    def data_received(self, data: bytes) -> None:
        if self._awaited == "idle_seconds":
            self._await("a request's head", "hello_seconds")
        before = self.cycle
        super().data_received(data)
        if self.cycle is not before:
            # The application bounds the rest: the body, and what is done with it; not the answer before.
            if not self.flow.write_paused:
                self._await()
            self.has_asked = True
            self._server.greeted(self)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_next()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await("the taking of an answer", "body_seconds")

    def resume_writing(self) -> None:
        super().resume_writing()
        self._await()
        self._await_next()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._await()
        self.ended.set()

    def _await_next(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None and cycle.response_complete and not self.flow.write_paused:
            self._await("the next request", "idle_seconds")

    def _await(self, what: str = "", limit: str = "") -> None:
        """Cut the connection unless this comes in time; nothing is waited for if `limit` is empty."""
        if self._end is not None:
            self._end.cancel()
        self._awaited, self._end = limit, None
        if limit:
            seconds = getattr(self._server.limits, limit)
            self._end = self.loop.call_later(seconds, self.cut, f"{what} did not come in time: {limit}={seconds}")

    def end(self) -> None:
        """End the connection, after the answer that is under way."""
        transport: asyncio.Transport | None = self.transport
        if transport is None or not self.has_asked:
            self.cut("the server is closing")
        elif not transport.is_closing():
            self.shutdown()

    def cut(self, why: str) -> None:
        """End the connection at once, whatever is still to be sent."""
        self.is_cut = True
        self._server.tell(self._where, TurnedAway(why))
        transport: asyncio.Transport | None = self.transport
        if transport is not None:
            transport.abort()
        elif self.task is not None:
            self.task.cancel()
