"""Finishing or undoing what a crash interrupted, from what lies in the folder alone.

For each `1-2-3.compacting` the question is whether the leader's name leads to the same file (inode):

* it does (so the link count is at least 2): the commit happened; make the missing links and remove the name;
* it does not: nothing was replaced; remove the file. Its link count may be 2 all the same, when the second name is
  only `1.segment.swap`, or the private name from which it was moved.

Any number of groups may be in either state. What is left of steps that never got that far, temporary names and private
folders, is removed as well. Running this again changes nothing.
"""

from __future__ import annotations

import os
import stat

import attrs

from compactlib.files import Files, StrPath, list_folder
from compactlib.raftlog.commit import link_members
from compactlib.raftlog.names import REWRITE_PREFIX, compacting_members, is_leftover, segment_name


@attrs.frozen
class RecoveryReport:
    """What was found and done.

    Attributes:
        finished: members of groups whose commit had happened.
        undone: members of groups whose commit had not.
        removed: stray names that were removed.
    """

    finished: tuple[tuple[int, ...], ...] = ()
    undone: tuple[tuple[int, ...], ...] = ()
    removed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.finished or self.undone or self.removed)


def recover_folder(files: Files, folder: StrPath) -> RecoveryReport:
    """Bring the folder of a log into a state with no compaction under way. The caller holds the log's lock.

    Raises:
        StorageError: the disk refused; call again.
    """
    finished: list[tuple[int, ...]] = []
    undone: list[tuple[int, ...]] = []
    removed: list[str] = []
    names = list_folder(folder)
    for name in names:
        members = compacting_members(name)
        if members is None:
            continue
        if is_committed(folder, name, members[0]):
            # The rename that committed may not have been synced yet; the links must not overtake it.
            files.sync_folder(folder)
            link_members(files, folder, members)
            finished.append(members)
        else:
            undone.append(members)
        files.unlink(os.path.join(folder, name))
    for name in filter(is_leftover, names):
        _remove(files, os.path.join(folder, name))
        removed.append(name)
    if finished or undone or removed:
        files.sync_folder(folder)
    return RecoveryReport(tuple(finished), tuple(undone), tuple(removed))


def is_committed(folder: StrPath, compacting: str, leader: int) -> bool:
    """Whether the leader's own name (not a link) leads to the file of the `.compacting` name."""
    new = os.lstat(os.path.join(folder, compacting))
    try:
        old = os.lstat(os.path.join(folder, segment_name(leader)))
    except FileNotFoundError:
        return False
    return new.st_nlink >= 2 and stat.S_ISREG(old.st_mode) and (old.st_dev, old.st_ino) == (new.st_dev, new.st_ino)


def remove_private_folder(files: Files, folder: StrPath) -> None:
    """Remove the private folder of a compaction run with whatever attempts have left in it."""
    for name in list_folder(folder):
        files.unlink(os.path.join(folder, name))
    files.remove_folder(folder)


def _remove(files: Files, path: str) -> None:
    if os.path.basename(path).startswith(REWRITE_PREFIX) and os.path.isdir(path) and not os.path.islink(path):
        remove_private_folder(files, path)
    else:
        files.unlink(path)
