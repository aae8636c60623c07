# SPDX-License-Identifier: Apache-2.0
"""The statistics of a view: the bytes of each segment that a compaction keeps, now and later.

One pass over the index computes until when each record is kept; valid bytes and the forecast are sums over it.

Eviction from a full cache sums them up by time: the blobs that expire next are dropped, until enough segments are free.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import accumulate

import attrs

from compactlib.blobstore.blobs import FOREVER, expiry
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.contents import LogContents, slices_by_hash
from compactlib.blobstore.index import IndexPart, part_bytes
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.plan import BlobPlan, plan_for_choice
from compactlib.blobstore.records import RecordKind, milliseconds
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES, Descriptor
from compactlib.blobstore.validity import Lifetime, Purge, lifetimes
from compactlib.blobstore.view import BlobChoice, BlobPolicy, BlobView, Dying, SegmentView
from compactlib.budget import Budget

FORECAST_SECONDS = 7 * 86_400.0
"""The span of the forecast."""
_BUCKET_MS = 3_600_000
_PUT = int(RecordKind.PUT)


def view_of(snapshot: LogContents, *, name: str, descriptor: Descriptor, config: BlobStoreConfig, policy: BlobPolicy,
            now: float, eligible: Collection[SegmentName], purge: Purge, damaged: Mapping[SegmentName, str],
            last_full_ms: int, check: Callable[[], None]) -> BlobView:
    """Return the view of a store at `now` (seconds since the epoch). Reads the whole index once.

    The policy says by `needs_forecast` whether a forecast is needed. `check` is called for each blob; an exception ends
    the pass.
    """
    retention = config.deleted_retention_seconds
    now_ms, reference_ms = milliseconds(now), milliseconds(now - retention)
    retention_ms = milliseconds(retention)
    looks_ahead = getattr(policy, "needs_forecast", False)
    horizon_ms = now_ms + milliseconds(FORECAST_SECONDS)
    valid = {segment.name: 0 for segment in snapshot.segments}
    dying: dict[SegmentName, dict[int, int]] = {}
    for segment, size, reference_until, now_until, _ in all_lifetimes(snapshot, purge, check):
        if reference_ms <= reference_until and now_ms <= now_until:
            valid[segment] += size
            if looks_ahead:
                until = min(now_until, FOREVER if reference_until == FOREVER else reference_until + retention_ms)
                if until < horizon_ms:
                    buckets = dying.setdefault(segment, {})
                    buckets[until // _BUCKET_MS] = buckets.get(until // _BUCKET_MS, 0) + size
    indexes = dict.fromkeys(valid, 0)
    for part in snapshot.all_parts:
        indexes[part.segment] += part_bytes(part)
    segments = tuple(
        SegmentView(name=each.name, used_bytes=each.end - SEGMENT_HEADER_BYTES, valid_bytes=valid[each.name],
                    eligible=each.name in eligible and each.name not in damaged,
                    last_modified=each.last_modified_ms / 1000,
                    dying=tuple(Dying(((bucket + 1) * _BUCKET_MS - 1) / 1000, size)
                                for bucket, size in sorted(dying.get(each.name, {}).items())),
                    disk_bytes=each.end + indexes[each.name], damage=damaged.get(each.name, ""))
        for each in snapshot.segments)
    return BlobView(
        store=name, incarnation=descriptor.incarnation, capacity_bytes=descriptor.capacity_bytes,
        segment_bytes=descriptor.segment_bytes, header_bytes=SEGMENT_HEADER_BYTES,
        max_blob_bytes=_reserve(config, descriptor, snapshot.all_parts),
        used_bytes=snapshot.used_bytes(descriptor.segment_bytes), reference_time=now - retention,
        retention_seconds=retention, segments=segments,
        last_full_at=(descriptor.created_ms if last_full_ms < 0 else last_full_ms) / 1000)


def _reserve(config: BlobStoreConfig, descriptor: Descriptor, parts: Sequence[IndexPart]) -> int:
    """Return the room that the benefit keeps free in each output: as configured, or the largest record if that exceeds
    a segment.
    """
    room = descriptor.segment_bytes - SEGMENT_HEADER_BYTES
    if config.max_blob_bytes < room:
        return config.max_blob_bytes
    return min(max((max(part.sizes) for part in parts), default=0), room - 1)


def all_lifetimes(snapshot: LogContents, purge: Purge, check: Callable[[], None]) -> Iterator[Lifetime]:
    """Yield the lifetime of every record that is kept at some time, in no particular order. A few microseconds each."""
    parts = snapshot.all_parts
    for alone, histories in slices_by_hash(parts):
        for place, row in alone:
            check()
            part = parts[place]
            if part.kinds[row] == _PUT:
                # Most blobs were put once and never touched again.
                yield Lifetime(part.segment, part.sizes[row], FOREVER, expiry(part.expiries[row], part.flags[row]),
                               part.offsets[row])
            else:
                yield from lifetimes((part.entry(row),), purge)
        for history in histories:
            check()
            yield from lifetimes(history, purge)


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
