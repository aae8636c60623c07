# SPDX-License-Identifier: Apache-2.0
"""The names of what SQLite refuses."""

from __future__ import annotations

import contextlib
import errno
import sqlite3
from collections.abc import Iterator

from compactlib.errors import CompactlibError, DiskFull, ReadOnly
from compactlib.kv.errors import ConnectFailed, DamagedStore, SlowDown, StoreFailed


@contextlib.contextmanager
def named_errors(operation: str, path: str) -> Iterator[None]:
    """Turn what SQLite raises in the block into errors of the library."""
    try:
        yield
    except sqlite3.Error as error:
        raise named(error, operation, path) from error
    except UnicodeDecodeError as error:
        # SQLite quotes damaged names in its own message, which Python then cannot read.
        raise DamagedStore(path=path, detail=f"a message of SQLite that is no text ({error.reason})") from error


def named(error: sqlite3.Error, operation: str, path: str) -> CompactlibError:
    """The library's error for one of SQLite's."""
    match primary_code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return SlowDown(operation=operation, detail=f"{path} is locked by another writer ({error})")
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return DamagedStore(path=path, detail=str(error))
        case sqlite3.SQLITE_FULL:
            # SQLite does not say which: the disk, or a bound on the file's pages.
            return DiskFull(operation=operation, path=path, errno=errno.ENOSPC, detail=str(error),
                            advice="free some space, or raise max_page_count if one was set, and call again")
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return ReadOnly(operation=operation, path=path, errno=errno.EROFS)
        case sqlite3.SQLITE_CANTOPEN:
            return ConnectFailed(operation=operation, path=path, detail=str(error), errno=errno.ENOENT)
    return StoreFailed(operation=operation, path=path, detail=str(error))


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's result code without its extension."""
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF
