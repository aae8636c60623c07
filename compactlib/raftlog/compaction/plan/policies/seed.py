# SPDX-License-Identifier: Apache-2.0
"""The default policy: merge neighbours that fit into one segment, and clear one alone when most of it is dead."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.errors import InvalidInput
from compactlib.raftlog.arguments import whole
from compactlib.raftlog.compaction.plan.policy import (
    NOTHING_DEAD,
    LeftOut,
    LogChoice,
    filled_groups,
    stored_dead_bytes,
    stored_live_bytes,
)
from compactlib.raftlog.compaction.plan.view import LogView
from compactlib.raftlog.model.values import SegmentStats

DEFAULT_MAX_SOURCES = 8


@attrs.frozen(kw_only=True)
class SeedPolicy:
    """Merges two or more adjacent segments whose live entries fit into one; clears one when enough of it can go.

    Groups are filled oldest first, as far as they fit. How dense the members are does not matter: small segments that
    are wholly live merge too, so the number of segments keeps falling. The price: a large dense segment beside a small
    one is copied for the sake of one file less, again in each run until it is full; `CostPolicy` weighs that.

    "Enough" is measured in stored bytes, payloads and index records together: a segment of which only many tiny
    entries died is not rewritten for almost no space, and payloads of zero bytes count through their records.

    After a run, a second one does nothing, unless `max_sources` ended a group: n neighbours that fit into one
    segment take ceil(log n / log max_sources) runs.

    Attributes:
        max_sources: the most members of a group, >= 1.
        reclaim_fraction: a segment on its own is rewritten when more than this part of its stored bytes is dead,
            0.0 .. 1.0.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    max_sources: int = DEFAULT_MAX_SOURCES
    reclaim_fraction: float = 0.5

    name: ClassVar[str] = "seed"

    def __attrs_post_init__(self) -> None:
        if whole("max_sources", self.max_sources) < 1:
            raise InvalidInput(f"max_sources is {self.max_sources}; a group has at least one member")
        if not 0 <= self.reclaim_fraction <= 1:
            raise InvalidInput(f"reclaim_fraction is {self.reclaim_fraction}; it must be between 0 and 1")

    def choose(self, view: LogView, now: float) -> LogChoice:
        """See `LogPolicy`. O(segments)."""
        groups: list[tuple[int, ...]] = []
        left_out: list[LeftOut] = []
        for members in filled_groups(view.candidates, view.limits, self.max_sources):
            if len(members) > 1 or self._enough_can_go(members[0]):
                groups.append(tuple(member.number for member in members))
            else:
                left_out.append(LeftOut(members[0].number, self._why_not(members[0])))
        return LogChoice(tuple(groups), tuple(left_out), self._why(view, groups))

    def _enough_can_go(self, segment: SegmentStats) -> bool:
        dead = stored_dead_bytes(segment)
        return dead > self.reclaim_fraction * (dead + stored_live_bytes(segment))

    def _why_not(self, segment: SegmentStats) -> str:
        dead = stored_dead_bytes(segment)
        if not dead:
            return "no neighbour joins it, and all of it is live"
        return (f"no neighbour joins it, and {dead:,} of {dead + stored_live_bytes(segment):,} stored bytes can go, "
                f"not more than {self.reclaim_fraction:.0%}")

    def _why(self, view: LogView, groups: list[tuple[int, ...]]) -> str:
        if groups:
            return f"neighbours fit into one segment, or more than {self.reclaim_fraction:.0%} of one can go"
        alive = view.candidates
        limits = view.limits
        apart = ("max_sources=1 joins no neighbours" if self.max_sources == 1 else
                 f"no two neighbours fit into one (max_entries={limits.max_entries}, max_bytes={limits.max_bytes})")
        most = max((_part_dead(segment) for segment in alive), default=0.0)
        if not most:
            return f"of {len(alive):,} that hold something alive {apart}, {NOTHING_DEAD}"
        return (f"of {len(alive):,} that hold something alive {apart}, and at most {most:.0%} of one can go, not more "
                f"than reclaim_fraction={self.reclaim_fraction}; lower it, or wait")


def _part_dead(segment: SegmentStats) -> float:
    dead = stored_dead_bytes(segment)
    return dead / (dead + stored_live_bytes(segment))
