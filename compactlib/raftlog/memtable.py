# SPDX-License-Identifier: Apache-2.0
"""The memtable: appended entries of one log that are not in segments yet, their replay from the WAL, and their flush.

A table only grows at its end, so that readers use it without a lock.

>>> memtable = Memtable()
>>> memtable.insert(1, 1, [b"a", b"b", b"c"])
>>> memtable.insert(2, 2, [b"B"])
>>> [(slab.first, slab.term, slab.payloads) for slab in memtable.table.slabs]
[(1, 1, [b'a']), (2, 2, [b'B'])]
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import attrs

from compactlib.errors import CorruptData
from compactlib.indexset import IndexSet
from compactlib.raftlog.values import MAX_INDEX, Entry, entry_of

if TYPE_CHECKING:
    from compactlib.raftlog.snapshot_meta import SnapshotMeta
    from compactlib.raftlog.wal.frames import Frame

_JOINED_ENTRIES = 1024
_BEYOND = MAX_INDEX + 1


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
        """The entries from `first` to `last` that it has."""
        for index in range(max(first, self.first), min(last, self.last) + 1):
            yield Entry(index, self.term, self.payloads[index - self.first])

    def part(self, first: int, last: int) -> Slab:
        """The entries from `first` to `last`; it has all of them."""
        return Slab(first, self.term, self.payloads[first - self.first:last + 1 - self.first])


class Table:
    """The entries of a memtable. It only grows at its end; a truncation and a flush replace it by another table.

    Attributes:
        base: the table has the entries from here on; segments count only below. Above every index, if nothing was
            appended or truncated since the last flush.
        slabs: ascending.
    """

    def __init__(self, base: int = _BEYOND, slabs: Iterable[Slab] = ()) -> None:
        self.base = base
        self.slabs: list[Slab] = list(slabs)
        self._firsts: list[int] = [slab.first for slab in self.slabs]

    @property
    def is_unused(self) -> bool:
        """Whether only segments count."""
        return self.base == _BEYOND

    def append(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        """Append entries above its last index. O(1) calls."""
        if self.slabs:
            newest = self.slabs[-1]
            held = newest.payloads
            if newest.term == term and newest.first + len(held) == first and len(held) < _JOINED_ENTRIES:
                held += payloads
                return
        # The slab before its first index: a reader that finds the index finds the slab. There is no call between the
        # two statements, so that an interrupt comes before or after both.
        self.slabs += (Slab(first, term, list(payloads)),)
        self._firsts += (first,)

    def find(self, index: int) -> Entry | None:
        """The entry of `index`, `None` if the table lacks it. O(log slabs)."""
        place = bisect_right(self._firsts, index) - 1
        if place < 0:
            return None
        slab = self.slabs[place]
        offset = index - slab.first
        return entry_of((index, slab.term, slab.payloads[offset])) if offset < len(slab.payloads) else None

    def through(self, last: int) -> list[Slab]:
        """The slabs of the entries up to `last`; they do not grow. O(slabs)."""
        slabs = [slab for slab in self.slabs if slab.first <= last]
        if slabs:
            # Only the newest slab grows.
            slabs[-1] = slabs[-1].part(slabs[-1].first, min(last, slabs[-1].last))
        return slabs


class Memtable:
    """The entries of a log that are in no segment. One thread at a time inserts (the log's lock); any number reads.

    Args:
        last: the last index in segments; -1 if they are empty.

    Attributes:
        last: the last index of the log, segments included; -1 in an empty log.
        table: the present table.
        ticket: the ticket of the log's last write in the WAL's queue.
    """

    def __init__(self, last: int = -1) -> None:
        self.table: Table = Table()
        self.last: int = last
        self.ticket: int = 0

    # -- changes

    def insert(self, first: int, term: int, payloads: Sequence[bytes]) -> None:
        """Insert entries of consecutive indexes; entries at or above the first are truncated before."""
        if first <= self.last:
            self.cut(first - 1)
        if self.table.is_unused:
            self.table = Table(self.last + 1)
        last = first + len(payloads) - 1
        self.table.append(first, term, payloads)
        self.last = last

    def skip_to(self, last: int) -> None:
        """Continue behind `last`, up to which a snapshot or segments cover all entries."""
        self.last = max(self.last, last)

    def cut(self, after: int) -> None:
        """Truncate everything above `after`."""
        if after < self.last:
            self.table, self.last = Table(min(self.table.base, after + 1), self.table.through(after)), after

    def release(self, through: int) -> None:
        """Drop the entries up to `through`, which are in segments, or dead."""
        later = [slab if slab.first > through else slab.part(through + 1, slab.last)
                 for slab in self.table.slabs if slab.last > through]
        self.table = Table(through + 1, later) if later else Table()

    # -- reads

    @property
    def entries(self) -> int:
        """Count of the entries. O(slabs)."""
        return sum(len(slab.payloads) for slab in list(self.table.slabs))

    def indexes(self) -> IndexSet:
        """The indexes of the entries. O(slabs)."""
        return IndexSet.from_runs((slab.first, slab.last) for slab in list(self.table.slabs))


def replay(frames: Iterable[Frame], memtable: Memtable, row: SnapshotMeta,
           matching: Callable[[int, int, int], int]) -> None:
    """Apply the frames of a log in the WAL to the log's memtable, in the order of writing.

    Dead entries are left out, and so are entries that segments have with the same term: they are the same, and an
    interrupted flush continues behind them.

    Args:
        frames: runs, sparse entries, and truncations.
        memtable: its `last` is the segments' last index.
        row: the log's row.
        matching: counts the entries from a first to a last index that segments have with a term.

    Raises:
        CorruptData: the predecessor of an entry is missing.
    """
    # A missing index and its successor. Raised behind the last frame: a later frame may truncate the successor.
    missing: tuple[int, int] | None = None
    for frame in frames:
        if missing is not None and frame.first <= missing[1]:
            missing = None
        if frame.cuts:
            after = -1 if frame.previous is None else frame.previous
            memtable.cut(after)
            if row.is_dead(after):
                # The log ended at this index, although its dead entry may be removed.
                memtable.skip_to(after)
        if missing is None and frame.entries and _lacks_predecessor(frame, memtable, row):
            missing = frame.previous or 0, frame.first
        for first, term, payloads in frame.runs():
            _replay_run(first, term, payloads, memtable, row, matching)
    if missing is not None:
        raise CorruptData(path="<the write-ahead log>", offset=0, index=missing[0], found="no entry",
                          expected=f"entry {missing[0]}, which entry {missing[1]} follows")


def _lacks_predecessor(frame: Frame, memtable: Memtable, row: SnapshotMeta) -> bool:
    """Whether the predecessor of a frame's first entry is missing. An empty log begins at any index."""
    previous = frame.previous
    if previous is None or previous <= memtable.last or previous < row.smallest_live_index:
        return False
    return frame.is_sparse or (memtable.last >= 0 and not row.is_dead(previous))


def _replay_run(first: int, term: int, payloads: Sequence[bytes], memtable: Memtable, row: SnapshotMeta,
                matching: Callable[[int, int, int], int]) -> None:
    last = first + len(payloads) - 1
    start = max(first, row.smallest_live_index)
    if memtable.table.is_unused and start <= memtable.last:
        # Nothing was truncated: entries that segments have need not be written again.
        for run_first, run_last in row.needed(IndexSet.range(first, last)).runs():
            held = matching(run_first, run_last, term)
            if run_first + held <= run_last:
                start = run_first + held
                break
        else:
            return
    if start <= last:
        memtable.insert(start, term, payloads[start - first:])
