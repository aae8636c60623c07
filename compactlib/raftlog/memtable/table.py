# SPDX-License-Identifier: Apache-2.0
"""The entries of one log that are not in segments yet: tables of runs, the newest of which takes the inserts.

A table is never changed below its end, so readers and the segment writer use it without a lock. An overwrite does not
touch it either: it chains a new table, which answers for everything from its `base` on.

>>> table = Memtable()
>>> table.insert_run(1, 1, [b"a", b"b", b"c"])
>>> table.insert_run(2, 2, [b"B"])
>>> [table.find(index) for index in (1, 2, 3)]
[Entry(index=1, term=1, payload=b'a'), Entry(index=2, term=2, payload=b'B'), None]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence

import attrs

from compactlib.errors import AuditFailed
from compactlib.indexset.index_set import IndexSet
from compactlib.raftlog.errors import GapDetected, MemtableFull, Overwriting
from compactlib.raftlog.model.values import MAX_INDEX, Entry, entry_of

DEFAULT_MAX_ENTRIES = 1_000_000
_JOINED_ENTRIES = 1024


@attrs.frozen(slots=True)
class Slab:
    """Entries of consecutive indexes and one term. `payloads` may grow at its end until the table is frozen."""

    first: int
    term: int
    payloads: list[bytes]

    @property
    def last(self) -> int:
        """The last index."""
        return self.first + len(self.payloads) - 1

    def entries(self, first: int, last: int) -> Iterator[Entry]:
        """Those from `first` to `last`, as far as it holds them."""
        for index in range(max(first, self.first), min(last, self.last) + 1):
            yield Entry(index, self.term, self.payloads[index - self.first])


class Table:
    """One table of the chain.

    Attributes:
        base: this table answers for every index from here on; older ones, and segments, only for those below.
        cuts: whether older entries from `base` on were taken back.
        slabs: ascending.
        file_number: the WAL file that has to stay until the table is in segments; `None` while it takes inserts.
    """

    def __init__(self, base: int, *, cuts: bool) -> None:
        self.base = base
        self.cuts = cuts
        self.slabs: list[Slab] = []
        self.file_number: int | None = None
        self._firsts: list[int] = []

    @property
    def last(self) -> int | None:
        """The last index, `None` if it holds nothing."""
        return self.slabs[-1].last if self.slabs else None

    @property
    def entries(self) -> int:
        """How many entries it holds. O(slabs)."""
        return sum(len(slab.payloads) for slab in self.slabs)

    def append(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        """Take entries above all those it holds. O(1) calls."""
        if self.slabs:
            newest = self.slabs[-1]
            if newest.term == term and newest.last + 1 == first and len(newest.payloads) < _JOINED_ENTRIES:
                held = newest.payloads
                held += payloads
                return
        slab = Slab(first, term, list(payloads))
        # The slab before its first index: a reader that finds the index finds the slab. And without a call in between,
        # here and where the memtable counts, so that an interrupt comes before or after all of it.
        self.slabs += (slab,)
        self._firsts += (first,)

    def find(self, index: int) -> Entry | None:
        """The entry of `index`, `None` if it holds none. O(log slabs)."""
        place = bisect_right(self._firsts, index) - 1
        if place < 0:
            return None
        slab = self.slabs[place]
        offset = index - slab.first
        return entry_of((index, slab.term, slab.payloads[offset])) if offset < len(slab.payloads) else None

    def term_of(self, index: int) -> int | None:
        """The term of `index`, `None` if it holds no entry of it."""
        place = bisect_right(self._firsts, index) - 1
        if place < 0 or index > self.slabs[place].last:
            return None
        return self.slabs[place].term

    def runs(self, below: int | None = None) -> Iterator[tuple[int, int]]:
        """The indexes as `(first, last)`, ascending, those from `below` on left out."""
        for slab in self.slabs:
            last = slab.last if below is None else min(slab.last, below - 1)
            if slab.first <= last:
                yield slab.first, last


class Memtable:
    """The chain of a log's tables. One thread at a time inserts (the log's lock); any number reads.

    Args:
        last: the last index of what lies below, in segments; -1 if nothing does.
        max_entries: how many entries may wait for segments.
    """

    def __init__(self, last: int = -1, *, max_entries: int = DEFAULT_MAX_ENTRIES) -> None:
        self._tables: tuple[Table, ...] = ()
        self._last = last
        self._max_entries = max_entries
        self._count = 0

    @property
    def last(self) -> int:
        """The last index of the log, entries below the tables included; -1 if there is none."""
        return self._last

    @property
    def tables(self) -> tuple[Table, ...]:
        """The chain, oldest first; an immutable snapshot, whose newest table may grow."""
        return self._tables

    @property
    def base(self) -> int | None:
        """From this index on the tables answer; `None` if there is none and segments answer for everything."""
        tables = self._tables
        return base_of(tables) if tables else None

    @property
    def entries(self) -> int:
        """How many entries the tables hold, overwritten ones included."""
        return self._count

    def require_fit(self, first: int, count: int) -> None:
        """Raise what `insert_run` would, and change nothing."""
        # An empty log begins anywhere, one that everything was taken back of included.
        if 0 <= self._last < first - 1:
            raise GapDetected(previous=first - 1, last=self._last)
        self.require_room(count)

    def insert_run(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        """Take entries of consecutive indexes: the next ones, or some that overwrite.

        Raises:
            GapDetected: the first does not follow the last index, nor overwrite.
            MemtableFull: too many entries wait for segments.
        """
        self.require_fit(first, len(payloads))
        self.replay_run(first, term, payloads)

    def replay_run(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        """Take entries of consecutive indexes as the WAL says they were written, gaps and overwrites included."""
        if first <= self._last:
            self.cut(first - 1)
        self._take(first, term, payloads)

    def insert_sparse(self, index: int, term: int, payload: bytes, previous: int | None) -> None:
        """Take one entry that may leave a gap. An empty log accepts any.

        Args:
            index: the entry's index.
            term: its term.
            payload: its bytes.
            previous: the last index of the log as the writer knows it; `None` for whatever it is.

        Raises:
            GapDetected: the last index is another one.
            Overwriting: the entry is not above the last index.
            MemtableFull: too many entries wait for segments.
        """
        self.require_sparse_fit(index, previous)
        self.require_room(1)
        self._take(index, term, [payload])

    def require_sparse_fit(self, index: int, previous: int | None) -> None:
        """Raise what `insert_sparse` would but for room, and change nothing."""
        if self._last >= 0:
            if previous is not None and previous != self._last:
                raise GapDetected(previous=previous, last=self._last)
            if index <= self._last:
                raise Overwriting(index=index, last=self._last)

    def skip_to(self, last: int) -> None:
        """Go on behind `last`, which a snapshot covers, although entries up to it were never held."""
        self._last = max(self._last, last)

    def cut(self, after: int) -> None:
        """Take back everything above `after`: a new table is chained, the older ones stay as they are for readers.

        But for those that wait with no WAL file yet, and of which nothing is left: it takes their place.
        """
        if after >= self._last:
            return
        kept = len(self._tables)
        while kept and self._tables[kept - 1].file_number is None and self._tables[kept - 1].base > after:
            kept -= 1
        count = self._count - sum(table.entries for table in self._tables[kept:])
        tables = (*self._tables[:kept], Table(after + 1, cuts=True))
        self._tables, self._count, self._last = tables, count, after

    def freeze(self, file_number: int) -> bool:
        """Let what there is wait for segments, with this WAL file; returns whether there is anything new."""
        fresh = [table for table in self._tables if table.file_number is None]
        for table in fresh:
            table.file_number = file_number
        return bool(fresh)

    def frozen(self, through: int) -> tuple[Table, ...]:
        """The tables that wait with WAL files up to `through`, oldest first."""
        return tuple(table for table in self._tables
                     if table.file_number is not None and table.file_number <= through)

    def release(self, tables: Iterable[Table]) -> None:
        """Forget tables whose entries are in segments now; they are the oldest ones."""
        gone = set(map(id, tables))
        left = tuple(table for table in self._tables if id(table) not in gone)
        count = sum(table.entries for table in left)
        self._tables, self._count = left, count

    def find(self, index: int) -> Entry | None:
        """The entry of `index`, `None` if the tables hold none. O(tables + log slabs)."""
        for table in reversed(self._tables):
            if index >= table.base:
                return table.find(index)
        return None

    def term_of(self, index: int) -> int | None:
        """The term of `index`, `None` if the tables hold no entry of it."""
        for table in reversed(self._tables):
            if index >= table.base:
                return table.term_of(index)
        return None

    def indexes(self) -> IndexSet:
        """What the tables hold and was not taken back. O(slabs)."""
        return IndexSet.from_runs(visible_runs(self._tables))

    def has_room(self, more: int) -> bool:
        """Whether so many more entries fit."""
        return self._count + more <= self._max_entries

    def require_room(self, more: int) -> None:
        """Raise `MemtableFull` if so many more entries would be too many."""
        if not self.has_room(more):
            raise MemtableFull(entries=self._count, limit=self._max_entries)

    def _take(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        count = self._count + len(payloads)
        newest = self._tables[-1] if self._tables else None
        if newest is None or newest.file_number is not None:
            # It continues: what is older stays, up to here.
            newest = Table(self._last + 1, cuts=False)
            self._tables = (*self._tables, newest)
        last = first + len(payloads) - 1
        newest.append(first, term, payloads)
        self._count, self._last = count, last

    def audit(self) -> None:
        """Check that slabs ascend, that tables answer from their base on, and that the count is right.

        Raises:
            AuditFailed: they do not.
        """
        counted = 0
        for table in self._tables:
            above = table.base - 1
            for slab in table.slabs:
                if slab.first <= above or not slab.payloads:
                    raise AuditFailed(f"slab {slab.first}..{slab.last} follows {above} in a table from "
                                          f"{table.base} on")
                above = slab.last
                counted += len(slab.payloads)
        numbers = [table.file_number for table in self._tables]
        frozen = [number for number in numbers if number is not None]
        if frozen != sorted(frozen) or frozen != numbers[:len(frozen)]:
            raise AuditFailed(f"the tables wait with the WAL files {numbers}, out of order")
        if counted != self._count:
            raise AuditFailed(f"the tables hold {counted} entries, {self._count} were counted")

    def __repr__(self) -> str:
        return f"<Memtable: {self._count:,} entries in {len(self._tables)} tables, last {self._last}>"


def base_of(tables: Sequence[Table]) -> int:
    """The lowest index that `tables` (a chain) answer for; above every index if there are none."""
    return min((table.base for table in tables), default=MAX_INDEX + 1)


def visible_runs(tables: Sequence[Table]) -> Iterator[tuple[int, int]]:
    """The indexes that `tables` (a chain, oldest first) answer for, as `(first, last)`, newest table first."""
    below: int | None = None
    for table in reversed(tables):
        yield from table.runs(below)
        below = table.base if below is None else min(below, table.base)


def visible_slabs(tables: Sequence[Table], below: int | None = None) -> list[Slab]:
    """The same with their terms and payloads, ascending; those from `below` on left out."""
    found: list[list[Slab]] = []
    for table in reversed(tables):
        part: list[Slab] = []
        for slab in table.slabs:
            keep = len(slab.payloads) if below is None else min(len(slab.payloads), below - slab.first)
            if keep > 0:
                part.append(slab if keep == len(slab.payloads) else Slab(slab.first, slab.term, slab.payloads[:keep]))
        found.append(part)
        below = table.base if below is None else min(below, table.base)
    return [slab for part in reversed(found) for slab in part]
