# SPDX-License-Identifier: Apache-2.0
"""Reads of metaranges: a scan, a lookup of keys, and a diff of two, which skips common ranges unread."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Self

from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.rows import Rows
from compactlib.staging.values import Difference, RangeEntry, RangeId, Record


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


class RangeScan:
    """Iterates over the records of a metarange in order of their keys; counts them, and can seek. For one thread."""

    def __init__(self, files: RangeFiles, metarange: MetaRange, start: bytes) -> None:
        self.scanned: int = 0
        self._metarange = metarange
        self._lookup = RangeLookup(files, metarange)
        self._pairs: Iterator[tuple[bytes, Record]] = iter(())
        self.seek(start)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[bytes, Record]:
        while (found := next(self._pairs, None)) is None:
            if self._place == len(self._metarange.entries):
                raise StopIteration
            entry = self._metarange.entries[self._place]
            self._pairs = _pairs_from(self._lookup.rows_of(entry), entry, self._lowest)
            self._place += 1
        self.scanned += 1
        return found

    def seek(self, key: bytes) -> None:
        """Continue with the first key >= `key`, forwards or backwards, also after the end. Opens no range."""
        self._lowest: bytes = key
        self._place: int = self._metarange.find(key)
        self._pairs = iter(())


def diff(files: RangeFiles, left: MetaRange, right: MetaRange, start: bytes = b"", end: bytes | None = None,
         ) -> Iterator[Difference]:
    """Yield the differences of two metaranges for the keys >= `start` and < `end`, in order.

    A range of both sides, or above `end`, is not opened.
    """
    common = left.ids & right.ids
    lefts, rights = (_own_pairs(files, side, common, start, end) for side in (left, right))
    before, after = next(lefts, None), next(rights, None)
    while before is not None or after is not None:
        if after is None or (before is not None and before[0] < after[0]):
            assert before is not None
            yield Difference("removed", *before, None)
            before = next(lefts, None)
        elif before is None or after[0] < before[0]:
            yield Difference("added", after[0], None, after[1])
            after = next(rights, None)
        else:
            found = Difference.between(before[0], before[1], after[1])
            if found is not None:
                yield found
            before, after = next(lefts, None), next(rights, None)


def _own_pairs(files: RangeFiles, metarange: MetaRange, common: Set[RangeId], start: bytes, end: bytes | None,
               ) -> Iterator[tuple[bytes, Record]]:
    for entry in metarange.entries[metarange.find(start):]:
        if end is not None and entry.min_key >= end:
            return
        if entry.range_id not in common:
            for key, record in _pairs_from(files.read_range(entry), entry, start):
                if end is not None and key >= end:
                    return
                yield key, record


def _pairs_from(rows: Rows, entry: RangeEntry, start: bytes) -> Iterator[tuple[bytes, Record]]:
    return rows.pairs(rows.find(start) if start > entry.min_key else 0)
