# SPDX-License-Identifier: Apache-2.0
"""`Connections`: a pool of connections to a database, for any number of threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from compactlib._forks import OpenState


class Closable(Protocol):
    """A connection."""

    def close(self) -> None:
        """Close the connection."""


C = TypeVar("C", bound=Closable)

_MAX_IDLE = 16


class Connections(Generic[C]):
    """A pool of connections, each used by one thread at a time; opens another if all are in use. Never waits.

    A connection is closed after an exception in its block: a transaction may be open, or the server be unreachable.

    Args:
        state: of the store; a closed store gets no connection.
        connect: opens a connection.
        is_alive: returns whether an idle connection can be used, without a request.
    """

    def __init__(self, state: OpenState, connect: Callable[[], C], is_alive: Callable[[C], bool] = lambda _: True
                 ) -> None:
        self._state = state
        self._connect = connect
        self._is_alive = is_alive
        self._idle: list[C] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lent(self) -> Iterator[C]:
        """Provide a connection for the block.

        Raises:
            Closed: the store was closed, or this process is a forked child.
        """
        # Before the lock, which a thread of the parent may hold in a forked child.
        self._state.require()
        connection = self._taken() or self._connect()
        try:
            yield connection
            with self._lock:
                if not self._state.is_closed and len(self._idle) < _MAX_IDLE:
                    self._idle.append(connection)
                    return
        except BaseException:
            connection.close()
            raise
        connection.close()

    def forget(self) -> None:
        """Close the idle connections. Those in use are closed after use if the store is closed."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _taken(self) -> C | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if self._is_alive(connection):
                return connection
            connection.close()
