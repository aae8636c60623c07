# SPDX-License-Identifier: Apache-2.0
"""Old and empty segments first: the cost-benefit rule of the log-structured file system LFS."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.view import (
    BlobChoice,
    BlobView,
    CopyOrder,
    SegmentView,
    fewest_that_free,
    fraction,
    in_copy_order,
    is_copy_order,
    shut_gate,
    too_little,
    whole,
)


@attrs.frozen(kw_only=True)
class CostBenefit:
    """The segments of highest (1 - u) * age / (1 + u), as many as free `min_reclaimed_segments`; neighbours or not.

    u is the valid part of a segment, age the time since its newest record was written. Reading a segment costs 1,
    writing its valid part costs u, and what is freed, 1 - u, stays free the longer the older, that is the colder, the
    data is. So a cold segment is taken while it is still three quarters full, and a hot one, which goes on
    emptying by itself, is given time (Rosenblum and Ousterhout, 1992).

    Attributes:
        min_used_fraction: how full the log has to be, 0.0 to 1.0; exactly as full is enough.
        min_reclaimed_segments: by how many segments the log has to get shorter, >= 1.
        copy_order: in which order the segments are copied: `log`, `choice` (best first) or `age` (`policy.CopyOrder`).

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)
    copy_order: CopyOrder = attrs.field(default="choice", validator=is_copy_order)

    name: ClassVar[str] = "cost_benefit"

    def score(self, segment: SegmentView, view: BlobView, now: float) -> float:
        """How much is to be had from `segment`: seconds of age, weighted with what it frees for what it costs."""
        valid = min(segment.valid_bytes / (view.segment_bytes - view.header_bytes), 1.0)
        return (1 - valid) * max(now - segment.last_modified, 0.0) / (1 + valid)

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy.choose`. O(n log n) for n segments."""
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)

        def best_first(segment: SegmentView) -> tuple[float, int, SegmentName]:
            return -self.score(segment, view, now), segment.valid_bytes, segment.name

        taken = fewest_that_free(view, sorted(view.eligible, key=best_first), self.min_reclaimed_segments)
        if not taken:
            return too_little(view, self.min_reclaimed_segments)
        scores = [self.score(segment, view, now) for segment in taken]
        victims = in_copy_order(taken, self.copy_order)
        return BlobChoice(victims, why=f"the {len(taken)} of highest (1 - u) * age / (1 + u), {min(scores):,.0f} to "
                                 f"{max(scores):,.0f} seconds")
