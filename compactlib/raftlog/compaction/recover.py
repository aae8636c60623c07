# SPDX-License-Identifier: Apache-2.0
"""Crash recovery: finishing or undoing an interrupted compaction, from the files in the folder alone.

For each `1-2-3.compacting` the question is whether the leader's name leads to the same file (inode):

* it does (so the link count is at least 2): the commit happened; make the missing links and remove the name;
* it does not: nothing was replaced; remove the file. Its link count may be 2 all the same, when the second name is
  only `1.segment.swap`, or the private name from which it was moved.

Any number of groups may be in either state. What is left of steps that never got that far, temporary names and private
folders, is removed as well. Running this again changes nothing.
"""

from __future__ import annotations

import errno
import os
import stat

import attrs

from compactlib.errors import CorruptData, StorageError
from compactlib.files.disk import Files, StrPath, list_folder, look_at
from compactlib.raftlog.compaction.commit import finish_group
from compactlib.raftlog.model.names import (
    compacting_members,
    compacting_name,
    is_leftover,
    is_private_file,
    is_private_folder,
    segment_name,
)
from compactlib.raftlog.segment.known import is_committed
from compactlib.raftlog.segment.reader import SegmentReader

_LOOKS = 3
"""At a folder in which files come and go: an attempt makes one, and may remove it."""


@attrs.frozen
class LogRecoveryReport:
    """What was found and done.

    Attributes:
        finished: members of groups whose commit had happened.
        undone: members of groups whose commit had not.
        removed: stray names that were removed.
    """

    finished: tuple[tuple[int, ...], ...] = ()
    undone: tuple[tuple[int, ...], ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names that were there."""
        return (*map(compacting_name, (*self.finished, *self.undone)), *self.removed)

    def __bool__(self) -> bool:
        return bool(self.finished or self.undone or self.removed)


def recover_folder(files: Files, folder: StrPath) -> LogRecoveryReport:
    """Bring the folder of a log into a state with no compaction under way. The caller holds the log's lock.

    Raises:
        CorruptData: the new segment of a group is damaged; its members that still have files of their own keep them.
        StorageError: the disk refused; call again.
    """
    finished: list[tuple[int, ...]] = []
    undone: list[tuple[int, ...]] = []
    for name in list_folder(folder):
        members = compacting_members(name)
        if members is None:
            continue
        if is_committed(folder, name):
            _finish(files, folder, members)
            finished.append(members)
        else:
            files.unlink(os.path.join(folder, name))
            undone.append(members)
    # Listed anew: finishing a group has used up temporary names that were there.
    removed = [name for name in list_folder(folder) if _remove_leftover(files, folder, name)]
    if finished or undone or removed:
        files.sync_folder(folder)
    return LogRecoveryReport(tuple(finished), tuple(undone), tuple(removed))


def leftovers(folder: StrPath) -> list[str]:
    """Names of what a crash may have left in a log's folder, and of what a compaction that runs now is making; sorted.

    Empty means that `recover_folder` would find nothing to do. Reads the folder and changes nothing.

    Raises:
        StorageError: the folder cannot be read.
    """
    return sorted(name for name in list_folder(folder)
                  if is_leftover(name) or compacting_members(name) is not None
                  or _is_private(os.path.join(folder, name)))


def remove_private_folder(files: Files, folder: StrPath) -> None:
    """Remove the private folder of a compaction run with whatever attempts have left in it.

    An attempt that outlives its run may create its file, or remove it, meanwhile: then it is looked at again.
    """
    for look in range(_LOOKS):
        try:
            for name in list_folder(folder):
                files.unlink(os.path.join(folder, name))
            files.remove_folder(folder)
        except StorageError as error:
            if look == _LOOKS - 1 or error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise
        else:
            return


def _finish(files: Files, folder: StrPath, members: tuple[int, ...]) -> None:
    # Nothing may be taken from the members for a leader that cannot be read.
    with SegmentReader(os.path.join(folder, segment_name(members[0])), tail="refuse", number=members[0]) as reader:
        owning = [number for number in members[1:] if _has_own_file(folder, number)]
        damaged = reader.damaged_entries() if owning else []
    if damaged:
        raise CorruptData(path=damaged[0].path, offset=damaged[0].offset, index=damaged[0].index,
                          expected=damaged[0].expected, found=f"{damaged[0].found}, in what was to take the place of "
                          f"segments {', '.join(map(str, owning))}, whose files are kept for that")
    # The rename that committed may not have been synced yet; the links must not overtake it.
    files.sync_folder(folder)
    finish_group(files, folder, members)


def _has_own_file(folder: StrPath, number: int) -> bool:
    found = look_at(os.path.join(folder, segment_name(number)))
    return found is not None and stat.S_ISREG(found.st_mode)


def _is_private(path: str) -> bool:
    """Whether a folder is a compaction's own: by its name, and because nothing lies in it but what attempts make."""
    if not is_private_folder(os.path.basename(path)) or not os.path.isdir(path) or os.path.islink(path):
        return False
    try:
        names = list_folder(path)
    except StorageError:
        if os.path.isdir(path):
            raise
        # Its compaction, in another process, has ended meanwhile.
        return False
    return all(is_private_file(name) and not os.path.isdir(os.path.join(path, name)) for name in names)


def _remove_leftover(files: Files, folder: StrPath, name: str) -> bool:
    path = os.path.join(folder, name)
    is_folder = os.path.isdir(path) and not os.path.islink(path)
    if is_folder and _is_private(path):
        remove_private_folder(files, path)
    elif not is_folder and is_leftover(name):
        files.unlink(path)
    else:
        return False
    return True
