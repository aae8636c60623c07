# SPDX-License-Identifier: Apache-2.0
"""What is remembered of a segment without reading it again, and what the names in a folder say of it."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

import attrs

from compactlib.errors import CompactlibError
from compactlib.files.disk import StrPath, look_at
from compactlib.raftlog.model.names import compacting_members, segment_name
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.segment.format import RECORD_BYTES, decode_records
from compactlib.raftlog.segment.index import SegmentIndex, is_uniform
from compactlib.raftlog.segment.load import SegmentFormat, sealed_records
from compactlib.raftlog.segment.reader import SegmentReader


@attrs.frozen
class KnownSegment:
    """What is remembered of a segment without reading it again.

    Attributes:
        ref: its number and the range that counts.
        entries: index records in the file.
        data_bytes: payload bytes in the file, those behind a cut included.
        format: `"native"`, `"ra1"` or `"ra2"`.
        is_dense: whether it is known to hold every index of its range.
        payload_bytes: of every payload; `None` if they differ, or nobody has looked.
    """

    ref: SegmentRef
    entries: int
    data_bytes: int
    format: str
    is_dense: bool = False
    payload_bytes: int | None = None


def know_segment(number: int, reader: SegmentReader) -> KnownSegment | None:
    """What to remember of an open segment; `None` if it holds nothing."""
    return know_index(number, reader.index, reader.format)


def know_index(number: int, index: SegmentIndex, segment_format: SegmentFormat) -> KnownSegment | None:
    """What to remember of a segment with this index; `None` if it holds nothing."""
    if not len(index):
        return None
    ref, lengths = SegmentRef(number, index.first, index.last), index.columns.lengths
    return KnownSegment(ref, index.entries, index.data_bytes, segment_format, index.is_dense,
                        lengths[0] if is_uniform(lengths) else None)


def is_still_whole(folder: StrPath, known: KnownSegment) -> bool:
    """Whether a segment that is dense and has payloads of one size has a whole index that holds its range, as when it
    was learnt what it holds.

    `False` as well for one that is not sealed, is Ra's, or cannot be read: its reader says more. Takes a third of the
    reader's time, since of the records only the first and the last are decoded.
    """
    path = os.path.join(folder, segment_name(known.ref.number))
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            region = sealed_records(descriptor, path, number=known.ref.number)
        finally:
            os.close(descriptor)
    except (OSError, CompactlibError):
        return False
    each = known.payload_bytes
    if not region or each is None:
        return False
    ends = decode_records(region[:RECORD_BYTES] + region[-RECORD_BYTES:])
    (first, last), (start, end) = ends.indexes, ends.offsets
    return (first <= known.ref.first and known.ref.last <= last
            and last - first + 1 == known.entries == len(region) // RECORD_BYTES
            and [*ends.lengths] == [each, each] and end - start == (known.entries - 1) * each)


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
