"""The segments below a `RaftLog`: written by flushes only, compacted with what the memtable still holds in mind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import ClassVar, TypeVar

from compactlib.errors import Busy, CompactlibError, CorruptData, NotFound, Stale, StorageError
from compactlib.files.disk import StrPath
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.compaction.live_check import require_live
from compactlib.raftlog.log.segment_log import SegmentLog
from compactlib.raftlog.memtable.flush import FlushPlan, NewestStats
from compactlib.raftlog.memtable.table import Slab
from compactlib.raftlog.model.names import segment_name
from compactlib.raftlog.model.refs import next_ref
from compactlib.raftlog.model.snapshot_state import SnapshotState, write_snapshot_state
from compactlib.raftlog.model.values import Entry
from compactlib.raftlog.options import LogOptions
from compactlib.raftlog.segment.known import KnownSegment
from compactlib.raftlog.segment.reader import SegmentReader

_MAX_LOOKS = 100
_SeenT = TypeVar("_SeenT")


class LogSegments(SegmentLog):
    """A `SegmentLog` that is one half of a `RaftLog`: the other half, the memtable, may hold live entries as well.

    Arguments and errors as `SegmentLog`.

    Args:
        folder: the log's folder.
        options: how it is kept.
    """

    _knows_wal: ClassVar[bool] = True

    def __init__(self, folder: StrPath, options: LogOptions | None = None) -> None:
        # What is held elsewhere, and what must stay although it is dead: set by the log once it is open.
        self.elsewhere: Callable[[], IndexSet] = IndexSet
        self.pinned: Callable[[], IndexSet] = IndexSet
        super().__init__(folder, options)

    @property
    def is_inside_compaction(self) -> bool:
        """Whether the caller is a part of the compaction that runs, on whichever thread: an observer or a task, say."""
        return self._owner.is_mine

    @property
    def is_compacting(self) -> bool:
        """Whether a compaction or a reclaim is under way."""
        return self._owner.is_running

    @property
    def unflushed(self) -> IndexSet:
        """What the log holds in memory; see `LogReader.unflushed`."""
        return self.elsewhere()

    # -- flushing

    def newest_stats(self) -> NewestStats:
        """What a flush plan wants to know of the newest segment."""
        with self._switch:
            newest = self._newest.known()
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
                with self._switch:
                    self._lose_unsynced()
            raise

    def _carry_out(self, plan: FlushPlan) -> None:
        if plan.cut_after is not None and not (plan.slabs and plan.slabs[0].first == plan.cut_after + 1):
            # Else the first entry to be written takes back by itself whatever stands from its index on.
            self.take_back(plan.cut_after)
        if plan.successor:
            self._begin_successor()
        for slab in plan.slabs:
            with self._switch:
                self._require_open()
                self._put_slab(slab)
        self.sync()

    def _put_slab(self, slab: Slab) -> None:
        done = 0
        while done < len(slab.payloads):
            # The first of each stretch the ordinary way: it makes room, and takes back what it overwrites.
            self._put(slab.first + done, slab.term, slab.payloads[done])
            done += 1
            try:
                done += self._newest.append_run(slab.first + done, slab.term, slab.payloads[done:])
            except StorageError:
                self._lose_unsynced()
                raise

    def _begin_successor(self) -> None:
        with self._switch:
            self._require_open()
            if self._must_recover:
                self._recover_newest()
            try:
                ended = self._newest.begin_next()
            except StorageError:
                self._lose_unsynced()
                raise
            if ended is not None:
                self._segments.put(ended)
            self._note_newest()

    def take_back(self, after: int) -> None:
        """Make durable that segments hold nothing above `after`.

        The highest entry that is left is written again, which takes back what is above it; a dead one without its
        payload, if that cannot be read any more. With none left, a new segment is begun and all the others are removed.

        Raises:
            StorageError: the disk refused; call again.
            CorruptData: the highest entry that is left is damaged, and not dead.
            Busy: there is none left, and somebody still reads the others; call again.
        """
        with self._switch:
            self._require_open()
            if (self.last_index if self.last_index is not None else -1) <= after:
                return
            anchor = self._highest(after)
            if anchor is None:
                self._remove_all()
                return
            self._put(anchor.index, anchor.term, anchor.payload)
            self.sync()

    def _highest(self, limit: int) -> Entry | None:
        index = self.previous_index(limit)
        held = self._held_at(index) if index >= 0 else None
        if held is None:
            return None
        reader, position = held
        try:
            return reader.read(index)
        except CorruptData:
            if self._state is None or not self._state.is_dead(index):
                raise
            # It may have become a hole, and nobody will ever read it again: only its place in the order counts.
            return Entry(index, reader.index.columns.terms[position], b"")

    def _remove_all(self) -> None:
        self._begin_successor()
        numbers = [ref.number for ref in self._segments.refs if ref.number != self._newest.number]
        self._segments.drop(numbers)
        self._note_newest()
        # Newest first: whatever a crash leaves is a beginning of the log, of which the WAL says what to do again.
        for number in reversed(numbers):
            self._compactor.discard([number])
            self._compactor.reclaim()
            self._files.sync_folder(self._folder)
        left = [number for number in numbers if os.path.lexists(os.path.join(self._folder, segment_name(number)))]
        if left:
            raise Busy(f"segments {left} in {self._folder} hold only what was taken back, but are being read; "
                       f"release the leases and call again")

    # -- asking

    def term_of(self, index: int) -> int | None:
        """The term of the entry of `index`, dead or not, `None` if no segment holds it."""
        held = self._held_at(index)
        return None if held is None else held[0].index.columns.terms[held[1]]

    def _held_at(self, index: int) -> tuple[SegmentReader, int] | None:
        self._publish_newest()
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
        refs = self.refs
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
        for ref in reversed(self.refs):
            if ref.first <= index:
                columns = self._segments.reader(ref.number).index
                inside = columns.positions_between(ref.first, min(ref.last, index))
                if inside:
                    return columns.columns.indexes[inside[-1]]
        return -1

    def matching(self, first: int, last: int, term: int) -> int:
        """How many entries from `first` on, up to `last`, are held with this term: for a replay. O(entries), in C."""
        matched = 0
        while first + matched <= last:
            held = self._held_at(first + matched)
            if held is None:
                break
            columns, position = held[0].index.columns, held[1]
            ref = self._segments.find(first + matched)
            end = last if ref is None else min(last, ref.last)
            wanted = end - first - matched + 1
            indexes = columns.indexes[position:position + wanted]
            dense = indexes[-1] - indexes[0] + 1 == len(indexes)
            same = dense and columns.terms[position:position + wanted].count(term) == len(indexes)
            count = len(indexes) if same else _leading(indexes, columns.terms[position:position + wanted], term)
            matched += count
            if count < wanted:
                break
        return matched

    def holding(self, indexes: IndexSet) -> IndexSet:
        """Those of `indexes` that segments hold."""
        def look() -> IndexSet:
            found = [self._segments.reader(ref.number).index.index_set().between(ref.first, ref.last)
                     for ref in self.refs if indexes.overlaps(ref.first, ref.last)]
            return IndexSet().union(*found) & indexes

        return self._looking_anew(look)

    def open_for(self, indexes: IndexSet) -> list[tuple[SegmentReader, IndexSet]]:
        """The open segments that hold `indexes`, each with those that it holds, ascending."""
        def look() -> list[tuple[SegmentReader, IndexSet]]:
            found = []
            for ref in self.refs:
                wanted = indexes.between(ref.first, ref.last)
                if wanted:
                    reader = self._segments.reader(ref.number)
                    held = wanted & reader.index.index_set()
                    if held:
                        found.append((reader, held))
            return found

        return self._looking_anew(look)

    # -- snapshots and compactions

    def require_held(self, state: SnapshotState) -> None:
        """Check that every live index of a snapshot is in a segment or elsewhere, and was not dead before.

        Raises:
            LiveIndexMissing: some are not; says how many, and the first.
        """
        # Before the segments are listed: what leaves the memtable is in segments by then.
        elsewhere = self.elsewhere()
        with self._switch:
            # A flush meanwhile may take back what is listed, and remove it.
            require_live(state.live, self._state, self.refs,
                         lambda ref: self._segments.reader(ref.number).index.index_set(), elsewhere)

    def record_state(self, state: SnapshotState) -> None:
        """Put the row of a snapshot in force durably. `require_held` comes first; everything live must be durable.

        Raises:
            Stale: a later one is in force.
            StorageError: the disk refused; the one before stays in force.
        """
        with self._switch:
            self._require_open()
            if self._state is not None and state.index < self._state.index:
                raise Stale(f"snapshot {state.index} is older than {self._state.index}, which is recorded; snapshots "
                            f"only move forward")
            write_snapshot_state(self._files, self._folder, state)
            self._state = state

    def _compacted_state(self, known: Sequence[KnownSegment]) -> SnapshotState | None:
        """The row, with what is pinned, and without what no segment holds (the memtable does, or a pin by itself)."""
        state = self._state
        if state is None:
            return None
        pinned = self.pinned().at_most(state.index)
        live = state.live | pinned
        suspects = live & (self.elsewhere() | pinned)
        if suspects:
            held = []
            for ref in [segment.ref for segment in known if suspects.overlaps(segment.ref.first, segment.ref.last)]:
                # One that a flush has taken back meanwhile holds nothing any more.
                with contextlib.suppress(NotFound):
                    held.append(self._segments.reader(ref.number).index.index_set().between(ref.first, ref.last))
            live = live - (suspects - IndexSet().union(*held))
        return SnapshotState(state.index, live, state.term)

    def __enter__(self) -> LogSegments:
        return self


def _leading(indexes: Sequence[int], terms: Sequence[int], term: int) -> int:
    count = 0
    while count < len(indexes) and indexes[count] == indexes[0] + count and terms[count] == term:
        count += 1
    return count
