# SPDX-License-Identifier: Apache-2.0
"""The emptiest segments, wherever they lie."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from compactlib.blobstore.view import (
    BlobChoice,
    BlobView,
    CopyOrder,
    SegmentView,
    emptiest_first,
    fewest_that_free,
    flag,
    fraction,
    in_copy_order,
    is_copy_order,
    shut_gate,
    too_little,
    whole,
)


@attrs.frozen(kw_only=True)
class Greedy:
    """The segments with the fewest valid bytes, as many as free `min_reclaimed_segments`; neighbours or not.

    No other choice frees as many for fewer bytes copied. Segments that hold nothing valid cost nothing, so all of them
    are taken whenever something is.

    Attributes:
        min_used_fraction: how full the log has to be, 0.0 to 1.0; exactly as full is enough.
        min_reclaimed_segments: by how many segments the log has to get shorter, >= 1.
        fill_outputs: go on with the next emptiest as long as they fit into the output that is begun: each is one
            segment more that is freed, and no output stays half empty.
        copy_order: in which order the segments are copied: `log`, `choice` (best first) or `age` (`policy.CopyOrder`).

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)
    fill_outputs: bool = flag(False)
    copy_order: CopyOrder = attrs.field(default="log", validator=is_copy_order)

    name: ClassVar[str] = "greedy"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy.choose`. O(n log n) for n segments."""
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        by_valid = emptiest_first(view.eligible)
        dead = sum(not segment.valid_bytes for segment in by_valid)
        taken = fewest_that_free(view, by_valid, max(self.min_reclaimed_segments, dead))
        if not taken:
            return too_little(view, self.min_reclaimed_segments)
        if self.fill_outputs:
            taken = _filled(view, by_valid, len(taken))
        victims = in_copy_order(taken, self.copy_order)
        return BlobChoice(victims, why=f"the {len(taken)} with the fewest valid bytes, {dead} of them without any")


def _filled(view: BlobView, by_valid: Sequence[SegmentView], count: int) -> Sequence[SegmentView]:
    """The first `count` and those behind them that need no output more."""
    cost = sum(segment.valid_bytes for segment in by_valid[:count])
    room = -cost % view.fill_bytes
    while count < len(by_valid) and by_valid[count].valid_bytes <= room:
        room -= by_valid[count].valid_bytes
        count += 1
    return by_valid[:count]
