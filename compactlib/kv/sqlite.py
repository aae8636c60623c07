# SPDX-License-Identifier: Apache-2.0
"""`SqliteStore`: a key-value store in one SQLite file, for many threads and many processes of one machine.

The file is in WAL mode, so readers never wait. A write is durable when the call returns; threads that write at the same
time share a transaction, and so a sync. Table and checksums: `docs/formats/kv-sqlite.md`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import struct
import sys
import weakref
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal, TypeAlias
from urllib.parse import quote

from compactlib._arguments import require_one_of, require_seconds
from compactlib._closing import closed_on_failure
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, Closed, CompactlibError, DiskFull, ReadOnly, StorageError, Unsupported
from compactlib.files.checksum import crc32
from compactlib.files.disk import Files, LocalFiles, StrPath, local_path, look_at, sync_names
from compactlib.kv.errors import ConnectFailed, DamagedStore, NotAStore, OutcomeUnknown, SlowDown, StoreFailed
from compactlib.kv.scan import KVEntry
from compactlib.kv.sql import PAGE_BYTES, Row, SqlStore, Transaction
from compactlib.kv.store import Address, KVLimits

_LIMITS = KVLimits(max_partition_bytes=1 << 16, max_key_bytes=1 << 16, max_value_bytes=1 << 28, max_transact=100_000)
_FILE_HEADER_BYTES = 100
_WAL_WAIT_SECONDS = 0.01
_WAL_BYTES = 16 << 20
"""The size from which on a writer truncates the `-wal`. SQLite moves 4 MB at a time into the file, but reuses the
`-wal` only in a moment without readers."""
_FOLD_MILLISECONDS = 200
"""How long writers wait for such a moment, since overlapping readers may leave none."""
_FOLD_SECONDS = 60.0
"""The wait before the next try after a reader prevented it."""

_APPLICATION_ID = 0x434C4B56
"""`CLKV` in the file's header: a key-value store of this library."""
_FORMAT_VERSION = 1
_CREATE = (
    """CREATE TABLE cells (
        partition BLOB NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
        version INTEGER NOT NULL, checksum INTEGER NOT NULL,
        PRIMARY KEY (partition, key)
    ) WITHOUT ROWID""",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_FORMAT_VERSION}",
)
_ALL = "SELECT partition, key, value, version, checksum FROM cells"
_GET = f"{_ALL} WHERE partition = ? AND key = ?"
_SCAN = f"{_ALL} WHERE partition = ? AND key >= ? ORDER BY key LIMIT ?"
_NEXT_PARTITION = "SELECT min(partition) FROM cells WHERE partition > ?"
_VERSION = "SELECT version FROM cells WHERE partition = ? AND key = ?"
_PUT = "INSERT OR REPLACE INTO cells (partition, key, value, version, checksum) VALUES (?, ?, ?, ?, ?)"
_DELETE = "DELETE FROM cells WHERE partition = ? AND key = ?"

Synchronous: TypeAlias = Literal["full", "normal"]
"""`"full"`: an acknowledged write survives a power failure. `"normal"`: it survives a kill of the process; a power
failure may take back the last writes, each as a whole and in order."""

_opened: Final[weakref.WeakValueDictionary[int, SqliteStore]] = weakref.WeakValueDictionary()
"""All stores of this process; in a forked child, also those of its parent."""


class SqliteStore(SqlStore[sqlite3.Connection]):
    """A `KVStore` in an SQLite file. Threads may share one; other processes open their own.

    A predicate never holds again after another write of the key. Every row has a checksum, so a damaged value raises
    `DamagedStore` and is never returned. A scan may miss a row if its place in the file's tree is damaged; `audit`
    finds that. After the file was removed or replaced, each call raises `StoreFailed`, since its writes would be lost.

    SQLite keeps the locks of a process in memory, where a forked child takes them for its own: a file that was open at
    a fork cannot be opened in the child. Spawn the process, or close the store before the fork. Do not open the file
    with anything but SQLite in a process that has it open, since closing it releases SQLite's locks.

    Args:
        path: the file; created if absent. SQLite has two more files, `-wal` and `-shm`, while it is open. It must be on
            a disk of this machine: WAL does not work over a network.
        synchronous: the durability of an acknowledged write.
        busy_seconds: how long a write waits for another process before it raises `SlowDown`.
        page_size: the most entries of a page of a scan; 4 MiB also end a page.
        create: whether an absent or empty file becomes a new store. Pass `False` if the store must exist.
        read_only: change neither the file nor its folder, and raise `ReadOnly` for each write. With an owner in another
            process, reads see its commits. Without an owner at the opening, a read raises `Busy` after a later owner
            has changed the file: open it again.
        files: creates the file, and syncs its folder at each opening.
        clock: the clock for the wait while another process sets the file up.

    Raises:
        NotAStore: the file is not a store, or is absent or empty and `create` is `False`.
        Closed: this process was forked while the file was open.
        Unsupported: a later release wrote it, or its disk cannot do WAL.
        DamagedStore: it is damaged.
        SlowDown: another process locked it during the opening.
        StorageError: the disk refused; `ConnectFailed` if the file cannot be opened.
    """

    def __init__(self, path: StrPath, *, synchronous: Synchronous = "full", busy_seconds: float = 10.0,
                 page_size: int = 1000, create: bool = True, read_only: bool = False, files: Files | None = None,
                 clock: Clock | None = None) -> None:
        require_seconds("busy_seconds", busy_seconds)
        require_one_of("synchronous", synchronous, Synchronous)
        # SQLite follows a link, and puts its other files next to the target.
        self._path = os.path.realpath(local_path(path, "the file"))
        self._synchronous = synchronous
        self._read_only = read_only
        self._busy_seconds = busy_seconds
        self._clock: Clock = SystemClock() if clock is None else clock
        self._fold_bytes, self._fold_at = _WAL_BYTES, 0.0
        super().__init__(f"the store {self._path}", _LIMITS, page_size=page_size)
        disk: Files = LocalFiles() if files is None else files
        _require_file(self._path, disk if create and not read_only else None)
        if not read_only:
            # The creator of an existing file may have been killed before the name was durable.
            sync_names(disk, os.path.dirname(self._path))
        self._file = _identity_of(self._path)
        for reference in _opened.valuerefs():
            other = reference()
            if other is not None and other._file == self._file and other.is_inherited:
                raise Closed(f"{self._path} was open when this process, {os.getpid()}, was forked; spawn it, or close "
                             f"the store before the fork")
        _opened[id(self)] = self
        # Without a `-wal` no process has the file open. `immutable` keeps SQLite from creating one.
        version = _version_of(self._path) if read_only else None
        self._unchanging = None if os.path.exists(f"{self._path}-wal") else version
        with closed_on_failure(self):
            self._set_up(create=create and not read_only)
        # An overlay file system may replace the file when it is opened for writing.
        self._file = _identity_of(self._path)

    def partitions(self) -> Iterator[bytes]:
        """Yield the partitions with keys, ascending. One read for each."""
        found: bytes | None = b""
        while found is not None:
            with self._reading("partitions") as connection:
                found, = connection.execute(_NEXT_PARTITION, (found,)).fetchone()
            if found is not None:
                yield found

    def place(self) -> str:
        self._require_open()
        self._require_in_place("place")
        # Both stay when the file is written, renamed, or mounted elsewhere, which changes the device. An inode may be
        # reused, and is often the same on new volumes.
        inode, born = os.stat(self._path).st_ino, _time_of_birth(self._path)
        return f"SQLite file of inode {inode}" + (f", made at {born} s of the epoch" if born else "")

    def _close(self) -> None:
        # The last process that closes the file moves the `-wal` into it.
        if self._guard.wait_idle():  # else a forked child would take the locks of a connection in use for its own
            _opened.pop(id(self), None)
        self._drop_idle()

    def audit(self) -> None:
        """Check SQLite's own integrity, and every row's checksum."""
        with self._reading("audit") as connection:
            findings = [text for text, in connection.execute("PRAGMA integrity_check").fetchall()]
            if findings != ["ok"]:
                raise DamagedStore(path=self._path, detail="; ".join(findings)[:1000])
            # An open cursor, kept by the traceback of an error, would keep the read transaction open.
            with contextlib.closing(connection.execute(_ALL)) as rows:
                for row in rows:
                    damage = self._entry(row).damage
                    if damage is not None:
                        raise damage

    # -- reading

    @contextlib.contextmanager
    def _reading(self, operation: str) -> Iterator[sqlite3.Connection]:
        try:
            self._require_open()
            self._require_in_place(operation)
            with self._lent(operation) as connection:
                yield connection
        finally:
            if self._unchanging is not None and _version_of(self._path) != self._unchanging:
                raise Busy(f"{self._path} was opened for reading alone, and an owner has changed it meanwhile; open it "
                           f"again")

    def _require_in_place(self, operation: str) -> None:
        """Check that the path is still the opened file: SQLite would continue on a removed file."""
        if _identity_of(self._path) != self._file:
            raise StoreFailed(operation=operation, path=self._path, detail="the file was removed, or another one was "
                              "put in its place; open it again")

    def _get_many(self, cells: Sequence[Address]) -> list[KVEntry | None]:
        with self._reading("get") as connection:
            if len(cells) > 1:
                # One read transaction takes one lock; statements cost no round trips, since SQLite is in this process.
                connection.execute("BEGIN")
            rows = [connection.execute(_GET, cell).fetchone() for cell in cells]
            if len(cells) > 1:
                connection.execute("COMMIT")
        return [None if row is None else self._entry(row) for row in rows]

    def _page(self, partition: bytes, start: bytes, limit: int) -> tuple[list[KVEntry], bool]:
        page: list[KVEntry] = []
        size = 0
        with self._reading("scan") as connection, \
                contextlib.closing(connection.execute(_SCAN, (partition, start, limit))) as rows:
            for row in rows:
                page.append(self._entry(row))
                size += len(page[-1].key) + len(page[-1].value)
                if size >= PAGE_BYTES:
                    return page, False
        return page, len(page) < limit

    def _entry(self, row: tuple[Any, ...]) -> KVEntry:
        """Return the entry of a row, with its damage if its checksum does not match."""
        partition, key, value, version, checksum = row
        # Damage to a row's header may change the types of its columns.
        if isinstance(partition, bytes) and isinstance(key, bytes) and isinstance(value, bytes) \
                and isinstance(version, int) and version >= 0 \
                and _checksum_of(partition, key, value, version) == checksum:
            return KVEntry(key, value, version)
        damage = DamagedStore(path=self._path, detail=f"the row of key {key!r} in partition {partition!r} does not "
                                                      f"match its checksum {checksum!r}")
        if not isinstance(key, bytes):
            raise damage
        return KVEntry(key, b"", version, damage)

    # -- writing

    def _commit(self, batch: Sequence[Transaction]) -> list[Exception | None]:
        if self._read_only:
            raise ReadOnly(operation="write", path=self._path, errno=errno.EROFS)
        with self._lent("write") as connection:
            connection.execute("BEGIN IMMEDIATE")
            self._require_in_place("write")
            answers = self._carry_out(connection, batch)
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as error:
                if _primary_code(error) != sqlite3.SQLITE_IOERR:
                    raise
                # The sync may have failed after the write: after a crash the transaction may be there.
                raise OutcomeUnknown(operation="commit", path=self._path, detail=str(error)) from error
            self._fold(connection)
        return answers

    def _versions(self, connection: sqlite3.Connection, cells: Sequence[Address]) -> list[int | None]:
        rows = [connection.execute(_VERSION, cell).fetchone() for cell in cells]
        return [None if row is None else row[0] for row in rows]

    def _write(self, connection: sqlite3.Connection, puts: Sequence[Row], deletes: Sequence[Address]) -> None:
        connection.executemany(_DELETE, deletes)
        connection.executemany(_PUT, [(*row, _checksum_of(*row)) for row in puts])

    def _fold(self, connection: sqlite3.Connection) -> None:
        """Truncate a large `-wal`, after a short wait for readers.

        If a reader prevents it, the next try is after the file has doubled, or a minute later.
        """
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
            # All commits are durable anyway, and the next writer retries.
            return

    def _named(self, error: BaseException, operation: str, connection: object) -> CompactlibError | None:
        path = self._path
        if isinstance(error, UnicodeDecodeError):
            # SQLite's message quotes a damaged name, which Python cannot decode.
            return DamagedStore(path=path, detail=f"a message of SQLite that is no text ({error.reason})")
        if not isinstance(error, sqlite3.Error):
            return None
        match _primary_code(error):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
                return SlowDown(operation=operation, detail=f"{path} is locked by another writer ({error})")
            case sqlite3.SQLITE_NOTADB if operation in ("connect", "open") and not _begins_as_sqlite(path):
                return NotAStore(f"{path} is not an SQLite database; name another file, or restore it if it once was a "
                                 f"store")
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return DamagedStore(path=path, detail=str(error))
            case sqlite3.SQLITE_FULL:
                # Either the disk is full, or a limit on the file's pages is reached.
                return DiskFull(operation=operation, path=path, errno=errno.ENOSPC, detail=str(error),
                                advice="free some space, or raise max_page_count if one was set, and call again")
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return ReadOnly(operation=operation, path=path, errno=errno.EROFS)
            case sqlite3.SQLITE_CANTOPEN:
                return ConnectFailed(operation=operation, path=path, detail=str(error))
        return StoreFailed(operation=operation, path=path, detail=str(error))

    # -- opening

    def _connect(self) -> sqlite3.Connection:
        mode = "immutable=1" if self._unchanging is not None else "mode=ro" if self._read_only else "mode=rw"
        uri = f"file://{quote(os.fsencode(self._path))}?{mode}"
        connection = sqlite3.connect(uri, uri=True, timeout=self._busy_seconds, isolation_level=None,
                                     check_same_thread=False)
        with closed_on_failure(connection):
            # The damaged header of a row may make any bytes a text; `_entry` names the row.
            connection.text_factory = partial(str, encoding="utf-8", errors="replace")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        return connection

    def _set_up(self, *, create: bool) -> None:
        with self._lent("open") as connection:
            # In one read transaction, since another process may be setting the file up.
            connection.execute("BEGIN")
            ready = _is_ready(connection, self._path, create=create)
            connection.execute("COMMIT")
            if not self._read_only:
                self._switch_to_wal(connection)
                _sync_wal(connection)
            if not ready:
                connection.execute("BEGIN IMMEDIATE")
                # Another process may have been faster: of this release, of a later one, or of any other program.
                if not _is_ready(connection, self._path, create=True):
                    for statement in _CREATE:
                        connection.execute(statement)
                connection.execute("COMMIT")

    def _switch_to_wal(self, connection: sqlite3.Connection) -> None:
        waited = 0.0
        while True:
            try:
                mode, = connection.execute("PRAGMA journal_mode = WAL").fetchone()
                break
            except sqlite3.OperationalError as error:
                # SQLite does not wait while another connection makes the same switch.
                if _primary_code(error) != sqlite3.SQLITE_BUSY or waited >= self._busy_seconds:
                    raise
                self._clock.sleep(_WAL_WAIT_SECONDS)
                waited += _WAL_WAIT_SECONDS
        if mode != "wal":
            raise Unsupported(f"{self._path} is on a file system where SQLite cannot use WAL (it offers {mode!r}); put "
                              f"it on a disk of this machine")


# ------------------------------------------------------------------------------------------------------- the table


_CHECKSUM_HEAD = struct.Struct("<QQQ")


def _checksum_of(partition: bytes, key: bytes, value: bytes, version: int) -> int:
    """Return the checksum of a row; SQLite has none."""
    head = crc32(_CHECKSUM_HEAD.pack(version, len(partition), len(key)))
    return crc32(value, crc32(key, crc32(partition, head)))


def _is_ready(connection: sqlite3.Connection, path: str, *, create: bool) -> bool:
    """Return whether the database is a store; `False` if it is empty and may become one."""
    application, = connection.execute("PRAGMA application_id").fetchone()
    version, = connection.execute("PRAGMA user_version").fetchone()
    if application == _APPLICATION_ID:
        if version != _FORMAT_VERSION:
            raise Unsupported(f"{path} is a key-value store of format {version}, this release knows format "
                              f"{_FORMAT_VERSION}; open it with the release that wrote it, or a later release")
        return True
    tables, = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application or version or tables or not create:
        raise NotAStore(f"{path} is an SQLite database without a key-value store: it has {tables} tables and indexes "
                        f"and application id {application:#x}, not {_APPLICATION_ID:#x}; name another file")
    return False


def _sync_wal(connection: sqlite3.Connection) -> None:
    """Make the commits in the `-wal` durable: those of a killed process may not be, and this store relies on them."""
    try:
        # It syncs the `-wal` first, so that a full disk prevents only the rest.
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
    except sqlite3.Error as error:
        if getattr(error, "sqlite_errorcode", 0) == sqlite3.SQLITE_IOERR_FSYNC:
            raise


# --------------------------------------------------------------------------------------------------------- the file


def _require_file(path: str, files: Files | None) -> None:
    """Create the file if it is absent; without `files` it must exist and have a header."""
    try:
        if not os.path.exists(path) and files is not None:
            files.create(path).close()
    except StorageError:
        # Another process was faster, or the folder does not exist.
        if not os.path.exists(path):
            raise
    if os.path.isdir(path):
        return  # opening it fails; the size of a folder depends on the file system
    size = os.path.getsize(path) if os.path.exists(path) else 0
    # SQLite takes a file that is shorter than its header for an empty database.
    if 0 < size < _FILE_HEADER_BYTES or (not size and files is None):
        raise NotAStore(f"{path} has {size} bytes, so there is no key-value store in it; check the path, restore the "
                        f"file from a copy, or open it with create=True to begin anew")


def _identity_of(path: str) -> tuple[int, int] | None:
    """Return device and inode of a file; `None` if it is absent."""
    found = look_at(path)
    return found and (found.st_dev, found.st_ino)


def _version_of(path: str) -> tuple[int, ...]:
    """Return size and time of change of the file, and the size of its `-wal`, which is longer after a later commit."""
    found, wal = look_at(path), look_at(f"{path}-wal")
    return (found.st_size, found.st_mtime_ns, wal.st_size if wal else 0) if found else ()


def _begins_as_sqlite(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(16) == b"SQLite format 3\0"


def _time_of_birth(path: str) -> str:
    """Return the time of a file's creation; `""` if the system does not keep it."""
    if sys.platform != "linux":
        return str(getattr(os.stat(path), "st_birthtime", ""))
    # Python has no statx before 3.15.
    import ctypes

    statx = getattr(ctypes.CDLL(None), "statx", None)
    found = ctypes.create_string_buffer(256)
    at_working_folder, wants_birth, birth_offset = -100, 0x800, 80  # the same on every machine
    if statx is None or statx(at_working_folder, os.fsencode(path), 0, wants_birth, found) != 0:
        return ""
    mask, = struct.unpack_from("=I", found)
    seconds, nanoseconds = struct.unpack_from("=qI", found, birth_offset)
    return f"{seconds}.{nanoseconds:09}" if mask & wants_birth else ""


def _primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF
