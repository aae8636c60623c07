# SPDX-License-Identifier: Apache-2.0
"""`SqlStore`: the base class of the stores in SQL databases: a pool of connections, and writes that share a commit.

Threads that write at the same time share a transaction of the database, and so a sync. Writes that arrive during a
commit are the next batch, and the thread of its first write commits it. A thread waits at most for the present batch
and its own.
"""

from __future__ import annotations

import contextlib
import copy
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Generic, TypeAlias, TypeVar

import attrs

from compactlib._closing import Closable
from compactlib.errors import CompactlibError
from compactlib.guard import Guard
from compactlib.kv.errors import OutcomeUnknown, PredicateFailed
from compactlib.kv.store import Address, Changes, Conditions, KVLimits, KVStore, holds

_MAX_IDLE = 16
PAGE_BYTES = 4 << 20
"""The bytes that end a page of a scan."""

C = TypeVar("C", bound=Closable)
"""A connection to the database."""

Transaction: TypeAlias = tuple[Conditions, Changes]
"""The arguments of a `transact`."""

Row: TypeAlias = tuple[bytes, bytes, bytes, int]
"""Partition, key, value and version of a put. A version is 63 random bits, which no other put has."""


@attrs.define(eq=False)
class _Batch:
    """Writes that share a commit. More may join until it begins; `answers` and `failure` are final once it has ended.

    Attributes:
        answers: for each write the error of its failed condition, or `None`; empty before the commit.
        failure: the exception that ended the thread of the first write.
    """

    writes: list[Transaction] = attrs.field(factory=list)
    answers: Sequence[Exception | None] = ()
    failure: BaseException | None = None
    ended: threading.Event = attrs.field(factory=threading.Event)


class SqlStore(KVStore, Generic[C]):
    """A `KVStore` in an SQL database, whose predicates are the versions of puts.

    A back-end implements `_get_many`, `_page`, `_connect`, `_commit`, `_versions`, `_write` and `_named`. If the thread
    that commits a batch is interrupted, the other threads of the batch get `OutcomeUnknown`.

    `close` waits up to half a minute for calls of other threads: after it, none changes the database.
    """

    def __init__(self, name: str, limits: KVLimits, *, page_size: int) -> None:
        super().__init__(name, limits, page_size=page_size)
        self._guard = Guard(name)
        self._idle: list[C] = []  # each append and pop is one step for all threads
        self._rng = random.SystemRandom()  # a copied process image draws other versions
        self._batch = _Batch()  # that writes join
        self._joining = threading.Lock()
        self._committing = threading.Lock()

    # ---- for a back-end to implement

    def _connect(self) -> C:
        """Open a connection."""
        raise NotImplementedError("a store in an SQL database opens connections")

    def _commit(self, batch: Sequence[Transaction]) -> Sequence[Exception | None]:
        """Call `_carry_out` in one transaction of the database, and return its result; one thread at a time.

        An exception is the error of every write of the batch.
        """
        raise NotImplementedError("a store in an SQL database commits batches")

    def _versions(self, connection: C, cells: Sequence[Address]) -> Sequence[int | None]:
        """Return the version of each cell, at least one; `None` for an absent key."""
        raise NotImplementedError("a store in an SQL database reads versions")

    def _write(self, connection: C, puts: Sequence[Row], deletes: Sequence[Address]) -> None:
        """Put and delete cells, in any order, since each occurs once."""
        raise NotImplementedError("a store in an SQL database writes rows")

    def _named(self, error: BaseException, operation: str, connection: C | None) -> CompactlibError | None:
        """Return the library's error for an exception of the database; `None` for any other exception.

        `connection` is `None` if `_connect` failed.
        """
        raise NotImplementedError("a store in an SQL database names its errors")

    # ---- connections

    @contextlib.contextmanager
    def _lent(self, operation: str) -> Iterator[C]:
        """Provide a connection for the block, a new connection if all are in use. Never waits.

        After an exception in the block the connection is closed: a transaction may be open, or the server be
        unreachable. The database's exceptions become errors of the library.
        """
        with self._guard.use():
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
        # Connections that are in use after the wait are closed after use.
        self._guard.wait_idle()
        self._drop_idle()

    def _drop_idle(self) -> None:
        """Close the idle connections."""
        while self._idle:
            with contextlib.suppress(IndexError):  # another thread took the last connection
                self._idle.pop().close()

    # ---- writes that share a commit

    def _transact(self, conditions: Conditions, changes: Changes) -> None:
        batch, place = self._batch, -1
        try:
            try:
                with self._joining:
                    batch, place = self._batch, len(self._batch.writes)
                    batch.writes.append((conditions, changes))
                if place:
                    batch.ended.wait()
                else:
                    self._lead(batch)
            finally:
                if not place:
                    self._end(batch)
        finally:
            if not place:
                self._end(batch)  # again, after an interrupt of the first call, since other threads wait
        error = batch.answers[place] if batch.answers else _for_another(batch.failure)
        if error is not None:
            raise error

    def _lead(self, batch: _Batch) -> None:
        try:
            with self._committing:
                with self._joining:
                    self._batch = _Batch()
                batch.answers = self._commit(batch.writes)
        except BaseException as error:
            batch.failure = error
            raise

    def _end(self, batch: _Batch) -> None:
        with self._joining:
            if self._batch is batch:
                self._batch = _Batch()
        batch.ended.set()

    def _carry_out(self, connection: C, batch: Sequence[Transaction]) -> list[Exception | None]:
        """Carry out the writes of a batch, in order; return the error of the failed condition of each, or `None`."""
        answers: list[Exception | None] = []
        for conditions, changes in batch:
            versions = self._versions(connection, [*conditions]) if conditions else ()
            failed = [cell for (cell, predicate), version in zip(conditions.items(), versions, strict=True)
                      if not holds(predicate, version)]
            if not failed:
                self._write(connection, [(*cell, value, self._rng.getrandbits(63)) for cell, value in changes.items()
                                         if value is not None],
                            [cell for cell, value in changes.items() if value is None])
            answers.append(PredicateFailed(partition=failed[0][0], key=failed[0][1]) if failed else None)
        return answers


def _for_another(error: BaseException | None) -> Exception:
    """Return a copy of an error for another thread, since each `raise` adds a traceback."""
    if isinstance(error, CompactlibError):
        return copy.copy(error)
    return OutcomeUnknown(operation="write", path="the store", detail=f"the thread that carried it out together with "
                          f"its own ended in {error!r}")
