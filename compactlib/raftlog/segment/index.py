# SPDX-License-Identifier: Apache-2.0
"""The index of a segment in memory: the records that count, ascending, column by column; and which of them are live."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from operator import itemgetter

import attrs

from compactlib.errors import InvalidInput
from compactlib.indexset import IndexSet, merge_positions
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.segment.format import Columns
from compactlib.raftlog.snapshot_meta import SnapshotMeta
from compactlib.raftlog.values import SegmentRef


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
        return cls(records, sum(records.lengths))

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


# -- which entries are live


def live_positions(index: SegmentIndex, live: IndexSet, ref: SegmentRef) -> Sequence[int]:
    """Positions in `index` of the live entries within the segment's range, ascending.

    Raises:
        LiveIndexMissing: a live index within the range is not in the segment.
    """
    here = live.between(ref.first, ref.last)
    if not here:
        return range(0)
    if here.run_count == 1:
        between = index.positions_between(here.first, here.last)
        if len(between) == len(here):
            return between
    try:
        return merge_positions(index.columns.indexes, here.members())
    except InvalidInput:
        held = index.index_set()
        missing = here - held
        raise LiveIndexMissing(
            f"segment {ref.number} holds {len(held.between(ref.first, ref.last))} entries from {ref.first} to "
            f"{ref.last}, but not {len(missing)} that are live, the first of them {missing.first}; restore the segment "
            f"from a copy", missing=len(missing), first=missing.first) from None


def kept_positions(index: SegmentIndex, ref: SegmentRef, state: SnapshotMeta | None) -> Sequence[int]:
    """Positions of the entries that a read may return: live ones, and everything above the snapshot.

    Raises:
        LiveIndexMissing: a live index within the range is not in the segment.
    """
    if state is None or ref.first > state.index:
        return index.positions_between(ref.first, ref.last)
    live = live_positions(index, state.live, SegmentRef(ref.number, ref.first, min(ref.last, state.index)))
    above = index.positions_between(state.index + 1, ref.last)
    return [*live, *above] if len(above) else live
