# SPDX-License-Identifier: Apache-2.0
"""Listing the folder of a store's logs: the logs, and unrelated files and folders, which are left alone."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

import attrs

from compactlib.files.disk import StrPath, list_folder, look_at
from compactlib.raftlog.errors import NotALog
from compactlib.raftlog.log.folder import require_log
from compactlib.raftlog.model.names import LOCK_NAME
from compactlib.raftlog.store.removal import is_removed


@attrs.frozen
class FoundFolders:
    """What was found.

    Attributes:
        logs: the ids of the logs, sorted: folders of their own (no links) that hold files of a log.
        strangers: names of files and folders that are no log, sorted. An empty folder is neither: a crash may leave
            one.
    """

    logs: tuple[str, ...]
    strangers: tuple[str, ...]


def find_folders(logs: StrPath, is_id: Callable[[str], bool]) -> FoundFolders:
    """Look into the folder of a store's logs.

    Args:
        logs: the folder.
        is_id: whether a name can be that of a log.

    Raises:
        StorageError: it cannot be read.
    """
    ours: list[str] = []
    strangers: list[str] = []
    for name in list_folder(logs):
        path = os.path.join(logs, name)
        if is_removed(path):
            continue
        may_be = is_id(name) and _is_folder(path)
        if may_be and _holds_log(path):
            ours.append(name)
        elif not may_be or set(list_folder(path)) - {LOCK_NAME}:
            strangers.append(name)
    return FoundFolders(tuple(ours), tuple(strangers))


def _holds_log(path: str) -> bool:
    try:
        return require_log(path, may_create=False)
    except NotALog:
        return False


def _is_folder(path: str) -> bool:
    found = look_at(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def what_is_there(path: str) -> str:
    """What a message says of a path that ought to be the folder of a log."""
    if os.path.islink(path):
        return "a symbolic link, which is never followed"
    if not os.path.lexists(path):
        return "none"
    return "a folder without them" if os.path.isdir(path) else "what is no folder"
