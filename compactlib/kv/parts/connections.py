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
    """Lends a connection to one thread at a time; opens another when all are lent.

    Args:
        state: whether the store is open; once it is not, nothing is lent.
        connect: opens one more.
        is_usable: whether one that comes back may be lent again.
        is_alive: whether one that was idle may still be lent; asks the other side nothing.
    """

    def __init__(self, state: OpenState, connect: Callable[[], C], is_usable: Callable[[C], bool] = lambda _: True,
                 is_alive: Callable[[C], bool] = lambda _: True) -> None:
        self._state = state
        self._connect = connect
        self._is_usable = is_usable
        self._is_alive = is_alive
        self._idle: list[C] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lent(self, *, fresh: bool = False) -> Iterator[C]:
        """A connection for the block.

        Args:
            fresh: a new one; all that are idle are given up, since one of them was found broken.

        Raises:
            Closed: after `close`, or in a child process of the one that made this object.
        """
        if fresh:
            self._forget_idle()
        connection = self._take()
        try:
            yield connection
        finally:
            self._put_back(connection)

    def close(self) -> None:
        """Close those that are not lent now, once the state is closed; the others as they come back."""
        self._forget_idle()

    def _take(self) -> C:
        # Before the lock: in a forked child a thread that is not there may hold it.
        self._state.require()
        while True:
            with self._lock:
                self._state.require()
                if not self._idle:
                    break
                connection = self._idle.pop()
            if self._is_alive(connection):
                return connection
            connection.close()
        return self._connect()

    def _forget_idle(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _put_back(self, connection: C) -> None:
        with self._lock:
            if not self._state.is_closed and len(self._idle) < _MAX_IDLE and self._is_usable(connection):
                self._idle.append(connection)
                return
        connection.close()
