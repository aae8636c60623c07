# SPDX-License-Identifier: Apache-2.0
"""`PostgresStore`: a key-value store in one table of a PostgreSQL database, for many processes on many machines.

All writes are serializable transactions: PostgreSQL finds out when two that run at once could not have run one after
the other, ends one of them, and it is tried again. Threads of one process that write at once share a transaction.
"""

from __future__ import annotations

import contextlib
import re
import selectors
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import attrs

from compactlib._arguments import require_seconds
from compactlib.errors import AuditFailed, CompactlibError, InvalidInput, MissingDependency, Unsupported
from compactlib.kv.errors import (
    ConnectFailed,
    OutcomeUnknown,
    PredicateFailed,
    SlowDown,
    StoreFailed,
)
from compactlib.kv.parts.connections import Connections
from compactlib.kv.parts.group_commit import GroupCommit
from compactlib.kv.store import Address, KVEntry, KVLimits, KVStore, Transaction, Versioned, holds

if TYPE_CHECKING:
    import psycopg

_LIMITS = KVLimits(max_partition_bytes=1000, max_key_bytes=1600, max_value_bytes=1 << 28, max_transact=10_000,
                   max_get_many=10_000)
"""An entry of PostgreSQL's B-tree holds 2,704 bytes."""
_PAGE_BYTES = 4 << 20
_STATEMENT_BYTES = 16 << 20
_FEW = 4
"""Cells for which one simple statement each costs less than one for all."""
_SCHEMA_VERSION = 1
_TABLE = re.compile(r"[a-z_][a-z0-9_]{0,40}(\.[a-z_][a-z0-9_]{0,40})?")
_TRIES = 100
"""A transaction that lost against another waits for it to end, so tries come at the speed of the database."""

ReadT = TypeVar("ReadT")
_Change: TypeAlias = tuple[bytes, bytes, bytes | None]


class PostgresStore(KVStore):
    """A `KVStore` in a table of a PostgreSQL database (extra `compactlib[postgres]`).

    A predicate is the number of the write that it came from, taken from a sequence, so it never holds again once the
    key was written. Keys compare byte by byte whatever the database's collation, because they are `bytea`.

    Args:
        conninfo: where the database is, as libpq takes it: `"postgresql://user@host/db"` or `"host=... dbname=..."`.
        table: the table's name, lower case, with a schema before it if need be; made if there is none, for which alone
            the role needs the right to create.
        busy_seconds: how long a statement waits for another's lock before it raises `SlowDown`.
        page_size: how many entries one page of a scan holds, at most; 4 MiB also end a page.
        prepare_threshold: after so many uses a statement is prepared on its connection. `None`: never, as behind
            PgBouncer in transaction mode.

    Raises:
        ConnectFailed: the server cannot be reached, or refuses these credentials.
        InvalidInput: the table's name is none, or an argument is of another type.
        Unsupported: the table was written by a later release.
        StoreFailed: the database refused; a table of this name holds something else, for example.
        MissingDependency: psycopg is not installed.
    """

    def __init__(self, conninfo: str, *, table: str = "compactlib_kv", busy_seconds: float = 10.0,
                 page_size: int = 1000, prepare_threshold: int | None = 5) -> None:
        try:
            import psycopg
        except ImportError:
            raise MissingDependency(package="psycopg", extra="postgres", purpose="a store in PostgreSQL") from None
        if not _TABLE.fullmatch(table):
            raise InvalidInput(f"table is {table!r}; give lower-case letters, digits and underscores, and at most one "
                               f"dot after a schema")
        require_seconds("busy_seconds", busy_seconds)
        self._psycopg = psycopg
        self._conninfo = conninfo
        self._table = table
        self._busy_seconds = busy_seconds
        self._prepare_threshold = prepare_threshold
        self._sql = _Statements.of(table)
        super().__init__(f"the store table {table}", _LIMITS, page_size=page_size)
        self._writes: GroupCommit[Transaction, None] = GroupCommit(self._commit)
        self._connections: Connections[psycopg.Connection[Any]] = Connections(
            self._state, self._connect, self._is_usable, self._is_alive)
        try:
            self._set_up()
        except BaseException:
            self.close()
            raise

    @property
    def table(self) -> str:
        """The table's name."""
        return self._table

    def place(self) -> str | None:
        """Return the server's system identifier, and the numbers of the database and the table in it.

        A replica, and a server that was restored from a base backup, has the same. `None` if the role may not ask, or
        the server is another one that speaks PostgreSQL's protocol and does not know.
        """
        errors = self._psycopg.errors
        try:
            system, database, table = self._read("place", lambda connection: connection.execute(
                self._sql.place).fetchall())[0]
        except StoreFailed as error:
            if isinstance(error.__cause__, errors.InsufficientPrivilege | errors.UndefinedFunction):
                return None
            raise
        return f"PostgreSQL system {system}, database {database}, table {table}"

    def _close(self) -> None:
        self._connections.close()

    def audit(self) -> None:
        """Check that no version was given out twice, and none is above the sequence."""
        cells, versions, highest, counter = self._read(
            "audit", lambda connection: connection.execute(self._sql.audit).fetchall())[0]
        if cells != versions:
            raise AuditFailed(f"{cells} keys share {versions} versions")
        if highest is not None and highest > counter:
            raise AuditFailed(f"version {highest} is in use, the sequence stands at {counter}")

    def __repr__(self) -> str:
        return f"PostgresStore(table={self._table!r})"

    # -- reading

    def _read(self, operation: str, work: Callable[[psycopg.Connection[Any]], ReadT]) -> ReadT:
        """Read on a connection outside of any transaction: each statement sees what was committed before it.

        A connection that breaks may have been idle since before the server restarted: then once more on a new one.
        """
        for fresh in (False, True):
            with self._connections.lent(fresh=fresh) as connection:
                try:
                    with self._named(operation):
                        return work(connection)
                except StoreFailed:
                    if fresh or not connection.broken:
                        raise
        raise StoreFailed(operation=operation, path=self._table, detail="every connection broke")

    def _get_many(self, cells: Sequence[Address]) -> list[Versioned | None]:
        if len(cells) == 1:
            row = self._read("get", lambda connection: connection.execute(self._sql.get, cells[0],
                                                                          binary=True).fetchone())
            rows: list[tuple[Any, Any]] = [(None, None) if row is None else row]
        else:
            rows = self._read("get_many", lambda connection: connection.execute(
                self._sql.get_many, _columns(cells), binary=True).fetchall())
        return [None if version is None else Versioned(bytes(value), version) for value, version in rows]

    def _page(self, partition: bytes, start: bytes, limit: int, keys_only: bool) -> tuple[list[KVEntry], bool]:
        if keys_only:
            names = self._read("scan", lambda connection: connection.execute(
                self._sql.scan_keys, (partition, start, limit), binary=True).fetchall())
            return [KVEntry(bytes(key), b"", version) for key, version in names], len(names) < limit
        rows = self._read("scan", lambda connection: connection.execute(
            self._sql.scan, (partition, start, limit, _PAGE_BYTES), binary=True).fetchall())
        page = [KVEntry(bytes(key), bytes(value), version) for key, value, version, _ in rows]
        # The last column counts the rows that the limit allowed, those beyond the page's bytes included.
        return page, not rows or (rows[0][3] < limit and len(page) == rows[0][3])

    # -- writing

    def _transact(self, transaction: Transaction) -> None:
        self._writes.submit(transaction)

    def _commit(self, batch: Sequence[Transaction]) -> list[Exception | None]:
        """Carry out what several threads asked for in one transaction; each may fail its own conditions."""
        fresh = False
        for _ in range(_TRIES):
            with self._connections.lent(fresh=fresh) as connection:
                try:
                    answers = self._try_commit(connection, batch)
                except OutcomeUnknown:
                    raise
                except StoreFailed as error:
                    # As for a read: it broke before the commit, so nothing of it was carried out. Or the server became
                    # a replica: the others of its connections are given up, too.
                    is_demoted = isinstance(error.__cause__, self._psycopg.errors.ReadOnlySqlTransaction)
                    if fresh or not (connection.broken or is_demoted):
                        raise
                    fresh = True
                    if is_demoted:
                        connection.close()
                    continue
            if answers is not None:
                return answers
        raise SlowDown(operation="write", detail=f"{_TRIES} tries were overtaken by other writers of the same keys")

    def _try_commit(self, connection: psycopg.Connection[Any],
                    batch: Sequence[Transaction]) -> list[Exception | None] | None:
        """The answers, or `None` if another transaction was in the way."""
        errors = self._psycopg.errors
        committing = False
        try:
            with self._named("write"):
                # A failing COMMIT raises inside of `transaction`, as every statement does.
                answers: list[Exception | None]
                with connection.transaction():
                    answers = [self._carry_out(connection, transaction) for transaction in batch]
                    committing = True
        except CompactlibError as error:
            cause = error.__cause__
            if isinstance(cause, errors.SerializationFailure | errors.DeadlockDetected | errors.UniqueViolation):
                return None
            if committing and connection.broken:
                raise OutcomeUnknown(operation="commit", path=self._table, detail=str(cause)) from cause
            raise
        if connection.closed:
            # A transaction whose connection was found broken ends without an error, and without a commit.
            raise OutcomeUnknown(operation="commit", path=self._table, detail="the connection broke")
        return answers

    def _carry_out(self, connection: psycopg.Connection[Any], transaction: Transaction) -> PredicateFailed | None:
        states = self._states(connection, [one[:2] for one in transaction.conditions])
        for (partition, key, predicate), version in zip(transaction.conditions, states, strict=True):
            if not holds(predicate, version):
                # Nothing of it was written yet, so there is nothing to take back.
                return PredicateFailed(partition=partition, key=key)
        # No key is named twice, so the order of the changes does not matter.
        puts = [change for change in transaction.changes if change[2] is not None]
        deletes = [change[:2] for change in transaction.changes if change[2] is None]
        with connection.cursor() as cursor:
            if len(puts) > _FEW:
                for part in _in_statements(puts):
                    cursor.execute(self._sql.put_many, _columns(part))
            elif puts:
                cursor.executemany(self._sql.put, puts)
            if deletes:
                cursor.executemany(self._sql.delete, deletes)
        return None

    def _states(self, connection: psycopg.Connection[Any], cells: Sequence[Address]) -> list[int | None]:
        """The version of each cell, `None` for one that is not there."""
        if len(cells) > _FEW:
            return [version for version, in connection.execute(self._sql.states, _columns(cells), binary=True)]
        rows = [connection.execute(self._sql.state, cell).fetchone() for cell in cells]
        return [None if row is None else row[0] for row in rows]

    # -- the server

    def _connect(self) -> psycopg.Connection[Any]:
        try:
            connection: psycopg.Connection[Any] = self._psycopg.connect(
                self._conninfo, autocommit=True, prepare_threshold=self._prepare_threshold)
        except self._psycopg.Error as error:
            raise ConnectFailed(operation="connect", path=self._table, detail=str(error).strip()) from error
        # PostgreSQL takes 0 ms for no bound at all.
        patience = max(1, int(self._busy_seconds * 1000))
        try:
            with self._named("connect"):
                connection.isolation_level = self._psycopg.IsolationLevel.SERIALIZABLE
                connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{patience}ms",))
        except BaseException:
            connection.close()
            raise
        return connection

    def _is_usable(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether it is whole, and no interrupt has left a transaction open: within that, nothing is committed."""
        return connection.pgconn.transaction_status == self._psycopg.pq.TransactionStatus.IDLE

    def _is_alive(self, connection: psycopg.Connection[Any]) -> bool:
        """Whether the server has not hung up while the connection was idle, as far as its last words have arrived."""
        try:
            with selectors.DefaultSelector() as readable:
                readable.register(connection.pgconn.socket, selectors.EVENT_READ)
                while readable.select(0):
                    connection.pgconn.consume_input()
        except (self._psycopg.Error, OSError):
            return False
        return self._is_usable(connection)

    def _set_up(self) -> None:
        """Make the table in one transaction, so that a pooler may give each transaction another server connection."""
        levels = self._psycopg.IsolationLevel
        with self._connections.lent() as connection, self._named("set up"):
            # Each statement sees what was committed before it, while this one waited for the lock.
            connection.isolation_level = levels.READ_COMMITTED
            with connection.transaction():
                # One at a time: "if not exists" alone lets two concurrent sessions collide.
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (self._table,))
                # What is there needs no right to make it.
                there = connection.execute(self._sql.there).fetchone()
                if there is None or None in there:
                    connection.execute(self._sql.create_sequence)
                    connection.execute(self._sql.create_table)
                row = connection.execute(self._sql.get, (b"", b"schema")).fetchone()
                if row is None:
                    row = connection.execute(self._sql.mark, (b"%d" % _SCHEMA_VERSION,)).fetchone()
            connection.isolation_level = levels.SERIALIZABLE
        found = bytes(row[0]) if row is not None else b""
        if found != b"%d" % _SCHEMA_VERSION:
            raise Unsupported(f"table {self._table} has schema version {found!r}; this release knows "
                              f"{_SCHEMA_VERSION}: upgrade")

    @contextlib.contextmanager
    def _named(self, operation: str) -> Iterator[None]:
        """Turn what psycopg raises in the block into errors of the library."""
        psycopg = self._psycopg
        errors = psycopg.errors
        try:
            yield
        except (errors.LockNotAvailable, errors.QueryCanceled, errors.TooManyConnections, errors.SerializationFailure,
                errors.DeadlockDetected) as error:
            raise SlowDown(operation=operation, detail=str(error).strip()) from error
        except (errors.AdminShutdown, errors.CrashShutdown, errors.CannotConnectNow) as error:
            raise ConnectFailed(operation=operation, path=self._table, detail=str(error).strip()) from error
        except psycopg.Error as error:
            raise StoreFailed(operation=operation, path=self._table, detail=str(error).strip()) from error


@attrs.frozen
class _Statements:
    """The store's SQL for one table. The empty partition, which no user can name, holds the schema's version."""

    there: bytes
    create_sequence: bytes
    create_table: bytes
    mark: bytes
    get: bytes
    get_many: bytes
    scan: bytes
    scan_keys: bytes
    state: bytes
    states: bytes
    put: bytes
    put_many: bytes
    delete: bytes
    audit: bytes
    place: bytes

    @classmethod
    def of(cls, table: str) -> _Statements:
        versions = f"{table}_versions"
        # With a limit the planner looks each cell up by itself: a join might read, and so lock, the whole table.
        wanted = "FROM unnest(%b::bytea[], %b::bytea[]) WITH ORDINALITY AS wanted (p, k, place) LEFT JOIN LATERAL"
        replaced = "ON CONFLICT (partition, key) DO UPDATE SET value = excluded.value, version = excluded.version"
        cell = f"FROM {table} WHERE partition = p AND key = k LIMIT 1) AS found ON true ORDER BY place"
        texts = {
            "there": f"SELECT to_regclass('{table}'), to_regclass('{versions}')",
            "place": f"SELECT system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()), "
                     f"'{table}'::regclass::oid FROM pg_control_system()",
            "create_sequence": f"CREATE SEQUENCE IF NOT EXISTS {versions} AS bigint",
            "create_table": f"CREATE TABLE IF NOT EXISTS {table} (partition bytea NOT NULL, key bytea NOT NULL, "
                            f"value bytea NOT NULL, version bigint NOT NULL, PRIMARY KEY (partition, key))",
            "mark": f"INSERT INTO {table} VALUES ('', 'schema', %s, 0) RETURNING value",
            "get": f"SELECT value, version FROM {table} WHERE partition = %s AND key = %s",
            "scan": f"WITH page AS MATERIALIZED (SELECT key, value, version FROM {table} WHERE partition = %s "
                    f"AND key >= %s ORDER BY key LIMIT %s), sized AS (SELECT key, value, version, count(*) OVER () "
                    f"AS found, sum(length(value)) OVER (ORDER BY key) - length(value) AS before FROM page) "
                    f"SELECT key, value, version, found FROM sized WHERE before < %s ORDER BY key",
            "scan_keys": f"SELECT key, version FROM {table} WHERE partition = %s AND key >= %s ORDER BY key LIMIT %s",
            "get_many": f"SELECT found.value, found.version {wanted} (SELECT value, version {cell}",
            "states": f"SELECT found.version {wanted} (SELECT version {cell}",
            "state": f"SELECT version FROM {table} WHERE partition = %s AND key = %s",
            "put": f"INSERT INTO {table} VALUES (%s, %s, %s, nextval('{versions}')) {replaced}",
            "put_many": f"INSERT INTO {table} SELECT p, k, v, nextval('{versions}') FROM "
                        f"unnest(%b::bytea[], %b::bytea[], %b::bytea[]) AS new (p, k, v) {replaced}",
            "delete": f"DELETE FROM {table} WHERE partition = %s AND key = %s",
            "audit": f"SELECT count(*), count(DISTINCT version), max(version), (SELECT last_value FROM {versions}) "
                     f"FROM {table} WHERE partition <> ''",
        }
        return cls(**{name: text.encode() for name, text in texts.items()})


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Rows as the arrays that a statement takes apart again."""
    return [list(column) for column in zip(*rows, strict=True)]


def _in_statements(puts: Sequence[_Change]) -> Iterator[list[_Change]]:
    """Puts in parts that one statement has room for."""
    part: list[_Change] = []
    size = 0
    for put in puts:
        part.append(put)
        size += len(put[2] or b"")
        if size >= _STATEMENT_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
