# SPDX-License-Identifier: Apache-2.0
"""`SqlStore`: the base class of the stores in SQL databases: a pool of connections, and writes that share a commit.

Threads that write at the same time share a transaction of the database, and so a sync. The first thread leads: it
commits the queued writes while their threads wait. Writes that arrive during the commit are the next batch, led by a
waiting thread. A thread waits at most for the present batch and its own.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeAlias, TypeVar

from compactlib.errors import CompactlibError
from compactlib.kv.errors import OutcomeUnknown
from compactlib.kv.store import Changes, Conditions, KVLimits, KVStore

_MAX_IDLE = 16


class Connection(Protocol):
    """A connection to a database."""

    def close(self) -> None:
        """Close the connection; closing again does nothing."""


C = TypeVar("C", bound=Connection)

Transaction: TypeAlias = tuple[Conditions, Changes]
"""The arguments of a `transact`."""


class _Write:
    """A queued write.

    Attributes:
        batch: the writes of the batch that this write leads.
        failure: the exception that ended that batch.
        is_done: whether it was carried out, or failed with `error`.
    """

    def __init__(self, transaction: Transaction) -> None:
        self.transaction = transaction
        self.batch: list[_Write] = []
        self.failure: BaseException | None = None
        self.is_done = False
        self.error: Exception | None = None


class SqlStore(KVStore, Generic[C]):
    """A `KVStore` in an SQL database.

    A back-end implements `_get_many`, `_page`, `_connect`, `_commit` and `_named`. If the thread that leads a batch is
    interrupted, the other threads of the batch get `OutcomeUnknown`.
    """

    def __init__(self, name: str, limits: KVLimits, *, page_size: int) -> None:
        super().__init__(name, limits, page_size=page_size)
        self._idle: list[C] = []  # each append and pop is one step for all threads
        self._queue: list[_Write] = []
        self._leader: _Write | None = None
        self._changed = threading.Condition()

    # ---- for a back-end to implement

    def _connect(self) -> C:
        """Open a connection."""
        raise NotImplementedError("a store in an SQL database opens connections")

    def _commit(self, batch: Sequence[Transaction]) -> Sequence[Exception | None]:
        """Carry out a batch, in order, in one transaction of the database; called in one thread at a time.

        An exception is the error of every write of the batch.

        Returns:
            For each write the error of its failed condition, or `None`.
        """
        raise NotImplementedError("a store in an SQL database commits batches")

    def _named(self, error: BaseException, operation: str, connection: C | None) -> CompactlibError | None:
        """Return the library's error for an exception of the database; `None` for any other exception.

        Args:
            error: raised by the use of a connection, or by `_connect`.
            operation: the name of the operation in the error.
            connection: the connection in use; `None` if `_connect` failed.
        """
        raise NotImplementedError("a store in an SQL database names its errors")

    # ---- connections

    @contextlib.contextmanager
    def _lent(self, operation: str) -> Iterator[C]:
        """Provide a connection for the block, a new connection if all are in use. Never waits.

        After an exception in the block the connection is closed: a transaction may be open, or the server be
        unreachable. The database's exceptions become errors of the library.
        """
        self._require_open()
        connection: C | None = None
        try:
            with contextlib.suppress(IndexError):
                connection = self._idle.pop()
            if connection is None:
                connection = self._connect()
            yield connection
        except BaseException as error:
            try:
                named = self._named(error, "connect" if connection is None else operation, connection)
            finally:
                if connection is not None:
                    connection.close()
            if named is None:
                raise
            raise named from error
        if len(self._idle) >= _MAX_IDLE:
            connection.close()
            return
        self._idle.append(connection)
        if self._is_closed:
            self._drop_idle()

    def _close(self) -> None:
        # Connections in use are closed after use.
        self._drop_idle()

    def _drop_idle(self) -> None:
        """Close the idle connections."""
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread took the last connection
                self._idle.pop().close()

    # ---- writes that share a commit

    def _transact(self, conditions: Conditions, changes: Changes) -> None:
        mine = _Write((conditions, changes))
        try:
            try:
                if self._leads(mine):
                    self._lead(mine)
            finally:
                self._end(mine)
        finally:
            self._end(mine)  # again, after an interrupt of the first call, since other threads wait
        if mine.error is not None:
            raise mine.error

    def _leads(self, mine: _Write) -> bool:
        with self._changed:
            self._queue.append(mine)
            while self._leader is not None and not mine.is_done:
                self._changed.wait()
            if mine.is_done:
                return False
            self._leader = mine
            mine.batch, self._queue = self._queue, []
            return True

    def _lead(self, mine: _Write) -> None:
        try:
            answers = self._commit([write.transaction for write in mine.batch])
            for write, error in zip(mine.batch, answers, strict=True):
                write.error = error
                write.is_done = True
        except Exception as error:
            mine.failure = mine.error = error
            mine.is_done = True
        except BaseException as interrupt:
            mine.failure = interrupt
            raise

    def _end(self, mine: _Write) -> None:
        """Set the outcome of each write of the batch, and let another thread lead. Idempotent."""
        if self._leader is not mine and mine.is_done:
            return
        with self._changed:
            if mine in self._queue:
                self._queue.remove(mine)
            for write in mine.batch:
                if not write.is_done:
                    write.error = _for_another(mine.failure)
                    write.is_done = True
            if self._leader is mine:
                self._changed.notify_all()
                self._leader = None


def _for_another(error: BaseException | None) -> Exception:
    """Return a copy of an error for another thread, since each `raise` adds a traceback."""
    if isinstance(error, CompactlibError):
        return copy.copy(error)
    return OutcomeUnknown(operation="write", path="the store", detail=f"the thread that carried it out together with "
                          f"its own ended in {type(error).__name__}: {error}")
