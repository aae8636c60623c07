# SPDX-License-Identifier: Apache-2.0
"""`SchedulerClient`: a worker's transport over HTTP, which follows the leader (extra `compactlib[http]`)."""

from __future__ import annotations

import json
import random
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

import attrs

from compactlib._arguments import require_seconds
from compactlib._closing import Closing
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, CompactlibError, InvalidInput, MissingDependency, Unsupported
from compactlib.hosting.errors import NoAnswer
from compactlib.hosting.http.wire import JSON, RECORD, decode, encode
from compactlib.runtime.doors import TurnedAway, require_guarded
from compactlib.runtime.open_state import OpenState
from compactlib.scheduler import AddBlocks, BlockMeta, PollRequest
from compactlib.scheduler.model.poll import PollResponse
from compactlib.scheduler.model.update import BlocksAdded
from compactlib.scheduler.persistence.codec import Message

try:
    import httpcore
except ImportError:
    raise MissingDependency(package="httpcore", extra="http", purpose="the client of a scheduler over HTTP") from None

MAX_ANSWER_BYTES = 64 << 20
_MAX_ANSWER_VALUES = MAX_ANSWER_BYTES // 8
"""As many as so long an answer has: what was carried out cannot be asked for in parts."""
_PATHS = ("/v1/poll", "/v1/add_blocks", "/v1/status")
_FIRST_PAUSE_SECONDS = 0.05
_LONGEST_PAUSE_SECONDS = 1.0
_SHORTEST_SECONDS = 0.001
_MAX_CONNECTIONS = 100
_LONGEST_IDLE_SECONDS = 5.0
"""What lies between may have forgotten a connection that was idle for longer, without a word to either side."""
_NOT_TAKEN = frozenset({400, 404, 405, 411, 413, 415, 431})
AnswerT = TypeVar("AnswerT", bound=Message)


@attrs.frozen
class _Refusal:
    """A request that was not answered as it should be.

    Attributes:
        why: for people.
        is_unknown: whether it may have been carried out.
        leader: where to ask instead, if that was said.
    """

    why: str
    is_unknown: bool = False
    leader: str = ""


class SchedulerClient(Closing):
    """A `Transport` to a scheduler over HTTP. Any thread may call any method.

    It asks the address that answered last, goes where a node says that its leader is, if it knows that address, and
    tries the others in turn, until `timeout_seconds` have passed; a node that cannot be reached takes its share of them
    and no more. A poll that may have been carried out is not
    repeated: the worker says what is still true with its next one. Blocks are added again until there is an answer,
    which says of those that were added without one that they are `duplicate`.

    Args:
        addresses: of all nodes, as `https://host:port`; `http://` for loopback alone.
        token: a bearer token, that says who asks.
        tls: for `https`; loads the authority's certificate, and this client's if the server asks for one. Default:
            the authorities that the system trusts.
        insecure: `http` to other addresses too: whoever reads along has the token.
        compact: whether messages go as records, which are half as long as JSON; both sides are then of one release.
        timeout_seconds: for a call, all its tries together.
        clock: for the pauses between two rounds of tries.
        rng: spreads them.

    Raises:
        InvalidInput: there is no address, or it is none, or would send what is said to strangers; the token is none.
    """

    def __init__(self, addresses: Sequence[str], *, token: str | None = None, tls: ssl.SSLContext | None = None,
                 insecure: bool = False, compact: bool = False, timeout_seconds: float = 30.0,
                 clock: Clock | None = None, rng: random.Random | None = None) -> None:
        if token is not None and not _is_token(token):
            # Not shown here, as an error of the connection would.
            raise InvalidInput("the token is no text, or has a space or a line's end around it, or other characters "
                               "than printable ones of ASCII; give it as the server has it")
        if not addresses:
            raise InvalidInput("there are no addresses; give at least one")
        require_seconds("timeout_seconds", timeout_seconds, above_zero=True)
        self.addresses: tuple[str, ...] = tuple(_checked(each, insecure) for each in addresses)
        self._preferred = 0
        self._timeout = timeout_seconds
        self._media = RECORD if compact else JSON
        self._clock: Clock = SystemClock() if clock is None else clock
        self._rng = rng or random.Random()
        self._headers: dict[bytes | str, bytes | str] = {
            "accept": self._media, "accept-encoding": "identity", "content-type": self._media}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"
        if tls is None:
            # Reading the system's authorities takes a while.
            tls = (ssl.create_default_context() if any(each.startswith("https") for each in self.addresses)
                   else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
        self._network = _Network(self._clock)
        self._http = httpcore.ConnectionPool(tls, max_connections=_MAX_CONNECTIONS,
                                             keepalive_expiry=_LONGEST_IDLE_SECONDS, network_backend=self._network)
        self._state = OpenState("the scheduler's client")
        self._urls = {each + path: httpcore.URL(each + path) for each in self.addresses for path in _PATHS}

    def poll(self, request: PollRequest) -> PollResponse:
        """See `Transport.poll`.

        Raises:
            InvalidInput: the scheduler does not take the request.
            TurnedAway: it does not know who asks.
            Busy: no node would carry it out in time; nothing was changed.
            NoAnswer: it may have been carried out. Poll again.
            Closed: the client was closed.
        """
        return self._ask("/v1/poll", request, PollResponse, may_repeat=False)

    def add_blocks(self, blocks: Iterable[BlockMeta]) -> BlocksAdded:
        """New blocks: into the metadata index and the compaction queue.

        Raises:
            InvalidInput: the scheduler does not take them.
            TurnedAway: it does not know who asks.
            Busy: no node would carry it out in time; nothing was changed.
            NoAnswer: they may have been added. Add them again.
            Closed: the client was closed.
        """
        given = tuple(blocks)
        return self._ask("/v1/add_blocks", AddBlocks(given), BlocksAdded, may_repeat=True)

    def status(self) -> dict[str, Any]:
        """How the scheduler stands, the fields of `SchedulerStatus`.

        Raises:
            TurnedAway: it does not know who asks.
            Busy: no node said so in time, or in words that can be read. Looking changes nothing: ask again.
            Closed: the client was closed.
        """
        answer = self._answer("GET", "/v1/status", None, may_repeat=True)
        try:
            status = json.loads(answer)
            if not isinstance(status, dict):
                raise TypeError(f"{answer!r:.100} is no status")
        except (TypeError, ValueError, RecursionError) as error:
            raise Busy(f"what came cannot be read: {error}; ask again") from error
        return status

    def close(self) -> None:
        """Close the connections, and end the calls that wait; closing again does nothing."""
        self._state.close()
        if not self._state.is_inherited:
            self._http.close()

    def __repr__(self) -> str:
        return f"SchedulerClient({', '.join(self.addresses)})"

    def _ask(self, path: str, message: Message, kind: type[AnswerT], *, may_repeat: bool) -> AnswerT:
        answer = self._answer("POST", path, encode(message, self._media), may_repeat=may_repeat)
        try:
            return decode(answer, self._media, kind, max_values=_MAX_ANSWER_VALUES)
        except (InvalidInput, Unsupported) as error:
            # Whoever answers so may have carried it out.
            raise NoAnswer(waited_seconds=self._timeout, reason=f"what came cannot be read: {error}") from error

    def _answer(self, method: str, path: str, body: bytes | None, *, may_repeat: bool) -> bytes:
        deadline, pause = self._clock.monotonic() + self._timeout, _FIRST_PAUSE_SECONDS
        at, tries, is_unknown, why = self._preferred, 0, False, ""
        while (left := deadline - self._clock.monotonic()) > 0:
            if self._state.is_closed and is_unknown:
                break
            self._state.require()
            share = 1 / (len(self.addresses) - tries % len(self.addresses))
            try:
                answer = self._try(method, self.addresses[at] + path, body, deadline, left * share)
            except CompactlibError as error:
                if is_unknown:
                    # What is refused now may have been carried out before.
                    raise NoAnswer(waited_seconds=self._timeout, reason=f"{why}; then {self.addresses[at]}: {error}"
                                   ) from error
                raise
            if isinstance(answer, bytes):
                self._preferred = at
                return answer
            # A question changes nothing, whatever became of it.
            is_unknown = is_unknown or (answer.is_unknown and body is not None)
            why = f"{self.addresses[at]}: {answer.why}"
            tries += 1
            at = (self.addresses.index(answer.leader) if answer.leader in self.addresses
                  else (at + 1) % len(self.addresses))
            if is_unknown and not may_repeat:
                break
            if tries % len(self.addresses) == 0:
                left = max(deadline - self._clock.monotonic(), 0.0)
                self._clock.sleep(min(pause * (0.5 + self._rng.random()), left))
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        self._preferred = at
        if is_unknown:
            raise NoAnswer(waited_seconds=self._timeout, reason=why)
        raise Busy(f"no node carried it out within {self._timeout} seconds, and nothing was changed; the last word of "
                   f"{why}; try again")

    def _try(self, method: str, url: str, body: bytes | None, deadline: float,
             connect_seconds: float) -> bytes | _Refusal:
        self._network.deadline, self._network.connect_seconds = deadline, connect_seconds
        seconds = max(deadline - self._clock.monotonic(), _SHORTEST_SECONDS)
        try:
            with self._http.stream(method, self._urls[url], headers=self._headers, content=body,
                                   extensions={"timeout": {"pool": seconds}}) as response:
                answer = bytearray()
                for part in response.iter_stream():
                    answer += part
                    if len(answer) > MAX_ANSWER_BYTES:
                        return _Refusal(f"{len(answer):,} bytes of an answer, and no end", is_unknown=True)
        except (httpcore.ConnectError, httpcore.ConnectTimeout, httpcore.PoolTimeout) as error:
            return _Refusal(f"it cannot be reached: {error!r}")
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            return _Refusal(f"the connection broke: {error!r}", is_unknown=True)
        finally:
            if self._state.is_closed:
                # Meanwhile; a connection that was made since is closed too.
                self._http.close()
        return bytes(answer) if response.status == 200 else _refusal(response.status, bytes(answer))


class _Network(httpcore.SyncBackend, threading.local):
    """Makes connections whose waits all end with the call of the thread that waits, however little comes at a time.

    Args:
        clock: by which calls end.
    """

    deadline: float
    connect_seconds: float

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def seconds_left(self, late: type[Exception], until: float | None = None) -> float:
        """Until the end of this thread's call, or until then; raises `late` once it is over."""
        seconds = (self.deadline if until is None else until) - self._clock.monotonic()
        if seconds <= 0:
            raise late("the time of the call is over")
        return seconds

    def connect_tcp(self, host: str, port: int, timeout: float | None = None,
                    *options: Any, **more: Any) -> httpcore.NetworkStream:
        """See `httpcore.NetworkBackend`. Each address of the host gets its share of what is left."""
        until = min(self._clock.monotonic() + self.connect_seconds, self.deadline)
        try:
            found = [socket.getnameinfo(address, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV)[0]
                     for *_, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except OSError as error:
            raise httpcore.ConnectError(str(error)) from error
        while True:
            seconds = self.seconds_left(httpcore.ConnectTimeout, until) / len(found)
            try:
                return _Stream(super().connect_tcp(found.pop(0), port, seconds, *options, **more), self, until)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                if not found:
                    raise


class _Stream(httpcore.NetworkStream):
    """A connection. What reads or writes a little at a time does not begin its wait anew."""

    def __init__(self, made: httpcore.NetworkStream, network: _Network, connected_until: float) -> None:
        self._made = made
        self._network = network
        self._connected_until = connected_until
        self._socket: socket.socket = made.get_extra_info("socket")

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        with self._in_time(httpcore.ReadTimeout, httpcore.ReadError):
            return self._socket.recv(max_bytes)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        left = memoryview(buffer)
        while left:
            with self._in_time(httpcore.WriteTimeout, httpcore.WriteError):
                left = left[self._socket.send(left):]

    def close(self) -> None:
        # Closing alone wakes no thread that waits for the other side.
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
        self._made.close()

    def start_tls(self, ssl_context: ssl.SSLContext, server_hostname: str | None = None,
                  timeout: float | None = None) -> httpcore.NetworkStream:
        try:
            seconds = self._network.seconds_left(httpcore.ConnectTimeout, self._connected_until)
        except httpcore.ConnectTimeout:
            self.close()
            raise
        return _Stream(self._made.start_tls(ssl_context, server_hostname, seconds), self._network,
                       self._connected_until)

    def get_extra_info(self, info: str) -> Any:
        return self._made.get_extra_info(info)

    @contextmanager
    def _in_time(self, late: type[Exception], broken: type[Exception]) -> Iterator[None]:
        try:
            self._socket.settimeout(self._network.seconds_left(late))
            yield
        except TimeoutError as error:
            raise late(str(error)) from error
        except (OSError, ValueError) as error:
            # ValueError: of TLS, if it was closed a moment ago.
            raise broken(str(error)) from error


def _refusal(status: int, answer: bytes) -> _Refusal:
    """What an answer says that is none; raises what trying elsewhere does not mend."""
    try:
        told = json.loads(answer)
        name, why, changed = str(told["error"]), str(told["message"]), told["changed"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return _Refusal(f"it answered {status}, which is no scheduler's answer: {answer!r:.200}", is_unknown=True)
    if status in (401, 403):
        raise TurnedAway(why)
    if status in _NOT_TAKEN:
        raise (Unsupported if name == Unsupported.__name__ else InvalidInput)(why)
    # As `_checked` writes addresses: hosts are the same in small letters.
    leader = str(told.get("leader", "")).rstrip("/").lower()
    return _Refusal(f"{name}: {why}", is_unknown=changed != "no", leader=leader)


def _is_token(given: object) -> bool:
    return isinstance(given, str) and given.isascii() and given.isprintable() and given.strip() == given != ""


def _checked(address: str, insecure: bool) -> str:
    try:
        url = urlsplit(address)
        host, port = url.hostname or "", url.port
        # The host alone: a port behind it would be taken for letters of its last label.
        named = f"[{host}]" if ":" in host else host.encode("idna").decode()
        is_one = (url.scheme in ("http", "https") and host and port != 0 and url.username is None
                  and not url.path.strip("/") and not url.query and not url.fragment)
    except ValueError:
        is_one = False
    if not is_one:
        raise InvalidInput(f"{address!r:.200} is no address of a scheduler; give https://host:port")
    require_guarded("the scheduler's client", host, guard="https://", is_guarded=url.scheme == "https",
                    insecure=insecure)
    return f"{url.scheme}://{named}" + ("" if port is None else f":{port}")
