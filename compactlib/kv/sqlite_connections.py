"""Connections to one SQLite file for any number of threads, and the names of what SQLite refuses."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator

from compactlib.errors import Closed, CompactlibError, DiskFull, ReadOnly
from compactlib.kv.errors import ConnectFailed, DamagedStore, SlowDown, StoreFailed

_MAX_IDLE = 16


class Connections:
    """Lends a connection to one thread at a time; opens another when all are lent.

    A connection must not cross a fork: the child's use of it would damage the file. The object says so instead.

    Args:
        path: the file, for messages.
        connect: opens one more.
    """

    def __init__(self, path: str, connect: Callable[[], sqlite3.Connection]) -> None:
        self._path = path
        self._connect = connect
        self._idle: list[sqlite3.Connection] = []
        self._closed = False
        self._process = os.getpid()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lent(self) -> Iterator[sqlite3.Connection]:
        """A connection for the block.

        Raises:
            Closed: after `close`, or in a child process of the one that made this object.
        """
        connection = self._take()
        try:
            yield connection
        finally:
            self._put_back(connection)

    def require_open(self) -> None:
        """Check that connections are still lent.

        Raises:
            Closed: see `lent`.
        """
        if self._closed:
            raise Closed(f"the store {self._path} was closed; open it again")
        if self._process != os.getpid():
            raise Closed(f"the store {self._path} was opened by process {self._process}, this is its child "
                         f"{os.getpid()}; open it anew here")

    def close(self) -> None:
        """Close those that are not lent now, and the others as they come back; closing again does nothing."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _take(self) -> sqlite3.Connection:
        with self._lock:
            self.require_open()
            if self._idle:
                return self._idle.pop()
        return self._connect()

    def _put_back(self, connection: sqlite3.Connection) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < _MAX_IDLE:
                self._idle.append(connection)
                return
        connection.close()


@contextlib.contextmanager
def named_errors(operation: str, path: str) -> Iterator[None]:
    """Turn what SQLite raises in the block into errors of the library."""
    try:
        yield
    except sqlite3.Error as error:
        raise named(error, operation, path) from error


def named(error: sqlite3.Error, operation: str, path: str) -> CompactlibError:
    """The library's error for one of SQLite's."""
    match primary_code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return SlowDown(operation=operation, detail=f"{path} is locked by another writer ({error})")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return DamagedStore(path=path, detail=str(error))
        case sqlite3.SQLITE_FULL:
            return DiskFull(operation=operation, path=path, errno=errno.ENOSPC)
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return ReadOnly(operation=operation, path=path, errno=errno.EROFS)
        case sqlite3.SQLITE_CANTOPEN:
            return ConnectFailed(operation=operation, path=path, detail=str(error), errno=errno.ENOENT)
    return StoreFailed(operation=operation, path=path, detail=str(error))


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF
