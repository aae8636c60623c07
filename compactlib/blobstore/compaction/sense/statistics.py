# SPDX-License-Identifier: Apache-2.0
"""How many bytes of each log segment a compaction would keep, exactly, for any times.

On demand, all entries of the index are looked at once. The sealed index segments are sorted by the hash of the id; the
space of hashes is cut into slices, and in each slice the segments' pieces are merged, so that all records of
a blob come together. Nothing is looked up, and memory is bounded by the slice. A few microseconds an entry.

Every log segment is listed, one without valid bytes as well.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

import attrs

from compactlib.blobstore.compaction.plan.policy import ValidRecords
from compactlib.blobstore.compaction.swap import Snapshot
from compactlib.blobstore.index.entry_columns import PackedIds
from compactlib.blobstore.index.index_segment import IndexSegment
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry, RecordKind, milliseconds
from compactlib.blobstore.validity.lifetimes import Lifetime, lifetimes
from compactlib.blobstore.validity.verdicts import FOREVER, PurgeRules, expiry
from compactlib.report import Printed
from compactlib.runtime.breather import Breather, unhurried
from compactlib.runtime.budget import Budget

SLICE_ENTRIES = 50_000
"""About how many entries are merged at once."""

_PUT = int(RecordKind.PUT)
_ROW_BITS = 32
_PART_BITS = 32
_HASH_BITS = 64
_BY_ID = attrgetter("id")
_BY_AGE = attrgetter("sequence", "segment")


@attrs.frozen(kw_only=True, repr=False)
class LogStatistics(Printed):
    """Valid bytes of each log segment at one moment.

    Attributes:
        reference_time: deletes made strictly before it are in effect; seconds since the epoch.
        now: blobs that expire strictly before it have expired; seconds since the epoch.
        valid_bytes: for each log segment, in log order, the size of the records that a compaction of it would keep.
        valid: what these records come to, if each was counted; statistics that look ahead do not know it.
    """

    reference_time: float
    now: float
    valid_bytes: Mapping[SegmentName, int]
    valid: Mapping[SegmentName, ValidRecords] = attrs.field(factory=dict)

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary a segment, in log order."""
        return [{"segment": str(name), "valid_bytes": valid} for name, valid in self.valid_bytes.items()]

    def _summary(self) -> str:
        return f"{sum(self.valid_bytes.values()):,} valid bytes in {len(self.valid_bytes)} segments"


def log_statistics(snapshot: Snapshot, reference_time: float, now: float, rules: PurgeRules | None = None, *,
                   throttle: Budget | None = None, breather: Breather | None = None,
                   budget: Budget | None = None) -> LogStatistics:
    """Valid bytes of each log segment, exactly. O(n log s) for n index entries in s index segments.

    Args:
        snapshot: of the store.
        reference_time: deletes made strictly before it are in effect; seconds.
        now: blobs that expire strictly before it have expired; seconds.
        rules: what else a compaction may remove.
        throttle: limits the entries looked at in a second, one "byte" an entry.
        breather: lets other threads run now and then.
        budget: asked while the throttle lets it wait; give it to the breather, too.

    Raises:
        BudgetSpent: the budget ended before everything was counted.
    """
    reference_ms, now_ms = milliseconds(reference_time), milliseconds(now)
    counts = {info.name: _Count() for info in snapshot.segments}
    for segment, size, reference_until, now_until, id_bytes, tied, _ in all_lifetimes(
            snapshot, rules, throttle=throttle, breather=breather, budget=budget):
        if reference_ms <= reference_until and now_ms <= now_until:
            count = counts[segment]
            count.bytes += size
            count.records += 1
            count.id_bytes += id_bytes
            if size > count.largest:
                count.largest = size
            if size < count.smallest or count.records == 1:
                count.smallest = size
            if tied:
                count.tied_bytes += size
    return LogStatistics(
        reference_time=reference_time, now=now, valid_bytes={name: count.bytes for name, count in counts.items()},
        valid={name: count.counted() for name, count in counts.items()})


@attrs.define
class _Count:
    """What was kept of a segment, as far as it is counted."""

    bytes: int = 0
    records: int = 0
    id_bytes: int = 0
    smallest: int = 0
    largest: int = 0
    tied_bytes: int = 0

    def counted(self) -> ValidRecords:
        return ValidRecords(records=self.records, id_bytes=self.id_bytes, smallest=self.smallest, largest=self.largest,
                            tied_bytes=self.tied_bytes)


def all_lifetimes(snapshot: Snapshot, rules: PurgeRules | None = None, *, throttle: Budget | None = None,
                  breather: Breather | None = None, budget: Budget | None = None) -> Iterator[Lifetime]:
    """The lifetime of every record that is kept at some time; in no particular order. Cost as for `log_statistics`."""
    rules = PurgeRules() if rules is None else rules
    parts = snapshot.index_parts()
    breathe = unhurried if breather is None else breather.breathe
    for alone, histories in slices_by_hash(parts, throttle, budget):
        for part, row in alone:
            breathe()
            columns = parts[part].columns
            if columns.kinds[row] == _PUT:
                # Most blobs were put once and never touched again.
                yield Lifetime(columns.segment, columns.sizes[row], FOREVER,
                               expiry(columns.expiries[row], columns.flags[row]),
                               columns.ids.length(row) if isinstance(columns.ids, PackedIds) else len(columns.ids[row]),
                               offset=columns.offsets[row])
            else:
                yield from lifetimes((columns.entry(row),), rules)
        for history in histories:
            breathe()
            yield from lifetimes(history, rules)


def slices_by_hash(parts: Sequence[IndexSegment], throttle: Budget | None, budget: Budget | None = None) -> Iterator[
        tuple[list[tuple[int, int]], list[list[IndexEntry]]]]:
    """For each slice of the hash space: the entries that share their hash with no other, and the histories."""
    count = sum(map(len, parts))
    slices = max(-(-count // SLICE_ENTRIES), 1)
    places = [0] * len(parts)
    for number in range(1, slices + 1):
        merged: list[int] = []
        bound = (1 << _HASH_BITS) * number // slices
        for index, part in enumerate(parts):
            start = places[index]
            end = len(part) if number == slices else bisect_left(part.hashes, bound, start)
            places[index] = end
            tail = index << _ROW_BITS
            merged.extend((hashed << _PART_BITS + _ROW_BITS) | tail | row
                          for hashed, row in zip(part.hashes[start:end], part.rows[start:end], strict=True))
        # The pieces are sorted already; the sort finds these runs and merges them.
        merged.sort()
        if throttle is not None:
            _spend(throttle, len(merged), budget)
        yield _grouped(merged, parts)


def _spend(throttle: Budget, entries: int, budget: Budget | None) -> None:
    """Wait for the rate of the throttle, and ask the caller's budget ten times a second meanwhile."""
    rate = throttle.remaining.bytes_per_second
    most = entries if rate is None else max(1, int(rate / 10))
    while entries > 0:
        throttle.spend(min(most, entries))
        entries -= most
        if budget is not None:
            budget.check()


def _grouped(merged: Sequence[int], parts: Sequence[IndexSegment]) -> tuple[
        list[tuple[int, int]], list[list[IndexEntry]]]:
    alone: list[tuple[int, int]] = []
    histories: list[list[IndexEntry]] = []
    row_mask, part_mask, shift = (1 << _ROW_BITS) - 1, (1 << _PART_BITS) - 1, _PART_BITS + _ROW_BITS
    start, count = 0, len(merged)
    while start < count:
        hashed = merged[start] >> shift
        end = start + 1
        while end < count and merged[end] >> shift == hashed:
            end += 1
        if end - start == 1:
            alone.append((merged[start] >> _ROW_BITS & part_mask, merged[start] & row_mask))
        else:
            entries = [parts[each >> _ROW_BITS & part_mask].columns.entry(each & row_mask)
                       for each in merged[start:end]]
            entries.sort(key=_BY_ID)
            histories.extend(sorted(group, key=_BY_AGE) for _, group in groupby(entries, _BY_ID))
        start = end
    return alone, histories
