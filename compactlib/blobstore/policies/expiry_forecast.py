"""Does not copy what is about to die, and drops segments that died whole."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.blobstore.plan import CompactionPlan, plan_for
from compactlib.blobstore.policies.greedy import emptiest_first
from compactlib.blobstore.policy import (
    ReclaimingPolicy,
    SegmentView,
    StoreView,
    check_fraction,
    check_seconds,
    fewest_that_free,
)


@attrs.frozen(kw_only=True)
class ExpiryForecast(ReclaimingPolicy):
    """The emptiest segments, but not those that will soon be emptier by themselves; neighbours or not.

    Expiry times are known in advance, and so is when a delete comes into effect. A segment waits if more than
    `max_dying_fraction` of its valid bytes die within `horizon_seconds`: what is copied now would have to be thrown
    away then. Segments without anything valid are dropped at once, all of them, as no byte is copied for that; if
    they are as many as have to be freed, nothing else is taken.

    When the log is fuller than `urgent_used_fraction`, nothing waits any more.

    Attributes:
        min_used_fraction: see `GatedPolicy`.
        min_reclaimed_segments: see `ReclaimingPolicy`.
        horizon_seconds: how far to look ahead, >= 0.
        max_dying_fraction: see above, 0.0 to 1.0.
        urgent_used_fraction: see above, 0.0 to 1.0.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    horizon_seconds: float = 86_400.0
    max_dying_fraction: float = 0.2
    urgent_used_fraction: float = 0.9

    name: ClassVar[str] = "expiry_forecast"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        check_seconds("horizon_seconds", self.horizon_seconds)
        check_fraction("max_dying_fraction", self.max_dying_fraction)
        check_fraction("urgent_used_fraction", self.urgent_used_fraction)

    def waits(self, segment: SegmentView, now: float) -> bool:
        """Whether too much of `segment` is about to die for it to be copied now."""
        valid = segment.valid_bytes_at(now)
        return valid - segment.valid_bytes_at(now + self.horizon_seconds) > self.max_dying_fraction * valid

    def choose(self, view: StoreView, now: float) -> CompactionPlan | None:
        """See `GatedPolicy.choose`. O(n log n) for n segments, and the length of their forecasts."""
        eligible = emptiest_first(view.eligible)
        dead = sum(not segment.valid_bytes for segment in eligible)
        urgent = view.used_fraction > self.urgent_used_fraction
        ready = eligible if urgent else [each for each in eligible if not each.valid_bytes or not self.waits(each, now)]
        taken = fewest_that_free(view, ready, max(self.min_reclaimed_segments, dead))
        if taken is None:
            return None
        told = (f"{len(eligible) - len(ready)} wait for what dies within {self.horizon_seconds:,.0f} seconds"
                if not urgent else f"nothing waits, as {view.used_fraction:.1%} of the log is used")
        return plan_for(view, self, taken, now=now,
                        reason=f"{dead} died whole, {len(taken) - dead} of the rest hold the fewest bytes; {told}")

    def nothing_found(self, view: StoreView, now: float) -> str:
        """See `GatedPolicy.nothing_found`."""
        waiting = sum(segment.valid_bytes > 0 and self.waits(segment, now) for segment in view.eligible)
        return (f"{super().nothing_found(view, now)}; {waiting} of them wait for what dies within "
                f"{self.horizon_seconds:,.0f} seconds")
