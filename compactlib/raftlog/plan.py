"""What a compaction is going to do, before it does it: pure functions from a view of the log to a plan.

A minor compaction drops whole segments that hold nothing alive. A major one does the same, and rewrites the groups
that a policy chose. Both only look at statistics, so a plan can be made, printed and thrown away at any time.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Literal, TypeAlias

import attrs

from compactlib.errors import InvalidInput
from compactlib.raftlog.model import SegmentLimits, SegmentRef, SegmentStats
from compactlib.raftlog.policy import Choice, CompactionPolicy, check_choice, is_worthwhile
from compactlib.report import PolicyRecord, Printed, Table

MAX_GROUP_MEMBERS = 14
"""The most members of a planned group: the output's file name holds all their numbers, in at most 255 bytes."""

PlanKind: TypeAlias = Literal["minor", "major"]


@attrs.frozen(kw_only=True)
class CompactionView:
    """The log as a plan sees it, at one moment.

    Attributes:
        segments: statistics of every segment, oldest to newest, the newest included.
        snapshot_index: the index of the last snapshot; `None` before the first one.
        limits: how large the segments that a compaction writes may become.

    Raises:
        InvalidInput: segments or their ranges do not ascend, or a count is impossible; the message names the segment.
    """

    segments: tuple[SegmentStats, ...]
    snapshot_index: int | None
    limits: SegmentLimits

    def __attrs_post_init__(self) -> None:
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
    def entries(self) -> int:
        """Entries in the members, dead ones included."""
        return sum(member.entries for member in self.members)

    @property
    def live_entries(self) -> int:
        """Entries that the output will hold."""
        return sum(member.live_entries for member in self.members)

    @property
    def data_bytes(self) -> int:
        """Payload bytes in the members, dead ones included."""
        return sum(member.data_bytes for member in self.members)

    @property
    def live_bytes(self) -> int:
        """Payload bytes to copy: what the output will hold."""
        return sum(member.live_bytes for member in self.members)

    @property
    def freed_bytes(self) -> int:
        """Payload bytes that are gone afterwards."""
        return self.data_bytes - self.live_bytes

    @property
    def output(self) -> SegmentStats:
        """The segment that the group becomes, if nothing dies meanwhile; its range is a hull of the real one."""
        first, last = self.members[0].ref, self.members[-1].ref
        return SegmentStats(ref=SegmentRef(first.number, first.first, last.last), entries=self.live_entries,
                            data_bytes=self.live_bytes, live_entries=self.live_entries, live_bytes=self.live_bytes)


@attrs.frozen
class LeftOutSegment:
    """A segment that a plan does not touch.

    Attributes:
        stats: the segment.
        reason: why, in one sentence.
    """

    stats: SegmentStats
    reason: str


@attrs.frozen(kw_only=True, repr=False)
class CompactionPlan(Printed):
    """What a compaction will drop and rewrite, and why it leaves the rest.

    `repr()` is one line, `str()` a table, notebooks show the table, `to_dicts()` gives its rows as data.

    Attributes:
        kind: `"minor"` or `"major"`.
        snapshot_index: the snapshot that the plan relies on; `None` before the first one.
        policy: who chose the groups; `None` for a minor plan.
        drops: segments with nothing alive, removed whole, oldest to newest.
        groups: segments that are rewritten, oldest to newest; each group becomes one segment.
        left_out: every other segment, oldest to newest.
    """

    kind: PlanKind
    snapshot_index: int | None
    policy: PolicyRecord | None
    drops: tuple[SegmentStats, ...]
    groups: tuple[PlannedGroup, ...]
    left_out: tuple[LeftOutSegment, ...]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.drops and not self.groups

    @property
    def freed_bytes(self) -> int:
        """Payload bytes that the plan frees, by drops and groups."""
        return sum(drop.data_bytes for drop in self.drops) + sum(group.freed_bytes for group in self.groups)

    @property
    def freed_entries(self) -> int:
        """Dead entries that the plan removes, by drops and groups."""
        return (sum(drop.entries for drop in self.drops)
                + sum(group.entries - group.live_entries for group in self.groups))

    @property
    def bytes_to_copy(self) -> int:
        """Payload bytes that the groups copy."""
        return sum(group.live_bytes for group in self.groups)

    @property
    def entries_to_copy(self) -> int:
        """Entries that the groups copy."""
        return sum(group.live_entries for group in self.groups)

    @property
    def segments_removed(self) -> int:
        """By how many segments the log becomes shorter."""
        return len(self.drops) + sum(len(group.members) - 1 for group in self.groups)

    def forecast(self, view: CompactionView) -> CompactionView:
        """The view after the plan was carried out on `view`, if nothing is written and nothing dies meanwhile.

        Raises:
            InvalidInput: the plan concerns a segment that `view` does not hold as it was when the plan was made.
        """
        held = set(view.segments)
        touched = [*self.drops, *(member for group in self.groups for member in group.members)]
        for segment in touched:
            if segment not in held:
                raise InvalidInput(f"the plan concerns segment {segment.number}, which the view does not hold as "
                                   f"planned; forecast the view that the plan was made of")
        kept = held.difference(touched)
        after = [*(segment for segment in view.segments if segment in kept), *(group.output for group in self.groups)]
        return attrs.evolve(view, segments=tuple(sorted(after, key=lambda segment: segment.number)))

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary a drop, group and left-out segment, oldest to newest; `members` is a list of numbers."""
        rows = [
            *(_row("drop", PlannedGroup((drop,)), drop.data_bytes, 0, "holds no live entry") for drop in self.drops),
            *(_row("rewrite" if len(group.members) == 1 else "merge", group, group.freed_bytes, group.live_bytes, "")
              for group in self.groups),
            *(_row("keep", PlannedGroup((left.stats,)), 0, 0, left.reason) for left in self.left_out),
        ]
        return sorted(rows, key=lambda row: int(row["members"][0]))

    def table(self) -> Table:
        """The rows of `to_dicts()`, members as ranges, under a title with the totals."""
        return Table.from_dicts([{**row, "members": _as_ranges(row["members"])} for row in self.to_dicts()],
                                title=self._summary())

    def _summary(self) -> str:
        by = "" if self.policy is None else f" by {self.policy}"
        at = "before the first snapshot" if self.snapshot_index is None else f"at snapshot {self.snapshot_index}"
        sources = sum(len(group.members) for group in self.groups)
        return (f"{self.kind} compaction {at}{by}: drop {len(self.drops)}, rewrite {sources} into {len(self.groups)}, "
                f"keep {len(self.left_out)}; frees {self.freed_bytes:,} bytes, copies {self.bytes_to_copy:,}")


def plan_minor(view: CompactionView) -> CompactionPlan:
    """Plan to drop the segments that hold nothing alive. O(segments).

    Dropped is each compactable segment (not the newest, wholly at or below the snapshot) without a live entry.
    """
    compactable = set(view.compactable)
    alive = {segment.number: f"holds {_counted(segment.live_entries, 'live entry', 'live entries')}"
             for segment in compactable if segment.live_entries}
    return _planned(view, "minor", None, (), alive)


def plan_major(view: CompactionView, policy: CompactionPolicy) -> CompactionPlan:
    """Plan to drop what a minor compaction drops, and to rewrite the groups that `policy` chooses.

    A group of more than `MAX_GROUP_MEMBERS` becomes adjacent parts of nearly equal size. A single segment with
    nothing dead in it is left out whatever the policy says: rewriting it would change nothing, run after run.
    O(segments), and what the policy takes.

    Raises:
        InvalidInput: the policy's choice breaks a rule of `CompactionPolicy.choose`; the message names the policy and
            the segment.
    """
    shown = tuple(segment for segment in view.compactable if segment.live_entries)
    choice = policy.choose(shown, view.limits)
    check_choice(choice, shown, view.limits, policy=policy.name)
    reasons = {left.number: left.reason for left in choice.left_out}
    groups: list[PlannedGroup] = []
    for group in _parts_of(choice, shown):
        if is_worthwhile(group.members):
            groups.append(group)
        else:
            reasons[group.numbers[0]] = f"all of it is live: the policy {policy.name!r} would rewrite it for nothing"
    return _planned(view, "major", PolicyRecord.of(policy), tuple(groups), reasons)


def _parts_of(choice: Choice, shown: tuple[SegmentStats, ...]) -> list[PlannedGroup]:
    by_number = {segment.number: segment for segment in shown}
    parts: list[PlannedGroup] = []
    for group in choice.groups:
        members = tuple(by_number[number] for number in group)
        # Nearly equal parts: 15 become 8 and 7; 14 and 1 would leave one segment that merges with nothing.
        count = -(-len(members) // MAX_GROUP_MEMBERS)
        cuts = [len(members) * part // count for part in range(count + 1)]
        parts.extend(PlannedGroup(members[start:end]) for start, end in pairwise(cuts))
    return parts


def _planned(view: CompactionView, kind: PlanKind, policy: PolicyRecord | None, groups: tuple[PlannedGroup, ...],
             reasons: dict[int, str]) -> CompactionPlan:
    drops = tuple(segment for segment in view.compactable if not segment.live_entries)
    touched = {segment.number for segment in drops}.union(*(group.numbers for group in groups))
    left_out = tuple(LeftOutSegment(segment, reasons.get(segment.number) or _why_not_compactable(segment, view))
                     for segment in view.segments if segment.number not in touched)
    return CompactionPlan(kind=kind, snapshot_index=view.snapshot_index, policy=policy, drops=drops, groups=groups,
                          left_out=left_out)


def _why_not_compactable(segment: SegmentStats, view: CompactionView) -> str:
    if segment is view.segments[-1]:
        return "the newest segment, still written to"
    if view.snapshot_index is None:
        return "there is no snapshot yet"
    return f"ends at index {segment.ref.last}, above the snapshot {view.snapshot_index}"


def _check_counts(segment: SegmentStats) -> None:
    if not (0 <= segment.live_entries <= segment.entries and 0 <= segment.live_bytes <= segment.data_bytes):
        raise InvalidInput(f"segment {segment.number} claims {segment.live_entries} of {segment.entries} entries and "
                           f"{segment.live_bytes} of {segment.data_bytes} bytes live; live is a part of the whole")
    if segment.live_bytes and not segment.live_entries:
        raise InvalidInput(f"segment {segment.number} claims {segment.live_bytes} live bytes without a live entry")


def _row(action: str, group: PlannedGroup, freed: int, copied: int, reason: str) -> dict[str, Any]:
    return {
        "action": action,
        "members": list(group.numbers),
        "live_entries": group.live_entries,
        "entries": group.entries,
        "live_bytes": group.live_bytes,
        "data_bytes": group.data_bytes,
        "freed_bytes": freed,
        "copied_bytes": copied,
        "reason": reason,
    }


def _counted(number: int, one: str, many: str) -> str:
    return f"{number:,} {one if number == 1 else many}"


def _as_ranges(numbers: list[int]) -> str:
    """`[1, 2, 3, 7]` as `1-3, 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ", ".join("-".join(map(str, run)) for run in runs)
