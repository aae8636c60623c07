# SPDX-License-Identifier: Apache-2.0
"""`PostgresStore`: a key-value store in one table of a PostgreSQL database, for many processes on many machines.

All writes are serializable transactions: PostgreSQL aborts one of two transactions that conflict, and it is retried.
Threads of a process that write at the same time share a transaction.

A session has no state between transactions, so that PgBouncer may give each transaction another server connection:
isolation and lock timeout are set within each, and statements are prepared only on request. If a connection is broken
before its commit, or its server has become a replica, all idle connections are closed and the work is repeated on a new
connection. A failure during the commit has an unknown outcome.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from compactlib._arguments import require_seconds
from compactlib._closing import closed_on_failure
from compactlib.errors import CompactlibError, InvalidInput, MissingDependency, Unsupported
from compactlib.kv.errors import ConnectFailed, OutcomeUnknown, SlowDown, StoreFailed
from compactlib.kv.scan import KVEntry
from compactlib.kv.sql import PAGE_BYTES, Row, SqlStore, Transaction
from compactlib.kv.store import Address, KVLimits

if TYPE_CHECKING:
    import psycopg

_LIMITS = KVLimits(max_partition_bytes=1000, max_key_bytes=1600, max_value_bytes=1 << 28, max_transact=10_000,
                   max_transact_bytes=1 << 29)
"""The limit of an entry of PostgreSQL's B-tree is 2,704 bytes, of a statement 1 GiB."""
_SCHEMA_VERSION = b"1"
_TABLE = re.compile(r"[a-z_][a-z0-9_]{0,40}(\.[a-z_][a-z0-9_]{0,40})?")
_TRIES = 100
"""Without waits in between, since a transaction that lost has waited for the end of the other."""

AnswerT = TypeVar("AnswerT")


class PostgresStore(SqlStore["psycopg.Connection[Any]"]):
    """A `KVStore` in a table of a PostgreSQL database (extra `compactlib[postgres]`).

    A predicate never holds again after another write of the key. Keys are `bytea`, which compares byte by byte in every
    collation.

    Args:
        conninfo: the database, in libpq's form: `"postgresql://user@host/db"` or `"host=... dbname=..."`.
        table: the table's name, lower case, optionally with a schema; created if absent, which needs the right to
            create.
        busy_seconds: how long a write waits for a lock before it raises `SlowDown`.
        page_size: the most entries of a page of a scan; 4 MiB also end a page.
        prepare_threshold: the number of uses after which a connection prepares a statement. `None`: never, for
            PgBouncer in transaction mode without `max_prepared_statements`.

    Raises:
        ConnectFailed: the server cannot be reached, or refuses the credentials.
        InvalidInput: the table's name is invalid.
        Unsupported: a later release wrote the table.
        StoreFailed: the database refused, for example because the table has other columns.
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
        self.table = table
        self._prepare_threshold = prepare_threshold
        self._sql = _statements(table, busy_seconds)
        super().__init__(f"the store table {table}", _LIMITS, page_size=page_size)
        with closed_on_failure(self):
            self._set_up()

    def place(self) -> str | None:
        # Without the right to read them, or on another product with PostgreSQL's protocol, it is unknown.
        errors = self._psycopg.errors
        try:
            (system, database, table), = self._rows("place")
        except StoreFailed as error:
            if isinstance(error.__cause__, errors.InsufficientPrivilege | errors.UndefinedFunction):
                return None
            raise
        return f"PostgreSQL system {system}, database {database}, table {table}"

    # -- reading

    def _get_many(self, cells: Sequence[Address]) -> list[KVEntry | None]:
        if len(cells) == 1:
            # A simple statement for one cell costs a third of the general statement.
            rows = self._rows("get", cells[0]) or [(None, None)]
        else:
            rows = self._rows("get_many", _columns(cells))
        return [None if version is None else KVEntry(cell[1], bytes(value), version)
                for cell, (value, version) in zip(cells, rows, strict=True)]

    def _page(self, partition: bytes, start: bytes, limit: int) -> tuple[list[KVEntry], bool]:
        rows = self._rows("scan", (partition, start, limit, PAGE_BYTES))
        page = [KVEntry(bytes(key), bytes(value), version) for key, value, version in rows]
        return page, len(page) < limit and sum(len(entry.value) for entry in page) < PAGE_BYTES

    def _rows(self, statement: str, arguments: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Read without a transaction: each statement sees all commits before it."""
        return self._carried_out(statement, lambda connection: connection.execute(
            self._sql[statement], arguments, binary=True).fetchall())

    def _carried_out(self, operation: str, work: Callable[[psycopg.Connection[Any]], AnswerT]) -> AnswerT:
        """Carry out work; after `ConnectFailed` once more, on a new connection."""
        try:
            with self._lent(operation) as connection:
                return work(connection)
        except ConnectFailed as error:
            if error.operation == "connect":
                raise
            self._drop_idle()
        with self._lent(operation) as connection:
            return work(connection)

    # -- writing

    def _commit(self, batch: Sequence[Transaction]) -> Sequence[Exception | None]:
        for _ in range(_TRIES):
            answers = self._carried_out("write", lambda connection: self._try_commit(connection, batch))
            if answers is not None:
                return answers
        raise SlowDown(operation="write", detail=f"{_TRIES} tries were overtaken by other writers of the same keys")

    def _try_commit(self, connection: psycopg.Connection[Any],
                    batch: Sequence[Transaction]) -> Sequence[Exception | None] | None:
        """Return the results, or `None` after a conflict with another transaction."""
        errors = self._psycopg.errors
        overtaken = errors.SerializationFailure, errors.DeadlockDetected, errors.UniqueViolation
        try:
            connection.execute(self._sql["begin"], prepare=False)
            answers = self._carry_out(connection, batch)
        except overtaken:
            connection.execute("ROLLBACK")
            return None
        try:
            connection.execute("COMMIT")
        except overtaken:
            return None  # and PostgreSQL has rolled it back
        except self._psycopg.Error as error:
            if not connection.broken:
                raise
            raise OutcomeUnknown(operation="commit", path=self.table, detail=str(error).strip()) from error
        return answers

    def _versions(self, connection: psycopg.Connection[Any], cells: Sequence[Address]) -> list[int | None]:
        return [version for version, in connection.execute(self._sql["versions"], _columns(cells), binary=True)]

    def _write(self, connection: psycopg.Connection[Any], puts: Sequence[Row], deletes: Sequence[Address]) -> None:
        if puts:
            connection.execute(self._sql["put_many"], _columns(puts))
        if deletes:
            connection.cursor().executemany(self._sql["delete"], deletes)

    # -- the server

    def _connect(self) -> psycopg.Connection[Any]:
        return self._psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=self._prepare_threshold)

    def _set_up(self) -> None:
        """Create the table in one transaction, since a pooler may give each another server connection."""
        with self._lent("set up") as connection:
            # Each statement sees all commits before it, also those during the wait for the lock.
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED", prepare=False)
            # With a lock, since two concurrent sessions with "if not exists" collide.
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (self.table,))
            # Checked first, so that an existing table needs no right to create.
            if connection.execute(self._sql["there"]).fetchone() == (None,):
                connection.execute(self._sql["create_table"])
            row = connection.execute(self._sql["get"], (b"", b"schema")).fetchone()
            if row is None:
                row = connection.execute(self._sql["mark"], (_SCHEMA_VERSION,)).fetchone()
            connection.execute("COMMIT")
        found = b"" if row is None else bytes(row[0])
        if found != _SCHEMA_VERSION:
            raise Unsupported(f"table {self.table} has schema version {found!r}; this release knows "
                              f"{_SCHEMA_VERSION!r}: upgrade")

    def _named(self, error: BaseException, operation: str,
               connection: psycopg.Connection[Any] | None) -> CompactlibError | None:
        errors = self._psycopg.errors
        if not isinstance(error, self._psycopg.Error):
            return None
        detail = str(error).strip()
        if isinstance(error, errors.LockNotAvailable | errors.QueryCanceled | errors.TooManyConnections):
            return SlowDown(operation=operation, detail=detail)
        # A replica refuses serializable transactions with `FeatureNotSupported`.
        is_away = connection is None or connection.broken or isinstance(
            error, errors.ReadOnlySqlTransaction | errors.FeatureNotSupported | errors.AdminShutdown |
            errors.CrashShutdown | errors.CannotConnectNow)
        return (ConnectFailed if is_away else StoreFailed)(operation=operation, path=self.table, detail=detail)


def _statements(table: str, busy_seconds: float) -> dict[str, bytes]:
    """Return the SQL for a table. The empty partition, which is invalid for users, has the schema's version."""
    patience = max(1, int(busy_seconds * 1000))  # for PostgreSQL, 0 ms is no limit
    where = f"FROM {table} WHERE partition = %s AND key"
    # With a limit the planner reads each cell by its index; a join might read, and so lock, the whole table.
    wanted = "FROM unnest(%b::bytea[], %b::bytea[]) WITH ORDINALITY AS wanted (p, k, place) LEFT JOIN LATERAL"
    cell = f"FROM {table} WHERE partition = p AND key = k LIMIT 1) AS found ON true ORDER BY place"
    return {name: text.encode() for name, text in {
        "there": f"SELECT to_regclass('{table}')",
        "create_table": f"CREATE TABLE IF NOT EXISTS {table} (partition bytea NOT NULL, key bytea NOT NULL, "
                        f"value bytea NOT NULL, version bigint NOT NULL, PRIMARY KEY (partition, key))",
        "mark": f"INSERT INTO {table} VALUES ('', 'schema', %s, 0) RETURNING value",
        "place": f"SELECT system_identifier, (SELECT oid FROM pg_database WHERE datname = current_database()), "
                 f"'{table}'::regclass::oid FROM pg_control_system()",
        "get": f"SELECT value, version {where} = %s",
        "get_many": f"SELECT found.value, found.version {wanted} (SELECT value, version {cell}",
        "scan": f"WITH page AS MATERIALIZED (SELECT key, value, version {where} >= %s ORDER BY key LIMIT %s), "
                f"sized AS (SELECT *, sum(length(value)) OVER (ORDER BY key) - length(value) AS before FROM page) "
                f"SELECT key, value, version FROM sized WHERE before < %s ORDER BY key",
        "begin": f"BEGIN ISOLATION LEVEL SERIALIZABLE; SET LOCAL lock_timeout = '{patience}ms'",
        "versions": f"SELECT found.version {wanted} (SELECT version {cell}",
        "put_many": f"INSERT INTO {table} SELECT * FROM unnest(%b::bytea[], %b::bytea[], %b::bytea[], %b::bigint[]) "
                    f"ON CONFLICT (partition, key) DO UPDATE SET value = excluded.value, version = excluded.version",
        "delete": f"DELETE {where} = %s",
    }.items()}


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
    """Return the columns of rows, as arrays for `unnest`."""
    return [list(column) for column in zip(*rows, strict=True)]
