# SPDX-License-Identifier: Apache-2.0
"""Removing files that no reader can reach any more: dropped segments, and the links that kept old names readable."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable

from compactlib.files.disk import Files, StrPath, list_folder, look_at
from compactlib.raftlog.model.names import segment_name, segment_number


def remove_segments(files: Files, folder: StrPath, numbers: Iterable[int]) -> int:
    """Remove segment files; returns the bytes given back. Those already gone are passed over.

    Raises:
        StorageError: the disk refused.
    """
    freed = 0
    for number in numbers:
        path = os.path.join(folder, segment_name(number))
        found = look_at(path)
        if found is not None:
            freed += found.st_size
            files.unlink(path)
    return freed


def purge_links(files: Files, folder: StrPath, *, now: float, keep_seconds: float,
                is_leased: Callable[[int], bool] = lambda number: False) -> tuple[int, ...]:
    """Remove the links of merged segments that are older than `keep_seconds` and not leased, and those that dangle.

    Args:
        files: the disk.
        folder: the log's folder.
        now: seconds since the epoch, to compare with the links' own times.
        keep_seconds: how long an old name stays readable for other processes.
        is_leased: whether a lease is held on this segment: a reader may still use its link.

    Returns:
        The numbers whose links were removed.

    Raises:
        StorageError: the disk refused.
    """
    removed: list[int] = []
    for name in list_folder(folder):
        number = segment_number(name)
        path = os.path.join(folder, name)
        found = None if number is None else look_at(path)
        if number is None or found is None or not stat.S_ISLNK(found.st_mode):
            continue
        old = now - found.st_mtime >= keep_seconds
        if not os.path.exists(path) or (old and not is_leased(number)):
            files.unlink(path)
            removed.append(number)
    return tuple(removed)
