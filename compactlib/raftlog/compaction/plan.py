# SPDX-License-Identifier: Apache-2.0
"""Plans: `plan_for` is a pure function of a view and a policy; `MajorCadence` decides when a log asks its policy.

Every compaction drops the wholly dead segments, and rewrites the groups that the policy chose. A plan only needs
statistics, so that it can be made, printed and discarded at any time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import attrs

from compactlib.clock import Clock
from compactlib.errors import Busy, CompactlibError, Stale, StorageError
from compactlib.raftlog.compaction.policy import (
    LogChoice,
    LogPolicy,
    LogView,
    Trigger,
    chosen_groups,
    is_worthwhile,
    stored_dead_bytes,
    stored_live_bytes,
)
from compactlib.raftlog.values import SegmentRef, SegmentStats
from compactlib.report import PolicyRecord, Printed


@attrs.frozen
class DropDead:
    """Rewrites nothing: the compaction only drops wholly dead segments, as every compaction does.

    It copies no byte and needs no room: RabbitMQ Ra's minor compaction.
    """

    name: ClassVar[str] = "drop"

    def choose(self, view: LogView, now: float) -> LogChoice:
        return LogChoice(groups=(), why=f"{len(view.candidates):,} hold something alive, and this policy rewrites "
                                        f"nothing; give one that does")


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
    def bytes_freed(self) -> int:
        """The size of the members' files together, less that of the output's file."""
        return sum(member.file_bytes for member in self.members) - self.output.file_bytes


@attrs.frozen(kw_only=True, repr=False)
class LogPlan(Printed):
    """A view, and the groups to rewrite in it. The view's wholly dead segments are dropped, the others stay.

    `repr()` is one line, `str()` a table, notebooks show the table, `to_dicts()` returns its rows. Bytes are those of
    files, with headers and indexes, and exact as long as nothing else changes the log.

    Attributes:
        view: the log.
        policy: the policy that chose the groups.
        why: the reason; of an empty plan the closed gate, its value, and the setting to change.
        groups: the groups to rewrite, oldest to newest.
        bytes_available: free bytes of the folder's disk; `None` if unknown.
    """

    view: LogView
    policy: PolicyRecord
    why: str
    groups: tuple[PlannedGroup, ...]
    # Not compared: it is of the disk, not of the log.
    bytes_available: int | None = attrs.field(default=None, eq=False)

    @property
    def drops(self) -> tuple[SegmentStats, ...]:
        """The wholly dead segments to remove, oldest to newest."""
        return self.view.dead

    @property
    def is_empty(self) -> bool:
        """Whether the plan has no drops, no groups and no damage."""
        return not (self.drops or self.groups or self.view.damaged)

    @property
    def drops_only(self) -> bool:
        """Whether the plan is of `DropDead`, which rewrites nothing."""
        return self.policy.name == DropDead.name

    @property
    def bytes_freed(self) -> int:
        """Bytes that drops and groups free together."""
        return sum(drop.file_bytes for drop in self.drops) + sum(group.bytes_freed for group in self.groups)

    @property
    def bytes_to_copy(self) -> int:
        """Size of the groups' outputs."""
        return sum(group.output.file_bytes for group in self.groups)

    @property
    def bytes_needed(self) -> int:
        """The free space that the rewrites need, one group after the other: the size of the largest output.

        A group frees more than it takes, after its commit. The bytes of the drops do not count, since a lease may keep
        their files. An executor that runs several tasks at once may write all outputs before the first commit: then
        `bytes_to_copy` is needed.
        """
        return max((group.output.file_bytes for group in self.groups), default=0)

    @property
    def touched(self) -> tuple[SegmentStats, ...]:
        """The segments that it drops and rewrites."""
        return (*self.drops, *(member for group in self.groups for member in group.members))

    @property
    def kept(self) -> tuple[SegmentStats, ...]:
        """The other segments, except for the damaged ones."""
        gone = {segment.number for segment in self.touched}.union(*(failed.members for failed in self.view.damaged))
        return tuple(segment for segment in self.view.segments if segment.number not in gone)

    def forecast(self) -> LogView:
        """The view after the plan, if nothing else changes the log."""
        gone = {segment.number for segment in self.touched}
        after = [*(segment for segment in self.view.segments if segment.number not in gone),
                 *(group.output for group in self.groups)]
        return attrs.evolve(self.view, segments=tuple(sorted(after, key=lambda segment: segment.number)))

    def to_dicts(self) -> list[dict[str, Any]]:
        """A dictionary for each drop, group, damage and other segment, oldest to newest; `members` are numbers."""
        rows = [
            *(_row("drop", (drop,), drop.file_bytes) for drop in self.drops),
            *(_row("rewrite" if len(group.members) == 1 else "merge", group.members, group.bytes_freed,
                   group.output.file_bytes) for group in self.groups),
            *(_row("keep", (segment,), reason=self._why_kept(segment)) for segment in self.kept),
            *({"action": "damaged", "members": list(failed.members), "reason": str(failed.error)}
              for failed in self.view.damaged),
        ]
        return sorted(rows, key=lambda row: int(row["members"][0]))

    def _why_kept(self, segment: SegmentStats) -> str:
        at = self.view.snapshot_index
        if segment == self.view.segments[-1]:
            return "the newest segment, still written to"
        if at is None:
            return "there is no snapshot yet"
        if segment.ref.last > at:
            return f"ends at index {segment.ref.last}, above the snapshot {at}"
        return ""

    def _summary(self) -> str:
        if self.is_empty:
            return f"{self.policy} {self.view.place}: nothing to do: {self.why}"
        sources = sum(len(group.members) for group in self.groups)
        damaged = f", {len(self.view.damaged)} damaged" if self.view.damaged else ""
        return (f"{self.policy} {self.view.place}: drop {len(self.drops)}, rewrite {sources} into {len(self.groups)}, "
                f"keep {len(self.kept)}{damaged}; frees {self.bytes_freed:,} bytes, copies "
                f"{self.bytes_to_copy:,}: {self.why}")


def plan_for(view: LogView, policy: LogPolicy, now: float = 0.0, *, why: str = "",
             bytes_available: int | None = None) -> LogPlan:
    """Plan to drop the wholly dead segments, and to rewrite the groups that `policy` chooses. Pure.

    Each compactable segment (not the newest, wholly at or below the snapshot) without a live entry is dropped. A group
    of a single segment without dead entries is left out, because rewriting it would change nothing, and so is a group
    with a damaged segment. O(segments), and the policy's cost.

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
    choice = policy.choose(view, now)
    damaged = {number for failed in view.damaged for number in failed.members}
    groups = [group for group in map(PlannedGroup, chosen_groups(choice, view, policy=policy.name))
              if is_worthwhile(group.members) and damaged.isdisjoint(group.numbers)]
    plan = LogPlan(view=view, policy=PolicyRecord.of(policy), why="", groups=tuple(groups),
                   bytes_available=bytes_available)
    return attrs.evolve(plan, why=_why(plan, choice.why, why))


class MajorCadence:
    """Evaluates a trigger, and counts minor compactions and the time for it. Not thread-safe.

    The counts are in memory: opening the log resets them, which only delays the next major compaction.

    Args:
        trigger: decides from the counts.
        clock: measures the time since the last major compaction.
    """

    def __init__(self, trigger: Trigger, clock: Clock) -> None:
        self._trigger = trigger
        self._clock = clock
        self._minors = 0
        self._last_major = clock.monotonic()

    def plan(self, view: LogView, policy: LogPolicy, now: float = 0.0, *,
             bytes_available: int | None = None) -> LogPlan:
        """Plan a major compaction by `policy` if the trigger is due and there is room for it, else a minor one.

        The plan's `why` has the trigger with its settings, and the numbers. For the arguments see `plan_for`.
        """
        seconds = self._clock.monotonic() - self._last_major
        is_due = self._trigger.is_due(view, self._minors, seconds)
        why = (f"{self._trigger!r} is {'' if is_due else 'not '}due: {self._minors:,} minors and {seconds:,.0f} "
               f"seconds since the last major, {_dead_part(view.compactable)}")
        held_back = "" if is_due else f"nothing is rewritten yet: {why}"
        # Without live entries there is nothing to rewrite.
        if is_due and view.candidates:
            plan = plan_for(view, policy, now, why=why, bytes_available=bytes_available)
            lack = lack_of_room(plan.bytes_needed, bytes_available)
            if not lack:
                return plan
            held_back = f"nothing is rewritten for want of room: {lack}"
        return plan_for(view, DropDead(), now, why=held_back, bytes_available=bytes_available)

    def ended(self, plan: LogPlan, failures: Iterable[CompactlibError] = ()) -> None:
        """Count a compaction that has ended.

        A minor compaction counts if there was a compactable segment. After a `Busy` or `StorageError` a major
        compaction is still due.
        """
        if plan.drops_only:
            self._minors += bool(plan.view.compactable)
        elif not any(isinstance(error, Busy | StorageError) for error in failures):
            self._minors, self._last_major = 0, self._clock.monotonic()


def lack_of_room(needed: int, room: int | None) -> str:
    """The reason if the new segments do not fit on the disk, else an empty text."""
    return "" if room is None or needed <= room else (
        f"{needed:,} bytes are needed and {room:,} are available; make room, or drop what is wholly dead: "
        f"compact(policy=DropDead()) needs none")


def require_fitting(plan: LogPlan, view: LogView) -> None:
    """Raise `Stale` if a segment that the plan drops or rewrites has changed; the message names it."""
    compactable = {segment.number: segment for segment in view.compactable}
    for planned in plan.touched:
        now = compactable.get(planned.number)
        if now != planned:
            found = "is not there any more, or cannot be compacted now" if now is None else (
                f"has {now.live_entries:,} live entries in {now.file_bytes:,} bytes, planned were "
                f"{planned.live_entries:,} in {planned.file_bytes:,}")
            raise Stale(f"the plan is outdated: segment {planned.number} {found}; plan again")


def _why(plan: LogPlan, chosen: str, why: str) -> str:
    view = plan.view
    if plan.groups:
        return f"{why}; {chosen}" if why else chosen
    if plan.drops:
        return "whole segments hold nothing alive" + (f"; {why}" if why else "")
    if view.snapshot_index is None:
        return (f"no snapshot was recorded yet, so nothing in {len(view.segments):,} segments is dead; record one "
                f"(snapshot)")
    if not view.segments:
        return "the log has 0 segments; flush() writes entries from the write-ahead log into segments"
    if not view.compactable:
        return (f"none of the {len(view.segments):,} segments ends at or below snapshot {view.snapshot_index} and is "
                f"not the newest; record a later snapshot, or end the newest with end_segment(): limits (max_entries="
                f"{view.limits.max_entries}, max_bytes={view.limits.max_bytes}) count for segments begun from then on")
    # What held the others back says more than that this one rewrites nothing.
    reasons = [why] if why and plan.drops_only else [why, chosen] if why else [chosen]
    return (f"none of the {len(view.compactable):,} segments up to snapshot {view.snapshot_index} is wholly dead; "
            f"{', but '.join(reasons)}")


def _row(action: str, members: Sequence[SegmentStats], freed: int = 0, copied: int = 0,
         reason: str = "") -> dict[str, Any]:
    row: dict[str, Any] = {"action": action, "members": [member.number for member in members]}
    for name in ("live_entries", "entries", "live_bytes", "data_bytes"):
        row[name] = sum(getattr(member, name) for member in members)
    return {**row, "bytes_freed": freed, "bytes_to_copy": copied, "reason": reason or _dead_part(members)}


def _dead_part(segments: Sequence[SegmentStats]) -> str:
    dead, entries = sum(map(stored_dead_bytes, segments)), sum(segment.entries for segment in segments)
    return (f"{entries - sum(segment.live_entries for segment in segments):,} of {entries:,} entries are dead, "
            f"{dead:,} of {dead + sum(map(stored_live_bytes, segments)):,} stored bytes")
