# SPDX-License-Identifier: Apache-2.0
"""Reading a `RaftLog`: an index is answered by the newest of the memtable's tables that reaches it, or by segments."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence

from compactlib.errors import CorruptData
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.arguments import listed, require_ascending, whole
from compactlib.raftlog.memtable.table import Memtable, Table, base_of, visible_runs, visible_slabs
from compactlib.raftlog.model.snapshot_meta import SnapshotMeta
from compactlib.raftlog.model.values import (
    Answer,
    AppendAnswer,
    AppendEntries,
    DamagedEntry,
    DeadEntry,
    Entry,
    MissingEntry,
)
from compactlib.raftlog.store.log_segments import LogSegments
from compactlib.raftlog.store.pins import Pin


class RaftReadPath:
    """Reads of one log; see `RaftLog` for what each answers and raises.

    Args:
        segments: the log's segments.
        memtable: what is in no segment yet.
        row: gives the log's row.
    """

    def __init__(self, segments: LogSegments, memtable: Memtable, row: Callable[[], SnapshotMeta]) -> None:
        self._segments = segments
        self._log = segments.log
        self._memtable = memtable
        self._row = row

    @property
    def row(self) -> SnapshotMeta:
        """The log's row."""
        return self._row()

    @property
    def first_index(self) -> int | None:
        """The lowest index that can be read, `None` if none can."""
        row = self._row()
        if row.live:
            return row.live.first
        tables = self._memtable.tables
        base = base_of(tables)
        start = row.index + 1
        found = self._segments.next_index(start) if start < base else None
        if found is not None and found < base:
            return found
        return min((max(first, start) for first, last in visible_runs(tables) if last >= start), default=None)

    def contiguous_through(self) -> int:
        """Up to where every index behind the snapshot is held; see `RaftLog.contiguous_through`."""
        row = self._row()
        start = row.index + 1 if row.index >= 0 else self.first_index
        if start is None:
            return -1
        tables = self._memtable.tables
        through = self._segments.contiguous_through(start, max(min(base_of(tables), self._memtable.last + 1) - 1,
                                                               start - 1))
        for first, last in sorted(visible_runs(tables)):
            if first > through + 1:
                break
            through = max(through, last)
        gap = self._segments.gap.after
        return through if gap is None or gap < start - 1 else min(through, gap)

    @property
    def kept_from(self) -> int:
        """From here on every index can be read, up to `contiguous_through`; 1 in an empty log."""
        row = self._row()
        if row.index >= 0:
            return row.kept_from
        begins = self.first_index
        return 1 if begins is None else begins

    def after(self, prev_index: int, through: int, max_bytes: int) -> AppendEntries | None:
        """What a follower lacks behind `prev_index`, up to `through`; see `RaftLog.entries_after`."""
        row, first = self._row(), self.kept_from
        if row.index < 0:
            prev_index = max(prev_index, first - 1)
        prev_index = min(prev_index, max(through, first - 1))
        prev_term = 0 if prev_index < first and row.index < 0 else self.term_of(prev_index)
        if prev_index < first - 1 or prev_term is None:
            return None
        entries: list[Entry] = []
        if prev_index < through:
            for entry in self.entries(prev_index + 1, through):
                max_bytes -= len(entry.payload)
                # A snapshot may leave some of them dead meanwhile: what is behind such a gap is not sent.
                if entry.index != prev_index + 1 + len(entries) or (entries and max_bytes < 0):
                    break
                entries.append(entry)
        return AppendEntries(prev_index, prev_term, tuple(entries))

    def next_index(self, answer: AppendAnswer, through: int) -> int:
        """Where a leader that holds everything up to `through` goes on; see `RaftLog.next_index`."""
        wanted, first = answer.conflict_term, max(self.kept_from, answer.next_index)
        if wanted is None or first > through:
            return answer.next_index
        # What it holds of that term, if anything, lies together.
        after = first + bisect_right(range(first, through + 1), wanted, key=lambda index: self.term_of(index) or 0)
        return after if self.term_of(after - 1) == wanted else answer.next_index

    def highest_held(self, limit: int) -> int:
        """The highest index up to `limit` that is held or that the snapshot ends at; -1 if there is none."""
        tables = self._memtable.tables
        held = [min(last, limit) for first, last in visible_runs(tables) if first <= limit]
        if not held:
            base = base_of(tables)
            held = [self._segments.previous_index(min(limit, base - 1))]
        return max(*held, self._row().index)

    def term_of(self, index: int) -> int | None:
        """The term of an entry that can be read, or of the snapshot that ends there; see `RaftLog.term_of`."""
        if type(index) is not int:
            index = whole("the index", index)
        row = self._row()
        if index == row.index and row.term:
            return row.term
        if row.is_dead(index):
            return None
        tables = self._memtable.tables
        for table in reversed(tables):
            if index >= table.base:
                return table.term_of(index)
        return self._segments.term_of(index)

    def read(self, index: int) -> Entry | DeadEntry | MissingEntry:
        """The entry of `index`, or that it is dead, or that the log does not hold it."""
        if type(index) is not int:
            index = whole("the index", index)
        row = self._row()
        if index <= row.index and not row.live.holds(index):
            return DeadEntry(index, row.index)
        # The tables before the segments: what leaves the tables is in segments by then.
        for table in reversed(self._memtable.tables):
            if index >= table.base:
                return table.find(index) or self._absent(index)
        return self._log.read(index)

    def _absent(self, index: int) -> Entry | DeadEntry | MissingEntry:
        row = self._row()
        if row.is_dead(index):
            return DeadEntry(index, row.index)
        if index > row.index:
            return MissingEntry(index)
        # It may have come, and a snapshot after it, since the tables were looked at.
        for table in reversed(self._memtable.tables):
            if index >= table.base:
                found = table.find(index)
                if found is None:
                    raise CorruptData(path=self._log.folder, offset=0, index=index, found="none",
                                      expected=f"a segment that holds the live entry {index}")
                return found
        return self._log.read(index)

    def read_many(self, indexes: Sequence[int]) -> Iterator[Answer]:
        """One answer for each of `indexes` (strictly ascending), in order."""
        indexes = listed("the indexes", indexes)
        if set(map(type, indexes)) - {int}:
            indexes = [whole("an index", index) for index in indexes]
        require_ascending(indexes)
        tables = self._memtable.tables
        base = base_of(tables)
        below = [index for index in indexes if index < base]
        for answer in self._log.read_many(below):
            yield self._again(answer) if isinstance(answer, DamagedEntry) else answer
        for index in indexes[len(below):]:
            yield self._from_tables(tables, index)

    def _again(self, damaged: DamagedEntry) -> Answer:
        """What segments call lost may have come to memory, and been covered by a snapshot, since they were asked."""
        try:
            return self.read(damaged.index)
        except CorruptData:
            return damaged

    def _from_tables(self, tables: Sequence[Table], index: int) -> Answer:
        row = self._row()
        if row.is_dead(index):
            return DeadEntry(index, row.index)
        for table in reversed(tables):
            if index >= table.base:
                try:
                    return table.find(index) or self._absent(index)
                except CorruptData as error:
                    return DamagedEntry(index, error)
        return MissingEntry(index)

    def entries(self, first: int, last: int) -> Iterator[Entry]:
        """Every entry from `first` to `last` that is not dead, ascending."""
        first, last = whole("first", first), whole("last", last)
        tables = self._memtable.tables
        base = base_of(tables)
        slabs = visible_slabs(tables)
        if first < base:
            yield from self._log.entries(first, min(last, base - 1))
        for slab in slabs:
            for entry in slab.entries(first, last):
                if not self._row().is_dead(entry.index):
                    yield entry

    def pin(self, indexes: IndexSet, released: Callable[[Pin], object]) -> Pin:
        """Hold those of `indexes` that are found; `released` is called when they are released."""
        tables = self._memtable.tables
        base = base_of(tables)
        in_memory: dict[int, Entry] = {}
        for index in indexes.at_least(base):
            answer = self._from_tables(tables, index)
            if isinstance(answer, Entry):
                in_memory[index] = answer
        in_files = []
        for reader, held in self._segments.open_for(indexes.at_most(base - 1)):
            in_files.append((reader, tuple(held)))
        return Pin(indexes, in_memory, in_files, released)
