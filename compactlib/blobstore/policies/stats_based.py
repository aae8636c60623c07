# SPDX-License-Identifier: Apache-2.0
"""The default policy: the range of segments that costs the fewest bytes copied for each segment freed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from compactlib.blobstore.best_range import SegmentRange, best_range
from compactlib.blobstore.view import (
    BlobChoice,
    BlobView,
    SegmentView,
    fraction,
    shut_gate,
    too_little,
    whole,
)


@attrs.frozen(kw_only=True)
class StatsBased:
    """The contiguous range with the least cost / benefit.

    Cost is what is copied; benefit is the number of segments freed, reckoned as if each output had to leave room for
    the largest blob. Ranges that free fewer than `min_reclaimed_segments` do not count. Of equals, the one that
    starts first wins, and of those the longest. Ratios are compared exactly, without rounding.

    Attributes:
        min_used_fraction: how full the log has to be, 0.0 to 1.0; exactly as full is enough.
        min_reclaimed_segments: by how many segments the log has to get shorter, >= 1.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)

    name: ClassVar[str] = "stats_based"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy.choose`. O(n log n) for n segments, see `best_range`."""
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        found: SegmentRange | None = None
        taken: Sequence[SegmentView] = ()
        for run in view.eligible_runs:
            here = best_range([segment.valid_bytes for segment in run], view.fill_bytes, self.min_reclaimed_segments)
            if here is not None and (found is None or here.is_cheaper_than(found)):
                found, taken = here, run[here.start:here.end]
        if found is None:
            return too_little(view, self.min_reclaimed_segments)
        return BlobChoice(taken, why=f"{found.cost / found.benefit:,.0f} bytes copied for each segment freed is the "
                                     f"least of all ranges that free {self.min_reclaimed_segments} or more")
