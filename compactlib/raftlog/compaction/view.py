# SPDX-License-Identifier: Apache-2.0
"""`LogView`: a log as policies and plans see it, at one moment."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.raftlog.arguments import whole
from compactlib.raftlog.model.values import SegmentLimits, SegmentStats
from compactlib.report import Printed


@attrs.frozen
class DamagedSegment:
    """A segment that could not be judged; in a view it counts as wholly alive.

    Attributes:
        number: the segment's number.
        error: what stood in the way.
    """

    number: int
    # Errors differ from one look to the next although they say the same.
    error: CompactlibError = attrs.field(eq=str)


@attrs.frozen(kw_only=True, repr=False)
class LogView(Printed):
    """The log as a plan sees it, at one moment.

    Attributes:
        segments: statistics of every segment, oldest to newest, the newest included.
        snapshot_index: the index of the last snapshot; `None` before the first one.
        limits: how large the segments that a compaction writes may become.
        folder: the log's folder; empty for a view made by hand, whose plans no log carries out.
        damaged: segments that could not be judged, oldest to newest.

    Raises:
        InvalidInput: segments or their ranges do not ascend, or a count is impossible (the message names the segment);
            or a value is of another type.
    """

    segments: tuple[SegmentStats, ...]
    snapshot_index: int | None
    limits: SegmentLimits
    folder: str = ""
    damaged: tuple[DamagedSegment, ...] = ()

    def __attrs_post_init__(self) -> None:
        if self.snapshot_index is not None:
            whole("snapshot_index", self.snapshot_index)
        for segment in self.segments:
            _check_counts(segment)
        for older, newer in pairwise(self.segments):
            if not (older.number < newer.number and older.ref.last < newer.ref.first):
                raise InvalidInput(f"segment {newer.number} ({newer.ref.first} to {newer.ref.last}) follows segment "
                                   f"{older.number} ({older.ref.first} to {older.ref.last}); segments must come oldest "
                                   f"to newest, without overlap")

    @property
    def compactable(self) -> tuple[SegmentStats, ...]:
        """The segments that a compaction may touch: not the newest, and wholly at or below the snapshot."""
        if self.snapshot_index is None:
            return ()
        return tuple(segment for segment in self.segments[:-1] if segment.ref.last <= self.snapshot_index)

    @property
    def candidates(self) -> tuple[SegmentStats, ...]:
        """The compactable segments that hold something alive: what a policy chooses from. The others are dropped."""
        return tuple(segment for segment in self.compactable if segment.live_entries)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row a segment, oldest to newest."""
        compactable = {segment.number for segment in self.compactable}
        return [{"segment": each.number, "first": each.ref.first, "last": each.ref.last, "entries": each.entries,
                 "live_entries": each.live_entries, "data_bytes": each.data_bytes, "live_bytes": each.live_bytes,
                 "file_bytes": each.file_bytes, "compactable": each.number in compactable}
                for each in self.segments]

    def _summary(self) -> str:
        at = "before the first snapshot" if self.snapshot_index is None else f"at snapshot {self.snapshot_index}"
        damaged = f", {len(self.damaged)} of them damaged" if self.damaged else ""
        return (f"{len(self.segments)} segments {at}, {len(self.compactable)} of them compactable{damaged}, "
                f"{sum(each.file_bytes for each in self.segments):,} bytes")


def _check_counts(segment: SegmentStats) -> None:
    if not (0 <= segment.live_entries <= segment.entries and 0 <= segment.live_bytes <= segment.data_bytes):
        raise InvalidInput(f"segment {segment.number} claims {segment.live_entries} of {segment.entries} entries and "
                           f"{segment.live_bytes} of {segment.data_bytes} bytes live; live is a part of the whole")
    if segment.live_bytes and not segment.live_entries:
        raise InvalidInput(f"segment {segment.number} claims {segment.live_bytes} live bytes without a live entry")
