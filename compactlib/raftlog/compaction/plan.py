# SPDX-License-Identifier: Apache-2.0
"""What a compaction is going to do, before it does it: a pure function from a view of the log and a policy to a plan.

Every compaction drops whole segments that hold nothing alive, and rewrites the groups that the policy chose. It looks
at statistics alone, so a plan can be made, printed and thrown away at any time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs

from compactlib.errors import CompactlibError, InvalidInput
from compactlib.raftlog.compaction.policies import DropDead
from compactlib.raftlog.compaction.policy import LogChoice, LogPolicy, LogView, checked_choice, is_worthwhile
from compactlib.raftlog.errors import PlanOutdated
from compactlib.raftlog.model.values import SegmentRef, SegmentStats
from compactlib.report import PolicyRecord, Printed, Table

MAX_GROUP_MEMBERS = 14
"""The most members of a planned group: the output's file name holds all their numbers, in at most 255 bytes."""


@attrs.frozen
class PlannedGroup:
    """Adjacent segments that become one.

    Attributes:
        members: oldest to newest, at least one.
    """

    members: tuple[SegmentStats, ...]

    @property
    def numbers(self) -> tuple[int, ...]:
        """The members' numbers, ascending; the first one is the output's."""
        return tuple(member.number for member in self.members)

    @property
    def output(self) -> SegmentStats:
        """The segment that the group becomes, if nothing dies meanwhile; its range is a hull of the real one."""
        first, last = self.members[0].ref, self.members[-1].ref
        entries = sum(member.live_entries for member in self.members)
        size = sum(member.live_bytes for member in self.members)
        return SegmentStats(ref=SegmentRef(first.number, first.first, last.last), entries=entries, data_bytes=size,
                            live_entries=entries, live_bytes=size)

    @property
    def bytes_to_copy(self) -> int:
        """The size of the file that it becomes."""
        return self.output.file_bytes

    @property
    def bytes_freed(self) -> int:
        """By how much that file is smaller than those of the members together."""
        return sum(member.file_bytes for member in self.members) - self.bytes_to_copy


@attrs.frozen
class LeftOutSegment:
    """A segment that a plan does not touch.

    Attributes:
        stats: the segment.
        reason: why, in one sentence.
    """

    stats: SegmentStats
    reason: str


@attrs.frozen
class GroupFailed:
    """A group that did not become one segment, and why; or a single segment that could not be judged.

    Nothing that is live is lost. If the error came after the new segment was in place, the next run, or opening the
    log, finishes the group; before that, its sources are untouched.

    Attributes:
        members: numbers of the segments that were to become one.
        error: what stopped it.
    """

    members: tuple[int, ...]
    # Errors differ from one reading to the next although they say the same.
    error: CompactlibError = attrs.field(eq=str)


@attrs.frozen(kw_only=True, repr=False)
class LogPlan(Printed):
    """What a compaction will drop and rewrite, and why it leaves the rest.

    `repr()` is one line, `str()` a table, notebooks show the table, `to_dicts()` gives its rows as data. Bytes are
    those of files, headers and indexes included, and hold to the byte as long as nothing else changes the log.

    Attributes:
        folder: the log's folder; empty for a plan of a view made by hand, which no log carries out.
        snapshot_index: the snapshot that the plan relies on; `None` before the first one.
        policy: the name of the policy that chose the groups.
        why: why this is done; of an empty plan which gate is shut, its value, and the setting to change.
        drops: segments with nothing alive, removed whole, oldest to newest.
        groups: segments that are rewritten, oldest to newest; each group becomes one segment.
        damaged: what cannot be rewritten, since a segment of it could not be judged.
        left_out: every other segment, oldest to newest.
        bytes_available: the room there was in the folder; `None` if unknown.
    """

    folder: str
    snapshot_index: int | None
    policy: PolicyRecord
    why: str
    drops: tuple[SegmentStats, ...]
    groups: tuple[PlannedGroup, ...]
    left_out: tuple[LeftOutSegment, ...]
    damaged: tuple[GroupFailed, ...] = ()
    # Of the disk, and not of the log: the same plan a moment later.
    bytes_available: int | None = attrs.field(default=None, eq=False)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do, and no damage to report."""
        return not (self.drops or self.groups or self.damaged)

    @property
    def drops_only(self) -> bool:
        """Whether no policy was asked what to rewrite: the plan is that of `DropDead`."""
        return self.policy == DROP_DEAD

    @property
    def is_exact(self) -> bool:
        """True: the forecasts hold to the byte as long as nothing else changes the log."""
        return True

    @property
    def bytes_freed(self) -> int:
        """By how much the files become smaller together, by drops and groups."""
        return sum(drop.file_bytes for drop in self.drops) + sum(group.bytes_freed for group in self.groups)

    @property
    def bytes_to_copy(self) -> int:
        """The size of the files that the groups become."""
        return sum(group.bytes_to_copy for group in self.groups)

    @property
    def bytes_needed(self) -> int:
        """The most room taken before any is given back, one group after the other.

        A group's members go once its output is in place, so that this is about the largest output. What the drops give
        back is not counted, since a lease may hold their files. An executor that runs several tasks at once may have
        written all outputs before the first is committed: then it is `bytes_to_copy`.
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
        """The view after the plan was carried out on `view`, if nothing is written and nothing dies meanwhile.

        Raises:
            InvalidInput: the plan concerns a segment that `view` does not hold as it was when the plan was made.
        """
        held, touched = set(view.segments), self.touched
        for segment in touched:
            if segment not in held:
                raise InvalidInput(f"the plan concerns segment {segment.number}, which the view does not hold as "
                                   f"planned; forecast the view that the plan was made of")
        after = [*held.difference(touched), *(group.output for group in self.groups)]
        return attrs.evolve(view, segments=tuple(sorted(after, key=lambda segment: segment.number)))

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary a drop, group, damage and left-out segment, oldest to newest; `members` are numbers."""
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
"""The policy named by a plan that rewrites nothing because no policy was asked."""


def plan_for(view: LogView, policy: LogPolicy, now: float = 0.0, *, why: str = "",
             bytes_available: int | None = None) -> LogPlan:
    """Plan to drop what holds nothing alive, and to rewrite the groups that `policy` chooses. Pure.

    Dropped is each compactable segment (not the newest, wholly at or below the snapshot) without a live entry. A group
    of more than `MAX_GROUP_MEMBERS` becomes adjacent parts of nearly equal size. A single segment with nothing dead in
    it is left out whatever the policy says: rewriting it would change nothing, run after run. O(segments), and what
    the policy takes.

    Args:
        view: the log.
        policy: chooses what is rewritten.
        now: seconds since the epoch, for the policy.
        why: why this policy is asked, for the plan; default the policy's own reason.
        bytes_available: the room there is, for the plan.

    Raises:
        InvalidInput: the policy's choice breaks a rule of `LogPolicy`; the message names the policy and the
            segment.
    """
    choice = checked_choice(policy.choose(view, now), view, policy=policy.name)
    reasons = {left.number: left.reason for left in choice.left_out}
    groups: list[PlannedGroup] = []
    broken = {each.number: each.error for each in view.damaged}
    damaged: dict[int, GroupFailed] = {}
    for group in _parts_of(choice, view.candidates):
        error = next((broken[number] for number in group.numbers if number in broken), None)
        if error is not None:
            damaged.update(dict.fromkeys(group.numbers, GroupFailed(group.numbers, error)))
        elif is_worthwhile(group.members):
            groups.append(group)
        else:
            reasons[group.numbers[0]] = f"all of it is live: the policy {policy.name!r} would rewrite it for nothing"
    damaged = {number: GroupFailed((number,), error) for number, error in broken.items()} | damaged
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
    """Return if the log is, as far as the plan concerns it, as it was when the plan was made.

    Args:
        plan: of this log.
        view: the log as it is now.

    Raises:
        PlanOutdated: it is not; names the segment.
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
        # Nearly equal parts: 15 become 8 and 7; 14 and 1 would leave one segment that merges with nothing.
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
