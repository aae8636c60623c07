# SPDX-License-Identifier: Apache-2.0
"""The policies that come with the Raft log; `docs/raftlog.md` compares them.

Each chooses from `view.candidates`, oldest to newest, and gives a reason for every segment that it leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import ClassVar

import attrs

from compactlib._arguments import is_above, is_whole
from compactlib.raftlog.compaction.policy import (
    LeftOut,
    LogChoice,
    LogView,
    filled_groups,
    is_number,
    stored_dead_bytes,
    stored_live_bytes,
)
from compactlib.raftlog.values import SegmentLimits, SegmentStats

DEFAULT_MAX_SOURCES = 8


@attrs.frozen
class DropDead:
    """Rewrites nothing: the compaction only drops wholly dead segments, as every compaction does.

    It copies no byte and needs no room: RabbitMQ Ra's minor compaction.
    """

    name: ClassVar[str] = "drop"

    def choose(self, view: LogView, now: float) -> LogChoice:
        alive = view.candidates
        return LogChoice((), tuple(LeftOut(each.number, f"holds {each.live_entries:,} live "
                                           f"{'entry' if each.live_entries == 1 else 'entries'}") for each in alive),
                         f"{len(alive):,} hold something alive, and this policy rewrites nothing; give one that does")


@attrs.frozen(kw_only=True)
class SeedPolicy:
    """Merges adjacent segments whose live entries fit into one segment; rewrites a single segment that is dead enough.

    Groups are filled oldest first, as far as they fit. Small segments that are wholly live are merged too, so that the
    number of segments falls. The price: a large dense segment next to a small segment is copied to save a single file,
    again in each run until it is full; `CostPolicy` weighs that.

    "Enough" is measured in stored bytes, payloads and index records together: a segment with many tiny dead entries is
    not rewritten for almost no space, and payloads of zero bytes count through their records.

    A second run does nothing, unless `max_sources` ended a group: n neighbours that fit into a segment take
    ceil(log n / log max_sources) runs.

    Attributes:
        max_sources: limit of the members of a group, >= 1.
        reclaim_fraction: a single segment is rewritten when more than this fraction of its stored bytes is dead,
            0.0 .. 1.0.
    """

    max_sources: int = attrs.field(default=DEFAULT_MAX_SOURCES, validator=is_whole(1))
    reclaim_fraction: float = attrs.field(default=0.5, validator=is_number(0, 1))

    name: ClassVar[str] = "seed"

    def choose(self, view: LogView, now: float) -> LogChoice:
        groups: list[tuple[int, ...]] = []
        left_out: list[LeftOut] = []
        for members in filled_groups(view.candidates, view.limits, self.max_sources):
            if len(members) > 1 or _dead_part(members[0]) > self.reclaim_fraction:
                groups.append(tuple(member.number for member in members))
            else:
                left_out.append(LeftOut(members[0].number, self._why_not(members[0])))
        return LogChoice(tuple(groups), tuple(left_out), self._why(view, groups))

    def _why_not(self, segment: SegmentStats) -> str:
        dead = stored_dead_bytes(segment)
        if not dead:
            return "no neighbour joins it, and all of it is live"
        return (f"no neighbour joins it, and {dead:,} of {dead + stored_live_bytes(segment):,} stored bytes can go, "
                f"not more than {self.reclaim_fraction:.0%}")

    def _why(self, view: LogView, groups: list[tuple[int, ...]]) -> str:
        if groups:
            return f"neighbours fit into one segment, or more than {self.reclaim_fraction:.0%} of one can go"
        alive, limits = view.candidates, view.limits
        return (f"of {len(alive):,} that hold something alive no two neighbours fit into one (max_entries="
                f"{limits.max_entries}, max_bytes={limits.max_bytes}, max_sources={self.max_sources}), and at most "
                f"{max(map(_dead_part, alive), default=0.0):.0%} of one can go, not more than reclaim_fraction="
                f"{self.reclaim_fraction}; lower it, take a snapshot with fewer live indexes, or wait")


@attrs.frozen(kw_only=True)
class RaPolicy:
    """Merges adjacent segments each of which is under half live, by entries or by payload bytes (RabbitMQ Ra v3.1.10).

    Each member must be eligible; an ineligible segment ends the group before it. A group may have a single member; an
    eligible segment whose live entries exceed the limits is skipped. A second run does nothing: its outputs are wholly
    live and not eligible.

    Its weaknesses are kept for comparisons: dense small segments are never merged, and a segment may be rewritten for
    almost no bytes because most of its entries, the small ones, are dead. For a segment whose payloads all have zero
    bytes, on which Ra fails, only the entries decide.

    Attributes:
        max_sources: limit of the members of a group, >= 1; default no limit, as in Ra.
    """

    max_sources: int | None = attrs.field(default=None, validator=is_whole(1, or_none=True))

    name: ClassVar[str] = "ra"

    def choose(self, view: LogView, now: float) -> LogChoice:
        groups: list[tuple[int, ...]] = []
        left_out: list[LeftOut] = []
        limits = view.limits
        for eligible, run in groupby(view.candidates, _is_under_half_live):
            if not eligible:
                left_out += (LeftOut(each.number, f"{each.live_entries:,} of {each.entries:,} entries and "
                                     f"{each.live_bytes:,} of {each.data_bytes:,} bytes are live: neither is under "
                                     f"half") for each in run)
                continue
            for members in filled_groups(tuple(run), limits, self.max_sources):
                first = members[0]
                if first.live_entries > limits.max_entries or first.live_bytes > limits.max_bytes:
                    left_out.append(LeftOut(first.number, f"{first.live_entries:,} live entries and "
                                            f"{first.live_bytes:,} live bytes exceed one segment "
                                            f"({limits.max_entries:,} and {limits.max_bytes:,})"))
                else:
                    groups.append(tuple(member.number for member in members))
        why = ("what is under half live is merged with such neighbours" if groups else
               f"of {len(view.candidates):,} that hold something alive none is under half live and fits into one "
               f"segment; the policy has no setting for that, SeedPolicy merges small dense ones as well")
        return LogChoice(tuple(groups), tuple(left_out), why)


@attrs.frozen
class _Group:
    """Neighbours that could be merged: place of the first, their count, bytes to copy, bytes to free."""

    first: int
    size: int
    copied: int
    freed: int


@attrs.frozen(kw_only=True)
class CostPolicy:
    """Rewrites groups up to a limit of bytes copied for each byte freed, the cheapest groups first.

    Copied are a group's live payloads and their index records. Freed are its dead payloads and their index records, and
    `segment_overhead_bytes` for each removed file: small dense neighbours are merged, large dense neighbours are not. A
    group that frees nothing is never chosen.

    A group's worth is `limit * freed - copied`. Of all ways to split the segments into groups that cost no more than
    the limit, the policy takes that of the greatest total worth. So a segment joins a group only if that adds worth.

    Attributes:
        max_bytes_copied_per_byte_freed: the limit, > 0; with 1.0 a single segment is rewritten when at least half of it
            is dead, with 0.25 when four fifths are.
        max_sources: limit of the members of a group, >= 1.
        segment_overhead_bytes: worth of a removed file, >= 0; the default is a block of a file system.
        max_bytes_copied: limit of the bytes that a run copies, cheapest groups first; the other groups wait for the
            next run, so that it must be at least a segment's size. Default no limit.
    """

    max_bytes_copied_per_byte_freed: float = attrs.field(default=1.0, validator=is_above(0))
    max_sources: int = attrs.field(default=DEFAULT_MAX_SOURCES, validator=is_whole(1))
    segment_overhead_bytes: int = attrs.field(default=4096, validator=is_whole())
    max_bytes_copied: int | None = attrs.field(default=None, validator=is_whole(or_none=True))

    name: ClassVar[str] = "cost"

    def choose(self, view: LogView, now: float) -> LogChoice:
        segments = view.candidates
        groups: list[tuple[int, ...]] = []
        reasons = {segment.number: self._why_too_dear(segment) for segment in segments}
        left, held = self.max_bytes_copied, 0
        for group in sorted(self._most_worth(segments, view.limits), key=_cheapest_first):
            members = tuple(segment.number for segment in segments[group.first:group.first + group.size])
            if left is not None and group.copied > left:
                reason = f"its group of {group.size} copies {group.copied:,} bytes; this run has {left:,} left to copy"
                reasons.update(dict.fromkeys(members, reason))
                held = held or group.copied
                continue
            left = None if left is None else left - group.copied
            groups.append(members)
            for number in members:
                del reasons[number]
        return LogChoice(tuple(sorted(groups)), tuple(LeftOut(*each) for each in reasons.items()),
                         self._why(view, groups, held))

    def _why(self, view: LogView, groups: list[tuple[int, ...]], held: int) -> str:
        limit = f"max_bytes_copied_per_byte_freed={self.max_bytes_copied_per_byte_freed:g}"
        if groups:
            return f"it pays at {limit}"
        if held:
            return (f"the cheapest group copies {held:,} bytes, and max_bytes_copied={self.max_bytes_copied} lets no "
                    f"run copy that many; raise it")
        alive = view.candidates
        prices = [group.copied / group.freed for end in range(1, len(alive) + 1)
                  for group in self._groups_ending(alive, end, view.limits) if group.freed]
        cheapest = f"the cheapest copies {min(prices):,.2f}" if prices else "none frees anything"
        return (f"of {len(alive):,} that hold something alive no group pays at {limit}, max_sources="
                f"{self.max_sources}, segment_overhead_bytes={self.segment_overhead_bytes} ({cheapest}); raise the "
                f"limit, or wait")

    def _most_worth(self, segments: Sequence[SegmentStats], limits: SegmentLimits) -> list[_Group]:
        """The groups of greatest total worth; of equal ways, that which frees more.

        A single pass: the best way for the first n segments ends with a segment left out, or with a group of
        1 .. max_sources members, behind the best way for the segments before.
        """
        numerator, denominator = self.max_bytes_copied_per_byte_freed.as_integer_ratio()
        best: list[tuple[int, int]] = [(0, 0)]
        last: list[_Group | None] = [None]
        for end in range(1, len(segments) + 1):
            score, chosen = best[-1], None
            for group in self._groups_ending(segments, end, limits):
                worth = numerator * group.freed - denominator * group.copied
                before = best[group.first]
                candidate = (before[0] + worth, before[1] + group.freed)
                # A group above the limit, or that frees nothing, has negative worth: leaving its members out is better.
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


def _dead_part(segment: SegmentStats) -> float:
    dead = stored_dead_bytes(segment)
    return dead / (dead + stored_live_bytes(segment))


def _is_under_half_live(segment: SegmentStats) -> bool:
    return 2 * segment.live_entries < segment.entries or 2 * segment.live_bytes < segment.data_bytes


def _cheapest_first(group: _Group) -> tuple[float, int]:
    return group.copied / group.freed, group.first
