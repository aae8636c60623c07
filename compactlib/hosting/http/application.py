# SPDX-License-Identifier: Apache-2.0
"""A scheduler as an ASGI application, which any ASGI server runs.

| request | body | answer |
| --- | --- | --- |
| `POST /v1/poll` | `PollRequest` | `PollResponse` |
| `POST /v1/add_blocks` | `AddBlocks` | `BlocksAdded` |
| `GET /v1/status` | | `SchedulerStatus` as JSON |
| `GET /metrics` | | Prometheus' text form |

A request that is not carried out gets an error as JSON: `error` is its class, `message` says what to do, `changed`
whether anything was (`no` or `unknown`), `leader` where to ask instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import urlsplit

import attrs

from compactlib._arguments import require_above_zero
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, Closed, CompactlibError, Conflict, InvalidInput, Stale, Unsupported
from compactlib.hosting.errors import NotLeader
from compactlib.hosting.http.status import SchedulerStatus
from compactlib.hosting.http.wire import JSON, RECORD, decode, encode
from compactlib.observer import PrometheusObserver
from compactlib.runtime.doors import BytesInFlight, TurnedAway, is_loopback
from compactlib.runtime.observe import Observer, telling
from compactlib.runtime.services.daemon_threads import DaemonThreads
from compactlib.scheduler import AddBlocks, BlockMeta, PollRequest, SchedulerService
from compactlib.scheduler.model.poll import PollResponse
from compactlib.scheduler.model.update import BlocksAdded
from compactlib.scheduler.service.numbers import NUMBERS, levels_of

REFUSED = "scheduler_request_refused"
"""A request was refused, or could not be carried out: `path`, `client`, `status`, `error`."""
MIN_TOKEN_CHARS = 16

Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
AnswerT = TypeVar("AnswerT")


class Served(Protocol):
    """What is served: a `SchedulerHost` or a `StoredScheduler`."""

    def poll(self, request: PollRequest) -> PollResponse:
        """See `Transport.poll`."""

    def add_blocks(self, blocks: Iterable[BlockMeta]) -> BlocksAdded:
        """New blocks; may be repeated."""

    def look(self, at: Callable[[SchedulerService], AnswerT]) -> AnswerT:
        """What `at` finds between two commands."""


@attrs.frozen(kw_only=True)
class HttpLimits:
    """Bounds of what the application reads and answers; those of connections are the server's.

    Attributes:
        max_head_bytes: of a request's line and headers.
        max_body_bytes: of a request.
        max_bytes_in_flight: of bodies that are being read or answered, all together; others wait their turn.
        body_seconds: for a request's body, waiting for its turn included; and for the answer to be taken.
        threads: requests that are carried out at once.

    Raises:
        InvalidInput: a limit is not above 0.
    """

    max_head_bytes: int = 16 << 10
    max_body_bytes: int = 16 << 20
    max_bytes_in_flight: int = 64 << 20
    body_seconds: float = 60.0
    threads: int = 16

    def __attrs_post_init__(self) -> None:
        require_above_zero(self)


class SchedulerApplication:
    """A scheduler over HTTP. Runs in one event loop; what blocks is done in threads.

    A bearer token says who asks. Without tokens, a request is answered if it comes from this machine, and is meant for
    it by its `Host`.

    Args:
        scheduler: what is served; stays open.
        tokens: who may ask, by name, each with a secret of at least 16 characters.
        nodes: of a group, where each serves HTTP: its address in the log, as `NotLeader` has it, to its URL.
        metrics: what is told at `/metrics`; the levels are added to it. Give the scheduler the same observer.
        limits: of what is read.
        insecure: whoever asks is answered; for a server that lets nobody else in, by TLS certificates of clients say.
        clock: for the ages that the status shows.
        observer: notified as `scheduler_request_refused`.

    Raises:
        InvalidInput: an argument is of another type than it should be, or a token is too short.
    """

    def __init__(self, scheduler: Served, *, tokens: Mapping[str, str] | None = None,
                 nodes: Mapping[str, str] | None = None, metrics: PrometheusObserver | None = None,
                 limits: HttpLimits | None = None, insecure: bool = False, clock: Clock | None = None,
                 observer: Observer | None = None) -> None:
        for name, token in (tokens or {}).items():
            if len(token) < MIN_TOKEN_CHARS or not token.isascii() or not token.isprintable():
                raise InvalidInput(f"the token of {name!r} has {len(token)} characters; give at least "
                                   f"{MIN_TOKEN_CHARS} printable ones of ASCII, chosen at random")
        self.limits: HttpLimits = limits or HttpLimits()
        self.tokens: Mapping[str, str] = dict(tokens or {})
        self._scheduler = scheduler
        self._nodes = dict(nodes or {})
        self._metrics = metrics
        self._insecure = insecure
        self._clock: Clock = SystemClock() if clock is None else clock
        self._observer = telling(observer)
        self._threads = DaemonThreads(self.limits.threads, "scheduler-http")
        self._in_flight = BytesInFlight(self.limits.max_bytes_in_flight)
        self._routes: dict[str, tuple[str, Callable[[_Request], Awaitable[_Answer]]]] = {
            "/v1/poll": ("POST", partial(self._carried_out, PollRequest, scheduler.poll)),
            "/v1/add_blocks": ("POST", partial(self._carried_out, AddBlocks, self._add_blocks)),
            "/v1/status": ("GET", self._status),
            "/metrics": ("GET", self._exported),
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            raise Unsupported(f"{scope['type']} is none of what a scheduler answers; ask over HTTP")
        request = _Request(scope, receive)
        try:
            answer = await self._answer(request)
        except _Refused as refused:
            answer = _Answer(refused.status, _JSON_TYPE, json.dumps({
                "error": refused.name, "message": str(refused), "changed": refused.changed, **refused.more}).encode(),
                refused.headers)
            why = refused if refused.__cause__ is None else refused.__cause__
            self._observer.event(REFUSED, {"path": request.path[:100], "client": request.client,
                                           "status": str(refused.status), "error": f"{refused.name}: {why}"[:1000]})
        # Strangers are not kept; and what was not read of a body is in the way of the next request.
        keeps = request.is_read and answer.status not in (401, 403, 431)
        closing = () if keeps else ((b"connection", b"close"),)
        # When this raises, the server ends the connection.
        async with asyncio.timeout(self.limits.body_seconds):
            await send({"type": "http.response.start", "status": answer.status, "headers": [
                (b"content-type", answer.media), (b"content-length", str(len(answer.body)).encode()),
                *_SAFE, *answer.headers, *closing]})
            await send({"type": "http.response.body", "body": answer.body})

    async def _answer(self, request: _Request) -> _Answer:
        if request.head_bytes > self.limits.max_head_bytes:
            raise _Refused(431, f"the headers have {request.head_bytes} bytes; max_head_bytes="
                                f"{self.limits.max_head_bytes}")
        self._require_known(request)
        if request.path not in self._routes:
            raise _Refused(404, f"there is nothing here; ask for one of {', '.join(self._routes)}")
        method, route = self._routes[request.path]
        if request.method not in (method, "HEAD" if method == "GET" else method):
            raise _Refused(405, f"ask with {method}", headers=((b"allow", method.encode()),))
        try:
            return await route(request)
        except CompactlibError as error:
            raise self._told(error, request) from error

    # -- who asks

    def _require_known(self, request: _Request) -> None:
        if self._insecure or self._has_token(request):
            return
        if self.tokens:
            raise _Refused(401, "say who asks: Authorization: Bearer TOKEN", name=TurnedAway.__name__,
                           headers=((b"www-authenticate", b'Bearer realm="compactlib"'),))
        # A page in a browser reaches this machine too, under a name of its own, and a proxy here asks for anybody.
        if not (is_loopback(request.client) and is_loopback(request.host) and not request.is_forwarded):
            raise _Refused(403, f"without tokens only this machine is answered, and {request.client!r} asks "
                                f"{request.host!r:.100}; give the application tokens=", name=TurnedAway.__name__)

    def _has_token(self, request: _Request) -> bool:
        scheme, _, given = request.header(b"authorization").partition(b" ")
        return scheme.lower() == b"bearer" and any(
            hmac.compare_digest(token.encode(), given.strip()) for token in self.tokens.values())

    # -- what is asked

    def _add_blocks(self, request: AddBlocks) -> BlocksAdded:
        return self._scheduler.add_blocks(request.blocks)

    async def _carried_out(self, kind: type[Any], call: Callable[[Any], Any], request: _Request) -> _Answer:
        media = request.media()
        wanted = RECORD if RECORD.encode() in request.header(b"accept") else JSON
        size = request.body_bytes(self.limits.max_body_bytes)
        async with contextlib.AsyncExitStack() as taken:
            try:
                async with asyncio.timeout(self.limits.body_seconds):
                    await taken.enter_async_context(self._in_flight.take(size))
                    body = await request.body()
            except TimeoutError:
                raise _Refused(408, f"the body did not come in time: body_seconds={self.limits.body_seconds}") from None

            def carry_out() -> bytes:
                try:
                    asked = decode(body, media, kind)
                except (InvalidInput, Unsupported) as error:
                    raise _Refused(400, str(error), name=type(error).__name__) from error
                return encode(call(asked), wanted)

            return _Answer(200, wanted.encode(), await self._in_a_thread(carry_out))

    async def _status(self, request: _Request) -> _Answer:
        status = await self._in_a_thread(self._look)
        return _Answer(200, _JSON_TYPE, json.dumps(attrs.asdict(status)).encode())

    async def _exported(self, request: _Request) -> _Answer:
        metrics = self._metrics
        if metrics is None:
            raise _Refused(404, "nothing is exported here; give the application metrics=PrometheusObserver()")

        def export() -> bytes:
            with contextlib.suppress(CompactlibError):  # a node that does not lead has no levels to tell
                status, levels = self._scheduler.look(lambda service: (
                    SchedulerStatus.of(service, self._clock.now()), levels_of(service.state)))
                status.tell(telling(metrics))
                NUMBERS.levels(telling(metrics), levels)
            return metrics.text()

        return _Answer(200, b"text/plain; version=0.0.4; charset=utf-8", await self._in_a_thread(export))

    def _look(self) -> SchedulerStatus:
        return self._scheduler.look(lambda service: SchedulerStatus.of(service, self._clock.now()))

    async def _in_a_thread(self, call: Callable[[], AnswerT]) -> AnswerT:
        return await asyncio.wrap_future(self._threads.future(call))

    def _told(self, error: CompactlibError, request: _Request) -> _Refused:
        """How an error of the scheduler is told."""
        name, text = type(error).__name__, str(error)
        if isinstance(error, NotLeader):
            leader = self._nodes.get(error.leader, "")
            if not leader:
                return _Refused(503, text, name=name)
            return _Refused(307, f"ask {leader}", name=name, leader=leader,
                            headers=((b"location", (leader + request.path).encode()),))
        if isinstance(error, InvalidInput):
            return _Refused(400, text, name=name)
        if isinstance(error, Stale | Conflict | Busy | Closed) and not error._may_have_happened:
            return _Refused(503, text, name=name)
        # What a store or a log says may name its files, which are nobody's business.
        return _Refused(504, "it may have been carried out or not, and the scheduler's observer is told why; ask again",
                        name=name, changed="unknown")


_JSON_TYPE = JSON.encode()
_SAFE = ((b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff"),
         (b"referrer-policy", b"no-referrer"))
_Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]


@attrs.frozen
class _Answer:
    """What is sent back."""

    status: int
    media: bytes
    body: bytes
    headers: _Headers = ()


class _Refused(Exception):
    """The request is not carried out, or what became of it is not known."""

    def __init__(self, status: int, text: str, *, name: str = "InvalidInput", changed: str = "no",
                 headers: _Headers = (), **more: str) -> None:
        super().__init__(text)
        self.status = status
        self.name = name
        self.changed = changed
        self.headers = headers
        self.more = more


class _Request:
    """One request, as far as it was read."""

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self._receive = receive
        self._headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            self._headers.setdefault(name.lower(), value)
        self.is_read: bool = not self._declares_a_body

    @property
    def path(self) -> str:
        """What is asked for."""
        return str(self.scope["path"])

    @property
    def method(self) -> str:
        """How."""
        return str(self.scope["method"])

    @property
    def client(self) -> str:
        """The address that it comes from; empty if the server does not say."""
        return str((self.scope.get("client") or [""])[0])

    @property
    def host(self) -> str:
        """Whom the client believes to ask; empty if that makes no sense."""
        try:
            return urlsplit("//" + self.header(b"host").decode("latin-1")).hostname or ""
        except ValueError:
            return ""

    @property
    def head_bytes(self) -> int:
        """Of its line and headers."""
        return len(self.scope.get("raw_path") or self.path) + len(self.scope.get("query_string", b"")) + sum(
            len(name) + len(value) + 4 for name, value in self.scope["headers"])

    @property
    def is_forwarded(self) -> bool:
        """Whether a proxy says that it asks for somebody else."""
        return not self._headers.keys().isdisjoint((b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip"))

    @property
    def _declares_a_body(self) -> bool:
        return b"transfer-encoding" in self._headers or self.header(b"content-length").strip() not in (b"", b"0")

    def header(self, name: bytes) -> bytes:
        """The first of this name; empty if there is none."""
        return self._headers.get(name, b"")

    def media(self) -> str:
        """In which of the two forms it is."""
        media = self.header(b"content-type").partition(b";")[0].strip().lower().decode("latin-1")
        if media not in (JSON, RECORD):
            # Also what keeps a page in a browser from asking without this server's leave.
            raise _Refused(415, f"the content type is {media!r:.100}; send {JSON} or {RECORD}")
        if self.header(b"content-encoding").lower() not in (b"", b"identity"):
            raise _Refused(415, "the body is encoded; send it as it is")
        return media

    def body_bytes(self, most: int) -> int:
        """How long the body is said to be."""
        told = self.header(b"content-length").strip()
        # Where both are given, it is the chunks that a server goes by.
        if b"transfer-encoding" in self._headers or not told.isdigit() or len(told) > 18:
            raise _Refused(411, "the request says no length; send Content-Length alone")
        if int(told) > most:
            raise _Refused(413, f"the body has {int(told):,} bytes; max_body_bytes={most}, send it in parts")
        return int(told)

    async def body(self) -> bytes:
        """The whole body. A server delivers no more than the length that was said."""
        parts: list[bytes] = []
        while not self.is_read:
            message = await self._receive()
            if message["type"] != "http.request":
                raise _Refused(400, "the client left")
            parts.append(message.get("body", b""))
            self.is_read = not message.get("more_body", False)
        return b"".join(parts)


async def _live(receive: Receive, send: Send) -> None:
    """Nothing is to be begun or ended with the server."""
    for kind in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{kind}.complete"})
