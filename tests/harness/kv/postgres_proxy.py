# SPDX-License-Identifier: Apache-2.0
"""A proxy of PostgreSQL for psycopg, on a Unix socket: breaks the connection at a chosen word of the client."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class PostgresProxy:
    """A proxy of a server, until it is closed.

    Attributes:
        word: break the connection when the client sends this word; `None`: never.
        times: the number of connections to break.
        carried_out: whether the server receives the message with the word, and responds before the connection breaks.
        interrupts: the word sends Ctrl-C to this process instead.
    """

    def __init__(self, uri: str, folder: Path) -> None:
        found = conninfo_to_dict(uri)
        host, port = str(found["host"]), int(found.get("port") or 5432)
        self.word: bytes | None = None
        self.times = 1
        self.carried_out = False
        self.interrupts = False
        self.conninfo = make_conninfo(uri, host=str(folder), port=5432)
        self._target = f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / ".s.PGSQL.5432"))
        self._listener.listen()
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        for each in (self._listener, *self._sockets):
            _break(each)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX if isinstance(self._target, str) else socket.AF_INET)
            server.connect(self._target)
            self._sockets += [client, server]
            threading.Thread(target=self._to_client, args=(server, client), daemon=True).start()
            threading.Thread(target=self._to_server, args=(client, server), daemon=True).start()

    def _to_server(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                if self.word is not None and self.word in data:
                    self.times -= 1
                    if self.times <= 0:
                        self.word = None
                    if self.interrupts:
                        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                        server.sendall(data)
                        continue
                    if self.carried_out:
                        # The server sends its whole response to the closed connection.
                        client.shutdown(socket.SHUT_WR)
                        server.sendall(data)
                        server.shutdown(socket.SHUT_WR)
                        return
                    break
                server.sendall(data)
        _break(client)
        _break(server)

    def _to_client(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                client.sendall(data)
        _break(client)


def _break(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
