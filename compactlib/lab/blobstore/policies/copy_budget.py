# SPDX-License-Identifier: Apache-2.0
"""As many segments freed as a number of copied bytes can pay for."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.blobstore.policy import (
    BlobChoice,
    BlobView,
    CopyOrder,
    SegmentView,
    emptiest_first,
    fewest_that_free,
    fraction,
    in_copy_order,
    is_copy_order,
    shut_gate,
    too_little,
    whole,
)


@attrs.frozen(kw_only=True)
class CopyBudget:
    """Frees the most segments that copying at most `max_copied_bytes` allows, and copies no more for it than needed.

    For a host that gives compaction an allowance for each round, rather than a price. The victims lie anywhere.

    Attributes:
        min_used_fraction: how full the log has to be, 0.0 to 1.0; exactly as full is enough.
        min_reclaimed_segments: by how many segments the log has to get shorter, >= 1.
        max_copied_bytes: the allowance for one plan, in bytes of records, >= 0; 0 only drops segments that hold
            nothing valid.
        copy_order: in which order the segments are copied: `log`, `choice` (best first) or `age` (`policy.CopyOrder`).

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)
    max_copied_bytes: int = whole(1 << 30)
    copy_order: CopyOrder = attrs.field(default="log", validator=is_copy_order)

    name: ClassVar[str] = "copy_budget"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy.choose`. O(n log n) for n segments.

        Whatever their number, the emptiest segments are the cheapest; so the best choice is a beginning of the list
        sorted by valid bytes.
        """
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
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
            more = fewest_that_free(view, emptiest_first(view.eligible), self.min_reclaimed_segments)
            return too_little(view, self.min_reclaimed_segments,
                              f" by copying at most max_copied_bytes={self.max_copied_bytes}",
                              "raise max_copied_bytes" if more else "")
        victims = in_copy_order(taken[:best], self.copy_order)
        return BlobChoice(victims, why=f"the {best} with the fewest valid bytes free the most that copying "
                                        f"{self.max_copied_bytes:,} bytes can pay for")
