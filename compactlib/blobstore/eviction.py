# SPDX-License-Identifier: Apache-2.0
"""Which blobs a full cache gives up: those that expire next, as many as free some segments. A pure function.

What a blob without an expiry takes is copied, and so is what expires later.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from itertools import accumulate

import attrs

from compactlib.blobstore.contents import LogContents
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.plan import BlobPlan, plan_for_choice
from compactlib.blobstore.records import milliseconds
from compactlib.blobstore.statistics import all_lifetimes
from compactlib.blobstore.validity import FOREVER, PurgeRules
from compactlib.blobstore.view import BlobChoice, BlobPolicy, BlobView, SegmentView
from compactlib.budget import Budget


@attrs.frozen
class Eviction:
    """What is given up.

    Attributes:
        choice: the segments to compact.
        before_ms: what expires before this counts as expired.
        view: the store as it will be judged.
    """

    choice: BlobChoice
    before_ms: int
    view: BlobView


def plan_eviction(view: BlobView, snapshot: LogContents, rules: PurgeRules, segments: int, policy: BlobPolicy,
                  now: float) -> BlobPlan | None:
    """Return the plan by which a full cache frees so many segments; `None` if nothing does. Reads the whole index."""
    lives: dict[SegmentName, list[tuple[int, int]]] = {}
    reference_ms = milliseconds(view.reference_time)
    for life in all_lifetimes(snapshot, rules, Budget().check):
        if reference_ms <= life.reference_until:
            lives.setdefault(life.segment, []).append((life.now_until, life.size))
    found = choose_eviction(view, lives, segments, milliseconds(now))
    if found is None:
        return None
    plan = plan_for_choice(found.view, found.choice, policy, now)
    return attrs.evolve(plan, expires_before=found.before_ms / 1000)


def choose_eviction(view: BlobView, lives: Mapping[SegmentName, Iterable[tuple[int, int]]], wanted: int,
                    now_ms: int) -> Eviction | None:
    """The earliest time that frees `wanted` segments if what expires before it is given up; `None` if none does.

    O(n log n) in the records.

    Args:
        view: the store.
        lives: of each segment, until when each record is kept (milliseconds) and its size.
        wanted: by how many segments the log is to get shorter.
        now_ms: the time.
    """
    ordered = {segment.name: sorted(lives.get(segment.name, ())) for segment in view.eligible}
    times = {name: [until for until, _ in each] for name, each in ordered.items()}
    sums = {name: list(accumulate((size for _, size in each), initial=0)) for name, each in ordered.items()}

    def at(before: int) -> tuple[SegmentView, ...] | None:
        kept = {name: sums[name][-1] - sums[name][bisect_left(times[name], before)] for name in times}
        least = sorted(view.eligible, key=lambda segment: (kept[segment.name], segment.name))
        for count, valid in enumerate(accumulate(kept[segment.name] for segment in least), 1):
            if view.benefit(count, valid) >= wanted:
                return tuple(attrs.evolve(segment, valid_bytes=kept[segment.name], dying=())
                             for segment in least[:count])
        return None

    candidates = [now_ms, *(until + 1 for until in sorted({until for each in times.values() for until in each})
                            if now_ms <= until < FOREVER)]
    first, last = 0, len(candidates)
    while first < last:
        middle = (first + last) // 2
        if at(candidates[middle]) is None:
            first = middle + 1
        else:
            last = middle
    if first == len(candidates):
        return None
    before = candidates[first]
    taken = {segment.name: segment for segment in at(before) or ()}
    why = (f"the log is full: what expires before {before / 1000:.3f} is given up, which frees {wanted} of "
           f"{len(view.segments)} segments")
    return Eviction(BlobChoice(sorted(taken), why=why), before, attrs.evolve(
        view, segments=tuple(taken.get(segment.name, segment) for segment in view.segments)))
