# SPDX-License-Identifier: Apache-2.0
"""A proxy on loopback before an S3 server that refuses, breaks off in the middle, or loses answers, as it is told.

`tests.harness.kv.faulty_proxy` does the same for services that know POST only; here the method and the key say which
request is meant, and an answer is cut in its body, after headers that promise all of it.
"""

from __future__ import annotations

import enum
import http.client
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit


class Fault(enum.Enum):
    """What happens to a request."""

    REFUSE = "the server says 403 and does nothing"
    FAIL = "the server says 500 and does nothing"
    CUT_REQUEST = "the connection breaks while the request is being read"
    CUT_ANSWER = "the server carries it out; its answer breaks off in the middle"
    LOSE_ANSWER = "the server carries it out; nothing comes back"


Choose = Callable[[str, str], Fault | None]
"""What happens to a request, by its method and its path (`/bucket/key`)."""


class S3Proxy:
    """In front of an S3 server, until it is closed.

    Args:
        target: the server's address.
    """

    def __init__(self, target: str) -> None:
        self.choose: Choose = lambda method, path: None
        self.met: list[tuple[Fault, str, str]] = []
        self._target = urlsplit(target).netloc
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def after(self, passed: int, fault: Fault, method: str, part_of_key: str) -> None:
        """One such request meets the fault, after so many that pass."""
        seen = iter(range(passed + 1))
        self.choose = lambda asked, path: (
            fault if asked == method and part_of_key in path and next(seen, None) == passed else None)

    def forward(self, method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        """The server's own answer."""
        connection = http.client.HTTPConnection(self._target)
        try:
            kept = {name: value for name, value in headers.items() if name.lower() != "connection"}
            connection.request(method, path, body, kept)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                fault = proxy.choose(self.command, unquote(self.path))
                if fault is not None:
                    proxy.met.append((fault, self.command, unquote(self.path)))
                length = int(self.headers.get("Content-Length", 0))
                if fault is Fault.CUT_REQUEST:
                    self.rfile.read(length // 2)
                    self.close_connection = True
                    return
                body = self.rfile.read(length)
                if fault in (Fault.REFUSE, Fault.FAIL):
                    self.refuse(fault)
                    return
                status, headers, data = proxy.forward(self.command, self.path, self.headers, body)
                if fault is Fault.LOSE_ANSWER:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in ("transfer-encoding", "connection", "content-length", "server", "date"):
                        self.send_header(name, value)
                size = len(data)
                if self.command == "HEAD":
                    size = int(next((value for name, value in headers if name.lower() == "content-length"), "0"))
                self.send_header("Content-Length", str(size))
                self.end_headers()
                self.wfile.write(data[:len(data) // 2] if fault is Fault.CUT_ANSWER else data)
                self.close_connection = fault is Fault.CUT_ANSWER

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = answer  # noqa: N815

            def refuse(self, fault: Fault) -> None:
                status, code = (403, "AccessDenied") if fault is Fault.REFUSE else (500, "InternalError")
                data = f"<Error><Code>{code}</Code><Message>told</Message></Error>".encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/xml")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data if self.command != "HEAD" else b"")

            def log_message(self, *_: Any) -> None:
                pass

        return Handler
