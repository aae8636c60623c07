# SPDX-License-Identifier: Apache-2.0
"""The statistics of a view: the bytes of each segment that a compaction keeps, now and later.

One pass over the index computes until when each record is kept; valid bytes and the forecast are sums over it.

Eviction from a full cache sums them up by time: the blobs that expire next are dropped, until enough segments are free.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import accumulate

import attrs

from compactlib.blobstore.blobs import FOREVER, expiry
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.contents import LogContents, histories_of, rows_by_hash
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.plan import BlobPlan, plan_for_choice
from compactlib.blobstore.records import RecordKind, milliseconds
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES
from compactlib.blobstore.segment_list import SegmentList
from compactlib.blobstore.validity import Lifetime, Purge, lifetimes
from compactlib.blobstore.view import (
    BlobChoice,
    BlobPolicy,
    BlobView,
    Dying,
    SegmentView,
    emptiest_first,
    fewest_that_free,
)
from compactlib.budget import Budget

FORECAST_SECONDS = 7 * 86_400.0
"""The span of the forecast."""
_BUCKET_MS = 3_600_000
_PUT = int(RecordKind.PUT)


def view_of(snapshot: LogContents, known: SegmentList, config: BlobStoreConfig, policy: BlobPolicy, *, name: str,
            now: float, eligible: Collection[SegmentName], purge: Purge, budget: Budget,
            damaged: Mapping[SegmentName, str] | None = None) -> BlobView:
    """Return the view of a store at `now` (seconds since the epoch). Reads the whole index once.

    The policy says by `needs_forecast` whether a forecast is needed. `budget` is checked for each blob.
    """
    store, retention, damaged = known.store, config.deleted_retention_seconds, damaged or {}
    now_ms, reference_ms, retention_ms = map(milliseconds, (now, now - retention, retention))
    looks_ahead = getattr(policy, "needs_forecast", False)
    horizon_ms = now_ms + milliseconds(FORECAST_SECONDS)
    valid = {segment.name: 0 for segment in snapshot.segments}
    dying = {segment.name: Counter[int]() for segment in snapshot.segments}
    for segment, size, reference_until, now_until, _ in all_lifetimes(snapshot, purge, budget):
        if reference_ms <= reference_until and now_ms <= now_until:
            valid[segment] += size
            if looks_ahead:
                until = min(now_until, FOREVER if reference_until == FOREVER else reference_until + retention_ms)
                if until < horizon_ms:
                    dying[segment][until // _BUCKET_MS] += size
    indexes = dict.fromkeys(valid, 0)
    for part in snapshot.all_parts:
        indexes[part.segment] += part.file_bytes
    segments = tuple(
        SegmentView(name=each.name, used_bytes=each.end - SEGMENT_HEADER_BYTES, valid_bytes=valid[each.name],
                    eligible=each.name in eligible and each.name not in damaged,
                    last_modified=each.last_modified_ms / 1000,
                    dying=tuple(Dying(((bucket + 1) * _BUCKET_MS - 1) / 1000, size)
                                for bucket, size in sorted(dying[each.name].items())),
                    disk_bytes=each.end + indexes[each.name], damage=damaged.get(each.name, ""))
        for each in snapshot.segments)
    room = store.segment_bytes - SEGMENT_HEADER_BYTES
    largest = config.max_blob_bytes
    if largest >= room:
        largest = min(max((max(part.sizes) for part in snapshot.all_parts), default=0), room - 1)
    return BlobView(
        store=name, incarnation=store.incarnation, capacity_bytes=store.capacity_bytes,
        segment_bytes=store.segment_bytes, header_bytes=SEGMENT_HEADER_BYTES,
        max_blob_bytes=largest, used_bytes=snapshot.used_bytes(store.segment_bytes),
        reference_time=now - retention, retention_seconds=retention, segments=segments,
        last_full_at=(store.created_ms if known.last_full_ms < 0 else known.last_full_ms) / 1000)


def all_lifetimes(snapshot: LogContents, purge: Purge, budget: Budget) -> Iterator[Lifetime]:
    """Yield the lifetime of every record that is kept at some time, in no particular order. A few microseconds each."""
    for rows in rows_by_hash(snapshot.all_parts):
        budget.check()
        part, row = rows[0]
        if len(rows) == 1 and part.kinds[row] == _PUT:
            # Most blobs were put once and never touched again.
            yield Lifetime(part.segment, part.sizes[row], FOREVER, expiry(part.expiries[row], part.flags[row]),
                           part.offsets[row])
        else:
            for history in histories_of(rows):
                yield from lifetimes(history, purge)


def plan_eviction(view: BlobView, snapshot: LogContents, purge: Purge, wanted: int, policy: BlobPolicy,
                  now: float) -> BlobPlan | None:
    """Return the plan that frees `wanted` segments by evicting all blobs that expire before the earliest such time.

    `None` if no time frees as many. Reads the whole index; O(n log n) in the records.
    """
    lives: dict[SegmentName, list[tuple[int, int]]] = {segment.name: [] for segment in view.eligible}
    reference_ms, now_ms = milliseconds(view.reference_time), milliseconds(now)
    for life in all_lifetimes(snapshot, purge, Budget()):
        if reference_ms <= life.reference_until and life.segment in lives:
            lives[life.segment].append((life.now_until, life.size))
    for each in lives.values():
        each.sort()
    sums = {name: list(accumulate((size for _, size in each), initial=0)) for name, each in lives.items()}

    def freeing(before: int) -> Sequence[SegmentView]:
        """Return the segments to compact if blobs that expire before a time count as dead; empty if they free less."""
        left = [attrs.evolve(segment, dying=(), valid_bytes=sums[segment.name][-1] - sums[segment.name][
            bisect_left(lives[segment.name], (before,))]) for segment in view.eligible]
        return fewest_that_free(view, emptiest_first(left), wanted)

    candidates = [now_ms, *(until + 1 for until in sorted({until for each in lives.values() for until, _ in each})
                            if now_ms <= until < FOREVER)]
    place = bisect_left(candidates, True, key=lambda before: bool(freeing(before)))
    if place == len(candidates):
        return None
    before = candidates[place]
    taken = {segment.name: segment for segment in freeing(before)}
    why = (f"the log is full: blobs that expire before {before / 1000:.3f} are evicted, which frees {wanted} of "
           f"{len(view.segments)} segments")
    after = attrs.evolve(view, segments=tuple(taken.get(segment.name, segment) for segment in view.segments))
    return attrs.evolve(plan_for_choice(after, BlobChoice(sorted(taken), why=why), policy, now),
                        expires_before=before / 1000)
