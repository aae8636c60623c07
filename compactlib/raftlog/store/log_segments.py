# SPDX-License-Identifier: Apache-2.0
"""The segments below a `RaftLog`: written by flushes only, compacted with what the memtable still holds in mind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TypeVar

from compactlib._closing import Closing
from compactlib.errors import CompactlibError, CorruptData, NotFound
from compactlib.files.disk import StrPath
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.log.segment_log import Beside, SegmentLog
from compactlib.raftlog.memtable.flush import FlushPlan, NewestStats
from compactlib.raftlog.model.gap import KeptGap
from compactlib.raftlog.model.hard_state import KeptHardState
from compactlib.raftlog.model.refs import asked_refs, next_ref
from compactlib.raftlog.model.values import Entry, SegmentRef
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.segment.reader import SegmentReader
from compactlib.runtime.breather import Breather

_RUN_ENTRIES = 1024
"""Flushed at a stretch, in about a millisecond, before an append of another thread has its turn."""
_MAX_LOOKS = 100
_SeenT = TypeVar("_SeenT")


class LogSegments(Closing):
    """The `SegmentLog` that is one half of a `RaftLog`: the other half, the memtable, may hold live entries as well.

    Errors as `SegmentLog`.

    Args:
        folder: the log's folder.
        options: how it is kept.
        row_is_lost: see `Beside`.

    Attributes:
        beside: what is held elsewhere, and what must stay although it is dead: set by the log once it is open.
        log: the segments as a log by themselves: for those who read and compact them.
        hard_state: the member's term and vote, which lie in the same folder.
        gap: where a gap is in which no index is missing, there too.
    """

    def __init__(self, folder: StrPath, options: LogOptions | None = None, *, row_is_lost: bool = False) -> None:
        options = LogOptions() if options is None else options
        self.beside: Beside = Beside(row_is_lost=row_is_lost)
        self.log: SegmentLog = SegmentLog(folder, options, beside=self.beside)
        try:
            self.hard_state: KeptHardState = KeptHardState(options.files, self.log.folder)
            self.gap: KeptGap = KeptGap(options.files, self.log.folder)
        except BaseException:
            self.log.close()
            raise
        self._clock = options.clock
        self._tail = self.log.tail
        self._segments = self.log.tail.segments
        # From an index above the snapshot to the end of a segment, which is not the newest, every index was held: so it
        # is as long as that one is listed like this, since what is taken back is cut from the end.
        self._whole: tuple[int, SegmentRef | None] = (0, None)

    # -- flushing

    def newest_stats(self) -> NewestStats:
        """What a flush plan wants to know of the newest segment."""
        with self._tail.switch:
            newest = self._tail.newest.known()
        return NewestStats() if newest is None else NewestStats(newest.ref.last, newest.data_bytes)

    def write(self, plan: FlushPlan) -> None:
        """Carry out a flush plan durably. Carrying it out again, after an error or a crash, does no harm.

        Raises:
            StorageError: the disk refused.
            Busy: what was taken back is still being read, and nothing older is there to say so; call again.
        """
        try:
            self._carry_out(plan)
        except BaseException as error:
            if not isinstance(error, CompactlibError):
                # Interrupted, in the middle of a write maybe: go on from what is durable.
                self._tail.lose_unsynced(error)
            raise

    def _carry_out(self, plan: FlushPlan) -> None:
        # What an earlier try has lost is written now.
        self._tail.untold.clear()
        if plan.cut_after is not None and not (plan.slabs and plan.slabs[0].first == plan.cut_after + 1):
            # Else the first entry to be written takes back by itself whatever stands from its index on.
            self.take_back(plan.cut_after)
        if plan.successor:
            self._tail.begin_successor()
        breather = Breather(self._clock)
        for slab in plan.slabs:
            for start in range(0, len(slab.payloads), _RUN_ENTRIES):
                self._tail.put_run(slab.first + start, slab.term, slab.payloads[start:start + _RUN_ENTRIES])
                breather.breathe()
        self._tail.sync()
        # A reader or a compaction may have met a disk that refused, between two of these writes.
        self._tail.require_kept()

    def take_back(self, after: int) -> None:
        """Make durable that segments hold nothing above `after`.

        The highest entry that is left is written again, which takes back what is above it; a dead one without its
        payload, if that cannot be read any more. With none left, a new segment is begun and all the others are removed.

        Raises:
            StorageError: the disk refused; call again.
            CorruptData: the highest entry that is left is damaged, and not dead.
            Busy: there is none left, and the others are still read; call again.
        """
        with self._tail.switch:
            self._tail.require_open()
            last = self.log.last_index
            if (last if last is not None else -1) <= after and not self._tail.must_remove_older:
                return
            anchor = self._highest(after)
            if anchor is None:
                self._tail.remove_older()
                return
            self._tail.put_run(anchor.index, anchor.term, [anchor.payload])
            self._tail.sync()

    def _highest(self, limit: int) -> Entry | None:
        index = self.previous_index(limit)
        held = self._held_at(index) if index >= 0 else None
        if held is None:
            return None
        reader, position = held
        try:
            return reader.read(index)
        except CorruptData:
            state = self.log.snapshot
            if state is None or not state.is_dead(index):
                raise
            # It will never be read again: only its place in the order counts.
            return Entry(index, reader.index.columns.terms[position], b"")

    # -- asking

    def term_of(self, index: int) -> int | None:
        """The term of the entry of `index`, dead or not, `None` if no segment holds it."""
        held = self._held_at(index)
        return None if held is None else held[0].index.columns.terms[held[1]]

    def _held_at(self, index: int) -> tuple[SegmentReader, int] | None:
        self._tail.publish()
        for _ in range(_MAX_LOOKS):
            ref = self._segments.find(index)
            if ref is None:
                return None
            # A compaction may have removed it meanwhile: then the list leads elsewhere now.
            with contextlib.suppress(NotFound):
                reader = self._segments.reader(ref.number)
                position = reader.index.find(index)
                return None if position < 0 else (reader, position)
        return None

    def next_index(self, index: int) -> int | None:
        """The lowest index from `index` on that segments hold, dead or not; `None` if there is none."""
        return self._looking_anew(lambda: self._next_index(index))

    def _next_index(self, index: int) -> int | None:
        refs = self.log.refs
        while (ref := next_ref(refs, index)) is not None:
            columns = self._segments.reader(ref.number).index
            inside = columns.positions_between(max(ref.first, index), ref.last)
            if inside:
                return columns.columns.indexes[inside[0]]
            index = ref.last + 1
        return None

    def _looking_anew(self, look: Callable[[], _SeenT]) -> _SeenT:
        """What `look` sees; again from the list when a segment that was listed has gone meanwhile."""
        for _ in range(_MAX_LOOKS - 1):
            with contextlib.suppress(NotFound):
                return look()
        return look()

    def previous_index(self, index: int) -> int:
        """The highest index up to `index` that segments hold, dead or not; -1 if there is none."""
        return self._looking_anew(lambda: self._previous_index(index))

    def _previous_index(self, index: int) -> int:
        for ref in reversed(self.log.refs):
            if ref.first <= index:
                columns = self._segments.reader(ref.number).index
                inside = columns.positions_between(ref.first, min(ref.last, index))
                if inside:
                    return columns.columns.indexes[inside[-1]]
        return -1

    def contiguous_through(self, first: int, last: int) -> int:
        """Up to where segments hold every index from `first` to `last`; `first - 1` if they do not hold that one.

        O(log segments) for each that was added since the last call; the index of one is looked at only if it has gaps.
        """
        self._tail.publish()
        return self._looking_anew(lambda: self._contiguous_through(first, last))

    def _contiguous_through(self, first: int, last: int) -> int:
        refs, through = self._segments.refs, first - 1
        begun, whole = self._whole
        if whole is None or not begun <= first <= whole.last or next_ref(refs, whole.last) != whole:
            begun = first
        else:
            through = whole.last
        while through < last and (ref := next_ref(refs, through + 1)) is not None and ref.first <= through + 1:
            known = self._segments.known_of(ref.number)
            # It may have changed since the list was looked at.
            if known is not None and known.is_dense and known.ref.first <= ref.first <= ref.last <= known.ref.last:
                through = ref.last
                if ref != refs[-1]:
                    self._whole = begun, ref
                continue
            held = self._segments.reader(ref.number).index.index_set().between(through + 1, ref.last)
            if not held or held.first > through + 1:
                break
            _, through = next(held.runs())
            if through < ref.last:
                break
        return min(through, last)

    def matching(self, first: int, last: int, term: int) -> int:
        """How many entries from `first` on, up to `last`, are held with this term: for a replay. O(entries), in C."""
        self._tail.publish()
        return self._looking_anew(lambda: self._segments.matching(first, last, term))

    def open_for(self, indexes: IndexSet) -> list[tuple[SegmentReader, IndexSet]]:
        """The open segments that hold `indexes`, each with those that it holds, ascending."""
        def look() -> list[tuple[SegmentReader, IndexSet]]:
            found = []
            for ref, wanted in asked_refs(self.log.refs, indexes):
                reader = self._segments.reader(ref.number)
                held = wanted & reader.index.index_set()
                if held:
                    found.append((reader, held))
            return found

        return self._looking_anew(look)

    def close(self) -> None:
        """See `SegmentLog.close`."""
        self.log.close()
