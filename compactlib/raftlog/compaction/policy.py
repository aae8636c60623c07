# SPDX-License-Identifier: Apache-2.0
"""The contracts of a policy, which chooses the victims of a compaction, and of a trigger.

A policy is a pure function of statistics: `choose(view, now) -> LogChoice`. `view.candidates` are, oldest to newest,
the segments that may be rewritten and have a live entry. The active segment is none, and neither is a segment that
ends above the snapshot, since all of its entries are needed. A wholly dead segment is none either: every compaction
drops it, and its neighbours count as adjacent. A policy names groups of adjacent candidates. Each group becomes one
segment, and every other candidate stays as it is.

A good policy makes progress, so that compaction comes to an end: each group merges two or more segments, or rewrites a
segment with dead entries. `check_policy` with `log_views()` (`compactlib.testing`) tries a policy on many logs.
`compactlib.raftlog.policies` has the library's policies and triggers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import attrs

from compactlib.contract import Policy
from compactlib.errors import CompactlibError, InvalidInput
from compactlib.raftlog.values import INDEX_RECORD_BYTES, SegmentLimits, SegmentStats
from compactlib.report import Printed

MAX_GROUP_MEMBERS = 14
"""Limit of the members of a group: the output's file name has all their numbers, in at most 255 bytes."""


@attrs.frozen
class GroupFailed:
    """A group that was not rewritten, or a single segment whose index could not be read.

    No live entry is lost. After an error before the commit, the sources are unchanged; after it, the next run or the
    log's opening finishes the group.

    Attributes:
        members: numbers of the group's segments.
        error: the error of the group.
    """

    members: tuple[int, ...]
    # Compared by message: each read raises a new error.
    error: CompactlibError = attrs.field(eq=str)


@attrs.frozen(kw_only=True, repr=False)
class LogView(Printed):
    """The statistics of a log from which a policy chooses.

    Attributes:
        segments: statistics of every segment, oldest to newest, the newest included. Invariant: numbers ascend, and
            ranges ascend without overlap.
        snapshot_index: the index of the last snapshot; `None` before the first snapshot.
        limits: the limits of the segments that a compaction writes.
        folder: the log's folder; empty for a view made by hand, whose plans no log executes.
        damaged: segments whose index could not be read, oldest to newest; they count as wholly live.
    """

    segments: tuple[SegmentStats, ...]
    snapshot_index: int | None
    limits: SegmentLimits
    folder: str = ""
    damaged: tuple[GroupFailed, ...] = ()

    @property
    def compactable(self) -> tuple[SegmentStats, ...]:
        """The segments that a compaction may touch: not the newest, and wholly at or below the snapshot."""
        if self.snapshot_index is None:
            return ()
        return tuple(segment for segment in self.segments[:-1] if segment.ref.last <= self.snapshot_index)

    @property
    def candidates(self) -> tuple[SegmentStats, ...]:
        """The compactable segments with live entries, from which a policy chooses."""
        return tuple(segment for segment in self.compactable if segment.live_entries)

    @property
    def dead(self) -> tuple[SegmentStats, ...]:
        """The compactable segments without a live entry, which every compaction drops."""
        return tuple(segment for segment in self.compactable if not segment.live_entries)

    @property
    def place(self) -> str:
        """The snapshot in words, for the titles of views and plans."""
        return "before the first snapshot" if self.snapshot_index is None else f"at snapshot {self.snapshot_index}"

    def to_dicts(self) -> list[dict[str, Any]]:
        """A row for each segment, oldest to newest."""
        compactable = {segment.number for segment in self.compactable}
        return [{"segment": each.number, "first": each.ref.first, "last": each.ref.last, "entries": each.entries,
                 "live_entries": each.live_entries, "data_bytes": each.data_bytes, "live_bytes": each.live_bytes,
                 "file_bytes": each.file_bytes, "compactable": each.number in compactable}
                for each in self.segments]

    def _summary(self) -> str:
        damaged = f", {len(self.damaged)} of them damaged" if self.damaged else ""
        return (f"{len(self.segments)} segments {self.place}, {len(self.compactable)} of them compactable{damaged}, "
                f"{sum(each.file_bytes for each in self.segments):,} bytes")


@attrs.frozen
class LogChoice:
    """A policy's choice.

    Attributes:
        groups: the numbers of the members of each group, ascending; the groups ascend too.
        why: the reason; of an empty choice the closed gate, its value, and the setting to change.
    """

    groups: tuple[tuple[int, ...], ...]
    why: str

    @property
    def is_empty(self) -> bool:
        """Whether nothing is rewritten."""
        return not self.groups


class LogPolicy(Policy[LogView, LogChoice], Protocol):
    """Chooses the victims of a compaction; implement it as a small frozen attrs class, whose fields are its settings.

    The members of a group are adjacent candidates. Their live entries and payload bytes fit into a segment of
    `view.limits`, unless the group is a single segment. A group has at most `MAX_GROUP_MEMBERS`. `view.candidates` may
    be empty.
    """


class Trigger(ABC):
    """Decides whether the next compaction is a major one, which rewrites the groups that the log's policy chooses.

    A minor compaction only drops wholly dead segments. Triggers are combined with `|` (either) and `&` (both). Plans
    print a trigger's `repr`, which names its settings: use a frozen attrs class.
    """

    __slots__ = ()

    @abstractmethod
    def is_due(self, view: LogView, minors: int, seconds: float) -> bool:
        """Whether a major compaction is due. Pure and quick.

        Args:
            view: the log; what is dead in `view.compactable` can be freed.
            minors: count of minor compactions that had a compactable segment, since the last major compaction or the
                log's opening.
            seconds: since the end of the last major compaction or the log's opening.
        """

    def __or__(self, other: Trigger) -> Trigger:
        """A trigger that is due when this trigger or `other` is."""
        return _Joined(self, "|", other)

    def __and__(self, other: Trigger) -> Trigger:
        """A trigger that is due when this trigger and `other` are."""
        return _Joined(self, "&", other)


@attrs.frozen(repr=False)
class _Joined(Trigger):
    left: Trigger
    operator: Literal["|", "&"]
    right: Trigger

    def is_due(self, view: LogView, minors: int, seconds: float) -> bool:
        left, right = self.left.is_due(view, minors, seconds), self.right.is_due(view, minors, seconds)
        return left or right if self.operator == "|" else left and right

    def __repr__(self) -> str:
        return f"({self.left!r} {self.operator} {self.right!r})"


def stored_live_bytes(segment: SegmentStats) -> int:
    """The bytes that a rewrite copies: live payloads and their index records."""
    return segment.live_bytes + INDEX_RECORD_BYTES * segment.live_entries


def stored_dead_bytes(segment: SegmentStats) -> int:
    """The bytes that a rewrite frees: dead payloads and their index records."""
    return segment.dead_bytes + INDEX_RECORD_BYTES * (segment.entries - segment.live_entries)


def is_worthwhile(members: Sequence[SegmentStats]) -> bool:
    """Whether rewriting `members` into one segment leaves fewer segments or fewer dead bytes or entries."""
    return len(members) > 1 or any(stored_dead_bytes(segment) for segment in members)


def filled_groups(segments: Sequence[SegmentStats], limits: SegmentLimits,
                  max_sources: int = MAX_GROUP_MEMBERS) -> list[list[SegmentStats]]:
    """Split `segments` (oldest first) into groups of neighbours whose live entries and bytes fit into a segment each.

    Oldest first, which gives the fewest groups. An exact fit is a fit; a segment that exceeds the limits becomes a
    group of its own. A group has at most `max_sources` members. O(segments).
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


def chosen_groups(choice: LogChoice, view: LogView, *, policy: str) -> list[tuple[SegmentStats, ...]]:
    """Return the members of the groups of a choice. O(segments).

    Raises:
        InvalidInput: it breaks a rule of `LogPolicy`; the message names the policy and the segments.
    """
    candidates, limits = view.candidates, view.limits
    place = {segment.number: position for position, segment in enumerate(candidates)}
    groups: list[tuple[SegmentStats, ...]] = []
    free = 0
    for group in choice.groups:
        first = place.get(group[0], -1) if group else -1
        members = candidates[first:first + len(group)]
        if first < free or tuple(each.number for each in members) != group:
            raise InvalidInput(f"policy {policy!r} made a bad choice: group {group} is not made of adjacent candidates "
                               f"in ascending order, each in one group only; choose from view.candidates")
        if len(filled_groups(members, limits)) > 1:
            raise InvalidInput(f"policy {policy!r} made a bad choice: group {group} has "
                               f"{sum(each.live_entries for each in members)} live entries and "
                               f"{sum(each.live_bytes for each in members)} live bytes in {len(members)} segments; a "
                               f"segment holds at most {limits.max_entries} entries and {limits.max_bytes} bytes, of "
                               f"at most {MAX_GROUP_MEMBERS} segments")
        groups.append(members)
        free = first + len(group)
    return groups
