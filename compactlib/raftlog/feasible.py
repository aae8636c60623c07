"""What of a plan can be carried out now: groups that would reach across a file in use, or that hold damage, wait.

Pure functions of the plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import attrs

from compactlib.errors import CompactlibError
from compactlib.raftlog.plan import CompactionPlan, LeftOutSegment, PlannedGroup
from compactlib.raftlog.result import GroupFailed


def without_damaged(plan: CompactionPlan, damaged: Mapping[int, CompactlibError]
                    ) -> tuple[CompactionPlan, tuple[GroupFailed, ...]]:
    """The plan without the groups of segments that could not be judged, and one failure for each such segment.

    Args:
        plan: what was planned, such segments taken for wholly live.
        damaged: what stood in the way, by number.
    """
    if not damaged:
        return plan, ()
    members = {number: group.numbers for group in plan.groups for number in group.numbers}
    failed: dict[tuple[int, ...], CompactlibError] = {}
    for number in sorted(damaged):
        failed.setdefault(members.get(number, (number,)), damaged[number])
    plan = attrs.evolve(plan, groups=tuple(group for group in plan.groups if group.numbers not in failed),
                        left_out=tuple(left for left in plan.left_out if left.stats.number not in damaged))
    return plan, tuple(GroupFailed(*each) for each in failed.items())


def without_drops(plan: CompactionPlan, needed: Collection[int]) -> CompactionPlan:
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
    return attrs.evolve(plan, drops=tuple(stats for stats in plan.drops if stats.number not in needed),
                        left_out=tuple(sorted([*plan.left_out, *kept], key=lambda left: left.stats.number)))


def without_refused(plan: CompactionPlan, doomed: Collection[int], error: CompactlibError
                    ) -> tuple[CompactionPlan, tuple[GroupFailed, ...]]:
    """The plan without the groups between whose members lies a file that the disk did not let go, as failures.

    Args:
        plan: what was planned.
        doomed: segments that are not listed any more but whose files are still there.
        error: what the disk said.
    """
    blocked = [group for group in plan.groups if _between(group, doomed)]
    plan = attrs.evolve(plan, groups=tuple(group for group in plan.groups if group not in blocked))
    return plan, tuple(GroupFailed(group.numbers, error) for group in blocked)


def without_blocked(plan: CompactionPlan, kept: Collection[int]) -> CompactionPlan:
    """The plan without the groups between whose members lies a segment whose file cannot go yet.

    Args:
        plan: what was planned.
        kept: segments that are not listed any more (or will not be, after the plan's drops) but keep their files.
    """
    between = {group: _between(group, kept) for group in plan.groups}
    waiting = [LeftOutSegment(stats, f"the file of segment {numbers[0]}, dropped but still leased, lies between it and "
                                     f"its neighbours; a later run merges them")
               for group, numbers in between.items() if numbers for stats in group.members]
    if not waiting:
        return plan
    return attrs.evolve(plan, groups=tuple(group for group in plan.groups if not between[group]),
                        left_out=tuple(sorted([*plan.left_out, *waiting], key=lambda left: left.stats.number)))


def _between(group: PlannedGroup, numbers: Collection[int]) -> list[int]:
    return [number for number in sorted(numbers) if group.numbers[0] < number < group.numbers[-1]]
