# SPDX-License-Identifier: Apache-2.0
"""The default policy: the range of segments that costs the fewest bytes copied for each segment freed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from compactlib.blobstore.compaction.plan.best_range import SegmentRange, best_range
from compactlib.blobstore.compaction.plan.policy import (
    BlobChoice,
    BlobView,
    SegmentView,
    flag,
    fraction,
    seconds,
    shut_gate,
    too_little,
    whole,
)

_FIRST_MIDDLE_RANGE_WITHIN_SECONDS = 86_400.0


@attrs.frozen(kw_only=True)
class StatsBased:
    """The contiguous range with the least cost / benefit.

    Cost is what is copied; benefit is the number of segments freed, reckoned as if each output had to leave room for
    the largest blob. Ranges that free fewer than `min_reclaimed_segments` do not count. Of equals, the one that
    starts first wins, and of those the longest. Ratios are compared exactly, without rounding.

    Ranges of one freed segment are often the cheapest per segment, which makes many small compactions. Two options
    work against that.

    Attributes:
        min_used_fraction: how full the log has to be, 0.0 to 1.0; exactly as full is enough.
        min_reclaimed_segments: by how many segments the log has to get shorter, >= 1.
        weight_on_benefit: let a segment count at least `min_cost_fraction` of its capacity in the ratio, so that
            nearly empty ones are taken together. The benefit is reckoned from what they really hold.
        min_cost_fraction: see `weight_on_benefit`, 0.0 to 1.0.
        middle_range_interval_seconds: once in such a time take the whole range from the first to the last segment that
            is at most `middle_range_max_valid_fraction` valid, if it frees two or more; 0 never does. The time counts
            from the last such plan that was carried out, which the store remembers; the first one comes within a day
            of the store's first, at a time of the store's own.
        middle_range_max_valid_fraction: valid bytes as a part of a segment's capacity, 0.0 to 1.0.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)
    weight_on_benefit: bool = flag(False)
    min_cost_fraction: float = fraction(0.06)
    middle_range_interval_seconds: float = seconds(0.0)
    middle_range_max_valid_fraction: float = fraction(0.3)

    name: ClassVar[str] = "stats_based"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy.choose`. O(n log n) for n segments, see `best_range`."""
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        if self._middle_range_is_due(view, now):
            choice = self._middle_range(view)
            if choice is not None:
                return choice
        return self._best_range(view)

    def _best_range(self, view: BlobView) -> BlobChoice:
        found: SegmentRange | None = None
        taken: Sequence[SegmentView] = ()
        for run in view.eligible_runs:
            valid = [segment.valid_bytes for segment in run]
            here = best_range(valid, view.fill_bytes, self.min_reclaimed_segments, self._weighted(valid, view))
            if here is not None and (found is None or here.is_cheaper_than(found)):
                found, taken = here, run[here.start:here.end]
        if found is None:
            return too_little(view, self.min_reclaimed_segments)
        weighted = f", each counted as at least {self._least(view):,}" if self.weight_on_benefit else ""
        return BlobChoice(taken, weighted_cost=found.cost if self.weight_on_benefit else None,
                      why=f"{found.cost / found.benefit:,.0f} bytes copied for each segment freed is the least of all "
                          f"ranges that free {self.min_reclaimed_segments} or more{weighted}")

    def _least(self, view: BlobView) -> int:
        return int(view.segment_bytes * self.min_cost_fraction)

    def _weighted(self, valid: Sequence[int], view: BlobView) -> Sequence[int] | None:
        if not self.weight_on_benefit:
            return None
        least = self._least(view)
        return [max(each, least) for each in valid]

    def _middle_range_is_due(self, view: BlobView, now: float) -> bool:
        interval = self.middle_range_interval_seconds
        if not interval:
            return False
        last = view.history.last_middle_range_at
        if last is None:
            return now >= view.history.since + view.spread(min(interval, _FIRST_MIDDLE_RANGE_WITHIN_SECONDS))
        return now - last >= interval

    def _middle_range(self, view: BlobView) -> BlobChoice | None:
        eligible = view.eligible
        most = self.middle_range_max_valid_fraction
        sparse = [place for place, segment in enumerate(eligible) if segment.valid_bytes / view.segment_bytes <= most]
        if len(sparse) < 2:
            return None
        taken = eligible[sparse[0]:sparse[-1] + 1]
        if view.benefit(len(taken), sum(segment.valid_bytes for segment in taken)) < 2:
            return None
        return BlobChoice(taken, kind="middle range",
                      why=f"from the first to the last of {len(sparse)} segments at most {most:.0%} valid, due every "
                          f"{self.middle_range_interval_seconds:,.0f} seconds")
