# SPDX-License-Identifier: Apache-2.0
"""The policies and triggers that come with the Raft log; `docs/raftlog.md` compares them.

Each policy chooses from `view.candidates`, oldest to newest. Triggers are combined, as in
`EveryNMinors(8) | DeadBytes(512 << 20)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from sys import float_info
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import attrs

from compactlib._arguments import is_above, is_fraction, is_one_of, is_seconds, is_whole
from compactlib.errors import InvalidInput
from compactlib.raftlog.compaction.plan import DropDead
from compactlib.raftlog.compaction.policy import (
    LogChoice,
    LogView,
    Trigger,
    filled_groups,
    stored_dead_bytes,
    stored_live_bytes,
)
from compactlib.raftlog.values import SegmentLimits, SegmentStats

__all__ = [
    "CostPolicy", "DeadBytes", "DeadRatio", "DropDead", "Elapsed", "EveryNMinors", "Manual", "RaPolicy", "SeedPolicy",
]

DEFAULT_MAX_SOURCES = 8

Measure: TypeAlias = Literal["bytes", "entries"]


# -- policies


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
    reclaim_fraction: float = attrs.field(default=0.5, validator=is_fraction)

    name: ClassVar[str] = "seed"

    def choose(self, view: LogView, now: float) -> LogChoice:
        limits = view.limits
        filled = filled_groups(view.candidates, limits, self.max_sources)
        groups = [members for members in filled if len(members) > 1 or _dead_part(members[0]) > self.reclaim_fraction]
        if groups:
            return LogChoice(_numbers(groups), f"neighbours fit into one segment, or more than "
                                               f"{self.reclaim_fraction:.0%} of one can go")
        deadest = max((_dead_part(segment) for segment in view.candidates), default=0.0)
        return LogChoice((), f"of {len(filled):,} that hold something alive no two neighbours fit into one "
                             f"(max_entries={limits.max_entries}, max_bytes={limits.max_bytes}, max_sources="
                             f"{self.max_sources}), and at most {deadest:.0%} of one can go, not more than "
                             f"reclaim_fraction={self.reclaim_fraction}; lower it, take a snapshot with fewer live "
                             f"indexes, or wait")


@attrs.frozen
class RaPolicy:
    """Merges adjacent segments each of which is under half live, by entries or by payload bytes (RabbitMQ Ra v3.1.10).

    Each member must be eligible; an ineligible segment ends the group before it. A group may have a single member; an
    eligible segment whose live entries exceed the limits is skipped. A second run does nothing: its outputs are wholly
    live and not eligible.

    Its weaknesses are kept for comparisons: dense small segments are never merged, and a segment may be rewritten for
    almost no bytes because most of its entries, the small ones, are dead. For a segment whose payloads all have zero
    bytes, on which Ra fails, only the entries decide.
    """

    name: ClassVar[str] = "ra"

    def choose(self, view: LogView, now: float) -> LogChoice:
        limits = view.limits
        groups = [members for eligible, run in groupby(view.candidates, _is_under_half_live) if eligible
                  for members in filled_groups(tuple(run), limits)
                  if members[0].live_entries <= limits.max_entries and members[0].live_bytes <= limits.max_bytes]
        return LogChoice(_numbers(groups), "what is under half live is merged with such neighbours" if groups else
                         f"of {len(view.candidates):,} that hold something alive none is under half live and fits "
                         f"into one segment; the policy has no setting for that, SeedPolicy merges small dense ones as "
                         f"well")


class _Group(NamedTuple):
    """Neighbours that could be merged: place of the first and behind the last, bytes to copy, bytes to free."""

    first: int
    end: int
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
        possible = [self._groups_ending(segments, end, view.limits) for end in range(1, len(segments) + 1)]
        groups: list[Sequence[SegmentStats]] = []
        waiting: list[_Group] = []
        left = float("inf") if self.max_bytes_copied is None else self.max_bytes_copied
        for group in sorted(self._most_worth(possible), key=lambda group: (group.copied / group.freed, group.first)):
            if group.copied > left:
                waiting.append(group)
            else:
                left -= group.copied
                groups.append(segments[group.first:group.end])
        limit = f"max_bytes_copied_per_byte_freed={self.max_bytes_copied_per_byte_freed:g}"
        if groups:
            why = f"it pays at {limit}"
            if waiting:
                why += f"; {len(waiting):,} groups wait for max_bytes_copied={self.max_bytes_copied}"
        elif waiting:
            why = (f"the cheapest group copies {waiting[0].copied:,} bytes, and max_bytes_copied="
                   f"{self.max_bytes_copied} lets no run copy that many; raise it")
        else:
            prices = [group.copied / group.freed for ending in possible for group in ending if group.freed]
            cheapest = f"the cheapest copies {min(prices):,.2f}" if prices else "none frees anything"
            why = (f"of {len(segments):,} that hold something alive no group pays at {limit}, max_sources="
                   f"{self.max_sources}, segment_overhead_bytes={self.segment_overhead_bytes} ({cheapest}); raise the "
                   f"limit, or wait")
        return LogChoice(tuple(sorted(_numbers(groups))), why)

    def _groups_ending(self, segments: Sequence[SegmentStats], end: int, limits: SegmentLimits) -> list[_Group]:
        """The groups whose last member is `segments[end - 1]`, the shortest first."""
        groups: list[_Group] = []
        entries = payload = copied = dead = 0
        for first in range(end - 1, max(end - 1 - self.max_sources, -1), -1):
            segment, others = segments[first], end - first - 1
            entries += segment.live_entries
            payload += segment.live_bytes
            if others and (entries > limits.max_entries or payload > limits.max_bytes):
                break
            copied += stored_live_bytes(segment)
            dead += stored_dead_bytes(segment)
            groups.append(_Group(first, end, copied, dead + self.segment_overhead_bytes * others))
        return groups

    def _most_worth(self, possible: Sequence[Sequence[_Group]]) -> list[_Group]:
        """The groups of greatest total worth; of equal ways, that which frees more.

        A single pass: the best way for the first n segments ends with a segment left out, or with a group of
        1 .. max_sources members, behind the best way for the segments before.
        """
        numerator, denominator = self.max_bytes_copied_per_byte_freed.as_integer_ratio()
        best = [(0, 0)]
        last: list[_Group | None] = [None]
        for ending in possible:
            score, chosen = best[-1], None
            for group in ending:
                worth, freed = best[group.first]
                candidate = worth + numerator * group.freed - denominator * group.copied, freed + group.freed
                # A group above the limit, or that frees nothing, has negative worth: leaving its members out is better.
                if candidate > score:
                    score, chosen = candidate, group
            best.append(score)
            last.append(chosen)
        groups: list[_Group] = []
        end = len(possible)
        while end:
            taken = last[end]
            if taken is not None:
                groups.append(taken)
            end = end - 1 if taken is None else taken.first
        return groups


def _numbers(groups: Sequence[Sequence[SegmentStats]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(member.number for member in members) for members in groups)


def _dead_part(segment: SegmentStats) -> float:
    dead = stored_dead_bytes(segment)
    return dead / (dead + stored_live_bytes(segment))


def _is_under_half_live(segment: SegmentStats) -> bool:
    return 2 * segment.live_entries < segment.entries or 2 * segment.live_bytes < segment.data_bytes


# -- triggers


@attrs.frozen
class Manual(Trigger):
    """Never due: the host requests major compactions."""

    def is_due(self, view: LogView, minors: int, seconds: float) -> bool:
        return False


@attrs.frozen
class EveryNMinors(Trigger):
    """Due after `n` minor compactions since the last major compaction.

    With n = 2, requests 1 and 2 are minor and request 3 is major; with n = 0 all are major.

    Attributes:
        n: count of minor compactions, >= 0.
    """

    n: int = attrs.field(default=8, validator=is_whole())

    def is_due(self, view: LogView, minors: int, seconds: float) -> bool:
        return minors >= self.n


def _is_ratio(_: object, field: Any, value: float) -> None:
    if not 0 <= value <= float_info.max:
        raise InvalidInput(f"{field.name} is {value!r:.100}; give a finite number, at least 0")


@attrs.frozen
class DeadRatio(Trigger):
    """Due at a ratio of dead to live bytes or entries; never due if nothing is dead.

    Attributes:
        dead_per_live: the ratio, >= 0: 1.0 is half dead, 3.0 three quarters. With nothing live, any dead entry is
            enough.
        measure: `"bytes"` as they are stored, payloads and index records, or `"entries"`.
    """

    dead_per_live: float = attrs.field(default=1.0, validator=_is_ratio)
    measure: Measure = attrs.field(default="bytes", validator=is_one_of(Measure))

    def is_due(self, view: LogView, minors: int, seconds: float) -> bool:
        dead = live = 0
        for segment in view.compactable:
            by_bytes = self.measure == "bytes"
            live += stored_live_bytes(segment) if by_bytes else segment.live_entries
            dead += stored_dead_bytes(segment) if by_bytes else segment.entries - segment.live_entries
        return dead > 0 and dead >= self.dead_per_live * live


@attrs.frozen
class DeadBytes(Trigger):
    """Due at a number of dead stored bytes, payloads and index records together.

    Attributes:
        min_bytes: dead bytes, >= 1.
    """

    min_bytes: int = attrs.field(validator=is_whole(1))

    def is_due(self, view: LogView, minors: int, seconds: float) -> bool:
        return sum(map(stored_dead_bytes, view.compactable)) >= self.min_bytes


@attrs.frozen
class Elapsed(Trigger):
    """Due at a time after the last major compaction or the log's opening.

    Attributes:
        seconds: the time, >= 0.
    """

    seconds: float = attrs.field(validator=is_seconds())

    def is_due(self, view: LogView, minors: int, seconds: float) -> bool:
        return seconds >= self.seconds
