"""Old and empty segments first: the cost-benefit rule of the log-structured file system LFS."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.plan import CompactionPlan, plan_for
from compactlib.blobstore.policy import ReclaimingPolicy, SegmentView, StoreView, fewest_that_free


@attrs.frozen(kw_only=True)
class CostBenefit(ReclaimingPolicy):
    """The segments of highest (1 - u) * age / (1 + u), as many as free `min_reclaimed_segments`; neighbours or not.

    u is the valid part of a segment, age the time since its newest record was written. Reading a segment costs 1,
    writing its valid part costs u, and what is freed, 1 - u, stays free the longer the older, that is the colder, the
    data is. So a cold segment is taken while it is still three quarters full, and a hot one, which goes on
    emptying by itself, is given time (Rosenblum and Ousterhout, 1992; notes 5.2).

    Attributes:
        min_used_fraction: see `GatedPolicy`.
        min_reclaimed_segments: see `ReclaimingPolicy`.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    name: ClassVar[str] = "cost_benefit"

    def score(self, segment: SegmentView, view: StoreView, now: float) -> float:
        """How much is to be had from `segment`: seconds of age, weighted with what it frees for what it costs."""
        valid = min(segment.valid_bytes / (view.segment_bytes - view.header_bytes), 1.0)
        return (1 - valid) * max(now - segment.last_modified, 0.0) / (1 + valid)

    def choose(self, view: StoreView, now: float) -> CompactionPlan | None:
        """See `GatedPolicy.choose`. O(n log n) for n segments."""
        def best_first(segment: SegmentView) -> tuple[float, int, SegmentName]:
            return -self.score(segment, view, now), segment.valid_bytes, segment.name

        taken = fewest_that_free(view, sorted(view.eligible, key=best_first), self.min_reclaimed_segments)
        if taken is None:
            return None
        scores = [self.score(segment, view, now) for segment in taken]
        return plan_for(view, self, taken, now=now, reason=f"the {len(taken)} of highest (1 - u) * age / (1 + u), "
                                                           f"{min(scores):,.0f} to {max(scores):,.0f} seconds")
