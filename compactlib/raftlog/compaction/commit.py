# SPDX-License-Identifier: Apache-2.0
"""The commit of a rewrite: a finished segment atomically takes the place of its sources, safe against crashes.

For members 1, 2 and 3, of which 1 is the leader, with the new file written and synced elsewhere in the folder:

1. rename it to `1-2-3.compacting`;
2. give it the leader's name: hard link to `1.segment.swap`, rename over `1.segment`; sync the folder.
   **This is the commit**: the leader's name now leads to every live entry of all members.
3. replace 2 and 3 by symbolic links to `1.segment` (link to `2.segment.link`, rename); sync the folder;
4. remove `1-2-3.compacting`.

Each sync is a wall: no member may lose its own file before the leader's new one is durable (2 before 3), and the
`.compacting` name, by which recovery knows what to finish, may not go before the links are durable (3 before 4).
One sync in step 3 serves all groups of a run. Steps 3 and 4 are repeated by recovery (`recover.py`) if a crash comes
between.

The new segment's range reaches from its first to its last member, and a newer segment cuts an older one. So no other
segment's file may lie between the members: its range would hide what was merged from behind it. Before step 1 the
folder is searched for one, and synced if numbers are missing between the members, lest a removal comes undone in a
crash. And until step 3 is complete, members that still are files do not count: the `.compacting` name shows that to
every process that lists the folder (`superseded`).
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence

from compactlib.errors import Busy, CorruptData, DiskFull, InvalidInput, StorageError
from compactlib.files.disk import Files, StrPath, look_at, replace_with_link, replace_with_symlink
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.model.names import LINK_SUFFIX, SWAP_SUFFIX, compacting_name, segment_name
from compactlib.raftlog.segment.known import KnownSegment, is_committed, know_segment
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.rewrite import RewrittenFile


def place_leader(files: Files, folder: StrPath, members: Sequence[int], rewritten: RewrittenFile,
                 live: Sequence[IndexSet]) -> KnownSegment:
    """Steps 1 and 2: put `rewritten` in place of `members` (segment numbers, ascending), durably; `link_members` and
    `finish_group` do the rest, at any later time.

    Args:
        files: the disk.
        folder: the log's folder.
        members: what it takes the place of.
        rewritten: the finished file.
        live: what is to be kept of each member.

    Returns what the new segment holds.

    One folder sync, whatever the number of members, and a second if their numbers have gaps. After an error before
    step 2 the sources are as before; after a later one the leader already holds everything. Opening the log finishes
    or undoes it in either case.

    Raises:
        CorruptData: the file is not what its attempt reported, or an entry in it is damaged; nothing was changed.
        InvalidInput: it is not that of this group; likewise.
        Busy: the file of another segment lies between the members; nothing was changed.
        StorageError: the disk refused a step.
    """
    merged = _check_rewritten(rewritten, members, live)
    _check_nothing_between(folder, members)
    if members[-1] - members[0] >= len(members):
        files.sync_folder(folder)
    name = compacting_name(members)
    compacting = os.path.join(folder, name)
    files.rename(rewritten.path, compacting)
    try:
        replace_with_link(files, compacting, os.path.join(folder, segment_name(members[0])),
                          temporary_suffix=SWAP_SUFFIX)
    except BaseException:
        # On a full disk a large file must not wait for the next run to be removed.
        with contextlib.suppress(StorageError):
            if not is_committed(folder, name):
                files.unlink(compacting)
        raise
    files.sync_folder(folder)
    return merged


def link_members(files: Files, folder: StrPath, members: Sequence[int]) -> bool:
    """The first half of step 3, for a group whose leader is in place durably: the links, which one sync of the folder
    makes durable for many groups. What is done is not done again; returns whether anything was.

    On a full disk a member's name is removed instead of becoming a link: what is superseded must not keep its space.

    Raises:
        StorageError: the disk refused; call again.
    """
    leader = segment_name(members[0])
    changed = False
    for member in members[1:]:
        path = os.path.join(folder, segment_name(member))
        if not (os.path.islink(path) and os.readlink(path) == leader):
            try:
                replace_with_symlink(files, leader, path, temporary_suffix=LINK_SUFFIX)
            except DiskFull:
                if look_at(path) is not None:
                    files.unlink(path)
            changed = True
    return changed


def finish_group(files: Files, folder: StrPath, members: Sequence[int]) -> None:
    """Steps 3 and 4, for a group whose leader is in place durably, as are its links if all are there.

    Raises:
        StorageError: the disk refused; sync the folder and call again.
    """
    if link_members(files, folder, members):
        files.sync_folder(folder)
    files.unlink(os.path.join(folder, compacting_name(members)))


def _check_rewritten(rewritten: RewrittenFile, members: Sequence[int], live: Sequence[IndexSet]) -> KnownSegment:
    # What an attempt reported came through a pickle from another process; what counts is what lies on the disk.
    with SegmentReader(rewritten.path, tail="refuse", number=members[0]) as reader:
        loaded = reader.loaded
        found = (loaded.data_end, loaded.durable_entries, loaded.index_crc)
        size = os.fstat(reader.fileno()).st_size
        merged = know_segment(members[0], reader)
        damaged = reader.damaged_entries() if size >= loaded.data_end else []
    wanted = (rewritten.size_bytes, rewritten.entries, rewritten.crc32)
    if found != wanted or size != rewritten.size_bytes or merged is None:
        raise CorruptData(path=rewritten.path, offset=0, expected=f"(size, entries, index CRC) {wanted} as reported",
                          found=f"{found} in a file of {size} bytes")
    if damaged:
        first, numbers = damaged[0], ", ".join(map(str, members))
        raise CorruptData(path=first.path, offset=first.offset, index=first.index, expected=first.expected,
                          found=f"{first.found} in a new copy, which does not count: segments {numbers} stay as they "
                                f"are, compact again")
    # The live sets of a log only lose what is in them: of an earlier run's file for these indexes the number differs.
    kept = [each for each in live if each]
    planned = sum(map(len, kept)), kept[0].first, kept[-1].last
    held = merged.entries, merged.ref.first, merged.ref.last
    if held != planned:
        raise InvalidInput(f"the file made for segments {', '.join(map(str, members))} holds (entries, first, last) "
                           f"{held}, and {planned} are live in them; the executor must run the task that it was given, "
                           f"and answer with what that made")
    return merged


def _check_nothing_between(folder: StrPath, members: Sequence[int]) -> None:
    # By name, not by listing the folder: all groups of a compaction together look at each number once.
    for number in sorted(set(range(members[0], members[-1])).difference(members)):
        found = look_at(os.path.join(folder, segment_name(number)))
        if found is not None and not stat.S_ISLNK(found.st_mode):
            raise Busy(f"segments {', '.join(map(str, members))} cannot become one while the file of segment {number} "
                       f"lies between them; it goes when the last lease on it ends, compact again then")
