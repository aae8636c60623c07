"""The emptiest segments, wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence
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
        fill_outputs: go on with the next emptiest as long as they fit into the output that is begun: each is one
            segment more that is freed, and no output stays half empty.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    fill_outputs: bool = False

    name: ClassVar[str] = "greedy"

    def choose(self, view: StoreView, now: float) -> CompactionPlan | None:
        """See `GatedPolicy.choose`. O(n log n) for n segments."""
        by_valid = emptiest_first(view.eligible)
        dead = sum(not segment.valid_bytes for segment in by_valid)
        taken = fewest_that_free(view, by_valid, max(self.min_reclaimed_segments, dead))
        if taken is None:
            return None
        if self.fill_outputs:
            taken = _filled(view, by_valid, len(taken))
        return plan_for(view, self, taken, now=now, reason=f"the {len(taken)} with the fewest valid bytes, "
                                                           f"{dead} of them without any")


def _filled(view: StoreView, by_valid: Sequence[SegmentView], count: int) -> Sequence[SegmentView]:
    """The first `count` and those behind them that need no output more."""
    cost = sum(segment.valid_bytes for segment in by_valid[:count])
    room = -cost % view.fill_bytes
    while count < len(by_valid) and by_valid[count].valid_bytes <= room:
        room -= by_valid[count].valid_bytes
        count += 1
    return by_valid[:count]


def emptiest_first(segments: tuple[SegmentView, ...]) -> list[SegmentView]:
    """Sorted by valid bytes; of equals, in log order."""
    return sorted(segments, key=lambda segment: (segment.valid_bytes, segment.name))
