"""What is remembered of a segment without reading it again."""

from __future__ import annotations

import attrs

from compactlib.raftlog.model import SegmentRef
from compactlib.raftlog.segment import SegmentReader


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
