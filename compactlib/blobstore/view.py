"""What a compaction policy sees of a store: immutable values, no store behind them (notes 1.5, 1.6)."""

from __future__ import annotations

from itertools import pairwise

import attrs

from compactlib.blobstore.names import SegmentName
from compactlib.errors import InvalidInput


@attrs.frozen(kw_only=True)
class SegmentView:
    """One log segment as a policy sees it.

    Attributes:
        name: its name.
        used_bytes: bytes behind the header up to the last record's end (records only, without the wasted tail).
        valid_bytes: bytes of the records that a compaction at the view's reference time would keep.
        eligible: whether a compaction may take it: sealed, and no entry of it is in the journal.
        last_modified: time of the newest operation in it, seconds since the epoch; 0 if it is empty.
        generation: how many compactions its content has been through; the same as `name.generation`.
        next_expiry: when the first of its valid blobs with a time to live expires, `None` if none does.
        valid_bytes_later: valid bytes at the view's `later`, if the view has a forecast.
    """

    name: SegmentName
    used_bytes: int
    valid_bytes: int
    eligible: bool = True
    last_modified: float = 0.0
    next_expiry: float | None = None
    valid_bytes_later: int | None = None

    @property
    def generation(self) -> int:
        """How many compactions the segment's place has been through."""
        return self.name.generation


@attrs.frozen(kw_only=True)
class StoreView:
    """A store as a policy sees it, at one reference time.

    Attributes:
        store: the store's name, for messages.
        capacity_bytes: capacity of the whole log.
        segment_bytes: capacity of one segment, its header included.
        header_bytes: size of a segment's header.
        used_bytes: used capacity: whole segments before the last one, and the last one up to its end (notes 1.2).
        reference_time: deletes made strictly before it are in effect; seconds since the epoch.
        segments: every segment, in log order, the ones that are not eligible included.
        later: the time of the segments' `valid_bytes_later`, if there is a forecast.

    Raises:
        InvalidInput: the segments do not ascend, or a number is negative.
    """

    store: str
    capacity_bytes: int
    segment_bytes: int
    header_bytes: int
    used_bytes: int
    reference_time: float
    segments: tuple[SegmentView, ...]
    later: float | None = None

    def __attrs_post_init__(self) -> None:
        names = [segment.name for segment in self.segments]
        if any(first >= second for first, second in pairwise(names)):
            raise InvalidInput(f"the segments of store {self.store} do not ascend: {', '.join(map(str, names))}")
        if min(self.capacity_bytes, self.segment_bytes, self.header_bytes, self.used_bytes) < 0:
            raise InvalidInput(f"the view of store {self.store} holds a negative size")

    @property
    def eligible(self) -> tuple[SegmentView, ...]:
        """The segments that a plan may name, in log order."""
        return tuple(segment for segment in self.segments if segment.eligible)
