# SPDX-License-Identifier: Apache-2.0
"""Positions in a metarange: a cursor over its records that knows when it stands before a whole range."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.ranges.rows import Rows
from compactlib.staging.values import RangeEntry, Record


class RangeCursor:
    """Stands before a range that is not opened, or on a record of one that is, or at the end. For one thread.

    Args:
        files: where ranges are read.
        metarange: what to walk over.
        start: the first key of interest.
    """

    def __init__(self, files: RangeFiles, metarange: MetaRange, start: bytes) -> None:
        self._files = files
        self._metarange = metarange
        self._opened: tuple[RangeEntry, Rows] | None = None
        self._pairs: Iterator[tuple[bytes, Record]] | None = None
        self.current: tuple[bytes, Record] | None = None
        self.seek(start)

    def seek(self, key: bytes) -> None:
        """Stand before the range in which the first key >= `key` is, unopened."""
        self._lowest: bytes = key
        self._place: int = self._metarange.find(key)
        self._pairs = self.current = None

    @property
    def entry(self) -> RangeEntry | None:
        """The range it stands before or in; `None` at the end."""
        entries = self._metarange.entries
        return entries[self._place] if self._place < len(entries) else None

    @property
    def lowest(self) -> bytes:
        """No key from here on lies below it; not to be asked at the end."""
        if self.current is not None:
            return self.current[0]
        return max(self._metarange.entries[self._place].min_key, self._lowest)

    def open(self) -> None:
        """Read the range it stands before, and stand on its first record of interest."""
        entry = self._metarange.entries[self._place]
        if self._opened is None or self._opened[0] is not entry:
            self._opened = entry, self._files.read_range(entry)
        rows = self._opened[1]
        self._pairs = rows.pairs(rows.find(self._lowest) if self._lowest > entry.min_key else 0)
        self.advance()

    def advance(self) -> None:
        """Leave the record it stands on for the next one, or for the place before the next range."""
        assert self._pairs is not None
        self.current = next(self._pairs, None)
        if self.current is None:
            self.skip()

    def skip(self) -> None:
        """Leave the range it stands before."""
        self._pairs = None
        self._place += 1


class RangeScan:
    """Records of a metarange in ascending order of their keys, from a position that can be moved. For one thread.

    Attributes:
        scanned: how many records were read so far.
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
        """Go on with the first key >= `key`, forwards or backwards, also after the end. Opens a range only at need."""
        self._cursor.seek(key)


class RangeLookup:
    """Looks up keys, and remembers the last range, so that ascending keys open each range once. For one thread."""

    def __init__(self, files: RangeFiles, metarange: MetaRange) -> None:
        self._files = files
        self._metarange = metarange
        self._opened: tuple[RangeEntry, Rows] | None = None

    def get(self, key: bytes) -> Record | None:
        """The record of a key; `None` if there is none. No range is opened for a key between two of them."""
        entries = self._metarange.entries
        place = self._metarange.find(key)
        if place == len(entries) or key < entries[place].min_key:
            return None
        entry = entries[place]
        if self._opened is None or self._opened[0] is not entry:
            self._opened = entry, self._files.read_range(entry)
        rows = self._opened[1]
        index = rows.find(key)
        return rows.record(index) if rows.key(index) == key else None
