"""As many segments freed as a number of copied bytes can pay for."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.blobstore.plan import CompactionPlan, plan_for
from compactlib.blobstore.policies.greedy import emptiest_first
from compactlib.blobstore.policy import ReclaimingPolicy, SegmentView, StoreView
from compactlib.errors import InvalidInput


@attrs.frozen(kw_only=True)
class CopyBudget(ReclaimingPolicy):
    """Frees the most segments that copying at most `max_copied_bytes` allows, and copies no more for it than needed.

    For a host that gives compaction an allowance for each round, rather than a price. The victims lie anywhere.

    Attributes:
        min_used_fraction: see `GatedPolicy`.
        min_reclaimed_segments: see `ReclaimingPolicy`.
        max_copied_bytes: the allowance for one plan, >= 0; 0 only drops segments that hold nothing valid.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    max_copied_bytes: int = 1 << 30

    name: ClassVar[str] = "copy_budget"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.max_copied_bytes < 0:
            raise InvalidInput(f"max_copied_bytes is {self.max_copied_bytes}; it cannot be negative")

    def choose(self, view: StoreView, now: float) -> CompactionPlan | None:
        """See `GatedPolicy.choose`. O(n log n) for n segments.

        Whatever their number, the emptiest segments are the cheapest; so the best choice is a beginning of the list
        sorted by valid bytes.
        """
        cost = most = 0
        taken: list[SegmentView] = []
        best = 0
        for segment in emptiest_first(view.eligible):
            cost += segment.valid_bytes
            if cost > self.max_copied_bytes:
                break
            taken.append(segment)
            benefit = view.benefit(len(taken), cost)
            if benefit > most:
                most, best = benefit, len(taken)
        if most < self.min_reclaimed_segments:
            return None
        return plan_for(view, self, taken[:best], now=now,
                        reason=f"the {best} with the fewest valid bytes free the most that copying "
                               f"{self.max_copied_bytes:,} bytes can pay for")

    def nothing_found(self, view: StoreView, now: float) -> str:
        """See `GatedPolicy.nothing_found`."""
        return f"{super().nothing_found(view, now)} by copying at most {self.max_copied_bytes:,} bytes"
