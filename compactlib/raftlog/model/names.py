# SPDX-License-Identifier: Apache-2.0
"""The names of a log's files, and what each name means.

| name | what it is |
| --- | --- |
| `0000000000000007.segment` | segment 7; a symbolic link if a compaction merged it into an older one |
| `<digits>-<digits>-….compacting` | a compaction's finished output, named after its members, lowest first |
| `<segment>.link`, `<segment>.swap` | a symbolic or hard link about to be renamed over a segment |
| `<any name>.tmp` | a file about to be renamed into place |
| `rewrite-<job>/` | the private folder of one compaction run |
| `SNAPSHOT` | the last snapshot: its index, its live set and what its state must be |
| `snapshots/` | the state of that snapshot, checkpoints, and a snapshot that is being received |
| `HARD_STATE` | the member's term and vote |
| `LOCK` | locked by the process that writes |

In a store the folders of its logs lie in `logs/`, beside `wal/`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import lt

WAL_FOLDER = "wal"
LOGS_FOLDER = "logs"
SNAPSHOT_NAME = "SNAPSHOT"
HARD_STATE_NAME = "HARD_STATE"
SNAPSHOTS_FOLDER = "snapshots"
LOCK_NAME = "LOCK"
LINK_SUFFIX = ".link"
SWAP_SUFFIX = ".swap"
TEMPORARY_SUFFIX = ".tmp"
COMPACTING_SUFFIX = ".compacting"
REWRITE_PREFIX = "rewrite-"

_SEGMENT = re.compile(r"(\d{16})\.segment")
_PRIVATE = re.compile(r"\d{16}\.segment\.[^/]+")
_COMPACTING = re.compile(r"(\d{16}(?:-\d{16})*)\.compacting")
_TEMPORARY = re.compile(r"\d{16}\.segment\.(?:link|swap|tmp)|SNAPSHOT\.tmp")


def segment_name(number: int) -> str:
    """The file name of segment `number`."""
    return f"{number:016d}.segment"


def segment_number(name: str) -> int | None:
    """The number in a segment's file name, or `None` for any other name."""
    match = _SEGMENT.fullmatch(name)
    return int(match[1]) if match else None


def compacting_name(members: Sequence[int]) -> str:
    """The file name of the finished output that replaces `members` (ascending)."""
    return "-".join(f"{number:016d}" for number in members) + COMPACTING_SUFFIX


def compacting_members(name: str) -> tuple[int, ...] | None:
    """The members in a `.compacting` name, or `None` for any other name, one whose members do not ascend included."""
    match = _COMPACTING.fullmatch(name)
    if match is None:
        return None
    members = tuple(map(int, match[1].split("-")))
    return members if all(map(lt, members, members[1:])) else None


def is_temporary(name: str) -> bool:
    """Whether a name is one of those under which this library makes files before it renames them into place."""
    return _TEMPORARY.fullmatch(name) is not None


def is_leftover(name: str) -> bool:
    """Whether a file in the folder of a log belongs to an interrupted step, and can be removed while there is no
    writer.

    Any `.compacting` name that says no members is one: nothing could ever be done with it.
    """
    return is_temporary(name) or (name.endswith(COMPACTING_SUFFIX) and compacting_members(name) is None)


def is_private_file(name: str) -> bool:
    """Whether a name in a private folder is that of an attempt: the segment's, and the attempt's id behind it."""
    return _PRIVATE.fullmatch(name) is not None


def is_private_folder(name: str) -> bool:
    """Whether a folder in the folder of a log belongs to one compaction run, and can be removed when none is on."""
    return name.startswith(REWRITE_PREFIX)
