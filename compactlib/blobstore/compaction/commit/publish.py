# SPDX-License-Identifier: Apache-2.0
"""The commit of a cycle on the disk: new segments get their names, sources lose theirs.

The order that makes it safe; each step may be repeated, and recovery repeats those that a crash cut short:

1. every new segment is durable under its private name, and its index files are; the folder is synced;
2. the compaction log says COMMIT, durably: from here on the new segments count;
3. each new segment gets its name; the store answers from the new segments; the folder is synced;
4. the log says CLEANUP;
5. the sources' files go; the log says that the cycle has ended.

The removals of step 5 are synced before the log is closed: until then a recovery that finds it does them again.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable, Sequence

from compactlib.blobstore.compaction.progress.compaction_log import Cycle, Target
from compactlib.blobstore.model.names import UNPUBLISHED_SUFFIX, SegmentName, place_of_index_file, segment_of_log_file
from compactlib.errors import Conflict, CorruptData, StorageError
from compactlib.files.disk import Files, StrPath, list_folder, look_at


def private_name(target: SegmentName) -> str:
    """The name of a new segment that is whole, until the commit."""
    return target.log_file + UNPUBLISHED_SUFFIX


def check_names_are_free(folder: StrPath, targets: Iterable[SegmentName]) -> None:
    """Before anything is committed: check that no unrelated folder has the name that a new segment is to get.

    Raises:
        Conflict: one has.
        StorageError: the disk does not say.
    """
    for target in targets:
        path = os.path.join(folder, target.log_file)
        found = look_at(path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            raise Conflict(f"{path} is a folder, and a new segment of the compaction gets this name; see what it is, "
                           f"move it away, and compact again")


def place_targets(files: Files, folder: StrPath, cycle: Cycle) -> None:
    """Step 3: give each new segment its name; those that have it already keep it. Not durable before `sync_folder`.

    Raises:
        CorruptData: a new segment is not there, or is shorter than it was; nothing is taken from the sources.
        StorageError: the disk refused; call again.
    """
    for target in cycle.targets:
        private = os.path.join(folder, private_name(target.name))
        final = os.path.join(folder, target.name.log_file)
        if look_at(private) is not None:
            _check_whole(private, target)
            files.rename(private, final)
        else:
            _check_whole(final, target)


def _check_whole(path: str, target: Target) -> None:
    found = look_at(path)
    size = 0 if found is None else found.st_size
    if size != target.end:
        raise CorruptData(path=path, offset=size, expected=f"a new segment of {target.end} bytes",
                          found=f"{size} bytes")


def remove_sources(files: Files, folder: StrPath, sources: Sequence[SegmentName]) -> None:
    """Step 5: remove the files of segments that no longer count; what is gone already does not matter.

    Not durable before `sync_folder`.

    Raises:
        StorageError: the disk refused; call again.
    """
    for names in files_of(folder, sources).values():
        remove_names(files, folder, names)


def files_of(folder: StrPath, segments: Iterable[SegmentName]) -> dict[SegmentName, list[str]]:
    """The names of the log files and index files of some segments; a quick look at each name in the folder.

    Raises:
        StorageError: the folder cannot be read.
    """
    wanted = {str(name): name for name in segments}
    found: dict[SegmentName, list[str]] = {}
    for name in list_folder(folder) if wanted else ():
        segment = wanted.get(name.partition(".")[0])
        if segment is not None and (segment_of_log_file(name) or place_of_index_file(name)) is not None:
            found.setdefault(segment, []).append(name)
    return found


def bytes_of(folder: StrPath, names: Iterable[str]) -> int:
    """How large some files are together; one that is gone has nothing."""
    found = 0
    for name in names:
        with contextlib.suppress(OSError):
            found += os.lstat(os.path.join(folder, name)).st_size
    return found


def remove_names(files: Files, folder: StrPath, names: Sequence[str]) -> None:
    """Remove what an attempt has left; not durable before the next sync of the folder, which is early enough.

    An attempt that still runs elsewhere may remove its own file first.

    Raises:
        StorageError: the disk refused; call again.
    """
    for name in names:
        remove_file(files, folder, name)


def remove_file(files: Files, folder: StrPath, name: str) -> None:
    """Remove a name; one that is gone already does not matter, and an unrelated folder of that name stays.

    Raises:
        StorageError: the disk refused; call again.
    """
    path = os.path.join(folder, name)
    try:
        files.unlink(path)
    except StorageError:
        found = look_at(path)
        if found is not None and not stat.S_ISDIR(found.st_mode):
            raise
