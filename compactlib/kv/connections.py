# SPDX-License-Identifier: Apache-2.0
"""Connections to one database for any number of threads: lent to one at a time, kept while idle."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

from compactlib._forks import OpenState


class Closable(Protocol):
    """What all connections have in common."""

    def close(self) -> None:
        """Give the connection up."""


C = TypeVar("C", bound=Closable)

_MAX_IDLE = 16


class Connections(Generic[C]):
    """Lends a connection to one thread at a time; opens another when all are lent. No threads, no waiting.

    A connection whose block raised is closed: a transaction may be open in it, or its other end be gone.

    Args:
        state: whether the store is open; once it is not, nothing is lent.
        connect: opens one more.
        is_alive: whether one that was idle may still be lent; asks the other side nothing.
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
        """Lend a connection for the block.

        Raises:
            Closed: after `close`, or in a child process of the one that made this object.
        """
        # Before the lock: in a forked child a thread that is not there may hold it.
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
        """Close those that are idle; once the state is closed, the others as they come back."""
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
