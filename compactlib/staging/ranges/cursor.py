# SPDX-License-Identifier: Apache-2.0
"""Reads of metaranges: a scan, a lookup of keys, and a diff of two, which skips common ranges unread."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.rows import Rows
from compactlib.staging.values import Difference, RangeEntry, Record


class RangeLookup:
    """Reads keys, and keeps the last range, so that ascending keys open each range once. For one thread."""

    def __init__(self, files: RangeFiles, metarange: MetaRange) -> None:
        self._files = files
        self._metarange = metarange
        self._opened: tuple[RangeEntry, Rows] | None = None

    def get(self, key: bytes) -> Record | None:
        """Return the record of a key, or `None`. Opens no range for a key between two ranges."""
        entries = self._metarange.entries
        place = self._metarange.find(key)
        if place == len(entries) or key < entries[place].min_key:
            return None
        rows = self.rows_of(entries[place])
        index = rows.find(key)
        return rows.record(index) if rows.key(index) == key else None

    def rows_of(self, entry: RangeEntry) -> Rows:
        """Return the records of a range. Reads it, unless it was the last."""
        if self._opened is None or self._opened[0] is not entry:
            self._opened = entry, self._files.read_range(entry)
        return self._opened[1]


class RangeCursor:
    """A position before an unopened range, on a record of an opened range, or at the end. For one thread.

    Args:
        files: reads ranges.
        metarange: to iterate over.
        start: the lower bound of the keys.
    """

    def __init__(self, files: RangeFiles, metarange: MetaRange, start: bytes) -> None:
        self._metarange = metarange
        self._lookup = RangeLookup(files, metarange)
        self._pairs: Iterator[tuple[bytes, Record]] | None = None
        self.current: tuple[bytes, Record] | None = None
        self.seek(start)

    def seek(self, key: bytes) -> None:
        """Move before the unopened range of the first key >= `key`."""
        self._lowest: bytes = key
        self._place: int = self._metarange.find(key)
        self._pairs = self.current = None

    @property
    def entry(self) -> RangeEntry | None:
        """The range at the position; `None` at the end."""
        entries = self._metarange.entries
        return entries[self._place] if self._place < len(entries) else None

    @property
    def lowest(self) -> bytes:
        """A lower bound of the remaining keys; invalid at the end."""
        if self.current is not None:
            return self.current[0]
        return max(self._metarange.entries[self._place].min_key, self._lowest)

    def open(self) -> None:
        """Open the range at the position, and move to its first record within the bound."""
        entry = self._metarange.entries[self._place]
        rows = self._lookup.rows_of(entry)
        self._pairs = rows.pairs(rows.find(self._lowest) if self._lowest > entry.min_key else 0)
        self.advance()

    def advance(self) -> None:
        """Move to the next record, or before the next range."""
        assert self._pairs is not None
        self.current = next(self._pairs, None)
        if self.current is None:
            self.skip()

    def skip(self) -> None:
        """Move past the range at the position."""
        self._pairs = None
        self._place += 1


class RangeScan:
    """Iterates over the records of a metarange in order of their keys; can seek. For one thread.

    Attributes:
        scanned: number of records read.
    """

    def __init__(self, files: RangeFiles, metarange: MetaRange, start: bytes) -> None:
        self.scanned: int = 0
        self._cursor = RangeCursor(files, metarange, start)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, Record]:
        cursor = self._cursor
        while cursor.current is None:
            if cursor.entry is None:
                raise StopIteration
            cursor.open()
        found = cursor.current
        cursor.advance()
        self.scanned += 1
        return found

    def seek(self, key: bytes) -> None:
        """Continue with the first key >= `key`, forwards or backwards, also after the end. Opens no range."""
        self._cursor.seek(key)


class RangeDiff:
    """Iterates over the differences of two metaranges in order of their keys. For one thread.

    Args:
        files: reads ranges.
        left: before.
        right: after.
        start: keys >= `start` only.
        end: keys < `end` only; `None`: all. Opens no range above it.
    """

    def __init__(self, files: RangeFiles, left: MetaRange, right: MetaRange, start: bytes,
                 end: bytes | None = None) -> None:
        self._end = end
        self._left = RangeCursor(files, left, start)
        self._right = RangeCursor(files, right, start)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Difference:
        left, right = self._left, self._right
        while True:
            self._skip_and_open()
            if not self._is_before_end(left) and not self._is_before_end(right):
                raise StopIteration
            found = self._step() if left.current is not None or right.current is not None else None
            if found is not None:
                return found

    def _step(self) -> Difference | None:
        """Compare the lower of the two records; the other side, if unopened, begins above it."""
        left, right = self._left.current, self._right.current
        if left is not None and (self._right.entry is None or left[0] < self._right.lowest):
            self._left.advance()
            return Difference.between(left[0], left[1], None)
        if right is not None and (self._left.entry is None or right[0] < self._left.lowest):
            self._right.advance()
            return Difference.between(right[0], None, right[1])
        assert left is not None
        assert right is not None
        self._left.advance()
        self._right.advance()
        return Difference.between(left[0], left[1], right[1])

    def _skip_and_open(self) -> None:
        """Skip the ranges that both sides have, then open those that may hold the next difference."""
        left, right = self._left, self._right
        while (left.current is None and right.current is None and left.entry is not None and right.entry is not None
               and left.entry.range_id == right.entry.range_id):
            left.skip()
            right.skip()
        for one, other in ((left, right), (right, left)):
            if one.current is None and self._is_before_end(one) and _reaches(one, other):
                one.open()

    def _is_before_end(self, one: RangeCursor) -> bool:
        """Return whether the cursor may have a key below the end."""
        return one.entry is not None and (self._end is None or one.lowest < self._end)


def _reaches(one: RangeCursor, other: RangeCursor) -> bool:
    """Return whether this unopened range may hold the next key: the other side has no lower key."""
    if other.entry is None:
        return True
    last = other.entry.max_key if other.current is None else other.current[0]
    return one.lowest <= last
