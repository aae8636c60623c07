# SPDX-License-Identifier: Apache-2.0
"""Takes first what it does not pay to wait for, and knows what times to live will do meanwhile."""

from __future__ import annotations

import math
from typing import ClassVar

import attrs

from compactlib._arguments import is_above, refuses_misfits
from compactlib.blobstore.compaction.plan.policy import (
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

_LEAST_SECONDS = 1e-3


@attrs.frozen(kw_only=True)
class DecliningCost:
    """The segments for which waiting saves least, as many as free `min_reclaimed_segments`; neighbours or not.

    A segment that is taken later has less to copy, but its dead bytes take up room until then. What waiting saves, in
    bytes copied for each byte of dead room and second, follows from two things. What has no known end goes on dying,
    the slower the older it is: with u the valid part of a segment, waiting a moment saves `decline * u / (1 - u)`,
    divided by the geometric mean of its age and of the oldest segment's. What expires is known: waiting until an end
    saves all that expires by then. The better of the two counts. So segments whose records end soon are left to end,
    and a store keeps statistics that look ahead for it. Without ends this is the order of (1 - u) / u * sqrt(age), as
    in SepBIT's simulator.

    With `decline=None` records without an end die at the rate -ln u / age, at which the segment's have died so far, and
    waiting saves u / (1 - u + u ln u) times that: exact for records that die at random in a segment of one age, as a
    log has them whose copies renew the age (`copies_renew` of the lab). D. Lomet and C. Luo, "Efficiently reclaiming
    space in a log structured store", ICDE 2021, take segments in the order of such a decline, without ends.

    Attributes:
        min_used_fraction: how full the log has to be, 0.0 to 1.0; exactly as full is enough.
        min_reclaimed_segments: by how many segments the log has to get shorter, >= 1.
        decline: see above, above 0 or `None`.
        copy_order: in which order the segments are copied: `log`, `choice` (best first) or `age` (`policy.CopyOrder`).

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)
    decline: float | None = attrs.field(default=2.0, validator=is_above(0, or_none=True))
    copy_order: CopyOrder = attrs.field(default="choice", validator=is_copy_order)

    name: ClassVar[str] = "declining_cost"
    needs_forecast: ClassVar[bool] = True

    def saved(self, segment: SegmentView, view: BlobView, now: float, oldest_seconds: float) -> float:
        """What waiting saves: bytes that need not be copied, for each byte of dead room and second.

        Args:
            segment: which one waits.
            view: the store.
            now: seconds since the epoch.
            oldest_seconds: the age of the oldest segment.
        """
        room = view.segment_bytes - view.header_bytes
        valid = min(segment.valid_bytes / room, 1.0)
        if not 0 < valid < 1:
            return math.inf if valid else 0.0
        age = max(now - segment.last_modified, _LEAST_SECONDS)
        lasting = valid - sum(each.bytes for each in segment.dying) / room
        if self.decline is None:
            best = -math.log(valid) / age * lasting / max(1 - valid + valid * math.log(valid), 1e-9)
        else:
            best = self.decline * lasting / (1 - valid) / math.sqrt(age * max(age, oldest_seconds))
        dead, held, gone, until = 1 - valid, 0.0, 0.0, now
        for each in segment.dying:
            held += max(each.at - until, 0.0) * dead
            until = max(each.at, until)
            gone += each.bytes / room
            dead += each.bytes / room
            best = max(best, gone / max(held, _LEAST_SECONDS * (1 - valid)))
        return best

    @refuses_misfits
    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `BlobPolicy.choose`. O(n log n) for n segments, and the length of their forecasts."""
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
        oldest = max(now - segment.last_modified for segment in view.eligible)
        saved = {segment.name: self.saved(segment, view, now, oldest) for segment in view.eligible}
        ordered = sorted(view.eligible, key=lambda each: (saved[each.name], each.valid_bytes, each.name))
        dead = sum(not segment.valid_bytes for segment in ordered)
        taken = fewest_that_free(view, ordered, max(self.min_reclaimed_segments, dead))
        if not taken:
            return too_little(view, self.min_reclaimed_segments)
        most = max(saved[segment.name] for segment in taken)
        return BlobChoice(in_copy_order(taken, self.copy_order),
                          why=f"the {len(taken)} for which waiting saves least, at most {most:.3g} bytes for each byte "
                              f"of dead room and second; {dead} of them died whole")
