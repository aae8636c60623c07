# SPDX-License-Identifier: Apache-2.0
"""What lies at a path: which of the library's stores, as its files say without being opened."""

from __future__ import annotations

import os

import attrs

from compactlib.app.blob_commands import BlobStoreAt
from compactlib.app.raft_logs import RaftLogAt, RaftLogStoreAt
from compactlib.app.records import CatalogAt, RepositoryAt, SchedulerAt, SqliteFileAt, begins_as_sqlite, store_in
from compactlib.app.stores import Asked, StoreAt
from compactlib.blobstore.segment.descriptor import DESCRIPTOR_FILE
from compactlib.errors import InvalidInput
from compactlib.files.disk import list_folder
from compactlib.raftlog.log.unflushed import logs_of_store
from compactlib.raftlog.model.names import segment_number

KINDS: tuple[type[StoreAt], ...] = (RaftLogAt, RaftLogStoreAt, BlobStoreAt, RepositoryAt, SchedulerAt, CatalogAt,
                                    SqliteFileAt)
"""Every kind that the commands know."""


def store_at(asked: Asked) -> StoreAt:
    """The store at a path; a raft log if nothing says that it is another: reading it says what is wrong then.

    A folder with one SQLite file in it, beside the folder of a repository's objects say, is what that file is.

    Raises:
        InvalidInput: several SQLite files are there, or an option means nothing to this kind of store.
        CompactlibError: it cannot be read.
    """
    found = _found(asked)
    for name in sorted(asked.given - found.options - {"policy"}):
        fitting = ", ".join(kind.kind for kind in KINDS if name in kind.options)
        raise InvalidInput(f"--{name.replace('_', '-')} is for a {fitting}; {asked.path} is a {found.kind}; "
                           f"leave it out")
    if asked.policy is not None and asked.policy not in found.policies:
        advice = f"give one of {', '.join(found.policies)}" if found.policies else "leave --policy out"
        raise InvalidInput(f"{asked.path} is a {found.kind}, for which there is no policy {asked.policy!r}; {advice}")
    return found


def _found(asked: Asked) -> StoreAt:
    path = asked.path
    if os.path.isfile(os.path.join(path, DESCRIPTOR_FILE)):
        return BlobStoreAt(asked)
    if os.path.isdir(path):
        if logs_of_store(path) is not None:
            return RaftLogStoreAt(asked)
        names = list_folder(path)
        files = [name for name in names if begins_as_sqlite(os.path.join(path, name))]
        if not files or any(segment_number(name) is not None for name in names):
            return RaftLogAt(asked)
        if len(files) > 1:
            raise InvalidInput(f"{path} holds {len(files)} SQLite files, {', '.join(files[:5])}; name one of them")
        path = os.path.join(path, files[0])
    return store_in(attrs.evolve(asked, path=path)) if begins_as_sqlite(path) else RaftLogAt(asked)
