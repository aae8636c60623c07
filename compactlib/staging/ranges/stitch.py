# SPDX-License-Identifier: Apache-2.0
"""Ranges that several writers made side by side, joined into the metarange that one writer would have made.

Each writer began where perhaps no range begins, and stopped where perhaps none ends. So wherever a range is not closed
by the rule, or does not begin at a cut, it is read and cut anew together with what follows, until the cuts meet.
"""

from __future__ import annotations

from collections.abc import Iterable

from compactlib.budget import Budget
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.split import SplitRule
from compactlib.staging.ranges.writer import ClosedRange, RangeWriter
from compactlib.staging.values import Applied, MetaRangeId


def stitch(files: RangeFiles, rule: SplitRule, base: MetaRange, base_id: MetaRangeId | None,
           made: Iterable[ClosedRange], budget: Budget) -> Applied:
    """Publish the metarange of these ranges, and those that its cuts ask for.

    Reads a range or two at each border between two writers.

    Args:
        files: where ranges are read and written.
        rule: where they are cut.
        base: ranges that need not be written again.
        base_id: its id, which needs not be published.
        made: ranges of the base and new ones, in any order; they must not overlap.
        budget: asked before each range is written.

    Returns:
        What was read and written here, and how many ranges are the base's; the keys are not counted.

    Raises:
        UnsortedKeys: two ranges overlap.
        BeingCollected: as for `CommittedRanges.apply`.
    """
    writer = RangeWriter(files, rule, {entry.range_id for entry in base.entries}, budget)
    ordered = sorted(made, key=lambda closed: closed.entry.min_key)
    reused = read = bytes_read = 0
    for place, closed in enumerate(ordered):
        entry = closed.entry
        is_last = place == len(ordered) - 1
        if writer.is_between_ranges and (is_last or rule.closes(entry.max_key, entry.size_bytes)):
            reused += not closed.is_new
            writer.adopt(closed)
        else:
            rows = files.read_range(entry, keep=False)
            read += 1
            bytes_read += entry.size_bytes
            writer.add(rows, rows.cut_keys(rule.raggedness))
    metarange_id = writer.finish(base_id)
    return Applied(metarange_id=metarange_id, ranges_reused=reused, ranges_read=read, bytes_read=bytes_read,
                   ranges_written=writer.ranges_written, bytes_written=writer.bytes_written)
