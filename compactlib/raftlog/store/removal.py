# SPDX-License-Identifier: Apache-2.0
"""Removing a log from a store: one rename, after which it is gone, and then its files."""

from __future__ import annotations

import os

from compactlib.files.disk import Files, StrPath, list_folder, look_at

# No log id begins with a dot.
_REMOVED_PREFIX = ".removed-"


def begin_removal(files: Files, logs: StrPath, log_id: str) -> None:
    """Take a log's folder out of the list, durably; again, where that was refused half way. It must not be open."""
    path, removed = os.path.join(logs, log_id), os.path.join(logs, _REMOVED_PREFIX + log_id)
    if look_at(removed) is not None:
        # An earlier one of this name; its files go only where it is out of the list for certain.
        files.sync_folder(logs)
        finish_removals(files, logs)
    if look_at(path) is not None:
        files.rename(path, removed)
    files.sync_folder(logs)


def is_removed(path: StrPath) -> bool:
    """Whether this is the folder of a log that was taken out of the list; or a link, which an earlier release took."""
    return os.path.basename(path).startswith(_REMOVED_PREFIX) and (os.path.isdir(path) or os.path.islink(path))


def finish_removals(files: Files, logs: StrPath) -> None:
    """Remove the folders that were taken out of the list, those that a crash left included."""
    removed = [path for name in list_folder(logs) if is_removed(path := os.path.join(logs, name))]
    for path in removed:
        if os.path.islink(path):
            files.unlink(path)
        else:
            _remove(files, path)
    if removed:
        files.sync_folder(logs)


def _remove(files: Files, folder: str) -> None:
    for name in list_folder(folder):
        path = os.path.join(folder, name)
        if os.path.isdir(path) and not os.path.islink(path):
            _remove(files, path)
        else:
            files.unlink(path)
    files.remove_folder(folder)
