# SPDX-License-Identifier: Apache-2.0
"""WARCIP: writes with like intervals between rewrites share a segment; survivors have one of their own."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from typing import ClassVar

import attrs

from compactlib.blobstore.policy import whole
from placement.placer import Placer, grown

_NOT_YET = -math.inf


@attrs.frozen(kw_only=True)
class WARCIP:
    """A write joins the cluster whose mean interval is nearest to its own; survivors go to class 0.

    The interval is the time since the key's last write; a record that a compaction had to copy is punished with the age
    that it had then, added to its next interval. A cluster's mean is that of its open segment's writes. After every
    `segments` segments of the user that are full, a cluster that got more than half of the writes is split, or one that
    got less than a segment goes with its segment. J. Yang, S. Pei, Q. Yang, "WARCIP: write amplification reduction by
    clustering I/O pages", SYSTOR 2019.

    Attributes:
        classes: survivors and clusters, at least 3.
        segments: see above, at least 1.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    classes: int = whole(6, least=3)
    segments: int = whole(256, least=1)

    name: ClassVar[str] = "warcip"

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        return _Clusters(self)


class _Clusters(Placer):
    def __init__(self, settings: WARCIP) -> None:
        self._segments = settings.segments
        count = settings.classes - 1
        # Of each cluster: its class, its mean, the writes in its open segment, and those before since the last change.
        # By their place, as ties go to the last, and a split reads the neighbours; an end on each side is no cluster.
        self._places: list[int] = [-1, *range(1, count + 1), -1]
        self._centres = [-math.inf, *[0.0] * count, math.inf]
        self._in_segment = [0.0] * (count + 2)
        self._before = [0.0] * (count + 2)
        self._spare: list[int] = []
        self._doomed = -1
        self._full = 0
        # Of each key: when it was written, and when it was copied, last.
        self._at = array("d")
        self._copied = array("d")

    def know_keys(self, keys: int) -> None:
        grown(keys, self._at, _NOT_YET)
        grown(keys, self._copied, _NOT_YET)

    def write(self, key: int, now_ms: int) -> int:
        written_at, centres, counts = self._at, self._centres, self._in_segment
        written, copied = written_at[key], self._copied[key]
        written_at[key] = now = float(now_ms)
        interval = now - written
        if copied >= written:
            # Of a key's first write both are `_NOT_YET`.
            interval = interval + copied - written if written > _NOT_YET else 0.0
        # A mean moves towards intervals that are nearest to it, so that the means stay ascending.
        found = bisect_right(centres, interval)
        centre = centres[found]
        if centre - interval > interval - centres[found - 1]:
            found -= 1
            centre = centres[found]
        else:
            while centres[found + 1] == centre:
                found += 1
        count = counts[found]
        counts[found] = more = count + 1.0
        centres[found] = (centre * count + interval) / more
        return self._places[found]

    def copy(self, key: int, now_ms: int) -> int:
        self._copied[key] = float(now_ms)
        return 0

    def closed(self, row: int, placed: int) -> None:
        if placed not in self._places:
            return
        place = self._places.index(placed)
        self._before[place] += self._in_segment[place]
        self._in_segment[place] = 0.0
        if placed == self._doomed:
            for column in (self._places, self._centres, self._in_segment, self._before):
                del column[place]
            self._spare.append(placed)
            self._doomed = -1
        self._full += 1
        if self._full == self._segments:
            self._full = 0
            self._adapt()

    def _adapt(self) -> None:
        writes = [before + now for before, now in zip(self._before, self._in_segment, strict=True)]
        large = next((place for place, each in enumerate(writes) if each > sum(writes) / 2), 0)
        if large and self._spare:
            # The new one lies between the cluster before it (the survivors', whose mean is 0) and the large one.
            below = self._centres[large - 1] if large > 1 else 0.0
            self._places.insert(large, self._spare.pop())
            self._centres.insert(large, (below + self._centres[large]) / 2)
            self._in_segment.insert(large, 0.0)
        elif self._doomed < 0 and len(self._places) > 3:
            self._doomed = next((placed for placed, each in zip(self._places[1:-1], writes[1:], strict=False)
                                 if each < self.segment_records), -1)
        self._before = [-now for now in self._in_segment]
