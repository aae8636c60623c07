# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a segment without reading it again, and what the names in a folder say of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

import attrs

from compactlib.files.disk import StrPath, look_at
from compactlib.raftlog.model.names import compacting_members, segment_name
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.segment.index import SegmentIndex
from compactlib.raftlog.segment.reader import SegmentReader


@attrs.frozen
class KnownSegment:
    """What is remembered of a segment without reading it again.

    Attributes:
        ref: its number and the range that counts.
        entries: index records in the file.
        data_bytes: payload bytes in the file, those behind a cut included.
        is_dense: whether it is known to hold every index of its range.
    """

    ref: SegmentRef
    entries: int
    data_bytes: int
    is_dense: bool = False


def know_segment(number: int, reader: SegmentReader) -> KnownSegment | None:
    """What to remember of an open segment; `None` if it holds nothing."""
    return know_index(number, reader.index)


def know_index(number: int, index: SegmentIndex) -> KnownSegment | None:
    """What to remember of a segment with this index; `None` if it holds nothing."""
    if not len(index):
        return None
    return KnownSegment(SegmentRef(number, index.first, index.last), index.entries, index.data_bytes, index.is_dense)


def file_bytes(folder: StrPath, number: int) -> int:
    """The size of a segment's own file; 0 if it was removed by hand.

    Dropping that is still right; copying from it fails by name.

    Raises:
        StorageError: the disk refused.
    """
    found = look_at(os.path.join(folder, segment_name(number)))
    return 0 if found is None else found.st_size


def is_committed(folder: StrPath, compacting: str) -> bool:
    """Whether the leader's own name (not a link) leads to the file of the `.compacting` name.

    A link count of 2 alone says nothing: the second name may be `1.segment.swap`, or the private one.

    Raises:
        StorageError: the disk refused.
    """
    members = compacting_members(compacting)
    if members is None:
        return False
    new = look_at(os.path.join(folder, compacting))
    old = look_at(os.path.join(folder, segment_name(members[0])))
    if new is None or old is None:
        return False
    return new.st_nlink >= 2 and stat.S_ISREG(old.st_mode) and os.path.samestat(new, old)


def superseded(folder: StrPath, names: Iterable[str]) -> set[int]:
    """The members, leaders aside, of groups that are committed but not finished; their own files no longer count."""
    return {member for name in names if is_committed(folder, name) for member in (compacting_members(name) or ())[1:]}
