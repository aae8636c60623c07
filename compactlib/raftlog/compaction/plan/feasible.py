# SPDX-License-Identifier: Apache-2.0
"""Which parts of a plan can be carried out now: does it still fit the log, and is no file in its way.

Pure functions of the plan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator

import attrs

from compactlib.errors import Busy, CompactlibError
from compactlib.raftlog.compaction.plan.plan import GroupFailed, LeftOutSegment, LogPlan, PlannedGroup
from compactlib.raftlog.compaction.plan.view import LogView
from compactlib.raftlog.errors import PlanOutdated


def require_fitting(plan: LogPlan, view: LogView, hiding: Collection[int]) -> None:
    """Return if the log is, as far as the plan concerns it, as it was when the plan was made.

    Args:
        plan: of this log.
        view: the log as it is now.
        hiding: dropped segments that are needed after all, since they hide entries which were taken back.

    Raises:
        PlanOutdated: it is not; names the segment.
    """
    compactable = {segment.number: segment for segment in view.compactable}
    touched = [*plan.drops, *(member for group in plan.groups for member in group.members)]
    for segment in touched:
        now = compactable.get(segment.number)
        if now is None:
            raise PlanOutdated(f"segment {segment.number} is not there any more, or cannot be compacted now")
        if now != segment:
            raise PlanOutdated(f"segment {segment.number} has {now.live_entries:,} live entries in {now.file_bytes:,} "
                               f"bytes, planned were {segment.live_entries:,} in {segment.file_bytes:,}")
    if len({segment.number for segment in touched}) < len(touched) or any(drop.live_entries for drop in plan.drops):
        raise PlanOutdated("the plan takes a segment twice, or drops one that holds something alive")
    for group in plan.groups:
        if list(group.numbers) != sorted(group.numbers):
            raise PlanOutdated(f"the plan merges segments {', '.join(map(str, group.numbers))}, which do not ascend")
    for number in sorted(hiding):
        raise PlanOutdated(f"segment {number} hides entries above the snapshot that were taken back")


def without_drops(plan: LogPlan, needed: Collection[int]) -> LogPlan:
    """The plan without the drops of segments that are still needed.

    Args:
        plan: what was planned.
        needed: segments that hide entries of an older one which were taken back.
    """
    if not needed:
        return plan
    kept = [LeftOutSegment(stats, "holds nothing alive, but hides entries above the snapshot that were taken back; it "
                                  "goes when the snapshot has passed them")
            for stats in plan.drops if stats.number in needed]
    return _less(attrs.evolve(plan, drops=tuple(stats for stats in plan.drops if stats.number not in needed)), kept)


def without_blocked(plan: LogPlan, kept: Iterable[int]) -> LogPlan:
    """The plan without the groups between whose members lies a segment whose file cannot go yet.

    Args:
        plan: what was planned.
        kept: segments that are not listed any more (or will not be, after the plan's drops) but keep their files.
    """
    looked_at = list(_in_the_way(plan.groups, kept))
    waiting = [LeftOutSegment(stats, f"the file of segment {number}, dropped but still leased, lies between it and "
                                     f"its neighbours; a later run merges them")
               for group, number in looked_at if number is not None for stats in group.members]
    if not waiting:
        return plan
    return _less(attrs.evolve(plan, groups=tuple(group for group, number in looked_at if number is None)), waiting)


def _less(plan: LogPlan, left: list[LeftOutSegment]) -> LogPlan:
    plan = attrs.evolve(plan, left_out=tuple(sorted([*plan.left_out, *left], key=lambda each: each.stats.number)))
    if not plan.is_empty:
        return plan
    return attrs.evolve(plan, why=f"segment {left[0].stats.number}: {left[0].reason}")


def set_aside(plan: LogPlan, kept: Iterable[int], error: CompactlibError | None = None
              ) -> tuple[tuple[PlannedGroup, ...], tuple[GroupFailed, ...]]:
    """The groups of a plan that can be rewritten, and those between whose members lies a file, as failures.

    Args:
        plan: what is carried out.
        kept: segments that are not listed any more but whose files are still there.
        error: what the disk said when they were to be removed; by default a lease holds them.
    """
    looked_at = list(_in_the_way(plan.groups, kept))
    blocked = [GroupFailed(group.numbers, error or Busy(
        f"segments {', '.join(map(str, group.numbers))} cannot become one while the file of segment {number} lies "
        f"between them; it goes when the last lease on it ends, compact again then"))
        for group, number in looked_at if number is not None]
    return tuple(group for group, number in looked_at if number is None), tuple(blocked)


def _in_the_way(groups: Iterable[PlannedGroup],
                numbers: Iterable[int]) -> Iterator[tuple[PlannedGroup, int | None]]:
    """Each group, with the lowest of `numbers` that lies between its members, if one does."""
    ascending = sorted(numbers)
    for group in groups:
        members = group.numbers
        place = bisect_right(ascending, members[0])
        yield group, ascending[place] if place < len(ascending) and ascending[place] < members[-1] else None
