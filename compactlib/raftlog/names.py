# SPDX-License-Identifier: Apache-2.0
"""The names of a log's files, and the meaning of each name.

| name | content |
| --- | --- |
| `0000000000000007.segment` | segment 7; a symbolic link if a compaction merged it into an older one |
| `<digits>-<digits>-….compacting` | a compaction's finished output, named after its members, lowest first |
| `<segment>.link`, `<segment>.swap` | a symbolic or hard link about to be renamed over a segment |
| `<any name>.tmp` | a file about to be renamed into place |
| `rewrite-<run>-<segment>.<attempt>` | a file that an attempt of a compaction's task writes |
| `SNAPSHOT` | the last snapshot: its index, its live set and what its state must be |
| `snapshots/` | the state of that snapshot, checkpoints, and a snapshot that is being received |
| `HARD_STATE` | the member's term and vote |
| `LOCK` | locked by the process that writes; of the logs of a store, in the store's folder |

A store has the folders of its logs in `logs/`, and its WAL in `wal/`.
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
_COMPACTING = re.compile(r"(\d{16}(?:-\d{16})*)\.compacting")
_LEFTOVER = re.compile(r"\d{16}\.segment\.(?:link|swap|tmp)|SNAPSHOT\.tmp|rewrite-[^-]+-\d{16}\.segment\..+")


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
    """The members in a `.compacting` name; `None` for other names, or if the members do not ascend."""
    match = _COMPACTING.fullmatch(name)
    if match is None:
        return None
    members = tuple(map(int, match[1].split("-")))
    return members if all(map(lt, members, members[1:])) else None


def is_leftover(name: str) -> bool:
    """Whether a file of this name is private to a running step, or left by an interrupted step."""
    return _LEFTOVER.fullmatch(name) is not None
