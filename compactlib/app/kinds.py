# SPDX-License-Identifier: Apache-2.0
"""What lies at a path: which of the library's stores, as its files say without being opened."""

from __future__ import annotations

import os
from collections.abc import Sequence

import attrs

from compactlib.app.stores import Asked, StoreAt
from compactlib.errors import InvalidInput
from compactlib.files import list_folder

_SQLITE_BEGINNING = b"SQLite format 3\0"


@attrs.frozen
class Kind:
    """What a command line can say of a kind of store; what looks after it is imported when a path is of this kind.

    Attributes:
        name: what it is called.
        policies: names of those that can be asked for; the first is the default.
        options: those that mean something here.
    """

    name: str
    policies: Sequence[str]
    options: frozenset[str]


_COPYING = frozenset({"executor", "workers", "rate", "max_bytes"})
_REPOSITORY = frozenset({"partition", "branch", "objects", "rate", "max_bytes"})
KINDS: tuple[Kind, ...] = (
    Kind("raft log", ("auto", "drop", "seed", "ra", "cost"), _COPYING),
    Kind("store of raft logs", (), frozenset()),
    Kind("blob store", ("stats_based", "greedy", "cost_benefit", "compact_all"), _COPYING | {"retention"}),
    Kind("staging repository", ("always", "tombstone_cost"), _REPOSITORY),
    Kind("file of several repositories", (), _REPOSITORY))
"""Every kind that the commands know."""


def store_at(asked: Asked) -> StoreAt:
    """The store at a path; a raft log if nothing says that it is another: reading it says what is wrong then.

    A folder with one SQLite file in it, beside the folder of a repository's objects say, is what that file is.

    Raises:
        InvalidInput: several SQLite files are there, or an option means nothing to this kind of store.
        CompactlibError: it cannot be read.
    """
    found = _found(asked)
    known = next(kind for kind in KINDS if kind.name == found.kind)
    for name in sorted(asked.given - known.options - {"policy"}):
        fitting = ", ".join(kind.name for kind in KINDS if name in kind.options)
        raise InvalidInput(f"--{name.replace('_', '-')} is for a {fitting}; {asked.path} is a {found.kind}; "
                           f"leave it out")
    if asked.policy is not None and asked.policy not in known.policies:
        advice = f"give one of {', '.join(known.policies)}" if known.policies else "leave --policy out"
        raise InvalidInput(f"{asked.path} is a {found.kind}, for which there is no policy {asked.policy!r}; {advice}")
    return found


def _found(asked: Asked) -> StoreAt:
    from compactlib.blobstore import is_blob_store
    from compactlib.raftlog import is_log, logs_of_store

    path = asked.path
    if is_blob_store(path):
        from compactlib.app.blob_commands import BlobStoreAt

        return BlobStoreAt(asked)
    is_store_of_logs = logs_of_store(path) is not None
    if os.path.isdir(path) and not is_store_of_logs:
        names = list_folder(path)
        files = [name for name in names if _begins_as_sqlite(os.path.join(path, name))]
        if files and not is_log(path):
            if len(files) > 1:
                raise InvalidInput(f"{path} holds {len(files)} SQLite files, {', '.join(files[:5])}; name one of them")
            path = os.path.join(path, files[0])
    if _begins_as_sqlite(path):
        from compactlib.app.records import store_in

        return store_in(attrs.evolve(asked, path=path))
    from compactlib.app.raft_logs import RaftLogAt, RaftLogStoreAt

    return RaftLogStoreAt(asked) if is_store_of_logs else RaftLogAt(asked)


def _begins_as_sqlite(path: str) -> bool:
    try:
        # Without waiting, in case the name is a pipe's.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            return file.read(len(_SQLITE_BEGINNING)) == _SQLITE_BEGINNING
    except OSError:
        return False
