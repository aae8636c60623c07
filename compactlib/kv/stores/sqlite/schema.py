# SPDX-License-Identifier: Apache-2.0
"""What is in the SQLite file of a `SqliteStore`: tables, versions, checksums; `docs/formats/kv-sqlite.md`."""

from __future__ import annotations

import sqlite3
import struct
from collections.abc import Iterable

from compactlib.errors import Unsupported
from compactlib.files.checksum import crc32
from compactlib.kv.errors import DamagedStore, NotAStore

APPLICATION_ID = 0x434C4B56
"""`CLKV` in the file's header: a key-value store of this library."""
FORMAT_VERSION = 1
"""The only version of the tables so far; the header's user version."""

CREATE = (
    """CREATE TABLE cells (
        partition BLOB NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL,
        version INTEGER NOT NULL, checksum INTEGER NOT NULL,
        PRIMARY KEY (partition, key)
    ) WITHOUT ROWID""",
    "CREATE TABLE counter (version INTEGER NOT NULL)",
    "INSERT INTO counter (version) VALUES (0)",
    f"PRAGMA application_id = {APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT_VERSION}",
)
"""The statements that make an empty database a store, in one transaction."""

_HEAD = struct.Struct("<QQQ")


def checksum_of(partition: bytes, key: bytes, value: bytes, version: int) -> int:
    """What a row's checksum is: SQLite keeps none, and a damaged value must not pass for a sound one."""
    head = crc32(_HEAD.pack(version, len(partition), len(key)))
    return crc32(value, crc32(key, crc32(partition, head)))


def counter_of(connection: sqlite3.Connection, path: str) -> int:
    """The number of the last write.

    Raises:
        DamagedStore: there is not one such number.
    """
    rows = connection.execute("SELECT version FROM counter").fetchall()
    if len(rows) != 1 or not isinstance(rows[0][0], int) or rows[0][0] < 0:
        raise DamagedStore(path=path, detail=f"the table of the write counter holds {rows[:3]!r}")
    return rows[0][0]


def require_sound(path: str, partition: object, key: object, value: object, version: object, checksum: object) -> None:
    """Check one row that was read.

    Raises:
        DamagedStore: its bytes are not those that were written.
    """
    # Damage to a row's header may change the types of its columns.
    if isinstance(partition, bytes) and isinstance(key, bytes) and isinstance(value, bytes) \
            and isinstance(version, int) and version >= 0 \
            and checksum_of(partition, key, value, version) == checksum:
        return
    raise DamagedStore(path=path, detail=f"the row of key {key!r} in partition {partition!r} does not match its "
                                         f"checksum {checksum!r}")


def require_names(path: str, partition: bytes, rows: Iterable[tuple[object, object]]) -> None:
    """Check keys and versions that were read without the values, and so without the checksums that cover all three.

    Raises:
        DamagedStore: one has a type that none was written with.
    """
    for key, version in rows:
        if not (isinstance(key, bytes) and isinstance(version, int)):
            raise DamagedStore(path=path, detail=f"partition {partition!r} has a row of key {key!r} and version "
                                                 f"{version!r}")


def is_ready(connection: sqlite3.Connection, path: str) -> bool:
    """Whether the database is a store; `False` if it is empty and may become one. Call it within a transaction.

    Raises:
        NotAStore: it holds something else.
        Unsupported: it was written by a later release.
    """
    application, = connection.execute("PRAGMA application_id").fetchone()
    version, = connection.execute("PRAGMA user_version").fetchone()
    if application == APPLICATION_ID:
        if version != FORMAT_VERSION:
            raise Unsupported(f"{path} is a key-value store of format {version}, this release knows format "
                              f"{FORMAT_VERSION}; open it with the release that wrote it, or a later one")
        return True
    tables, = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application or version or tables:
        raise NotAStore(f"{path} is an SQLite database with {tables} tables and indexes and application id "
                        f"{application:#x}, not a key-value store ({APPLICATION_ID:#x}); name another file", path=path)
    return False
