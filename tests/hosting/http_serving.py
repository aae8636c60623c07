# SPDX-License-Identifier: Apache-2.0
"""A scheduler's HTTP server in a thread of its own, for tests that ask it over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

from compactlib.hosting.http.application import SchedulerApplication, Scope
from compactlib.hosting.http.server import HttpServer
from compactlib.runtime import RecordingObserver


class Serving:
    """What listens.

    Attributes:
        address: where.
        url: the same as an address of HTTP.
        server: the service; to be touched in its loop alone.
        observer: what the server told.
    """

    def __init__(self, application: SchedulerApplication, **options: Any) -> None:
        self.observer = RecordingObserver()
        self._application, self._options = application, options
        self._stop: asyncio.Event | None = None
        self._opened = threading.Event()
        self._failures: list[BaseException] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._opened.wait()
        self._raise()

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._failures.append(error)
        finally:
            self._opened.set()

    async def _main(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.server = HttpServer(self._application, **{"listen": ("127.0.0.1", 0), "observer": self.observer,
                                                       **self._options})
        async with self.server:
            self.address = self.server.address
            scheme = "https" if self._options.get("tls") else "http"
            self.url = f"{scheme}://{'localhost' if scheme == 'https' else '127.0.0.1'}:{self.address[1]}"
            self._opened.set()
            await self._stop.wait()

    def stop(self) -> None:
        """Listen no more."""
        assert self._stop is not None
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._raise()

    def _raise(self) -> None:
        for error in self._failures:
            self._thread.join()
            raise error

    def told(self, part: str) -> str:
        """Wait until the server has told of the end of a connection for this reason."""
        while True:
            for name, fields in list(self.observer.events):
                if name == "scheduler_line_ended" and part in str(fields["error"]):
                    return str(fields["error"])
            threading.Event().wait(0.002)

    def connect(self) -> socket.socket:
        """A connection that has said nothing yet."""
        return socket.create_connection(self.address)

    def exchange(self, request: bytes) -> bytes:
        """What is answered to these bytes until the server ends the connection."""
        with self.connect() as line:
            line.sendall(request)
            return received(line)


def received(line: socket.socket) -> bytes:
    """All that comes until the end."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := line.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


@contextlib.contextmanager
def served(application: SchedulerApplication, **options: Any) -> Iterator[Serving]:
    """A server, until the block is left."""
    serving = Serving(application, **options)
    try:
        yield serving
    finally:
        serving.stop()


def answered(application: SchedulerApplication, method: str = "GET", path: str = "/v1/status", body: bytes = b"", *,
             client: str = "127.0.0.1", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """The answer to one request as an ASGI server would hand it over: status, headers, body."""
    sent: list[dict[str, Any]] = []
    given = {"host": "127.0.0.1:80", **({"content-length": str(len(body))} if body else {}), **headers}
    scope: Scope = {"type": "http", "method": method, "path": path, "query_string": b"", "client": (client, 5),
                    "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    asyncio.run(application(scope, receive, send))
    head, rest = sent
    return head["status"], {name.decode(): value.decode() for name, value in head["headers"]}, rest["body"]
