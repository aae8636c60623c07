# SPDX-License-Identifier: Apache-2.0
"""`SqliteStore`: a key-value store in one SQLite file, for many threads and many processes of one machine.

The file is in WAL mode, so readers never wait. A write is durable when the call returns; threads that write at once
share one transaction, and so one sync.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import weakref
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias
from urllib.parse import quote

import attrs

from compactlib._arguments import require_seconds
from compactlib.clock import Clock, SystemClock
from compactlib.errors import AuditFailed, Busy, Closed, InvalidInput, ReadOnly, StorageError, Unsupported
from compactlib.files.disk import Files, LocalFiles, StrPath, local_path, sync_names
from compactlib.kv.errors import DamagedStore, NotAStore, OutcomeUnknown, PredicateFailed, StoreFailed
from compactlib.kv.parts.connections import Connections
from compactlib.kv.parts.group_commit import GroupCommit
from compactlib.kv.store import Address, KVEntry, KVLimits, KVStore, Transaction, Versioned, holds
from compactlib.kv.stores.sqlite.errors import named, named_errors, primary_code
from compactlib.kv.stores.sqlite.place import place_of_file
from compactlib.kv.stores.sqlite.schema import CREATE, checksum_of, counter_of, is_ready, require_names, require_sound

_LIMITS = KVLimits(max_partition_bytes=1 << 16, max_key_bytes=1 << 16, max_value_bytes=1 << 28, max_transact=100_000,
                   max_get_many=100_000)
_PAGE_BYTES = 4 << 20
_HEADER_BYTES = 100
_WAL_WAIT_SECONDS = 0.01
_WAL_BYTES = 16 << 20
"""Of the `-wal`, from which on a writer gives it back. SQLite folds 4 MB into the file, but only begins the `-wal`
anew in a moment in which nobody reads it."""
_FOLD_MILLISECONDS = 200
"""How long writers wait for that: readers who never pause leave no moment by themselves."""
_FOLD_SECONDS = 60.0
"""When it is tried again beside a reader that goes on."""
_FOLD_EVERY = 32
"""Transactions from one look at its size to the next."""

_GET = "SELECT value, version, checksum FROM cells WHERE partition = ? AND key = ?"
_SCAN = ("SELECT key, value, version, checksum FROM cells WHERE partition = ? AND key >= ? ORDER BY key LIMIT ?")
_NEXT_PARTITION = "SELECT min(partition) FROM cells WHERE partition > ?"
_SCAN_KEYS = "SELECT key, version FROM cells WHERE partition = ? AND key >= ? ORDER BY key LIMIT ?"
_STATE = "SELECT version FROM cells WHERE partition = ? AND key = ?"
_PUT = "INSERT OR REPLACE INTO cells (partition, key, value, version, checksum) VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM cells WHERE partition = ? AND key = ?"

Synchronous: TypeAlias = Literal["full", "normal"]
"""`"full"`: an acknowledged write survives a power failure. `"normal"`: it survives the end of the process; a power
failure may take back the last writes, all or none of each, in order."""


class SqliteStore(KVStore):
    """A `KVStore` in an SQLite file. Threads may share one; other processes open their own.

    A predicate is the number of the write that it came from, so it never holds again once the key was written. Every
    row has a checksum, so a damaged value raises `DamagedStore` and is never given out; a row whose place in the file's
    tree is damaged may be missed by a scan, and `audit` finds it. Once the file is removed, or another is put in its
    place, each call is `StoreFailed`: what it wrote would be lost.

    SQLite keeps the locks of a process in its memory, where a fork takes them for its own: a file that a process has
    open when it forks cannot be opened in the fork. Spawn, or close it before; and let nothing but SQLite open it in a
    process that has it open, since closing it again gives its locks up.

    Args:
        path: the file; made if there is none. SQLite keeps two more beside it, `-wal` and `-shm`, while it is open. It
            must be on a disk of this machine: WAL does not work over a network.
        synchronous: what a power failure may take back.
        busy_seconds: how long a write waits for another process before it raises `SlowDown`.
        page_size: how many entries one page of a scan holds, at most; 4 MiB also end a page.
        create: whether a file that is absent or empty becomes a new store. Give `False` where there must be one.
        read_only: change nothing, neither the file nor the names beside it, and raise `ReadOnly` for each write. Beside
            an owner it sees what that one has committed; where there was none when it was opened, and one folds new
            writes into the file since, a read raises `Busy`: open it again.
        files: creates the file, and syncs its folder at each opening.
        clock: sleeps while another process sets the file up.

    Raises:
        NotAStore: the file holds something else, or nothing although `create` is `False`.
        Closed: this process was forked while the file was open.
        Unsupported: it was written by a later release, or its disk cannot do WAL.
        DamagedStore: it is damaged.
        SlowDown: another process kept it locked while it was to be set up.
        StorageError: the disk refused; `ConnectFailed` if the file cannot be opened.
    """

    def __init__(self, path: StrPath, *, synchronous: Synchronous = "full", busy_seconds: float = 10.0,
                 page_size: int = 1000, create: bool = True, read_only: bool = False, files: Files | None = None,
                 clock: Clock | None = None) -> None:
        require_seconds("busy_seconds", busy_seconds)
        if synchronous not in ("full", "normal"):
            raise InvalidInput(f'synchronous is {synchronous!r}; give "full" or "normal"')
        # SQLite follows a link, and keeps its other files beside what that names.
        self._path = os.path.realpath(local_path(path, "the file"))
        self._synchronous = synchronous
        self._read_only = read_only
        self._busy_seconds = busy_seconds
        self._clock: Clock = SystemClock() if clock is None else clock
        self._folder = os.path.dirname(self._path)
        self._fold_bytes, self._fold_at, self._fold_in = _WAL_BYTES, 0.0, _FOLD_EVERY
        # An interrupt may come right after a transaction has begun, and that one would keep all others from writing.
        super().__init__(f"the store {self._path}", _LIMITS, page_size=page_size)
        self._writes: GroupCommit[Transaction, None] = GroupCommit(self._commit)
        self._connections: Connections[FileConnection] = Connections(
            self._state, self._connect,
            lambda connection: not connection.in_transaction and connection.file == self._file)
        disk: Files = LocalFiles() if files is None else files
        _require_file(self._path, disk if create and not read_only else None)
        if not read_only:
            # A file that was found may be one whose maker was killed before its name was durable.
            sync_names(disk, self._folder)
        self._file = _identity_of(self._path)
        for inherited in _opened.valuerefs():
            if (other := inherited()) is not None and other._file == self._file and other._state.is_inherited \
                    and not other._state.is_closed:
                raise Closed(f"{self._path} was open when this process, {os.getpid()}, was forked; spawn it, or close "
                             f"the store before the fork")
        _opened[id(self)] = self
        # Without a `-wal` nobody has it open, and SQLite would make one, and leave it, unless the file cannot change.
        self._unchanging = _version_of(self._path) if read_only and not os.path.exists(f"{self._path}-wal") else None
        try:
            self._set_up(create=create and not read_only)
        except BaseException:
            self.close()
            raise
        # A file system of layers may have made another one as it was opened for writing.
        self._file = _identity_of(self._path)

    def partitions(self) -> Iterator[bytes]:
        """The partitions that hold anything, ascending. A look at the file for each."""
        found: bytes | None = b""
        while found is not None:
            with self._reading("partitions") as connection:
                found, = connection.execute(_NEXT_PARTITION, (found,)).fetchone()
            if found is not None:
                yield found

    def place(self) -> str:
        """Return the file's inode and, where the file system says it, when it was made.

        A copy has others; a file that was renamed or mounted elsewhere has the same, and so has the snapshot of a whole
        volume.
        """
        with self._reading("place"):
            return place_of_file(self._path)

    def _close(self) -> None:
        # The last one to close the file folds SQLite's `-wal` into it.
        self._connections.close()

    def audit(self) -> None:
        """Check SQLite's own integrity, every row's checksum, and the write counter."""
        with self._reading("audit") as connection, _rolled_back(connection):
            connection.execute("BEGIN")
            findings = [text for text, in connection.execute("PRAGMA integrity_check").fetchall()]
            if findings != ["ok"]:
                raise DamagedStore(path=self._path, detail="; ".join(findings)[:1000])
            counter = counter_of(connection, self._path)
            versions = set()
            rows = connection.execute("SELECT partition, key, value, version, checksum FROM cells")
            # One that is not closed holds the connection to what it reads, as long as an error is kept that names it.
            with contextlib.closing(rows):
                for partition, key, value, version, checksum in rows:
                    require_sound(self._path, partition, key, value, version, checksum)
                    if version > counter:
                        raise AuditFailed(f"key {key!r} has version {version}, the counter stands at {counter}")
                    if version in versions:
                        raise AuditFailed(f"version {version} was given out twice, to {key!r} last")
                    versions.add(version)

    def __repr__(self) -> str:
        return f"SqliteStore({self._path!r}, synchronous={self._synchronous!r})"

    # -- reading

    @contextlib.contextmanager
    def _reading(self, operation: str) -> Iterator[FileConnection]:
        try:
            with named_errors(operation, self._path), self._connections.lent() as connection:
                self._require_in_place(operation, connection)
                yield connection
        finally:
            if self._unchanging is not None and _version_of(self._path) != self._unchanging:
                raise Busy(f"{self._path} was opened for reading alone, and an owner has changed it meanwhile; open it "
                           f"again")

    def _require_in_place(self, operation: str, connection: FileConnection) -> None:
        """Return if what is at the path is what was opened: SQLite goes on to read and write what was removed."""
        if _identity_of(self._path) != self._file or self._file != connection.file:
            raise StoreFailed(operation=operation, path=self._path, detail="the file was removed, or another one was "
                              "put in its place; open it again")

    def _get_many(self, cells: Sequence[Address]) -> list[Versioned | None]:
        with self._reading("get") as connection, _rolled_back(connection):
            if len(cells) > 1:
                # One read transaction, for one lock: SQLite is in this process, so more statements cost no round trips.
                connection.execute("BEGIN")
            return [self._versioned(cell, connection.execute(_GET, cell).fetchone()) for cell in cells]

    def _versioned(self, cell: Address, row: tuple[bytes, int, int] | None) -> Versioned | None:
        if row is None:
            return None
        value, version, checksum = row
        require_sound(self._path, *cell, value, version, checksum)
        return Versioned(value, version)

    def _page(self, partition: bytes, start: bytes, limit: int, keys_only: bool) -> tuple[list[KVEntry], bool]:
        if keys_only:
            return self._page_of_names(partition, start, limit)
        page: list[KVEntry] = []
        size = 0
        with self._reading("scan") as connection:
            cursor = connection.execute(_SCAN, (partition, start, limit))
            try:
                for key, value, version, checksum in cursor:
                    require_sound(self._path, partition, key, value, version, checksum)
                    page.append(KVEntry(key, value, version))
                    size += len(key) + len(value)
                    if size >= _PAGE_BYTES:
                        return page, False
            finally:
                cursor.close()
        return page, len(page) < limit

    def _page_of_names(self, partition: bytes, start: bytes, limit: int) -> tuple[list[KVEntry], bool]:
        with self._reading("scan") as connection:
            rows = connection.execute(_SCAN_KEYS, (partition, start, limit)).fetchall()
        require_names(self._path, partition, rows)
        return [KVEntry(key, b"", version) for key, version in rows], len(rows) < limit

    # -- writing

    def _transact(self, transaction: Transaction) -> None:
        self._writes.submit(transaction)

    def _commit(self, batch: Sequence[Transaction]) -> list[Exception | None]:
        """Carry out what several threads asked for in one SQLite transaction; each may fail its own conditions."""
        if self._read_only:
            raise ReadOnly(operation="write", path=self._path, errno=errno.EROFS)
        with self._connections.lent() as connection:
            with named_errors("begin", self._path):
                connection.execute("BEGIN IMMEDIATE")
            with _rolled_back(connection):
                self._require_in_place("write", connection)
                with named_errors("write", self._path):
                    work = _Work(connection, counter_of(connection, self._path))
                    answers: list[Exception | None] = [work.carry_out(transaction) for transaction in batch]
                    connection.execute("UPDATE counter SET version = ?", (work.version,))
                self._finish(connection)
            self._fold(connection)
        return answers

    def _finish(self, connection: sqlite3.Connection) -> None:
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if primary_code(error) == sqlite3.SQLITE_IOERR:
                # The sync may have failed after the bytes arrived: a crash now could bring the transaction back.
                raise OutcomeUnknown(operation="commit", path=self._path, detail=str(error)) from error
            raise named(error, "commit", self._path) from error

    def _fold(self, connection: FileConnection) -> None:
        """Give a large `-wal` back, and wait for readers no longer than others can wait for this.

        Beside a reader that goes on it is tried again once the file has doubled, or a minute later.
        """
        self._fold_in -= 1
        if self._fold_in > 0:
            return
        self._fold_in = _FOLD_EVERY
        try:
            size = os.path.getsize(f"{self._path}-wal")
            now = self._clock.monotonic()
            if size < _WAL_BYTES or (size < self._fold_bytes and now < self._fold_at):
                return
            wait = int(1000 * self._busy_seconds)
            connection.execute(f"PRAGMA busy_timeout = {min(wait, _FOLD_MILLISECONDS)}")
            try:
                is_busy, *_ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
            finally:
                connection.execute(f"PRAGMA busy_timeout = {wait}")
            self._fold_bytes = 2 * size if is_busy else _WAL_BYTES
            self._fold_at = now + _FOLD_SECONDS
        except (OSError, sqlite3.Error):
            # What was committed is durable all the same, and the next writer tries it again.
            return

    # -- opening

    def _connect(self) -> FileConnection:
        mode = "immutable=1" if self._unchanging is not None else "mode=ro" if self._read_only else "mode=rw"
        uri = f"file://{quote(os.fsencode(self._path))}?{mode}"
        with named_errors("open", self._path):
            connection = sqlite3.connect(uri, uri=True, timeout=self._busy_seconds, isolation_level=None,
                                         check_same_thread=False, factory=FileConnection)
            try:
                connection.execute(f"PRAGMA synchronous = {self._synchronous}")
                connection.file = _identity_of(self._path)
            except BaseException:
                # It would keep the file open for as long as the exception lives.
                connection.close()
                raise
        return connection

    def _set_up(self, *, create: bool) -> None:
        try:
            with named_errors("open", self._path), self._connections.lent() as connection:
                # In one read transaction: another process may be setting the file up right now.
                with _rolled_back(connection):
                    connection.execute("BEGIN")
                    ready = is_ready(connection, self._path)
                if not ready and not create:
                    raise NotAStore(f"{self._path} is an SQLite database without a key-value store; check the path",
                                    path=self._path)
                if not self._read_only:
                    self._switch_to_wal(connection)
                    connection.file = _identity_of(self._path)
                if ready:
                    return
                with _rolled_back(connection):
                    connection.execute("BEGIN IMMEDIATE")
                    # Another process may have been faster.
                    if not is_ready(connection, self._path):
                        for statement in CREATE:
                            connection.execute(statement)
                    connection.execute("COMMIT")
        except DamagedStore as error:
            if _has_other_header(self._path):
                raise NotAStore(f"{self._path} is not an SQLite database; name another file, or restore it if it once "
                                f"was a store", path=self._path) from error
            raise

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
        waited = 0.0
        while True:
            try:
                mode, = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                # SQLite does not wait by itself while another connection makes the same switch.
                if primary_code(error) != sqlite3.SQLITE_BUSY or waited >= self._busy_seconds:
                    raise
                self._clock.sleep(_WAL_WAIT_SECONDS)
                waited += _WAL_WAIT_SECONDS
        if mode != "wal":
            raise Unsupported(f"{self._path} is on a file system where SQLite cannot use WAL (it offers {mode!r}); put "
                              f"it on a disk of this machine")


class FileConnection(sqlite3.Connection):
    """One to the file.

    Attributes:
        file: device and inode of the file that it has open.
    """

    file: tuple[int, int] | None = None


_opened: weakref.WeakValueDictionary[int, SqliteStore] = weakref.WeakValueDictionary()
"""All stores of this process, and in a fork those of its parent at first."""


@contextlib.contextmanager
def _rolled_back(connection: sqlite3.Connection) -> Iterator[None]:
    """What has begun is taken back, unless the body commits it; after an I/O error SQLite has done so itself."""
    try:
        yield
    finally:
        if connection.in_transaction:
            # Where that fails, the connection's end takes it back, and what the body raised is what counts.
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")


@attrs.define
class _Work:
    """The changes within one SQLite transaction."""

    connection: sqlite3.Connection
    version: int

    def carry_out(self, transaction: Transaction) -> PredicateFailed | None:
        for partition, key, predicate in transaction.conditions:
            row = self.connection.execute(_STATE, (partition, key)).fetchone()
            if not holds(predicate, None if row is None else row[0]):
                # Nothing of it was written yet, so there is nothing to take back.
                return PredicateFailed(partition=partition, key=key)
        # No key is named twice, so the order of the changes does not matter.
        self.connection.executemany(_DELETE, [change[:2] for change in transaction.changes if change[2] is None])
        self.connection.executemany(_PUT, self._rows(transaction))
        return None

    def _rows(self, transaction: Transaction) -> Iterator[tuple[bytes, bytes, bytes, int, int]]:
        for partition, key, value in transaction.changes:
            if value is not None:
                self.version += 1
                yield partition, key, value, self.version, checksum_of(partition, key, value, self.version)


def _require_file(path: str, files: Files | None) -> None:
    """Make the file if it is absent; without `files` it must hold something."""
    try:
        if not os.path.exists(path) and files is not None:
            files.create(path).close()
    except StorageError:
        # Another process was faster, or the folder is not there.
        if not os.path.exists(path):
            raise
    if os.path.isdir(path):
        return  # opening it fails; the size of a folder depends on the file system
    size = os.path.getsize(path) if os.path.exists(path) else 0
    # SQLite takes a file shorter than its header for an empty one.
    if 0 < size < _HEADER_BYTES or (not size and files is None):
        raise NotAStore(f"{path} has {size} bytes, so there is no key-value store in it; check the path, restore the "
                        f"file from a copy, or open it with create=True to begin anew", path=path)


def _identity_of(path: str) -> tuple[int, int] | None:
    """By which it is seen that a path names another file; `None` if it names none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _version_of(path: str) -> tuple[int, int] | None:
    """By which it is seen that a file changed; `None` if there is none."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns


def _has_other_header(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(16) != b"SQLite format 3\0"
