# SPDX-License-Identifier: Apache-2.0
"""The index of a segment in memory: the records that count, ascending, column by column; and which of them are live."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import repeat
from operator import itemgetter, sub

import attrs

from compactlib.errors import InvalidInput
from compactlib.indexset import IndexSet, merge_positions
from compactlib.raftlog.errors import LiveIndexMissing
from compactlib.raftlog.snapshot_meta import SnapshotMeta
from compactlib.raftlog.values import SegmentRef


@attrs.define
class SegmentIndex:
    """The index records of a segment, column by column, in arrays of equal length. About 44 bytes an entry.

    Records ascend by index and by offset. The index only grows: a reader in another thread needs no lock.

    Attributes:
        data_bytes: payload bytes in the file, those behind a cut included; default from the first to the last record.
    """

    indexes: array[int]
    terms: array[int]
    offsets: array[int]
    lengths: array[int]
    heads: array[int]
    crcs: array[int]
    data_bytes: int = attrs.field(
        default=attrs.Factory(lambda self: self._end - self.offsets[0] if self.offsets else 0, takes_self=True),
        kw_only=True)

    @property
    def _end(self) -> int:
        return self.offsets[-1] + self.lengths[-1]

    @property
    def columns(self) -> tuple[array[int], ...]:
        """The six columns."""
        return self.indexes, self.terms, self.offsets, self.lengths, self.heads, self.crcs

    def head(self, count: int) -> SegmentIndex:
        """A copy of the first `count` records."""
        return SegmentIndex(*(column[:count] for column in self.columns))

    def append(self, index: int, term: int, offset: int, length: int, head: int, crc: int) -> None:
        """Take one more record, above all those before. O(1)."""
        self.terms.append(term)
        self.offsets.append(offset)
        self.lengths.append(length)
        self.heads.append(head)
        self.crcs.append(crc)
        # Last: a reader that finds an index finds the rest.
        self.indexes.append(index)
        self.data_bytes += length

    def extend(self, records: SegmentIndex) -> None:
        """Take ascending records, at least one, as `append` does each. Copies memory."""
        # The indexes last, as in `append`.
        for column, more in zip(reversed(self.columns), reversed(records.columns), strict=True):
            column.extend(more)
        self.data_bytes += records.data_bytes

    def __len__(self) -> int:
        return len(self.indexes)

    @property
    def first(self) -> int:
        """Lowest index; the segment must not be empty."""
        return self.indexes[0]

    @property
    def last(self) -> int:
        """Highest index; the segment must not be empty."""
        return self.indexes[-1]

    @property
    def is_dense(self) -> bool:
        """Whether it holds every index from the first to the last; the segment must not be empty."""
        return self.last - self.first + 1 == len(self)

    def find(self, index: int) -> int:
        """Position of `index`, or -1. O(1) where the segment is dense, O(log entries) elsewhere."""
        indexes = self.indexes
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
        indexes = self.indexes
        start = bisect_left(indexes, first)
        return range(start, bisect_left(indexes, last + 1, start))

    def index_set(self) -> IndexSet:
        """The indexes that count, as a set."""
        if len(self) and self.is_dense:
            return IndexSet.range(self.first, self.last)
        return IndexSet.from_sorted(self.indexes)


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
    if len(index) and index.is_dense and index.first <= here.first and here.last <= index.last:
        return list(map(sub, here.members(), repeat(index.first)))
    try:
        return merge_positions(index.indexes, here.members())
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
