# SPDX-License-Identifier: Apache-2.0
"""The commit of a rewrite: a finished segment replaces its sources atomically, safe against crashes.

For members 1, 2 and 3, of which 1 is the leader, with the new file written, checked and synced elsewhere in the folder:

1. rename it to `1-2-3.compacting`;
2. give it the leader's name: hard link to `1.segment.swap`, rename over `1.segment`; sync the folder.
   **This is the commit**: the leader's file now has every live entry of all members.
3. replace 2 and 3 by symbolic links to `1.segment` (link to `2.segment.link`, rename); sync the folder;
4. remove `1-2-3.compacting`;
5. after `keep_links_seconds`, remove the symbolic links, by which readers in other processes find merged entries.

Each sync is a barrier: a member's file is replaced after the leader's new file is durable (2 before 3), and the
`.compacting` name, which tells recovery what to finish, is removed after the links are durable (3 before 4). A single
sync in step 3 serves all groups of a run. Until step 3 is complete, members that are files do not count: who lists the
folder sees that they begin within the range of their leader (`read_folder`).

After a crash, recovery compares the file (inode) of each `.compacting` name with that of the leader's name:

* the same: the commit happened; steps 3 and 4 are executed;
* another: nothing was replaced; the file is removed. Its link count may be 2 nevertheless, if the second name is
  `1.segment.swap`, or the private name before the rename.

Any number of groups may be in either state. Temporary names and private files of interrupted steps are removed too.
Recovery is idempotent. Each function raises `StorageError` if the disk refuses a step: call it again, or recover.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence

import attrs

from compactlib.errors import CorruptData, DiskFull, InvalidInput, StorageError
from compactlib.files.disk import Files, StrPath, list_folder, look_at, replace_with_link, replace_with_symlink
from compactlib.indexset import IndexSet
from compactlib.raftlog.compaction.rewrite import Copier
from compactlib.raftlog.names import (
    COMPACTING_SUFFIX,
    LINK_SUFFIX,
    SWAP_SUFFIX,
    compacting_members,
    compacting_name,
    is_leftover,
    segment_name,
    segment_number,
)
from compactlib.raftlog.segment.listing import open_segment, stats_of
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.raftlog.values import SegmentStats
from compactlib.rewrite import RewrittenFile

# -- check


def check_rewritten(rewritten: RewrittenFile, members: Sequence[int], live: Sequence[IndexSet],
                    copier: Copier) -> SegmentStats:
    """Read and check a whole new file, before its sources are replaced; return its statistics.

    The attempt's report may come from another process; only the file on the disk counts.

    Raises:
        CorruptData: the file differs from its report, or an entry in it is damaged.
        InvalidInput: the file is of another group: it has not the `live` indexes of each member.
        StorageError: it cannot be read.
    """
    with SegmentReader(rewritten.path, sealed=True, number=members[0]) as reader:
        loaded = reader.loaded
        found = (loaded.data_end, loaded.seal.entries, loaded.index_crc)
        size = os.fstat(reader.fileno()).st_size
        merged = stats_of(members[0], reader.index)
        wanted = (rewritten.size_bytes, rewritten.entries, rewritten.crc32)
        if found != wanted or size != rewritten.size_bytes or merged is None:
            raise CorruptData(path=rewritten.path, offset=0, found=f"{found} in a file of {size} bytes",
                              expected=f"(size, entries, index CRC) {wanted} as reported")
        try:
            copier.check(reader)
        except CorruptData as error:
            raise _explained(error, f"in a new copy, which does not count: segments "
                                    f"{', '.join(map(str, members))} stay as they are, compact again") from error
    # The live set below a snapshot only shrinks: an earlier run's file for these members has another number of entries.
    kept = [each for each in live if each]
    planned = sum(map(len, kept)), kept[0].first, kept[-1].last
    held = merged.entries, merged.ref.first, merged.ref.last
    if held != planned:
        raise InvalidInput(f"the file made for segments {', '.join(map(str, members))} holds (entries, first, last) "
                           f"{held}, and {planned} are live in them; the executor must run the task that it was given, "
                           f"and answer with what that made")
    return merged


# -- steps 1 and 2


def place_leader(files: Files, folder: StrPath, members: Sequence[int], path: StrPath) -> None:
    """Replace the leader of `members` (segment numbers, ascending) by a checked file, durably, with one folder sync.

    After an error, the sources are unchanged without `is_committed`; with it the outcome of a crash is unknown.
    """
    compacting = os.path.join(folder, compacting_name(members))
    files.rename(path, compacting)
    try:
        replace_with_link(files, compacting, os.path.join(folder, segment_name(members[0])),
                          temporary_suffix=SWAP_SUFFIX)
    except StorageError:
        # Removed now, since a full disk needs the room.
        with contextlib.suppress(StorageError):
            if not is_committed(folder, members):
                files.unlink(compacting)
        raise
    files.sync_folder(folder)


def is_committed(folder: StrPath, members: Sequence[int]) -> bool:
    """Whether the leader's name is a hard link of a group's new file, durably or not.

    A link count of 2 is no proof: the second name may be `1.segment.swap`, or the private name.
    """
    new = look_at(os.path.join(folder, compacting_name(members)))
    old = look_at(os.path.join(folder, segment_name(members[0])))
    return new is not None and old is not None and os.path.samestat(new, old)


# -- steps 3 and 4


def link_members(files: Files, folder: StrPath, members: Sequence[int]) -> None:
    """The first half of step 3, for a durably committed group: the links. Idempotent.

    A sync of the folder makes the links of many groups durable. On a full disk a member's name is removed instead of
    becoming a link, so that a replaced file keeps no room.
    """
    leader = segment_name(members[0])
    for member in members[1:]:
        path = os.path.join(folder, segment_name(member))
        if not (os.path.islink(path) and os.readlink(path) == leader):
            try:
                replace_with_symlink(files, leader, path, temporary_suffix=LINK_SUFFIX)
            except DiskFull:
                if look_at(path) is not None:
                    files.unlink(path)


def finish_groups(files: Files, folder: StrPath, groups: Sequence[Sequence[int]]) -> None:
    """Steps 3 and 4, for durably committed groups, with a single folder sync."""
    for members in groups:
        link_members(files, folder, members)
    if groups:
        files.sync_folder(folder)
    for members in groups:
        files.unlink(os.path.join(folder, compacting_name(members)))


# -- step 5


def purge_links(files: Files, folder: StrPath, *, now: float, keep_seconds: float) -> tuple[int, ...]:
    """Remove the links of merged segments that are older than `keep_seconds`, and dangling links.

    Returns the numbers whose links were removed. `now` is in seconds since the epoch, as the links' times.
    """
    removed: list[int] = []
    for number in links_in(folder):
        path = os.path.join(folder, segment_name(number))
        found = look_at(path)
        if found is None:
            continue
        if now - found.st_mtime >= keep_seconds or not os.path.exists(path):
            files.unlink(path)
            removed.append(number)
    return tuple(removed)


def links_in(folder: StrPath) -> list[int]:
    """The numbers of the merged segments whose old names are links."""
    return [number for name in list_folder(folder) if (number := segment_number(name)) is not None
            and os.path.islink(os.path.join(folder, name))]


# -- recovery


@attrs.frozen
class LogRecoveryReport:
    """The result of a recovery.

    Attributes:
        finished: members of groups whose commit had happened.
        removed: names of the other leftovers, which were removed; also new files whose commit had not happened.
    """

    finished: tuple[tuple[int, ...], ...] = ()
    removed: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the recovered files."""
        return (*map(compacting_name, self.finished), *self.removed)

    def __bool__(self) -> bool:
        return bool(self.finished or self.removed)


def recover_folder(files: Files, folder: StrPath) -> LogRecoveryReport:
    """Finish or undo the interrupted compactions of a log's folder. The caller holds the log's lock.

    Raises `CorruptData` if the new segment of a group is damaged; its members keep the files that they have.
    """
    finished: list[tuple[int, ...]] = []
    for name in list_folder(folder):
        members = compacting_members(name)
        if members is not None and is_committed(folder, members):
            _require_whole_leader(folder, members)
            # The rename of the commit may not be synced; it must be durable before the links.
            files.sync_folder(folder)
            finish_groups(files, folder, [members])
            finished.append(members)
    # Listed again: finishing a group has used temporary names. Each `.compacting` name that is left is garbage.
    removed = leftovers(folder)
    for name in removed:
        files.unlink(os.path.join(folder, name))
    return LogRecoveryReport(tuple(finished), tuple(removed))


def leftovers(folder: StrPath) -> list[str]:
    """The sorted names of leftovers in a log's folder, and of the files of a running compaction; no names of folders.

    Empty if `recover_folder` would do nothing. Changes nothing.
    """
    return [name for name in list_folder(folder) if (is_leftover(name) or name.endswith(COMPACTING_SUFFIX))
            and (os.path.islink(path := os.path.join(folder, name)) or not os.path.isdir(path))]


def remove_private(files: Files, private: str) -> None:
    """Remove the files of a run's attempts that have failed, or whose results were not used.

    A file that cannot be removed, and a file of an attempt that outlives the run, is a leftover.
    """
    folder, prefix = os.path.split(private)
    with contextlib.suppress(StorageError):
        for name in list_folder(folder):
            if name.startswith(prefix):
                files.unlink(os.path.join(folder, name))


def _require_whole_leader(folder: StrPath, members: tuple[int, ...]) -> None:
    """Raise `CorruptData` if the leader is damaged while members have files."""
    with open_segment(folder, members[0]) as reader:
        owning = [number for number in members[1:] if os.path.isfile(path := os.path.join(folder, segment_name(number)))
                  and not os.path.islink(path)]
        try:
            if owning:
                Copier().check(reader)
        except CorruptData as error:
            raise _explained(error, f"in what was to take the place of segments {', '.join(map(str, owning))}, whose "
                                    f"files are kept for that") from error


def _explained(error: CorruptData, consequence: str) -> CorruptData:
    return CorruptData(path=error.path, offset=error.offset, index=error.index, expected=error.expected,
                       found=f"{error.found}, {consequence}")
