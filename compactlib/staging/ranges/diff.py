# SPDX-License-Identifier: Apache-2.0
"""The difference between two metaranges, for which ranges that both have are not opened."""

from __future__ import annotations

from typing import Self

from compactlib.staging.ranges.cursor import RangeCursor
from compactlib.staging.ranges.files import RangeFiles
from compactlib.staging.ranges.metarange import MetaRange
from compactlib.staging.values import Difference


class RangeDiff:
    """Differences in ascending order of their keys, for one thread.

    Args:
        files: where ranges are read.
        left: before.
        right: after.
        start: the first key of interest.
        end: the first key that is of none; `None`: there is none. Ranges from there on are not opened.
    """

    def __init__(self, files: RangeFiles, left: MetaRange, right: MetaRange, start: bytes,
                 end: bytes | None = None) -> None:
        self._end = end
        self._left = RangeCursor(files, left, start)
        self._right = RangeCursor(files, right, start)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Difference:
        while True:
            self._skip_and_open()
            if not self._is_before_end(self._left) and not self._is_before_end(self._right):
                raise StopIteration
            left, right = self._left.current, self._right.current
            if left is None and right is None:
                continue
            found = self._step()
            if found is not None:
                return found

    def _step(self) -> Difference | None:
        """Compare what the lower of the two stands on; the other, if unopened, begins above it."""
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
        """Pass ranges that both have, then open those in which the next difference may be."""
        left, right = self._left, self._right
        while (left.current is None and right.current is None and left.entry is not None and right.entry is not None
               and left.entry.range_id == right.entry.range_id):
            left.skip()
            right.skip()
        if left.current is None and self._is_before_end(left) and _reaches(left, right):
            left.open()
        if right.current is None and self._is_before_end(right) and _reaches(right, left):
            right.open()

    def _is_before_end(self, one: RangeCursor) -> bool:
        """Whether it may come to a key of interest."""
        return one.entry is not None and (self._end is None or one.lowest < self._end)


def _reaches(one: RangeCursor, other: RangeCursor) -> bool:
    """Whether this unopened range may hold the next key: unless the other side has lower ones before it."""
    if other.entry is None:
        return True
    last = other.entry.max_key if other.current is None else other.current[0]
    return one.lowest <= last
