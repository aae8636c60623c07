# SPDX-License-Identifier: Apache-2.0
"""The index of one segment in memory: the records that count, ascending, column by column."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter

import attrs

from compactlib.indexset import IndexSet
from compactlib.raftlog.segment.format import Columns


@attrs.define(eq=False)
class SegmentIndex:
    """Where each entry of a segment lies. It only grows: whoever reads it beside the writer needs no lock.

    Records ascend both by index and by offset. About 44 bytes an entry.

    Attributes:
        columns: the records, ascending by index.
        data_bytes: payload bytes in the file, those behind a cut included.
    """

    columns: Columns
    data_bytes: int

    @classmethod
    def of(cls, records: Columns) -> SegmentIndex:
        """The index of ascending `records`, all of the file."""
        lengths = records.lengths
        return cls(records, len(lengths) * lengths[0] if lengths and is_uniform(lengths) else sum(lengths))

    def head(self, count: int) -> SegmentIndex:
        """A copy of the first `count` records."""
        return self.of(Columns(*(column[:count] for column in attrs.astuple(self.columns, recurse=False))))

    def append(self, index: int, term: int, offset: int, length: int, head: int, crc: int) -> None:
        """Take one more record, above all those before. O(1)."""
        columns = self.columns
        columns.terms.append(term)
        columns.offsets.append(offset)
        columns.lengths.append(length)
        columns.heads.append(head)
        columns.crcs.append(crc)
        # Last: a reader that finds an index finds the rest.
        columns.indexes.append(index)
        self.data_bytes += length

    def extend(self, records: Columns) -> None:
        """Take ascending records, at least one, as `append` does each. Copies memory."""
        columns = self.columns
        for name in ("terms", "offsets", "lengths", "heads", "crcs", "indexes"):
            getattr(columns, name).extend(getattr(records, name))
        self.data_bytes += sum(records.lengths)

    def __len__(self) -> int:
        return len(self.columns.indexes)

    @property
    def first(self) -> int:
        """Lowest index; the segment must not be empty."""
        return self.columns.indexes[0]

    @property
    def last(self) -> int:
        """Highest index; the segment must not be empty."""
        return self.columns.indexes[-1]

    @property
    def is_dense(self) -> bool:
        """Whether it holds every index from the first to the last; the segment must not be empty."""
        return self.last - self.first + 1 == len(self)

    def find(self, index: int) -> int:
        """Position of `index`, or -1. O(1) where the segment is dense, O(log entries) elsewhere."""
        indexes = self.columns.indexes
        count = len(indexes)
        if not count:
            return -1
        guess = index - indexes[0]
        if 0 <= guess < count and indexes[guess] == index:
            return guess
        position = bisect_left(indexes, index)
        return position if position < count and indexes[position] == index else -1

    def positions_between(self, first: int, last: int) -> range:
        """Positions of the entries whose index lies in `first..last`."""
        indexes = self.columns.indexes
        start = bisect_left(indexes, first)
        return range(start, bisect_left(indexes, last + 1, start))

    def index_set(self) -> IndexSet:
        """The indexes that count, as a set."""
        if len(self) and self.is_dense:
            return IndexSet.range(self.first, self.last)
        return IndexSet.from_sorted(self.columns.indexes)


def picked(column: array[int], positions: Sequence[int]) -> Sequence[int]:
    """The values of `column` at `positions`, at C speed."""
    if isinstance(positions, range) and positions.step == 1:
        return column[positions.start:positions.stop]
    if len(positions) < 2:
        return [column[position] for position in positions]
    values: tuple[int, ...] = itemgetter(*positions)(column)
    return values


def is_uniform(column: array[int]) -> bool:
    """Whether all values are the same (lengths often are); a comparison of memory."""
    raw = column.tobytes()
    return raw[column.itemsize:] == raw[:-column.itemsize]
