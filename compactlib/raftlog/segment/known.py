"""What is remembered of a segment without reading it again."""

from __future__ import annotations

import os

import attrs

from compactlib.files.disk import StrPath
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.values import SegmentRef
from compactlib.raftlog.segment.reader import SegmentReader


@attrs.frozen
class KnownSegment:
    """What is remembered of a segment without reading it again.

    Attributes:
        ref: its number and the range that counts.
        entries: index records in the file, overwritten ones included.
        data_bytes: payload bytes in the file, overwritten ones included.
        format: `"native"`, `"ra1"` or `"ra2"`.
    """

    ref: SegmentRef
    entries: int
    data_bytes: int
    format: str


def know_segment(number: int, reader: SegmentReader) -> KnownSegment | None:
    """What to remember of an open segment; `None` if it holds nothing."""
    index = reader.index
    if not len(index):
        return None
    ref = SegmentRef(number, index.first, index.last)
    return KnownSegment(ref, index.entries, index.data_bytes, reader.format)


def file_bytes(folder: StrPath, number: int) -> int:
    """The size of a segment's own file; 0 if somebody has removed it by hand.

    Dropping that is still right; copying from it fails by name.
    """
    try:
        return os.lstat(os.path.join(folder, segment_name(number))).st_size
    except FileNotFoundError:
        return 0
