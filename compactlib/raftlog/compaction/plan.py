# SPDX-License-Identifier: Apache-2.0
"""Plans: `plan_for` is a pure function of a view and a policy.

Every compaction drops the wholly dead segments, and rewrites the groups that the policy chose. A plan only needs
statistics, so that it can be made, printed and discarded at any time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs

from compactlib.errors import InvalidInput
from compactlib.raftlog.compaction.policies import DropDead
from compactlib.raftlog.compaction.policy import (
    GroupFailed,
    LogChoice,
    LogPolicy,
    LogView,
    checked_choice,
    is_worthwhile,
)
from compactlib.raftlog.errors import PlanOutdated
from compactlib.raftlog.values import SegmentRef, SegmentStats
from compactlib.report import PolicyRecord, Printed, Table

MAX_GROUP_MEMBERS = 14
"""Limit of the members of a planned group: the output's file name has all their numbers, in at most 255 bytes."""


@attrs.frozen
class PlannedGroup:
    """Adjacent segments to rewrite into a single segment.

    Attributes:
        members: oldest to newest, not empty.
    """

    members: tuple[SegmentStats, ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The members' numbers, ascending; the first is the output's."""
        return tuple(member.number for member in self.members)

    @property
    def output(self) -> SegmentStats:
        """The forecast of the output, whose range contains the real range."""
        first, last = self.members[0].ref, self.members[-1].ref
        entries = sum(member.live_entries for member in self.members)
        size = sum(member.live_bytes for member in self.members)
        return SegmentStats(ref=SegmentRef(first.number, first.first, last.last), entries=entries, data_bytes=size,
                            live_entries=entries, live_bytes=size)

    @property
    def bytes_to_copy(self) -> int:
        """The size of the output's file."""
        return self.output.file_bytes

    @property
    def bytes_freed(self) -> int:
        """The size of the members' files together, less that of the output's file."""
        return sum(member.file_bytes for member in self.members) - self.bytes_to_copy


@attrs.frozen
class LeftOutSegment:
    """A segment that a plan leaves out.

    Attributes:
        stats: the segment.
        reason: why, in a sentence.
    """

    stats: SegmentStats
    reason: str


@attrs.frozen(kw_only=True, repr=False)
class LogPlan(Printed):
    """The drops and rewrites of a compaction, and the reason for each other segment.

    `repr()` is one line, `str()` a table, notebooks show the table, `to_dicts()` returns its rows. Bytes are those of
    files, with headers and indexes, and exact as long as nothing else changes the log.

    Attributes:
        folder: the log's folder; empty for a plan of a view made by hand, which no log executes.
        snapshot_index: the snapshot of the plan; `None` before the first snapshot.
        policy: the policy that chose the groups.
        why: the reason; of an empty plan the closed gate, its value, and the setting to change.
        drops: wholly dead segments to remove, oldest to newest.
        groups: the groups to rewrite, oldest to newest.
        damaged: groups that cannot be rewritten, because a segment's index could not be read.
        left_out: every other segment, oldest to newest.
        bytes_available: free bytes of the folder's disk; `None` if unknown.
    """

    folder: str
    snapshot_index: int | None
    policy: PolicyRecord
    why: str
    drops: tuple[SegmentStats, ...]
    groups: tuple[PlannedGroup, ...]
    left_out: tuple[LeftOutSegment, ...]
    damaged: tuple[GroupFailed, ...] = ()
    # Not compared: it is of the disk, not of the log.
    bytes_available: int | None = attrs.field(default=None, eq=False)

    @property
    def is_empty(self) -> bool:
        """Whether the plan has no drops, no groups and no damage."""
        return not (self.drops or self.groups or self.damaged)

    @property
    def drops_only(self) -> bool:
        """Whether the plan is of `DropDead`, which rewrites nothing."""
        return self.policy == DROP_DEAD

    @property
    def bytes_freed(self) -> int:
        """Bytes that drops and groups free together."""
        return sum(drop.file_bytes for drop in self.drops) + sum(group.bytes_freed for group in self.groups)

    @property
    def bytes_to_copy(self) -> int:
        """Size of the groups' outputs."""
        return sum(group.bytes_to_copy for group in self.groups)

    @property
    def bytes_needed(self) -> int:
        """The free space that the rewrites need, one group after the other.

        A group's members are removed after its commit, so that this is about the size of the largest output. The bytes
        of the drops do not count, since a lease may keep their files. An executor that runs several tasks at once may
        write all outputs before the first commit: then `bytes_to_copy` is needed.
        """
        most = grown = 0
        for group in self.groups:
            most = max(most, grown + group.bytes_to_copy)
            grown = max(grown - group.bytes_freed, 0)
        return most

    @property
    def touched(self) -> tuple[SegmentStats, ...]:
        """The segments that it drops and rewrites."""
        return (*self.drops, *(member for group in self.groups for member in group.members))

    def forecast(self, view: LogView) -> LogView:
        """Return the view after the plan, if nothing else changes the log.

        Raises:
            InvalidInput: a segment of the plan is missing in `view`, or has changed.
        """
        held, touched = set(view.segments), self.touched
        for segment in touched:
            if segment not in held:
                raise InvalidInput(f"the plan concerns segment {segment.number}, which the view does not hold as "
                                   f"planned; forecast the view that the plan was made of")
        after = [*held.difference(touched), *(group.output for group in self.groups)]
        return attrs.evolve(view, segments=tuple(sorted(after, key=lambda segment: segment.number)))

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dictionary for each drop, group, damage and left-out segment, oldest to newest; `members` are numbers."""
        rows = [
            *(_row("drop", (drop,), drop.file_bytes, 0, "holds no live entry") for drop in self.drops),
            *(_row("rewrite" if len(group.members) == 1 else "merge", group.members, group.bytes_freed,
                   group.bytes_to_copy, _why_rewritten(group)) for group in self.groups),
            *(_row("keep", (left.stats,), 0, 0, left.reason) for left in self.left_out),
            *({**_row("damaged", (), 0, 0, str(each.error)), "members": list(each.members)} for each in self.damaged),
        ]
        return sorted(rows, key=lambda row: int(row["members"][0]))

    def table(self) -> Table:
        """The rows of `to_dicts()`, members as ranges, under a title with the totals."""
        return Table.from_dicts([{**row, "members": _as_ranges(row["members"])} for row in self.to_dicts()],
                                title=self._summary())

    def _summary(self) -> str:
        at = "before the first snapshot" if self.snapshot_index is None else f"at snapshot {self.snapshot_index}"
        if self.is_empty:
            return f"{self.policy} {at}: nothing to do: {self.why}"
        sources = sum(len(group.members) for group in self.groups)
        damaged = f", {len(self.damaged)} damaged" if self.damaged else ""
        return (f"{self.policy} {at}: drop {len(self.drops)}, rewrite {sources} into {len(self.groups)}, keep "
                f"{len(self.left_out)}{damaged}; frees {self.bytes_freed:,} bytes, copies {self.bytes_to_copy:,}: "
                f"{self.why}")


DROP_DEAD = PolicyRecord.of(DropDead())
"""The policy of a plan that only drops."""


def plan_for(view: LogView, policy: LogPolicy, now: float = 0.0, *, why: str = "",
             bytes_available: int | None = None) -> LogPlan:
    """Plan to drop the wholly dead segments, and to rewrite the groups that `policy` chooses. Pure.

    Each compactable segment (not the newest, wholly at or below the snapshot) without a live entry is dropped. A group
    of more than `MAX_GROUP_MEMBERS` is split into adjacent parts of nearly equal size. A group of a single segment
    without dead entries is left out, because rewriting it would change nothing. O(segments), and the policy's cost.

    Args:
        view: the log.
        policy: chooses the victims.
        now: seconds since the epoch, for the policy.
        why: reason of the choice of this policy, for the plan; default the policy's own reason.
        bytes_available: free bytes of the disk, for the plan.

    Raises:
        InvalidInput: the policy's choice breaks a rule of `LogPolicy`; the message names the policy and the
            segment.
    """
    choice = checked_choice(policy.choose(view, now), view, policy=policy.name)
    reasons = {left.number: left.reason for left in choice.left_out}
    groups: list[PlannedGroup] = []
    broken = {each.members[0]: each for each in view.damaged}
    damaged: dict[int, GroupFailed] = {}
    for group in _parts_of(choice, view.candidates):
        failed = next((broken[number] for number in group.numbers if number in broken), None)
        if failed is not None:
            damaged.update(dict.fromkeys(group.numbers, GroupFailed(group.numbers, failed.error)))
        elif is_worthwhile(group.members):
            groups.append(group)
        else:
            reasons[group.numbers[0]] = f"all of it is live: the policy {policy.name!r} would rewrite it for nothing"
    damaged = broken | damaged
    drops = tuple(segment for segment in view.compactable if not segment.live_entries)
    plan = LogPlan(
        folder=view.folder, snapshot_index=view.snapshot_index, policy=PolicyRecord.of(policy), drops=drops,
        groups=tuple(groups), damaged=tuple(sorted(set(damaged.values()), key=lambda failed: failed.members)),
        left_out=(), bytes_available=bytes_available, why="")
    gone = {segment.number for segment in plan.touched}.union(damaged)
    left_out = tuple(LeftOutSegment(segment, reasons.get(segment.number) or _why_not_compactable(segment, view))
                     for segment in view.segments if segment.number not in gone)
    return attrs.evolve(plan, left_out=left_out, why=_why(plan, view, choice, why))


def require_fitting(plan: LogPlan, view: LogView) -> None:
    """Raise `PlanOutdated` if a segment of the plan has changed.

    Args:
        plan: of this log.
        view: the current view.

    Raises:
        PlanOutdated: a segment has changed; the message names it.
    """
    compactable = {segment.number: segment for segment in view.compactable}
    touched = plan.touched
    for segment in touched:
        now = compactable.get(segment.number)
        if now is None:
            raise PlanOutdated(f"segment {segment.number} is not there any more, or cannot be compacted now")
        if now != segment:
            raise PlanOutdated(f"segment {segment.number} has {now.live_entries:,} live entries in {now.file_bytes:,} "
                               f"bytes, planned were {segment.live_entries:,} in {segment.file_bytes:,}")
    numbers = [group.numbers for group in plan.groups]
    if len({segment.number for segment in touched}) < len(touched) or any(drop.live_entries for drop in plan.drops) \
            or any(list(group) != sorted(group) for group in numbers):
        raise PlanOutdated("the plan takes a segment twice, merges some that do not ascend, or drops one that holds "
                           "something alive; plan with this log")


def _why(plan: LogPlan, view: LogView, choice: LogChoice, why: str) -> str:
    if plan.groups:
        return f"{why}; {choice.why}" if why else choice.why
    if not plan.is_empty:
        return "whole segments hold nothing alive" + (f"; {why}" if why else "")
    if view.snapshot_index is None:
        return (f"no snapshot was recorded yet, so nothing in {len(view.segments):,} segments is dead; record one "
                f"(snapshot)")
    if not view.segments[:-1]:
        return (f"the log has {len(view.segments)} segment, and the newest is never touched; it ends at "
                f"max_entries={view.limits.max_entries} or max_bytes={view.limits.max_bytes}, smaller limits end it "
                f"sooner")
    if not view.compactable:
        return (f"all {len(view.segments) - 1:,} segments but the newest end above snapshot {view.snapshot_index} (the "
                f"first at {view.segments[0].ref.last}); record a later snapshot")
    # What held the others back says more than that this one rewrites nothing.
    reasons = [why] if why and plan.drops_only else [why, choice.why] if why else [choice.why]
    return (f"none of the {len(view.compactable):,} segments up to snapshot {view.snapshot_index} is wholly dead; "
            f"{', but '.join(reasons)}")


def _parts_of(choice: LogChoice, shown: tuple[SegmentStats, ...]) -> list[PlannedGroup]:
    by_number = {segment.number: segment for segment in shown}
    parts: list[PlannedGroup] = []
    for group in choice.groups:
        members = tuple(by_number[number] for number in group)
        # Nearly equal parts: 15 are split into 8 and 7; 14 and 1 would leave a single segment.
        count = -(-len(members) // MAX_GROUP_MEMBERS)
        cuts = [len(members) * part // count for part in range(count + 1)]
        parts.extend(PlannedGroup(members[start:end]) for start, end in pairwise(cuts))
    return parts


def _why_not_compactable(segment: SegmentStats, view: LogView) -> str:
    if segment is view.segments[-1]:
        return "the newest segment, still written to"
    if view.snapshot_index is None:
        return "there is no snapshot yet"
    return f"ends at index {segment.ref.last}, above the snapshot {view.snapshot_index}"


def _why_rewritten(group: PlannedGroup) -> str:
    entries = sum(member.entries for member in group.members)
    joined = f"{len(group.members)} become one, " if len(group.members) > 1 else ""
    return f"{joined}{entries - group.output.entries:,} of {entries:,} entries are dead"


def _row(action: str, members: tuple[SegmentStats, ...], freed: int, copied: int, reason: str) -> dict[str, Any]:
    row: dict[str, Any] = {"action": action, "members": [member.number for member in members]}
    for name in ("live_entries", "entries", "live_bytes", "data_bytes"):
        row[name] = sum(getattr(member, name) for member in members)
    return {**row, "bytes_freed": freed, "bytes_to_copy": copied, "reason": reason}


def _as_ranges(numbers: list[int]) -> str:
    """`[1, 2, 3, 7]` as `1-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
