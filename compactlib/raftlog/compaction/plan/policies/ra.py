# SPDX-License-Identifier: Apache-2.0
"""What RabbitMQ Ra does (v3.1.10): merge neighbours that are each under half live."""

from __future__ import annotations

from itertools import groupby
from typing import ClassVar

import attrs

from compactlib.errors import InvalidInput
from compactlib.raftlog.arguments import whole
from compactlib.raftlog.compaction.plan.policy import LeftOut, LogChoice, filled_groups
from compactlib.raftlog.compaction.plan.view import LogView
from compactlib.raftlog.model.values import SegmentLimits, SegmentStats


@attrs.frozen(kw_only=True)
class RaPolicy:
    """Merges adjacent segments each of which is under half live, by entries or by payload bytes.

    Every member must be eligible by itself, and one that is not ends the group before it. A group of one is allowed;
    an eligible segment whose live entries alone exceed the limits is skipped. One run is enough: what it wrote
    is wholly live and not eligible.

    Its weak sides, kept because this is the policy to compare with: dense small segments are never merged, and a
    segment may be rewritten for almost no bytes because most of its entries, the small ones, died. Where Ra fails,
    on a segment whose payloads are all of zero bytes, entries alone decide here.

    Attributes:
        max_sources: the most members of a group, >= 1; default no limit, like Ra.

    Raises:
        InvalidInput: `max_sources` is less than 1.
    """

    max_sources: int | None = None

    name: ClassVar[str] = "ra"

    def __attrs_post_init__(self) -> None:
        if self.max_sources is not None and whole("max_sources", self.max_sources) < 1:
            raise InvalidInput(f"max_sources is {self.max_sources}; a group has at least one member")

    def choose(self, view: LogView, now: float) -> LogChoice:
        """See `LogPolicy`. O(segments)."""
        groups: list[tuple[int, ...]] = []
        left_out: list[LeftOut] = []
        for eligible, run in groupby(view.candidates, _under_half_live):
            if not eligible:
                left_out.extend(LeftOut(segment.number, _why_dense(segment)) for segment in run)
                continue
            for members in filled_groups(tuple(run), view.limits, self.max_sources):
                if _exceeds(members[0], view.limits):
                    left_out.append(LeftOut(members[0].number, _why_oversize(members[0], view.limits)))
                else:
                    groups.append(tuple(member.number for member in members))
        return LogChoice(tuple(groups), tuple(left_out), _why(view, groups))


def _why(view: LogView, groups: list[tuple[int, ...]]) -> str:
    if groups:
        return "what is under half live is merged with such neighbours"
    return (f"of {len(view.candidates):,} that hold something alive none is under half live and fits into one segment; "
            f"the policy has no setting for that, SeedPolicy merges small dense ones as well")


def _under_half_live(segment: SegmentStats) -> bool:
    return 2 * segment.live_entries < segment.entries or 2 * segment.live_bytes < segment.data_bytes


def _exceeds(segment: SegmentStats, limits: SegmentLimits) -> bool:
    return segment.live_entries > limits.max_entries or segment.live_bytes > limits.max_bytes


def _why_dense(segment: SegmentStats) -> str:
    return (f"{segment.live_entries:,} of {segment.entries:,} entries and {segment.live_bytes:,} of "
            f"{segment.data_bytes:,} bytes are live: neither is under half")


def _why_oversize(segment: SegmentStats, limits: SegmentLimits) -> str:
    return (f"{segment.live_entries:,} live entries and {segment.live_bytes:,} live bytes exceed one segment "
            f"({limits.max_entries:,} and {limits.max_bytes:,})")
