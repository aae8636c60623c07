# SPDX-License-Identifier: Apache-2.0
"""Statistics for policies and triggers, gathered from segment indexes and remembered while nothing has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import attrs

from compactlib.errors import CompactlibError
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import SegmentRef, SegmentStats
from compactlib.raftlog.segment.known import KnownSegment, file_bytes, is_still_whole
from compactlib.raftlog.segment.liveness import kept_of_dense, segment_stats
from compactlib.raftlog.segment.segment_set import SegmentSet
from compactlib.runtime.breather import unhurried
from compactlib.runtime.budget import Budget


@attrs.frozen
class _Key:
    """What the statistics of a segment follow from."""

    ref: SegmentRef
    entries: int
    covered: int
    live: IndexSet
    file_bytes: int


class StatsCache:
    """Statistics of the segments of one log. A segment is read again only if its range or its live set has changed.

    Losing it costs reading the indexes again, nothing else.
    """

    def __init__(self) -> None:
        self._remembered: dict[int, tuple[_Key, SegmentStats]] = {}
        self._lock = threading.Lock()

    def gather(self, segments: SegmentSet, state: SnapshotMeta | None, *, known: Sequence[KnownSegment] | None = None,
               damaged: dict[int, CompactlibError] | None = None, budget: Budget | None = None,
               breathe: Callable[[], None] = unhurried) -> tuple[SegmentStats, ...]:
        """Statistics of every segment, oldest to newest.

        Cost: nothing is read for a segment above the snapshot, without a live index, or unchanged; the index
        otherwise, and then one merge of two sorted sequences, or none if it is dense and its payloads have one size.

        Args:
            segments: the log's segments.
            state: which of their entries are alive.
            known: the list to use, with the ranges that count; default the one in force.
            damaged: if given, takes what stands in the way of judging a segment, by number, instead of an exception;
                such a segment counts as wholly live.
            budget: asked before each segment.
            breathe: called after each segment.

        Raises:
            BudgetSpent: the budget refused.
            LiveIndexMissing: a live index is not in the segment whose range covers it.
            CorruptData, StorageError: an index cannot be read.
        """
        known = segments.known() if known is None else known
        with self._lock:
            gathered = []
            for each in known:
                gathered.append(self._judged(segments, each, state, damaged, budget))
                breathe()
            for number in self._remembered.keys() - {each.ref.number for each in known}:
                del self._remembered[number]
        return tuple(gathered)

    def _judged(self, segments: SegmentSet, known: KnownSegment, state: SnapshotMeta | None,
                damaged: dict[int, CompactlibError] | None, budget: Budget | None) -> SegmentStats:
        if budget is not None:
            budget.check()
        try:
            return self._stats(segments, known, state)
        except CompactlibError as error:
            if damaged is None:
                raise
            damaged[known.ref.number] = error
            return SegmentStats(ref=known.ref, entries=known.entries, data_bytes=known.data_bytes,
                                live_entries=known.entries, live_bytes=known.data_bytes, format=known.format,
                                file_bytes=file_bytes(segments.folder, known.ref.number))

    def _stats(self, segments: SegmentSet, known: KnownSegment, state: SnapshotMeta | None) -> SegmentStats:
        ref = known.ref
        # How far the snapshot reaches into the segment: what lies above it is alive whatever the live set says.
        covered = -1 if state is None or state.index < ref.first else min(state.index, ref.last)
        live = IndexSet() if state is None else state.live.between(ref.first, covered)
        size = file_bytes(segments.folder, ref.number)
        if covered == ref.last and not live:
            return SegmentStats(ref=ref, entries=known.entries, data_bytes=known.data_bytes, live_entries=0,
                                live_bytes=0, format=known.format, file_bytes=size)
        key = _Key(ref, known.entries, covered, live, size)
        before = self._remembered.get(ref.number)
        if before is not None and before[0] == key:
            return before[1]
        # Without an open reader it takes less to see that the index is whole than to decode it.
        each = known.payload_bytes if known.is_dense and segments.open_entries(ref.number) < 0 else None
        if each is not None and state is not None and is_still_whole(segments.folder, known):
            kept = kept_of_dense(ref.first, ref.last, state, live)
            stats = SegmentStats(ref=ref, entries=known.entries, data_bytes=known.data_bytes, live_entries=kept,
                                 live_bytes=kept * each, format=known.format, file_bytes=size)
        else:
            index = segments.reader(ref.number).index
            stats = attrs.evolve(segment_stats(index, ref, state, segment_format=known.format, live=live),
                                 file_bytes=size)
        self._remembered[ref.number] = key, stats
        return stats
