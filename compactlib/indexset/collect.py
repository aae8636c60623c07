"""Collecting ascending indexes into runs as they come."""

from __future__ import annotations

from array import array
from operator import index as as_int

from compactlib.indexset.runs import MAX_INDEX, Runs, split_pairs, unsorted


class RunCollector:
    """Takes indexes and runs above all those before, and keeps the runs they form: 16 bytes a run."""

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._lasts = array("Q")
        self._next = 0  # one above the last member: the lowest index that may come, and the one that continues a run

    def append(self, index: int) -> None:
        """Take one index, above all taken before. Cost: O(1).

        Raises:
            InvalidInput: no integer from 0 to 2**64 - 1; nothing was taken.
            Unsorted: not above the last one; nothing was taken.
        """
        self.append_run(index, index)

    def append_run(self, first: int, last: int) -> None:
        """Take all indexes from `first` to `last`, both inclusive and above all taken before. Cost: O(1).

        Raises:
            InvalidInput: no indexes, or `first` exceeds `last`; nothing was taken.
            Unsorted: `first` is not above the last one; nothing was taken.
        """
        try:
            first, last = as_int(first), as_int(last)
        except TypeError:
            split_pairs([(first, last)])
            raise
        if not self._next <= first <= last <= MAX_INDEX:
            split_pairs([(first, last)])
            raise unsorted(self._next - 1, first)
        if first == self._next and self._lasts:
            self._lasts[-1] = last
        else:
            self._firsts.append(first)
            self._lasts.append(last)
        self._next = last + 1

    def _runs(self) -> Runs:
        return self._firsts[:], self._lasts[:]
