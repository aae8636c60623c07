# SPDX-License-Identifier: Apache-2.0
"""Classify the names in a log's folder that are not segments with entries of their own."""

from __future__ import annotations

import os
from collections.abc import Collection

import attrs

from compactlib.files.disk import list_folder
from compactlib.raftlog.model.names import (
    CADENCE_NAME,
    HARD_STATE_NAME,
    LOCK_NAME,
    SNAPSHOT_NAME,
    SNAPSHOTS_FOLDER,
    TEMPORARY_SUFFIX,
    compacting_members,
    is_leftover,
    is_private_folder,
    segment_number,
)
from compactlib.raftlog.segment.known import is_committed

_OWN_NAMES = frozenset((LOCK_NAME, SNAPSHOT_NAME, HARD_STATE_NAME, SNAPSHOTS_FOLDER, CADENCE_NAME))


@attrs.frozen
class OtherName:
    """A name in the folder that is not a segment with entries of its own.

    Attributes:
        name: the name.
        meaning: what it is.
    """

    name: str
    meaning: str


def other_names(folder: str, segments: Collection[int]) -> tuple[OtherName, ...]:
    """Return the names in the folder that are neither one of these segments nor a file that each log has."""
    return tuple(OtherName(name, _meaning(folder, name)) for name in list_folder(folder)
                 if segment_number(name) not in segments and name not in _OWN_NAMES)


def _meaning(folder: str, name: str) -> str:
    path = os.path.join(folder, name)
    if segment_number(name) is not None:
        return _meaning_of_segment(path)
    members = compacting_members(name)
    if members is not None:
        numbers = ", ".join(map(str, members))
        return (f"segments {numbers} merged, being put in place" if is_committed(folder, name)
                else f"segments {numbers} merged, not yet in place")
    if is_private_folder(name) and os.path.isdir(path):
        return "what a compaction is writing, or was when it was interrupted"
    if is_leftover(name) or name.removesuffix(TEMPORARY_SUFFIX) in _OWN_NAMES:
        return "left by an interrupted step; opening the log for writing removes it"
    return "does not belong to the log"


def _meaning_of_segment(path: str) -> str:
    try:
        return f"old name of a segment merged into {os.readlink(path)}"
    except OSError:
        return "a segment without an entry that counts"
