# SPDX-License-Identifier: Apache-2.0
"""Does not copy what is about to die, and drops segments that died whole."""

from __future__ import annotations

from typing import ClassVar

import attrs

from compactlib.blobstore.view import (
    BlobChoice,
    BlobView,
    CopyOrder,
    SegmentView,
    emptiest_first,
    fewest_that_free,
    fraction,
    in_copy_order,
    is_copy_order,
    seconds,
    shut_gate,
    too_little,
    whole,
)


@attrs.frozen(kw_only=True)
class ExpiryForecast:
    """The emptiest segments, but not those that will soon be emptier by themselves; neighbours or not.

    Expiry times are known in advance, and so is when a delete comes into effect. A segment waits if more than
    `max_dying_fraction` of its valid bytes die within `horizon_seconds`: what is copied now would have to be thrown
    away then. Segments without anything valid are dropped at once, all of them, as no byte is copied for that; if
    they are as many as have to be freed, nothing else is taken.

    When the log is fuller than `urgent_used_fraction`, nothing waits any more.

    Attributes:
        min_used_fraction: how full the log has to be, 0.0 to 1.0; exactly as full is enough.
        min_reclaimed_segments: by how many segments the log has to get shorter, >= 1.
        horizon_seconds: how far to look ahead, >= 0.
        max_dying_fraction: see above, 0.0 to 1.0.
        urgent_used_fraction: see above, 0.0 to 1.0.
        copy_order: in which order the segments are copied: `log`, `choice` (best first) or `age` (`policy.CopyOrder`).

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)
    horizon_seconds: float = seconds(86_400.0)
    max_dying_fraction: float = fraction(0.2)
    urgent_used_fraction: float = fraction(0.9)
    copy_order: CopyOrder = attrs.field(default="log", validator=is_copy_order)

    name: ClassVar[str] = "expiry_forecast"
    needs_forecast: ClassVar[bool] = True

    def waits(self, segment: SegmentView, now: float) -> bool:
        """Whether too much of `segment` is about to die for it to be copied now."""
        valid = segment.valid_bytes_at(now)
        return valid - segment.valid_bytes_at(now + self.horizon_seconds) > self.max_dying_fraction * valid

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy.choose`. O(n log n) for n segments, and the length of their forecasts."""
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        eligible = emptiest_first(view.eligible)
        dead = sum(not segment.valid_bytes for segment in eligible)
        urgent = view.used_fraction > self.urgent_used_fraction
        ready = eligible if urgent else [each for each in eligible if not each.valid_bytes or not self.waits(each, now)]
        taken = fewest_that_free(view, ready, max(self.min_reclaimed_segments, dead))
        waiting = len(eligible) - len(ready)
        if not taken:
            told = f"; {waiting} of them wait for what dies within horizon_seconds={self.horizon_seconds}"
            is_enough = waiting and fewest_that_free(view, eligible, self.min_reclaimed_segments)
            return too_little(view, self.min_reclaimed_segments, told if waiting else "",
                              "lower horizon_seconds" if is_enough else "")
        told = (f"{waiting} wait for what dies within {self.horizon_seconds:,.0f} seconds"
                if not urgent else f"nothing waits, as {view.used_fraction:.1%} of the log is used")
        victims = in_copy_order(taken, self.copy_order)
        return BlobChoice(victims, why=f"{dead} died whole, {len(taken) - dead} of the rest hold the fewest bytes; "
                                     f"{told}")
