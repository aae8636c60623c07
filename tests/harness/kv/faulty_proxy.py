# SPDX-License-Identifier: Apache-2.0
"""A proxy on loopback that loses requests or answers, keeps them back, or refuses: faults between client and server."""

from __future__ import annotations

import contextlib
import enum
import http.client
import socket
import threading
import zlib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit


class Fault(enum.Enum):
    """What happens to a request."""

    LOSE_REQUEST = "the connection breaks before the server sees it"
    LOSE_ANSWER = "the server carries it out, then the connection breaks"
    KEEP_ANSWER = "the server carries it out, and the answer does not come"
    LOSE_AND_WAIT = "the server never sees it, and no answer comes"
    GARBLE = "the server carries it out, and its answer is cut"
    THROTTLE = "the server is too busy"
    REPEAT = "the server carries it out twice; the second answer comes"
    FAIL = "an error inside of the server, after it has carried it out"


Refusal = tuple[int, str, bytes]
"""Status, content type and body of an answer that the proxy makes up."""


class FaultyProxy:
    """In front of a server, until it is closed.

    Args:
        target: the server's address.
        throttled: the server's own answer when it is too busy.
        failed: its answer when it fails inside.
    """

    def __init__(self, target: str, *, throttled: Refusal, failed: Refusal) -> None:
        self.choose: Callable[[bytes], Fault | None] = lambda body: None
        self.checksum: Callable[[bytes], str | None] = lambda data: str(zlib.crc32(data))  # as DynamoDB sends
        self.requests = 0
        self._target = urlsplit(target).netloc
        self.made_up: dict[Fault | None, Refusal] = {Fault.THROTTLE: throttled, Fault.FAIL: failed}
        self.released = threading.Event()
        self.connections: set[socket.socket] = set()
        self._handled = threading.Condition()
        self._at_work = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens, on 127.0.0.1."""
        return self._server.server_port

    @property
    def address(self) -> str:
        """The same as an address."""
        return f"http://127.0.0.1:{self.port}"

    def every(self, fault: Fault | None) -> None:
        """All requests from now on meet this fault."""
        self.choose = lambda body: fault

    def settle(self) -> None:
        """Wait until at least one request has come, and the server has carried out all that were passed on."""
        with self._handled:
            self._handled.wait_for(lambda: self.requests and not self._at_work)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                proxy.connections.add(self.connection)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                fault = proxy.choose(body)
                lost = fault in (Fault.LOSE_REQUEST, Fault.LOSE_AND_WAIT, Fault.THROTTLE)
                if fault is Fault.REPEAT:
                    proxy.carry_out((self.path, self.headers, body))
                answer = proxy.carry_out(None if lost else (self.path, self.headers, body))
                if fault in (Fault.LOSE_REQUEST, Fault.LOSE_AND_WAIT):
                    self.break_off(wait=fault is Fault.LOSE_AND_WAIT)
                    return
                if fault in (Fault.LOSE_ANSWER, Fault.KEEP_ANSWER):
                    self.break_off(wait=fault is Fault.KEEP_ANSWER)
                    return
                status, kind, data = proxy.made_up.get(fault, answer)
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                checksum = proxy.checksum(data)
                if checksum is not None:
                    self.send_header("x-amz-crc32", checksum)
                self.end_headers()
                self.wfile.write(data[:len(data) // 2] if fault is Fault.GARBLE else data)
                self.close_connection = fault is Fault.GARBLE

            def break_off(self, *, wait: bool) -> None:
                self.close_connection = True
                if wait:
                    proxy.released.wait()

            def log_message(self, *_: Any) -> None:
                pass

        return Handler

    def carry_out(self, request: tuple[str, Any, bytes] | None) -> Refusal:
        """Count a request, and pass it on to the server unless it is `None`; the server's answer."""
        with self._handled:
            self.requests += 1
            self._at_work += 1
        try:
            return (500, "text/plain", b"") if request is None else self._forward(*request)
        finally:
            with self._handled:
                self._at_work -= 1
                self._handled.notify_all()

    def _forward(self, path: str, headers: Any, body: bytes) -> Refusal:
        connection = http.client.HTTPConnection(self._target)
        try:
            kept = {name: value for name, value in headers.items() if name.lower() != "connection"}
            connection.request("POST", path, body, kept)
            answer = connection.getresponse()
            return answer.status, answer.headers["Content-Type"], answer.read()
        finally:
            connection.close()
