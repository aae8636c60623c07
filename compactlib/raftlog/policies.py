# SPDX-License-Identifier: Apache-2.0
"""The policy and the triggers that come with the Raft log.

Triggers are combined, as in `EveryNMinors(8) | DeadBytes(512 << 20)`.
"""

from __future__ import annotations

from sys import float_info
from typing import Any, ClassVar, Literal, TypeAlias

import attrs

from compactlib._arguments import is_fraction, is_one_of, is_seconds, is_whole
from compactlib.errors import InvalidInput
from compactlib.raftlog.compaction.plan import DropDead
from compactlib.raftlog.compaction.policy import (
    MAX_GROUP_MEMBERS,
    LogChoice,
    LogView,
    Trigger,
    filled_groups,
    stored_dead_bytes,
    stored_live_bytes,
)
from compactlib.raftlog.values import SegmentStats

__all__ = ["DeadBytes", "DeadRatio", "DropDead", "Elapsed", "EveryNMinors", "Manual", "SeedPolicy"]

Measure: TypeAlias = Literal["bytes", "entries"]


@attrs.frozen(kw_only=True)
class SeedPolicy:
    """Merges adjacent segments whose live entries fit into one segment; rewrites a single segment that is dead enough.

    Groups are filled oldest first, as far as they fit. Small segments that are wholly live are merged too, so that the
    number of segments falls. The price: a large dense segment next to a small segment is copied to save a single file,
    again in each run until it is full.

    "Enough" is measured in stored bytes, payloads and index records together.

    A second run does nothing, unless `max_sources` ended a group: n neighbours that fit into a segment take
    ceil(log n / log max_sources) runs.

    Attributes:
        max_sources: limit of the members of a group, 1 .. `MAX_GROUP_MEMBERS`.
        reclaim_fraction: a single segment is rewritten when more than this fraction of its stored bytes is dead,
            0.0 .. 1.0.
    """

    max_sources: int = attrs.field(default=8, validator=is_whole(1, MAX_GROUP_MEMBERS))
    reclaim_fraction: float = attrs.field(default=0.5, validator=is_fraction)

    name: ClassVar[str] = "seed"

    def choose(self, view: LogView, now: float) -> LogChoice:
        limits = view.limits
        filled = filled_groups(view.candidates, limits, self.max_sources)
        groups = [members for members in filled if len(members) > 1 or _dead_part(members[0]) > self.reclaim_fraction]
        if groups:
            return LogChoice(tuple(tuple(member.number for member in members) for members in groups),
                             f"neighbours fit into one segment, or more than {self.reclaim_fraction:.0%} of one can go")
        deadest = max((_dead_part(segment) for segment in view.candidates), default=0.0)
        return LogChoice((), f"of {len(filled):,} that hold something alive no two neighbours fit into one "
                             f"(max_entries={limits.max_entries}, max_bytes={limits.max_bytes}, max_sources="
                             f"{self.max_sources}), and at most {deadest:.0%} of one can go, not more than "
                             f"reclaim_fraction={self.reclaim_fraction}; lower it, take a snapshot with fewer live "
                             f"indexes, or wait")


def _dead_part(segment: SegmentStats) -> float:
    dead = stored_dead_bytes(segment)
    return dead / (dead + stored_live_bytes(segment))


# -- triggers


@attrs.frozen
class Manual(Trigger):
    """Never due: the host requests major compactions by `compact(policy=...)`."""

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
        if self.measure == "bytes":
            dead = sum(map(stored_dead_bytes, view.compactable))
            live = sum(map(stored_live_bytes, view.compactable))
        else:
            live = sum(segment.live_entries for segment in view.compactable)
            dead = sum(segment.entries for segment in view.compactable) - live
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
