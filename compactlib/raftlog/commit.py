"""Putting a finished segment in place of its sources, as in the seed (phase 3), made sound.

For members 1, 2 and 3, of which 1 is the leader, with the new file written and synced elsewhere in the folder:

1. rename it to `1-2-3.compacting`;
2. give it the leader's name: hard link to `1.segment.swap`, rename over `1.segment`; sync the folder.
   **This is the commit**: the leader's name now leads to every live entry of all members.
3. replace 2 and 3 by symbolic links to `1.segment` (link to `2.segment.link`, rename); sync the folder;
4. remove `1-2-3.compacting`.

Each sync is a wall: no member may lose its own file before the leader's new one is durable (2 before 3), and the
`.compacting` name, by which recovery knows what to finish, may not go before the links are durable (3 before 4).
Steps 3 and 4 are repeated by recovery (`recover.py`) if a crash comes between.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from compactlib.errors import CorruptData
from compactlib.files import Files, StrPath, replace_with_link, replace_with_symlink
from compactlib.raftlog.names import LINK_SUFFIX, SWAP_SUFFIX, compacting_name, segment_name
from compactlib.raftlog.segment import SegmentReader
from compactlib.rewrite import RewrittenFile


def commit_group(files: Files, folder: StrPath, members: Sequence[int], rewritten: RewrittenFile) -> None:
    """Put `rewritten` in place of `members` (segment numbers, ascending), durably.

    Two folder syncs, whatever the number of members. After an error before step 2 the sources are as before; after
    a later one the leader already holds everything. Opening the log finishes or undoes it in either case.

    Raises:
        CorruptData: the file is not what its attempt reported; nothing was changed.
        StorageError: the disk refused a step.
    """
    _check_rewritten(rewritten, members)
    compacting = os.path.join(folder, compacting_name(members))
    leader = os.path.join(folder, segment_name(members[0]))
    files.rename(rewritten.path, compacting)
    replace_with_link(files, compacting, leader, temporary_suffix=SWAP_SUFFIX)
    files.sync_folder(folder)
    link_members(files, folder, members)
    files.unlink(compacting)


def link_members(files: Files, folder: StrPath, members: Sequence[int]) -> None:
    """Make every member but the first a symbolic link to the first, durably; links that are there stay."""
    leader = segment_name(members[0])
    changed = False
    for member in members[1:]:
        path = os.path.join(folder, segment_name(member))
        if not (os.path.islink(path) and os.readlink(path) == leader):
            replace_with_symlink(files, leader, path, temporary_suffix=LINK_SUFFIX)
            changed = True
    if changed:
        files.sync_folder(folder)


def _check_rewritten(rewritten: RewrittenFile, members: Sequence[int]) -> None:
    # What an attempt reported came through a pickle from another process; what counts is what lies on the disk.
    with SegmentReader(rewritten.path, tail="refuse", number=members[0]) as reader:
        loaded = reader.loaded
        found = (loaded.data_end, loaded.durable_entries, loaded.index_crc)
        size = os.fstat(reader.fileno()).st_size
    wanted = (rewritten.size_bytes, rewritten.entries, rewritten.crc32)
    if found != wanted or size != rewritten.size_bytes:
        raise CorruptData(path=rewritten.path, offset=0, expected=f"(size, entries, index CRC) {wanted} as reported",
                          found=f"{found} in a file of {size} bytes")
