# SPDX-License-Identifier: Apache-2.0
"""Eviction from a full cache: the blobs that expire next are dropped, until enough segments are free. Pure.

Blobs that expire later, or never, are copied.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

import attrs

from compactlib.blobstore.blobs import FOREVER
from compactlib.blobstore.contents import LogContents
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.plan import BlobPlan, plan_for_choice
from compactlib.blobstore.records import milliseconds
from compactlib.blobstore.statistics import all_lifetimes
from compactlib.blobstore.validity import Purge
from compactlib.blobstore.view import BlobChoice, BlobPolicy, BlobView, SegmentView
from compactlib.budget import Budget


def plan_eviction(view: BlobView, snapshot: LogContents, purge: Purge, wanted: int, policy: BlobPolicy,
                  now: float) -> BlobPlan | None:
    """Return the plan that frees `wanted` segments by evicting all blobs that expire before the earliest such time.

    `None` if no time frees as many. Reads the whole index; O(n log n) in the records.
    """
    lives: dict[SegmentName, list[tuple[int, int]]] = {segment.name: [] for segment in view.eligible}
    reference_ms = milliseconds(view.reference_time)
    for life in all_lifetimes(snapshot, purge, Budget().check):
        if reference_ms <= life.reference_until and life.segment in lives:
            lives[life.segment].append((life.now_until, life.size))
    for each in lives.values():
        each.sort()
    times = {name: [until for until, _ in each] for name, each in lives.items()}
    sums = {name: list(accumulate((size for _, size in each), initial=0)) for name, each in lives.items()}

    def emptiest(before: int) -> list[SegmentView] | None:
        """Return the segments to compact, without the bytes that expire before a time; `None` if they free too few."""
        kept = {name: sums[name][-1] - sums[name][bisect_left(times[name], before)] for name in times}
        ordered = sorted(view.eligible, key=lambda segment: (kept[segment.name], segment.name))
        for count, valid in enumerate(accumulate(kept[segment.name] for segment in ordered), 1):
            if view.benefit(count, valid) >= wanted:
                return [attrs.evolve(segment, valid_bytes=kept[segment.name], dying=()) for segment in ordered[:count]]
        return None

    now_ms = milliseconds(now)
    candidates = [now_ms, *(until + 1 for until in sorted({until for each in times.values() for until in each})
                            if now_ms <= until < FOREVER)]
    place = bisect_left(candidates, True, key=lambda before: emptiest(before) is not None)
    if place == len(candidates):
        return None
    before = candidates[place]
    taken = {segment.name: segment for segment in emptiest(before) or ()}
    why = (f"the log is full: blobs that expire before {before / 1000:.3f} are evicted, which frees {wanted} of "
           f"{len(view.segments)} segments")
    after = attrs.evolve(view, segments=tuple(taken.get(segment.name, segment) for segment in view.segments))
    return attrs.evolve(plan_for_choice(after, BlobChoice(sorted(taken), why=why), policy, now),
                        expires_before=before / 1000)
