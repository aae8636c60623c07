# SPDX-License-Identifier: Apache-2.0
"""SFS: records of like hotness share a segment, in groups that segments themselves form."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate, pairwise
from typing import ClassVar

import attrs

from compactlib.blobstore.policy import whole
from placement.placer import Placer, Victim, grown


@attrs.frozen(kw_only=True)
class SFS:
    """A record's hotness is its writes for each millisecond since the last; it joins the group of the nearest hotness.

    Groups are found by k-means over the hotness of the closed segments, a few rounds with each segment collected. A
    segment's hotness is that of its valid records together. A key's first record counts as hottest. C. Min, K. Kim,
    H. Cho, S.-W. Lee, Y. I. Eom, "SFS: random write considered harmful in solid state drives", FAST 2012.

    Attributes:
        classes: groups, at least 2.
        rounds: of k-means with each segment collected, at least 1.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    classes: int = whole(6, least=2)
    rounds: int = whole(3, least=1)

    name: ClassVar[str] = "sfs"

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        return _Groups(self)


class _Groups(Placer):
    def __init__(self, settings: SFS) -> None:
        self._rounds = settings.rounds
        self._coldest = settings.classes - 1
        self._centres = [0.0] * settings.classes
        self._borders = self._between()
        # Of each key: its writes, and when the last was.
        self._writes = array("q")
        self._last = array("q")
        # Of the valid records of each closed segment: how many, the sum of their writes, the sum of their times.
        # Segments that were closed since the last compaction are summed up with the next.
        self._sums = array("q"), array("q"), array("q")
        self._summed: set[int] = set()
        # The keys of each segment that was closed since then, and of the open segment of each class.
        self._unsummed: dict[int, set[int]] = {}
        self._filling: list[set[int]] = [set() for _ in range(settings.classes)]
        self._now = 0
        self._sorted: list[float] = []
        self._totals: list[float] = []
        self._sorted_at: tuple[int, int] = (-1, -1)
        # Whether a round more would find the same centres.
        self._is_settled = False

    # Centres ascend here; class 0 is the hottest group.

    def _between(self) -> list[float]:
        return [(low + high) / 2 for low, high in pairwise(self._centres)]

    def know_keys(self, keys: int) -> None:
        grown(keys, self._writes)
        grown(keys, self._last)

    def write(self, key: int, now_ms: int) -> int:
        self._now, writes_of, last_of = now_ms, self._writes, self._last
        writes, last = writes_of[key], last_of[key]
        writes_of[key], last_of[key] = writes + 1, now_ms
        placed = self._coldest - bisect_left(self._borders, writes / (now_ms - last or 1)) if writes else 0
        self._filling[placed].add(key)
        return placed

    def copy(self, key: int, now_ms: int) -> int:
        since_ms = now_ms - self._last[key]
        placed = self._coldest - bisect_left(self._borders, self._writes[key] / (since_ms if since_ms > 0 else 1))
        self._filling[placed].add(key)
        return placed

    def closed(self, row: int, placed: int) -> None:
        self._unsummed[row], self._filling[placed] = self._filling[placed], set()

    def left(self, key: int, row: int, placed: int) -> None:
        if row in self._summed:
            held, writes, times = self._sums
            held[row] -= 1
            writes[row] -= self._writes[key]
            times[row] -= self._last[key]
        else:
            # What leaves before the segment is summed up need not be taken off again.
            self._unsummed.get(row, self._filling[placed]).discard(key)

    def taken(self, victim: Victim) -> None:
        # All victims of one compaction see the segments as they were when it began.
        if self._sorted_at != (self.writes, self._now):
            self._sorted_at = (self.writes, self._now)
            self._sum_up()
            (held, writes, times), now = self._sums, self._now
            self._sorted = sorted([writes[row] / (held[row] * now - times[row] or 1) for row in self._summed])
            self._totals = list(accumulate(self._sorted, initial=0.0))
            self._is_settled = False
        self._regroup()
        self._summed.discard(victim.row)
        self._unsummed.pop(victim.row, None)

    def _sum_up(self) -> None:
        held, writes, times = self._sums
        for column in self._sums:
            grown(max(self._unsummed, default=-1) + 1, column)
        for row, keys in self._unsummed.items():
            held[row] = len(keys)
            writes[row], times[row] = (sum(map(column.__getitem__, keys)) for column in (self._writes, self._last))
        self._summed.update(self._unsummed)
        self._unsummed.clear()

    def _regroup(self) -> None:
        hotness, totals, count = self._sorted, self._totals, len(self._centres)
        if self._is_settled or not hotness:
            return
        if len(hotness) <= count:
            self._centres = sorted(hotness[number % len(hotness)] for number in range(count))
            self._is_settled = True
        for _ in range(0 if self._is_settled else self._rounds):
            bounds = [0, *(bisect_left(hotness, border) for border in self._between()), len(hotness)]
            found = sorted((totals[end] - totals[start]) / (end - start) if end > start else 0.0
                           for start, end in pairwise(bounds))
            self._is_settled = found == self._centres
            if self._is_settled:
                break
            self._centres = found
        self._borders = self._between()
