# SPDX-License-Identifier: Apache-2.0
"""What lies at a path: which of the library's stores, as its files say without being opened."""

from __future__ import annotations

import os
from typing import Literal

from compactlib.blobstore.segment.descriptor import DESCRIPTOR_FILE
from compactlib.errors import Unsupported
from compactlib.raftlog.log.unflushed import logs_of_store

Kind = Literal["raft log", "store of raft logs", "blob store"]

_SQLITE_BEGINNING = b"SQLite format 3\0"


def kind_of(path: str) -> Kind:
    """Which store lies at `path`; a raft log if nothing says that it is another: reading it says what is wrong then.

    Raises:
        Unsupported: it is a key-value store in SQLite, of which the command line does not know what is in it.
        StorageError: the folder cannot be read.
    """
    if os.path.isfile(os.path.join(path, DESCRIPTOR_FILE)):
        return "blob store"
    if os.path.isdir(path):
        return "raft log" if logs_of_store(path) is None else "store of raft logs"
    if _begins_as_sqlite(path):
        raise Unsupported(f"{path} is a SQLite file; what a repository, a scheduler or a catalog keeps in one is "
                          f"looked at from Python (Repository.status(), StoredScheduler.service.stats(), "
                          f"CatalogService.status()); give a folder of a raft log or a blob store")
    return "raft log"


def _begins_as_sqlite(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return file.read(len(_SQLITE_BEGINNING)) == _SQLITE_BEGINNING
    except OSError:
        return False
