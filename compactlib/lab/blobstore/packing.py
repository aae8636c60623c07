# SPDX-License-Identifier: Apache-2.0
"""Into which of a cycle's new segments each record goes: in the order of copying, or class by class.

In the order of copying, a segment is filled until a record does not fit; what one source keeps then ends in a segment
that is not behind the source's own place. Class by class, as many segments have to do: so a cycle takes no more than
fits in any order, and where that would take more segments than sources are done, the order of copying stays.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class Packing:
    """The records of one cycle, told one by one.

    Args:
        room: bytes that a new segment takes.
        segments: how many may be filled.
        is_placed: whether they will be filled class by class.

    Attributes:
        filled: how many segments are begun.
        sources: how many sources were told of whole; raised by the caller.
    """

    def __init__(self, room: int, segments: int, *, is_placed: bool) -> None:
        self.filled: int = 0
        self.sources: int = 0
        self._room = room
        self._segments = segments
        self._is_placed = is_placed and segments > 1
        self._used = self._total = self._largest = 0
        self._smallest = room
        self._sizes = array("Q")
        self._order = array("I")

    def admit(self, size: int) -> bool:
        """Whether one record more fits; then it is taken."""
        begins = not self.filled or self._used + size > self._room
        if begins and self.filled == self._segments:
            return False
        if self._is_placed and not self._fits_in_any_order(size):
            if self.filled <= self.sources:
                return False
            self._is_placed = False
        if begins:
            self.filled += 1
            self._used = 0
        self._used += size
        self._total += size
        if self._is_placed:
            self._smallest, self._largest = min(self._smallest, size), max(self._largest, size)
            self._sizes.append(size)
        self._order.append(self.filled - 1)
        return True

    def _fits_in_any_order(self, size: int) -> bool:
        largest = max(self._largest, size)
        if largest == min(self._smallest, size):
            return True
        # Of each segment but the last, less than the largest record is left free.
        return self._total + size <= self._segments * self._room - (self._segments - 1) * (largest - 1)

    def placed(self, classes: Sequence[int]) -> Sequence[int]:
        """The number of the segment that each record goes to, given the class of each; `filled` follows. O(n log n)."""
        if not self._is_placed or self.filled < 2:
            return self._order
        found, number, used = array("I", bytes(4 * len(classes))), 0, 0
        for record in sorted(range(len(classes)), key=classes.__getitem__):
            used += self._sizes[record]
            if used > self._room:
                number, used = number + 1, self._sizes[record]
            found[record] = number
        if number >= min(self._segments, self.sources):
            return self._order
        self.filled = number + 1
        return found
