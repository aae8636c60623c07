"""The reading half of a `RaftLog`: the memtable first, then segments."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from compactlib.errors import Closed, CorruptData, Unsorted
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.arguments import listed, whole
from compactlib.raftlog.memtable.table import Memtable, Table, visible_runs, visible_slabs
from compactlib.raftlog.model.row import LogRow, LogRows
from compactlib.raftlog.model.values import MAX_INDEX, Answer, Damaged, Dead, Entry, Missing
from compactlib.raftlog.store.log_segments import LogSegments
from compactlib.raftlog.store.pins import Pin


class RaftReader:
    """Reads of one log; see `RaftLog`."""

    def __init__(self, log_id: str, segments: LogSegments, rows: LogRows, memtable: Memtable) -> None:
        self._log_id = log_id
        self._segments = segments
        self._rows = rows
        self._memtable = memtable
        self._pins: list[Pin] = []
        self._closed = False

    @property
    def log_id(self) -> str:
        """The log's id in its store."""
        return self._log_id

    @property
    def folder(self) -> str:
        """Where its segments are, as an absolute path."""
        return self._segments.folder

    @property
    def state(self) -> LogRow:
        """The row: what the last snapshot left, as one value."""
        return self._rows.get(self._log_id)

    @property
    def segments(self) -> LogSegments:
        """The log's segments: for those who compact it."""
        return self._segments

    @property
    def memtable(self) -> Memtable:
        """What is in no segment yet: to be looked at."""
        return self._memtable

    @property
    def is_closed(self) -> bool:
        """Whether the log was closed."""
        return self._closed

    @property
    def last_index(self) -> int:
        """The highest index held, or the snapshot's if that is higher; -1 in an empty log. O(1)."""
        return self._memtable.last

    @property
    def last_term(self) -> int | None:
        """The term of the last index, `None` in an empty log."""
        return self.term_of(self.last_index) if self.last_index >= 0 else None

    @property
    def first_index(self) -> int | None:
        """The lowest index that can be read, `None` if none can."""
        row = self.state
        if row.live:
            return row.live.first
        tables = self._memtable.tables
        base = min((table.base for table in tables), default=MAX_INDEX + 1)
        start = row.snapshot_index + 1
        found = self._segments.next_index(start) if start < base else None
        if found is not None and found < base:
            return found
        return min((max(first, start) for first, last in visible_runs(tables) if last >= start), default=None)

    def _highest_held(self, limit: int) -> int:
        """The highest index up to `limit` that is held or that the snapshot ends at; -1 if there is none."""
        tables = self._memtable.tables
        held = [min(last, limit) for first, last in visible_runs(tables) if first <= limit]
        if not held:
            base = min((table.base for table in tables), default=MAX_INDEX + 1)
            held = [self._segments.previous_index(min(limit, base - 1))]
        return max(*held, self.state.snapshot_index)

    def term_of(self, index: int) -> int | None:
        """The term of the entry of `index`, or of the snapshot that ends there; `None` if it is not known any more."""
        if type(index) is not int:
            index = whole("the index", index)
        row = self.state
        if index == row.snapshot_index and row.snapshot_term:
            return row.snapshot_term
        tables = self._memtable.tables
        for table in reversed(tables):
            if index >= table.base:
                return table.term_of(index)
        return self._segments.term_of(index)

    def read(self, index: int) -> Entry | Dead | Missing:
        """The entry of `index`, or that it is dead, or that the log does not hold it.

        From memory, or with one bisection and one `pread`.

        Raises:
            CorruptData: the entry is damaged, or it is live and nothing holds it.
            Closed: the log was closed.
        """
        if self._closed:
            self._require_open()
        if type(index) is not int:
            index = whole("the index", index)
        row = self.state
        if index <= row.snapshot_index and index not in row.live:
            return Dead(index, row.snapshot_index)
        # The tables before the segments: what leaves the tables is in segments by then.
        for table in reversed(self._memtable.tables):
            if index >= table.base:
                return table.find(index) or self._absent(index)
        return self._segments.read(index)

    def _absent(self, index: int) -> Dead | Missing:
        row = self.state
        if row.is_dead(index):
            return Dead(index, row.snapshot_index)
        if index <= row.snapshot_index:
            raise CorruptData(path=self._segments.folder, offset=0, index=index, found="none",
                              expected=f"a segment that holds the live entry {index}")
        return Missing(index)

    def read_many(self, indexes: Sequence[int]) -> Iterator[Answer]:
        """One answer for each of `indexes` (strictly ascending), in order; physical neighbours are read together.

        Damage to one entry is its answer, `Damaged`; a dead or missing index hides none behind it (notes 5.1).

        Raises:
            Unsorted: the indexes do not ascend strictly.
            CorruptData: a whole segment is damaged.
        """
        indexes = listed("the indexes", indexes)
        if set(map(type, indexes)) - {int}:
            indexes = [whole("an index", index) for index in indexes]
        for previous, index in pairwise(indexes):
            if index <= previous:
                raise Unsorted(f"index {index} follows {previous}; sort the indexes and drop duplicates",
                               previous=previous, found=index)
        self._require_open()
        tables = self._memtable.tables
        base = min((table.base for table in tables), default=MAX_INDEX + 1)
        below = [index for index in indexes if index < base]
        yield from self._segments.read_many(below)
        for index in indexes[len(below):]:
            yield self._from_tables(tables, index)

    def _from_tables(self, tables: Sequence[Table], index: int) -> Answer:
        row = self.state
        if row.is_dead(index):
            return Dead(index, row.snapshot_index)
        for table in reversed(tables):
            if index >= table.base:
                try:
                    return table.find(index) or self._absent(index)
                except CorruptData as error:
                    return Damaged(index, error)
        return Missing(index)

    def entries(self, first: int = 0, last: int = MAX_INDEX) -> Iterator[Entry]:
        """Every entry from `first` to `last` that is not dead, ascending.

        What is appended meanwhile is left out.

        Raises:
            CorruptData: an entry is damaged; those before it have been given.
            Closed: the log was closed.
        """
        self._require_open()
        first, last = whole("first", first), whole("last", last)
        tables = self._memtable.tables
        base = min((table.base for table in tables), default=MAX_INDEX + 1)
        slabs = visible_slabs(tables)
        if first < base:
            yield from self._segments.entries(first, min(last, base - 1))
        for slab in slabs:
            for index in range(max(first, slab.first), min(last, slab.last) + 1):
                if not self.state.is_dead(index):
                    yield Entry(index, slab.term, slab.payloads[index - slab.first])

    def _make_pin(self, indexes: IndexSet, released: Callable[[Pin], object]) -> Pin:
        tables = self._memtable.tables
        base = min((table.base for table in tables), default=MAX_INDEX + 1)
        in_memory: dict[int, Entry] = {}
        for index in indexes.at_least(base):
            answer = self._from_tables(tables, index)
            if isinstance(answer, Entry):
                in_memory[index] = answer
        in_files = []
        for reader, held in self._segments.open_for(indexes.at_most(base - 1)):
            in_files.append((reader, tuple(held)))
        return Pin(indexes, in_memory, in_files, released)

    def _pinned(self) -> IndexSet:
        pins = list(self._pins)
        return IndexSet().union(*(pin.indexes for pin in pins)) if pins else IndexSet()

    def _require_open(self) -> None:
        if self._closed:
            raise Closed(f"the log {self._log_id!r} in {os.path.dirname(self._segments.folder)} is closed; open it "
                         f"again")

    def __repr__(self) -> str:
        return (f"<{type(self).__name__} {self._log_id!r}: {self.first_index} to {self.last_index}, snapshot "
                f"{self.state.snapshot_index}>")
