# SPDX-License-Identifier: Apache-2.0
"""The contract between a compaction and the policy that chooses what it rewrites, on one page.

A policy is a pure function of statistics: `choose(view, now) -> Choice`. `view.candidates` are, oldest to newest, the
segments that may be rewritten and hold at least one live entry. The newest segment (still written to) is never among
them, nor are those that end above the snapshot (their entries are all needed), and wholly dead ones (they are dropped
whatever a policy chooses, and two segments with only dead ones between them are adjacent). A policy puts every
candidate into exactly one group, or leaves it out with a reason. A group becomes one segment.

A good policy makes progress, so that compaction always comes to rest: each group either joins two or more segments
or rewrites one that holds something dead. `check_policy` with `log_views()` (`compactlib.testing`) tries a policy on
many logs. Four are in `compactlib.raftlog.policies`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Protocol

import attrs

from compactlib.contract import Policy
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.raftlog.model.values import INDEX_RECORD_BYTES, SegmentLimits, SegmentStats
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
        InvalidInput: segments or their ranges do not ascend, or a count is impossible (the message names the segment).
    """

    segments: tuple[SegmentStats, ...]
    snapshot_index: int | None
    limits: SegmentLimits
    folder: str = ""
    damaged: tuple[DamagedSegment, ...] = ()

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


@attrs.frozen
class LeftOut:
    """A segment that a policy lets be.

    Attributes:
        number: the segment's number.
        reason: why, in one sentence with the numbers in it.
    """

    number: int
    reason: str


@attrs.frozen
class LogChoice:
    """What a policy wants done with the candidates; each is in one group or left out.

    Attributes:
        groups: the numbers of the members of each group, ascending; the groups ascend too.
        left_out: the others.
        why: why these; of a choice of nothing which gate is shut, its value, and the setting to change.
    """

    groups: tuple[tuple[int, ...], ...]
    left_out: tuple[LeftOut, ...]
    why: str

    @property
    def is_empty(self) -> bool:
        """Whether nothing is rewritten."""
        return not self.groups


class LogPolicy(Policy[LogView, LogChoice], Protocol):
    """Chooses what a compaction rewrites; implement it as a small frozen attrs class, whose fields are its settings.

    `choose` groups some of `view.candidates` and leaves out the others. The members of a group stand side by side
    among the candidates, and their live entries and payload bytes fit into one segment of `view.limits`, unless the
    group is a single segment, which always fits into itself. There may be no candidates at all.
    """


def stored_live_bytes(segment: SegmentStats) -> int:
    """What a rewrite copies: live payloads and their index records, in bytes."""
    return segment.live_bytes + INDEX_RECORD_BYTES * segment.live_entries


def stored_dead_bytes(segment: SegmentStats) -> int:
    """What a rewrite frees: dead payloads and their index records, in bytes."""
    return segment.dead_bytes + INDEX_RECORD_BYTES * (segment.entries - segment.live_entries)


def is_worthwhile(members: Sequence[SegmentStats]) -> bool:
    """Whether rewriting `members` into one segment leaves fewer segments or fewer dead bytes or entries."""
    return len(members) > 1 or any(stored_dead_bytes(segment) for segment in members)


def filled_groups(segments: Sequence[SegmentStats], limits: SegmentLimits,
                  max_sources: int | None = None) -> list[list[SegmentStats]]:
    """Cut `segments` into runs of neighbours, each as long as its live entries and bytes fit into one segment.

    Oldest first, which gives the fewest groups that neighbours can be cut into. A segment that exceeds the limits on
    its own becomes a group of one. O(segments).

    Args:
        segments: oldest to newest.
        limits: what one segment may hold; an exact fit is a fit.
        max_sources: the most members of a group; default no limit.
    """
    groups: list[list[SegmentStats]] = []
    entries = payload = 0
    for segment in segments:
        entries += segment.live_entries
        payload += segment.live_bytes
        full = entries > limits.max_entries or payload > limits.max_bytes
        if not groups or full or len(groups[-1]) == max_sources:
            groups.append([])
            entries, payload = segment.live_entries, segment.live_bytes
        groups[-1].append(segment)
    return groups


def checked_choice(choice: object, view: LogView, *, policy: str) -> LogChoice:
    """`choice`, if it keeps the rules of `LogPolicy`. O(segments).

    Raises:
        InvalidInput: it does not; the message names the policy and the segment.
    """
    if not isinstance(choice, LogChoice):
        raise InvalidInput(f"policy {policy!r} answered {choice!r:.100}; give a LogChoice: groups, what is left out "
                           f"with reasons, and why")
    segments, limits = view.candidates, view.limits
    place = {segment.number: position for position, segment in enumerate(segments)}
    named = [number for group in choice.groups for number in group]
    seen: set[int] = set()
    for number in [*named, *(left.number for left in choice.left_out)]:
        if number not in place:
            raise _broken(policy, number, "was not among those shown")
        if number in seen:
            raise _broken(policy, number, "is named twice")
        seen.add(number)
    for number in place:
        if number not in seen:
            raise _broken(policy, number, "is neither in a group nor left out")
    if named != sorted(named):
        raise _broken(policy, _first_descent(named), "comes after a newer one; groups and members must ascend")
    for group in choice.groups:
        if not group:
            raise InvalidInput(f"policy {policy!r} made a bad choice: a group has no members")
        _check_group([segments[place[number]] for number in group], place, limits, policy)
    return choice


def _check_group(members: Sequence[SegmentStats], place: dict[int, int], limits: SegmentLimits, policy: str) -> None:
    first = place[members[0].number]
    for position, member in enumerate(members, first):
        if place[member.number] != position:
            raise _broken(policy, member.number, f"is not adjacent to the member before it in group "
                                                 f"{tuple(each.number for each in members)}")
    entries = sum(member.live_entries for member in members)
    payload = sum(member.live_bytes for member in members)
    if len(members) > 1 and (entries > limits.max_entries or payload > limits.max_bytes):
        raise _broken(policy, members[0].number, f"leads a group of {entries} live entries and {payload} live bytes; "
                                                 f"a segment holds {limits.max_entries} and {limits.max_bytes}")


def _first_descent(numbers: Sequence[int]) -> int:
    return next(after for before, after in pairwise(numbers) if after < before)


def _broken(policy: str, number: int, what: str) -> InvalidInput:
    return InvalidInput(f"policy {policy!r} made a bad choice: segment {number} {what}; correct the policy "
                        f"(check_policy finds such cases)")


def _check_counts(segment: SegmentStats) -> None:
    if not (0 <= segment.live_entries <= segment.entries and 0 <= segment.live_bytes <= segment.data_bytes):
        raise InvalidInput(f"segment {segment.number} claims {segment.live_entries} of {segment.entries} entries and "
                           f"{segment.live_bytes} of {segment.data_bytes} bytes live; live is a part of the whole")
    if segment.live_bytes and not segment.live_entries:
        raise InvalidInput(f"segment {segment.number} claims {segment.live_bytes} live bytes without a live entry")
