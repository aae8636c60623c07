# SPDX-License-Identifier: Apache-2.0
"""The oldest segments first, as a circular log does it: the policy that the literature compares with."""

from __future__ import annotations

from operator import attrgetter
from typing import ClassVar

import attrs

from compactlib.blobstore import BlobChoice, BlobView
from compactlib.blobstore.policy import (
    SegmentName,
    fewest_that_free,
    fraction,
    shut_gate,
    too_little,
    whole,
)


@attrs.frozen(kw_only=True)
class OldestFirst:
    """Takes segments in the order in which it first saw them, as many as free `min_reclaimed_segments`.

    A segment's name does not say when it was written, as compactions reuse positions; so this policy remembers in what
    order segments have appeared, which makes it the one that is not pure. It is for the lab, one policy for one log: a
    replay works with a copy.

    Attributes:
        min_used_fraction: how full the log has to be, 0.0 to 1.0; exactly as full is enough.
        min_reclaimed_segments: by how many segments the log has to get shorter, >= 1.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    min_used_fraction: float = fraction(0.5)
    min_reclaimed_segments: int = whole(1, least=1)
    _seen: dict[SegmentName, int] = attrs.field(factory=dict, init=False, eq=False, repr=False)

    name: ClassVar[str] = "oldest_first"

    def choose(self, view: BlobView, now: float) -> BlobChoice:
        """See `Policy.choose`. O(n log n) for n segments."""
        if shut := shut_gate(view, self.min_used_fraction):
            return BlobChoice(why=shut)
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
        if not taken:
            return too_little(view, self.min_reclaimed_segments)
        return BlobChoice(sorted(taken, key=attrgetter("name")), why=f"the {len(taken)} that were written first")
