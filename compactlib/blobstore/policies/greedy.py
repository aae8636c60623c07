"""The emptiest segments, wherever they lie."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.blobstore.plan import CompactionPlan, plan_for
from compactlib.blobstore.policy import ReclaimingPolicy, SegmentView, StoreView, fewest_that_free


@attrs.frozen(kw_only=True)
class Greedy(ReclaimingPolicy):
    """The segments with the fewest valid bytes, as many as free `min_reclaimed_segments`; neighbours or not.

    No other choice frees as many for fewer bytes copied. Segments that hold nothing valid cost nothing, so all of them
    are taken whenever something is.

    Attributes:
        min_used_fraction: see `GatedPolicy`.
        min_reclaimed_segments: see `ReclaimingPolicy`.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    name: ClassVar[str] = "greedy"

    def choose(self, view: StoreView, now: float) -> CompactionPlan | None:
        """See `GatedPolicy.choose`. O(n log n) for n segments."""
        by_valid = emptiest_first(view.eligible)
        dead = sum(not segment.valid_bytes for segment in by_valid)
        taken = fewest_that_free(view, by_valid, max(self.min_reclaimed_segments, dead))
        if taken is None:
            return None
        return plan_for(view, self, taken, now=now, reason=f"the {len(taken)} with the fewest valid bytes, "
                                                           f"{dead} of them without any")


def emptiest_first(segments: tuple[SegmentView, ...]) -> list[SegmentView]:
    """Sorted by valid bytes; of equals, in log order."""
    return sorted(segments, key=lambda segment: (segment.valid_bytes, segment.name))
