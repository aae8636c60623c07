# SPDX-License-Identifier: Apache-2.0
"""Statistics for policies and triggers, gathered from segment indexes and remembered while nothing has changed."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import attrs

from compactlib.budget import Budget
from compactlib.errors import CompactlibError, NotFound, StorageError
from compactlib.files.disk import Files, StrPath
from compactlib.indexset import IndexSet
from compactlib.raftlog.compaction.plan.view import DamagedSegment, LogView
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import SegmentLimits, SegmentRef, SegmentStats
from compactlib.raftlog.segment.known import KnownSegment, file_bytes
from compactlib.raftlog.segment.liveness import segment_stats
from compactlib.raftlog.segment.segment_list import SegmentList


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

    def gather(self, segments: SegmentList, state: SnapshotMeta | None, *, known: Sequence[KnownSegment] | None = None,
               damaged: dict[int, CompactlibError] | None = None, budget: Budget | None = None,
               ) -> tuple[SegmentStats, ...]:
        """Statistics of every segment, oldest to newest.

        Cost: nothing is read for a segment without a live index or unchanged; the index
        otherwise, and then one merge of two sorted sequences.

        Args:
            segments: the log's segments.
            state: which of their entries are alive.
            known: the list to use, with the ranges that count; default the one in force.
            damaged: if given, takes what stands in the way of judging a segment, by number, instead of an exception;
                such a segment counts as wholly live.
            budget: asked before each segment.

        Raises:
            BudgetSpent: the budget refused.
            LiveIndexMissing: a live index is not in the segment whose range covers it.
            CorruptData, StorageError: an index cannot be read.
        """
        known = segments.known() if known is None else known
        with self._lock:
            gathered = [self._judged(segments, each, state, damaged, budget) for each in known]
            for number in self._remembered.keys() - {each.ref.number for each in known}:
                del self._remembered[number]
        return tuple(gathered)

    def _judged(self, segments: SegmentList, known: KnownSegment, state: SnapshotMeta | None,
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
                                live_entries=known.entries, live_bytes=known.data_bytes,
                                file_bytes=file_bytes(segments.folder, known.ref.number))

    def _stats(self, segments: SegmentList, known: KnownSegment, state: SnapshotMeta | None) -> SegmentStats:
        ref = known.ref
        # How far the snapshot reaches into the segment: what lies above it is alive whatever the live set says.
        covered = -1 if state is None or state.index < ref.first else min(state.index, ref.last)
        live = IndexSet() if state is None else state.live.between(ref.first, covered)
        size = file_bytes(segments.folder, ref.number)
        if covered == ref.last and not live:
            return SegmentStats(ref=ref, entries=known.entries, data_bytes=known.data_bytes, live_entries=0,
                                live_bytes=0, file_bytes=size)
        key = _Key(ref, known.entries, covered, live, size)
        before = self._remembered.get(ref.number)
        if before is not None and before[0] == key:
            return before[1]
        index = segments.index_of(ref.number)
        stats = attrs.evolve(segment_stats(index, ref, state), file_bytes=size)
        self._remembered[ref.number] = key, stats
        return stats


def view_of(segments: SegmentList, state: SnapshotMeta | None, known: Sequence[KnownSegment], stats: StatsCache,
            limits: SegmentLimits, budget: Budget | None) -> LogView:
    """What a policy sees of the segments `known` under a snapshot.

    A segment that cannot be judged is listed as damaged. One that has left the list meanwhile was dropped or truncated:
    that is no damage, and it is left out.

    Raises:
        BudgetSpent: the budget refused.
    """
    damaged: dict[int, CompactlibError] = {}
    gathered = stats.gather(segments, state, known=known, damaged=damaged, budget=budget)
    gone = {number for number, error in damaged.items()
            if isinstance(error, NotFound) and segments.known_of(number) is None}
    return LogView(
        segments=tuple(each for each in gathered if each.number not in gone), limits=limits,
        snapshot_index=None if state is None else state.index, folder=segments.folder,
        damaged=tuple(DamagedSegment(*each) for each in sorted(damaged.items()) if each[0] not in gone))


def room_in(files: Files, folder: StrPath) -> int | None:
    """Room for new files in a folder; `None` where it is unknown."""
    try:
        return files.available_bytes(folder)
    except StorageError:
        return None
