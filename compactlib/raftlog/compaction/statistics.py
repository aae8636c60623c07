# SPDX-License-Identifier: Apache-2.0
"""Sense: statistics for policies and triggers, computed from segment indexes and cached."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from compactlib.budget import Budget
from compactlib.errors import CompactlibError, NotFound
from compactlib.indexset import IndexSet
from compactlib.raftlog.compaction.policy import GroupFailed, LogView
from compactlib.raftlog.segment.index import kept_positions, picked
from compactlib.raftlog.segment.listing import KnownSegment, file_bytes
from compactlib.raftlog.segment.segments import Segments
from compactlib.raftlog.snapshot_meta import NO_SNAPSHOT, SnapshotMeta
from compactlib.raftlog.values import SegmentLimits, SegmentStats


class StatsCache:
    """A cache of the statistics of a log's segments.

    A segment's index is read again if its range, its file or its part of the live set has changed.
    """

    def __init__(self) -> None:
        self._remembered: dict[int, tuple[object, tuple[int, int]]] = {}
        self._lock = threading.Lock()

    def view_of(self, segments: Segments, state: SnapshotMeta | None, known: Sequence[KnownSegment],
                limits: SegmentLimits, budget: Budget | None) -> LogView:
        """The view of the segments `known` under a snapshot.

        A segment whose index cannot be read is listed as damaged, and counts as wholly live. A segment that has left
        the list, because it was dropped or truncated, is left out.

        Raises:
            BudgetSpent: the budget, which is checked before each segment, is spent.
        """
        gathered: list[SegmentStats] = []
        damaged: list[GroupFailed] = []
        with self._lock:
            for each in known:
                number = each.ref.number
                if budget is not None:
                    budget.check()
                size = file_bytes(segments.folder, number)
                try:
                    entries, live_bytes = self._live_part(segments, each, state or NO_SNAPSHOT, size)
                except CompactlibError as error:
                    if isinstance(error, NotFound) and segments.known_of(number) is None:
                        continue
                    damaged.append(GroupFailed((number,), error))
                    entries, live_bytes = each.entries, each.data_bytes
                gathered.append(SegmentStats(
                    ref=each.ref, entries=each.entries, data_bytes=each.data_bytes, live_entries=entries,
                    live_bytes=live_bytes, file_bytes=size))
            for number in self._remembered.keys() - {each.ref.number for each in known}:
                del self._remembered[number]
        return LogView(segments=tuple(gathered), limits=limits, folder=segments.folder, damaged=tuple(damaged),
                       snapshot_index=None if state is None else state.index)

    def _live_part(self, segments: Segments, known: KnownSegment, state: SnapshotMeta, size: int) -> tuple[int, int]:
        """Count the live entries of a segment, and their payload bytes."""
        ref = known.ref
        # The entries above `covered` are live.
        covered = -1 if state.index < ref.first else min(state.index, ref.last)
        live = state.live.between(ref.first, covered) if covered >= 0 else IndexSet()
        if covered == ref.last and not live:
            return 0, 0
        key = known, covered, live, size
        before = self._remembered.get(ref.number)
        if before is None or before[0] != key:
            index = segments.index_of(ref.number)
            kept = kept_positions(index, ref, state)
            before = self._remembered[ref.number] = key, (len(kept), sum(picked(index.lengths, kept)))
        return before[1]
