"""What a compaction did to the list of segments, for a server that keeps one of its own."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from compactlib.raftlog.compaction.report import CompactionReport, GroupStats
from compactlib.raftlog.model.refs import merge_refs
from compactlib.raftlog.model.values import SegmentRef


@attrs.frozen
class MergedSegments:
    """Segments that became one.

    Attributes:
        members: their numbers, ascending; the first is that of the new one.
        ref: the new segment's range.
    """

    members: tuple[int, ...]
    ref: SegmentRef


@attrs.frozen
class SegmentChanges:
    """What a compaction did to the list of segments; empty if it did nothing.

    Attributes:
        dropped: segments that are listed no more.
        merged: segments that became one.
    """

    dropped: tuple[int, ...] = ()
    merged: tuple[MergedSegments, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.dropped or self.merged)

    @classmethod
    def of(cls, report: CompactionReport, refs: Sequence[SegmentRef]) -> SegmentChanges:
        """The changes in a report, with the ranges from the log's list after it."""
        found = {ref.number: ref for ref in refs}
        groups = [group.members for group in report.groups if isinstance(group, GroupStats)]
        gone = tuple(number for members in groups if members[0] not in found for number in members)
        return cls((*report.dropped, *gone), tuple(MergedSegments(members, found[members[0]]) for members in groups
                                                   if members[0] in found))

    def applied_to(self, refs: Sequence[SegmentRef]) -> tuple[SegmentRef, ...]:
        """A list of segments with the changes made, whatever came to it since the compaction began. O(segments).

        New segments and overwrites in a newer term concern only what lies above the snapshot, so they stay as they
        are; a range that they cut stays cut. Changes that the list has already are made again without effect.
        """
        gone = {*self.dropped, *(number for each in self.merged for number in each.members)}
        kept = [ref for ref in refs if ref.number not in gone]
        return merge_refs([], sorted([*kept, *(each.ref for each in self.merged)])).refs
