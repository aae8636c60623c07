"""The oldest segments first, as a circular log does it: the policy that the literature compares with."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.plan import CompactionPlan, plan_for
from compactlib.blobstore.policy import ReclaimingPolicy, StoreView, fewest_that_free


@attrs.frozen(kw_only=True)
class OldestFirst(ReclaimingPolicy):
    """Takes segments in the order in which it first saw them, as many as free `min_reclaimed_segments`.

    A segment's name does not tell when it was written, as compactions reuse positions; so this policy remembers in what
    order segments have appeared. It is for the lab, one policy for one store.

    Attributes:
        min_used_fraction: see `GatedPolicy`.
        min_reclaimed_segments: see `ReclaimingPolicy`.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    _seen: dict[SegmentName, int] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    name: ClassVar[str] = "oldest_first"

    def config(self) -> dict[str, int | float | str | None]:
        """See `CompactionPolicy.config`; what it has seen is not a setting."""
        return {"min_used_fraction": self.min_used_fraction, "min_reclaimed_segments": self.min_reclaimed_segments}

    def choose(self, view: StoreView, now: float) -> CompactionPlan | None:
        """See `GatedPolicy.choose`. O(n log n) for n segments."""
        there = {segment.name for segment in view.segments}
        for name in [name for name in self._seen if name not in there]:
            del self._seen[name]
        newest = max(self._seen.values(), default=0)
        for segment in view.segments:
            if segment.name not in self._seen:
                newest += 1
                self._seen[segment.name] = newest
        oldest = sorted(view.eligible, key=lambda segment: self._seen[segment.name])
        taken = fewest_that_free(view, oldest, self.min_reclaimed_segments)
        if taken is None:
            return None
        return plan_for(view, self, taken, now=now, reason=f"the {len(taken)} that were written first")
