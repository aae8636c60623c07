# SPDX-License-Identifier: Apache-2.0
"""A scheduler over HTTP: an ASGI application, which any ASGI server runs, and a client, which follows the leader.

| request | body | answer |
| --- | --- | --- |
| `POST /v1/poll` | `PollRequest` | `PollResponse` |
| `POST /v1/add_blocks` | `AddBlocks` | `BlocksAdded` |
| `GET /v1/status` | | `Scheduler.status()` |

All bodies are JSON by `compactlib.codec`. The answer to a failed request is an object: `error` is the class, `message`
has advice, `changed` is `"no"` or `"unknown"`, and `leader` is the address of the leader, if it is known.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import http.client
import ipaddress
import json
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar
from urllib.parse import urlsplit

from compactlib._arguments import require_seconds
from compactlib._closing import Closing
from compactlib.clock import Clock, SystemClock
from compactlib.codec import JsonCodec
from compactlib.commandlog.errors import NoAnswer, NotLeader
from compactlib.errors import Busy, Closed, CompactlibError, CorruptData, InvalidInput, Rejected
from compactlib.scheduler.errors import TurnedAway
from compactlib.scheduler.scheduler import Scheduler
from compactlib.scheduler.update import AddBlocks, BlocksAdded
from compactlib.scheduler.values import BlockMeta, PollRequest, PollResponse

Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]
AnswerT = TypeVar("AnswerT")

_POLLS: JsonCodec[PollRequest] = JsonCodec(PollRequest)
_RESPONSES: JsonCodec[PollResponse] = JsonCodec(PollResponse)
_ADDITIONS: JsonCodec[AddBlocks] = JsonCodec(AddBlocks)
_ADDED: JsonCodec[BlocksAdded] = JsonCodec(BlocksAdded)
_MIN_TOKEN_CHARS = 16
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_LONGEST_IDLE_SECONDS = 5.0
"""A proxy may drop a connection that is idle for longer, without a notice to either side."""


# ------------------------------------------------------------------------------------------------------- application


class _Refused(Exception):
    """The request was not carried out, or its outcome is unknown."""

    def __init__(self, status: int, message: str, *, error: str = "InvalidInput", changed: str = "no",
                 leader: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body: dict[str, str] = {"error": error, "message": message, "changed": changed}
        if leader:
            self.body["leader"] = leader


class SchedulerApplication:
    """A scheduler as an ASGI application. Each request runs in a thread of the event loop's executor.

    A bearer token identifies the client. Without tokens, only requests from this machine with a `Host` of this machine
    are accepted, since a page in a browser can send requests to this machine under another name. Timeouts, TLS and
    limits of connections are the server's.

    Args:
        scheduler: the scheduler; stays open.
        tokens: the clients by name, each with a secret of at least 16 characters.
        nodes: the nodes of a group: a mapping of a node's address in the log, as in `NotLeader`, to its URL.
        insecure: accept every request; for a server that authenticates clients, for example by certificates.
        max_body_bytes: the largest body of a request.

    Raises:
        InvalidInput: a token is too short, or not one line of text.
    """

    def __init__(self, scheduler: Scheduler, *, tokens: Mapping[str, str] | None = None,
                 nodes: Mapping[str, str] | None = None, insecure: bool = False,
                 max_body_bytes: int = 16 << 20) -> None:
        for name, token in (tokens or {}).items():
            if (size := len(token.strip())) < _MIN_TOKEN_CHARS:
                raise InvalidInput(f"the token of {name!r} has {size} characters; give at least "
                                   f"{_MIN_TOKEN_CHARS}, chosen at random")
        self._scheduler = scheduler
        self._tokens = [_token_bytes(token) for token in (tokens or {}).values()]
        self._nodes = dict(nodes or {})
        self._insecure = insecure
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ASGI request."""
        if scope["type"] != "http":
            raise InvalidInput(f"{scope['type']} is no protocol of the scheduler; call it over HTTP")
        try:
            status, body = 200, await self._answer(scope, receive)
        except _Refused as refused:
            status, body = refused.status, json.dumps(refused.body).encode()
        await send({"type": "http.response.start", "status": status, "headers": [
            (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive) -> bytes:
        headers = {name.lower(): value for name, value in reversed(scope["headers"])}
        self._require_known(scope, headers)
        request = scope["method"], scope["path"]
        if request == ("GET", "/v1/status"):
            return await self._carried_out(lambda: json.dumps(self._scheduler.status()).encode())
        call = {("POST", "/v1/poll"): self._poll, ("POST", "/v1/add_blocks"): self._add_blocks}.get(request)
        if call is None:
            raise _Refused(404, "ask for POST /v1/poll, POST /v1/add_blocks or GET /v1/status")
        # A browser sends this type to another origin only with the server's permission.
        if headers.get(b"content-type", b"").partition(b";")[0].strip().lower() != b"application/json":
            raise _Refused(415, "send application/json")
        body = await self._body(receive)
        return await self._carried_out(partial(call, body))

    def _poll(self, body: bytes) -> bytes:
        return _RESPONSES.encode(self._scheduler.poll(_decoded(_POLLS, body)))

    def _add_blocks(self, body: bytes) -> bytes:
        return _ADDED.encode(self._scheduler.add_blocks(_decoded(_ADDITIONS, body).blocks))

    async def _body(self, receive: Receive) -> bytes:
        parts = bytearray()
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise _Refused(400, "the client left")
            parts += message.get("body", b"")
            if len(parts) > self._max_body_bytes:
                raise _Refused(413, f"the body has more than max_body_bytes={self._max_body_bytes}; send it in parts")
            if not message.get("more_body", False):
                return bytes(parts)

    async def _carried_out(self, call: Callable[[], bytes]) -> bytes:
        try:
            return await asyncio.to_thread(call)
        except NotLeader as error:
            raise _Refused(503, str(error), error="NotLeader", leader=self._nodes.get(error.leader, "")) from error
        except InvalidInput as error:
            raise _Refused(400, str(error), error=type(error).__name__) from error
        except Rejected as error:
            raise _Refused(503, str(error), error=type(error).__name__) from error
        except CompactlibError as error:
            # Without the text of the error, which may have names of files.
            raise _Refused(504, "it may have been carried out or not; ask again", error=type(error).__name__,
                           changed="unknown") from error

    def _require_known(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        if self._insecure:
            return
        if self._tokens:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not any(hmac.compare_digest(token, given.strip())
                                                      for token in self._tokens):
                raise _Refused(401, "no credentials: send Authorization: Bearer TOKEN", error="TurnedAway")
            return
        client = str((scope.get("client") or [""])[0])
        host = _host_in("//" + headers.get(b"host", b"").decode("latin-1"))
        is_forwarded = not headers.keys().isdisjoint((b"forwarded", b"via", b"x-forwarded-for", b"x-real-ip"))
        if not _is_loopback(client) or not _is_loopback(host) or is_forwarded:
            raise _Refused(403, f"without tokens only this machine is answered, and {client!r} asks {host!r:.100}; "
                                f"give the application tokens=", error="TurnedAway")


def _decoded(codec: JsonCodec[AnswerT], body: bytes) -> AnswerT:
    try:
        return codec.decode(body, "the request")
    except CorruptData as error:
        raise _Refused(400, f"expected {error.expected}, found {error.found}") from error


def _token_bytes(token: str) -> bytes:
    """Return a token as the header of a request has it, without spaces and line ends around it."""
    text = token.strip()
    if not text.isprintable():
        raise InvalidInput("a token has a character that no header can have; give one line of text")
    return text.encode()


def _host_in(url: str) -> str:
    """Return the name of the host in a URL; `""` if the URL is invalid."""
    try:
        parts = urlsplit(url)
        return (parts.hostname or "") if parts.port != 0 else ""
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# ------------------------------------------------------------------------------------------------------------ client


class SchedulerClient(Closing):
    """A `Transport` to a scheduler over HTTP. Threads may share it.

    It calls the address that answered last, follows a node's answer to the leader if the address is known, and tries
    the other addresses in turn, until `timeout_seconds` have passed. A poll that may have been carried out is not
    repeated, since the next poll of the worker has its reports. `add_blocks` is repeated until there is an answer;
    blocks of an earlier try are `duplicate` in it.

    Args:
        addresses: the URLs of all nodes, as `https://host:port`; `http://` only for loopback.
        token: the bearer token of this client.
        tls: the context for `https`; default the system's certificate authorities.
        insecure: also `http` to other machines, which shows the token to the network.
        timeout_seconds: the longest time of a call with all its tries.
        clock: the clock for the time of a call, and the waits between rounds of tries.

    Raises:
        InvalidInput: there is no address, an address is invalid or `http` to another machine, the token is not one
            line of text, or the time is not above 0 or too long to wait for.
    """

    def __init__(self, addresses: Sequence[str], *, token: str | None = None, tls: ssl.SSLContext | None = None,
                 insecure: bool = False, timeout_seconds: float = 30.0, clock: Clock | None = None) -> None:
        self.addresses: tuple[str, ...] = tuple(each.rstrip("/").lower() for each in addresses)
        for address in self.addresses or ("",):
            url = urlsplit(address if (host := _host_in(address)) else "")
            if url.scheme not in ("http", "https") or url.path or url.query:
                raise InvalidInput(f"{address!r:.200} is no address of a scheduler; give https://host:port")
            if url.scheme == "http" and not insecure and not _is_loopback(host):
                raise InvalidInput(f"{address!r:.200} is another machine, and everybody between reads along; give "
                                   f"https://, or insecure=True")
        require_seconds("timeout_seconds", timeout_seconds, above_zero=True)
        self._tls = tls
        self._timeout = timeout_seconds
        self._clock: Clock = SystemClock() if clock is None else clock
        self._preferred = 0
        self._headers = {"content-type": b"application/json"}
        if token is not None:
            self._headers["authorization"] = b"Bearer " + _token_bytes(token)
        self._idle: list[tuple[str, float, http.client.HTTPConnection]] = []  # address, and time of the last use
        self._is_closed = False

    def poll(self, request: PollRequest) -> PollResponse:
        """Send the request, and return the answer.

        Raises:
            InvalidInput: the scheduler refused the request.
            TurnedAway: the scheduler does not know the token.
            Busy: no node carried it out in time; nothing was changed.
            NoAnswer: it may have been carried out. Poll again.
            Closed: the client was closed.
        """
        return self._decoded(partial(_RESPONSES.decode, place="the answer"), self._ask(
            "POST", "/v1/poll", _POLLS.encode(request), may_repeat=False))

    def add_blocks(self, blocks: Iterable[BlockMeta]) -> BlocksAdded:
        """Add new blocks; return the outcome of each. Idempotent. Raises as `poll`."""
        return self._decoded(partial(_ADDED.decode, place="the answer"), self._ask(
            "POST", "/v1/add_blocks", _ADDITIONS.encode(AddBlocks(tuple(blocks))), may_repeat=True))

    def status(self) -> dict[str, Any]:
        """Return the scheduler's state in numbers, as plain values. Raises as `poll`."""
        return self._decoded(lambda answer: dict(json.loads(answer)),
                             self._ask("GET", "/v1/status", None, may_repeat=True))

    def close(self) -> None:
        """Close the connections, and refuse later calls; closing again does nothing."""
        self._is_closed = True
        while self._idle:
            self._idle.pop()[-1].close()

    def _decoded(self, decode: Callable[[bytes], AnswerT], answer: bytes) -> AnswerT:
        try:
            return decode(answer)
        except (CorruptData, TypeError, ValueError) as error:
            raise NoAnswer(waited_seconds=self._timeout, reason=f"the answer cannot be decoded: {error}") from error

    def _ask(self, method: str, path: str, body: bytes | None, *, may_repeat: bool) -> bytes:
        began, pause = self._clock.monotonic(), _FIRST_PAUSE_SECONDS
        deadline = began + self._timeout
        at, tries, is_unknown, why = self._preferred, 0, False, ""
        while (left := deadline - self._clock.monotonic()) > 0:
            if self._is_closed:
                raise Closed("the scheduler's client was closed; make another client")
            address = self.addresses[at]
            # A node that cannot be reached takes only its share of the time.
            share = left / (len(self.addresses) - tries % len(self.addresses))
            status, answer = self._sent(address, method, path, body, left, share)
            if status == 200:
                self._preferred = at
                return answer
            try:
                said = dict(json.loads(answer))
            except (TypeError, ValueError):  # the answer of a proxy
                said = {}
            is_unknown = is_unknown or (said.get("changed") != "no" and body is not None)
            why = f"{address}: {said.get('error', status)}: {said.get('message', answer[:200])}"
            if not is_unknown and status in (401, 403):
                raise TurnedAway(why)
            if not is_unknown and 400 <= status < 500:
                raise InvalidInput(why)
            if is_unknown and not may_repeat:
                break
            tries += 1
            leader = str(said.get("leader", "")).rstrip("/").lower()
            at = self.addresses.index(leader) if leader in self.addresses else (at + 1) % len(self.addresses)
            if tries % len(self.addresses) == 0:
                self._clock.sleep(min(pause, max(0.0, deadline - self._clock.monotonic())))
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._preferred = at
        if is_unknown:
            raise NoAnswer(waited_seconds=round(self._clock.monotonic() - began, 3), reason=why)
        raise Busy(f"no node carried it out within {self._timeout} seconds, and nothing was changed; the last word of "
                   f"{why}; try again")

    def _sent(self, address: str, method: str, path: str, body: bytes | None, seconds: float,
              connect_seconds: float) -> tuple[int, bytes]:
        """Send the request; return status and body, or 503 or 504 without an answer."""
        try:
            connection = self._connected(address, connect_seconds)
        except (OSError, UnicodeError) as error:  # UnicodeError: the address has a name that no host can have
            return 503, json.dumps({"changed": "no", "message": repr(error)}).encode()
        is_kept = False
        try:
            connection.sock.settimeout(seconds)
            connection.request(method, path, body, self._headers)
            response = connection.getresponse()
            answer = response.status, response.read()
            is_kept = connection.sock is not None  # unless the node closes it after its answer
        except (OSError, http.client.HTTPException) as error:
            return 504, json.dumps({"message": repr(error)}).encode()
        finally:
            if is_kept:
                self._idle.append((address, self._clock.monotonic(), connection))
            else:
                connection.close()
        if self._is_closed:
            self.close()
        return answer

    def _connected(self, address: str, seconds: float) -> http.client.HTTPConnection:
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread took it
                to, used_at, connection = self._idle.pop()
                if to == address and self._clock.monotonic() - used_at < _LONGEST_IDLE_SECONDS:
                    return connection
                connection.close()
        url = urlsplit(address)
        host, port = url.hostname or "", url.port
        connection = (http.client.HTTPConnection(host, port, timeout=seconds) if url.scheme == "http" else
                      http.client.HTTPSConnection(host, port, timeout=seconds, context=self._tls))
        connection.connect()
        return connection
