# SPDX-License-Identifier: Apache-2.0
"""A policy with a price: rewrite where each byte freed costs few enough bytes copied."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import isfinite
from typing import ClassVar

import attrs

from compactlib.errors import InvalidInput
from compactlib.raftlog.arguments import whole
from compactlib.raftlog.compaction.plan.policies.seed import DEFAULT_MAX_SOURCES
from compactlib.raftlog.compaction.plan.policy import (
    NOTHING_DEAD,
    LeftOut,
    LogChoice,
    stored_dead_bytes,
    stored_live_bytes,
)
from compactlib.raftlog.compaction.plan.view import LogView
from compactlib.raftlog.model.values import SegmentLimits, SegmentStats


@attrs.frozen
class _Group:
    first: int
    size: int
    copied: int
    freed: int


@attrs.frozen(kw_only=True)
class CostPolicy:
    """Rewrites where it pays: at most so many bytes copied for each byte freed, and the cheapest first.

    Copied are a group's live payloads and their index records. Freed are its dead ones, and `segment_overhead_bytes`
    for each file that disappears: that is why small dense neighbours merge and large ones are left in peace. A
    group that frees nothing has no price and is never chosen.

    A group is worth `limit * freed - copied`. Of all ways to cut the segments into groups that each cost no more
    than the limit, the policy takes the one of the greatest total worth. So a member is never carried along at
    the expense of a cheaper neighbour: it joins a group only where that adds worth.

    Attributes:
        max_bytes_copied_per_byte_freed: the limit, > 0; 1.0 copies at most as much as it frees (a segment of
            its own is rewritten when at least half of it is dead), 0.25 waits until four fifths are dead.
        max_sources: the most members of a group, >= 1.
        segment_overhead_bytes: what one file less is worth, >= 0; the default is a block of a file system.
        max_bytes_copied: the most bytes copied by one run, cheapest groups first; what does not fit waits for
            the next run, so choose it no smaller than a segment. Default no limit.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    max_bytes_copied_per_byte_freed: float = 1.0
    max_sources: int = DEFAULT_MAX_SOURCES
    segment_overhead_bytes: int = 4096
    max_bytes_copied: int | None = None

    name: ClassVar[str] = "cost"

    def __attrs_post_init__(self) -> None:
        limit = self.max_bytes_copied_per_byte_freed
        if not (isfinite(limit) and limit > 0):
            raise InvalidInput(f"max_bytes_copied_per_byte_freed is {limit}; it must be a number above 0")
        if whole("max_sources", self.max_sources) < 1:
            raise InvalidInput(f"max_sources is {self.max_sources}; a group has at least one member")
        if whole("segment_overhead_bytes", self.segment_overhead_bytes) < 0:
            raise InvalidInput(f"segment_overhead_bytes is {self.segment_overhead_bytes}; it cannot be negative")
        if self.max_bytes_copied is not None and whole("max_bytes_copied", self.max_bytes_copied) < 0:
            raise InvalidInput(f"max_bytes_copied is {self.max_bytes_copied}; it cannot be negative")

    def choose(self, view: LogView, now: float) -> LogChoice:
        """See `LogPolicy`. O(segments * max_sources)."""
        segments = view.candidates
        groups: list[tuple[int, ...]] = []
        why = {segment.number: self._why_too_dear(segment) for segment in segments}
        left = self.max_bytes_copied
        held: _Group | None = None
        for group in sorted(self._most_worth(segments, view.limits), key=_cheapest_first):
            members = [segment.number for segment in segments[group.first:group.first + group.size]]
            if left is not None and group.copied > left:
                told = f"its group of {group.size} copies {group.copied:,} bytes; this run has {left:,} left to copy"
                why.update(dict.fromkeys(members, told))
                held = held or group
                continue
            left = None if left is None else left - group.copied
            groups.append(tuple(members))
            for number in members:
                del why[number]
        return LogChoice(tuple(sorted(groups)), tuple(LeftOut(number, reason) for number, reason in why.items()),
                      self._why(view, groups, held))

    def _why(self, view: LogView, groups: list[tuple[int, ...]], held: _Group | None) -> str:
        limit = f"max_bytes_copied_per_byte_freed={self.max_bytes_copied_per_byte_freed:g}"
        if groups:
            return f"a byte freed costs at most {limit}"
        if held is not None:
            return (f"the cheapest group copies {held.copied:,} bytes, more than max_bytes_copied="
                    f"{self.max_bytes_copied}; raise it")
        alive = view.candidates
        cheapest = min((group.copied / group.freed for end in range(1, len(alive) + 1)
                        for group in self._groups_ending(alive, end, view.limits) if group.freed), default=None)
        if cheapest is None:
            return (f"of {len(alive):,} that hold something alive no group frees anything (max_sources="
                    f"{self.max_sources}, segment_overhead_bytes={self.segment_overhead_bytes}), {NOTHING_DEAD}")
        return (f"of {len(alive):,} that hold something alive no group costs at most {limit} bytes copied per byte "
                f"freed (the cheapest copies {cheapest:,.2f}); raise it, or wait")

    def _most_worth(self, segments: Sequence[SegmentStats], limits: SegmentLimits) -> list[_Group]:
        """The groups of greatest total worth; of equally good cuts, the one that frees more.

        One pass over the segments: the best cut of the first n ends in a segment left out or in a group of
        1 .. max_sources members, behind the best cut of the segments before it.
        """
        price = Fraction(self.max_bytes_copied_per_byte_freed)
        best: list[tuple[int, int]] = [(0, 0)]
        last: list[_Group | None] = [None]
        for end in range(1, len(segments) + 1):
            score, chosen = best[-1], None
            for group in self._groups_ending(segments, end, limits):
                worth = price.numerator * group.freed - price.denominator * group.copied
                before = best[group.first]
                candidate = (before[0] + worth, before[1] + group.freed)
                # A group dearer than the limit (one that frees nothing is) has negative worth: leaving out beats it.
                if candidate > score:
                    score, chosen = candidate, group
            best.append(score)
            last.append(chosen)
        groups: list[_Group] = []
        end = len(segments)
        while end:
            taken = last[end]
            if taken is not None:
                groups.append(taken)
            end = end - 1 if taken is None else taken.first
        return groups[::-1]

    def _groups_ending(self, segments: Sequence[SegmentStats], end: int, limits: SegmentLimits) -> list[_Group]:
        groups: list[_Group] = []
        entries = payload = copied = dead = 0
        for first in range(end - 1, max(end - 1 - self.max_sources, -1), -1):
            segment = segments[first]
            entries += segment.live_entries
            payload += segment.live_bytes
            size = end - first
            if size > 1 and (entries > limits.max_entries or payload > limits.max_bytes):
                break
            copied += stored_live_bytes(segment)
            dead += stored_dead_bytes(segment)
            groups.append(_Group(first, size, copied, dead + self.segment_overhead_bytes * (size - 1)))
        return groups

    def _why_too_dear(self, segment: SegmentStats) -> str:
        copied, freed = stored_live_bytes(segment), stored_dead_bytes(segment)
        price = (f"{copied / freed:,.2f} bytes copied per byte freed on its own, the limit is "
                 f"{self.max_bytes_copied_per_byte_freed:g}" if freed else "nothing in it can be freed")
        return f"{price}, and no neighbour that fits beside it makes it pay"


def _cheapest_first(group: _Group) -> tuple[Fraction, int]:
    return Fraction(group.copied, group.freed), group.first
