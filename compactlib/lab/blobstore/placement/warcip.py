# SPDX-License-Identifier: Apache-2.0
"""WARCIP: writes with like intervals between rewrites share a segment; survivors have one of their own."""

from __future__ import annotations

import math
from array import array
from typing import ClassVar

import attrs

from compactlib.blobstore.compaction.plan.policy import whole
from compactlib.lab.blobstore.placement.placement import Placer, class_count, grown
from compactlib.lab.blobstore.records import NEVER

_NOT_YET = -NEVER


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

    classes: int = class_count(6, least=3)
    segments: int = whole(256, least=1)

    name: ClassVar[str] = "warcip"

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        return _Clusters(self)


@attrs.define(eq=False)
class _Cluster:
    placed: int
    centre: float = 0.0
    in_segment: int = 0
    writes: int = 0


class _Clusters(Placer):
    def __init__(self, settings: WARCIP) -> None:
        self._segments = settings.segments
        # By their place, as ties go to the last, and a split looks at neighbours.
        self._clusters = [_Cluster(number) for number in range(1, settings.classes)]
        self._spare: list[int] = []
        self._doomed: _Cluster | None = None
        self._full = 0
        self._at = array("q")
        self._penalty = array("q")

    def know_keys(self, keys: int) -> None:
        grown(keys, self._at, _NOT_YET)
        grown(keys, self._penalty)

    def write(self, key: int, now_ms: int) -> int:
        before = self._at[key]
        interval = 0 if before == _NOT_YET else now_ms - before + self._penalty[key]
        self._at[key], self._penalty[key] = now_ms, 0
        nearest, least = self._clusters[0], math.inf
        for cluster in self._clusters:
            distance = cluster.centre - interval
            if -least <= distance <= least:
                nearest, least = cluster, distance if distance > 0 else -distance
        count = nearest.in_segment
        nearest.centre = (nearest.centre * count + interval) / (count + 1)
        nearest.in_segment = count + 1
        nearest.writes += 1
        return nearest.placed

    def copy(self, key: int, now_ms: int) -> int:
        self._penalty[key] = now_ms - self._at[key]
        return 0

    def closed(self, row: int, placed: int) -> None:
        cluster = next((each for each in self._clusters if each.placed == placed), None)
        if cluster is None:
            return
        cluster.in_segment = 0
        if cluster is self._doomed:
            self._clusters.remove(cluster)
            self._spare.append(placed)
            self._doomed = None
        self._full += 1
        if self._full == self._segments:
            self._full = 0
            self._adapt()

    def _adapt(self) -> None:
        total = sum(cluster.writes for cluster in self._clusters)
        large = next((place for place, each in enumerate(self._clusters) if each.writes > total / 2), None)
        if large is not None and self._spare:
            # The new one lies between the cluster before it (the survivors', whose mean is 0) and the large one.
            below = self._clusters[large - 1].centre if large else 0.0
            self._clusters.insert(large, _Cluster(self._spare.pop(), (below + self._clusters[large].centre) / 2))
        elif self._doomed is None and len(self._clusters) > 1:
            self._doomed = next((each for each in self._clusters if each.writes < self.segment_records), None)
        for cluster in self._clusters:
            cluster.writes = 0
