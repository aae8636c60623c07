# SPDX-License-Identifier: Apache-2.0
"""Which records of a key the log holds, those that are dead included: what a store's index knows of an id."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

_NONE = -1


class Histories:
    """The records of each key as a chain, the newest first. 8 bytes a record, and 4 a key. One thread at a time."""

    def __init__(self) -> None:
        self._newest = array("i")
        self._earlier = array("i")
        self._later = array("i")

    def put(self, record: int, key: int) -> None:
        """A record is the newest of its key now. Amortised O(1)."""
        for column, number in ((self._newest, key), (self._earlier, record), (self._later, record)):
            if number >= len(column):
                column.extend(array("i", (_NONE,)) * (number + 1 - len(column) + (len(column) >> 3)))
        before = self._earlier[record] = self._newest[key]
        self._later[record], self._newest[key] = _NONE, record
        if before != _NONE:
            self._later[before] = record

    def remove(self, records: Iterable[int], owner: array[int]) -> None:
        """The log does not hold some records any more; `owner` is the key of each record, or below 0. O(records)."""
        for record in records:
            if owner[record] < 0:
                continue
            before, after = self._earlier[record], self._later[record]
            if before != _NONE:
                self._later[before] = after
            if after != _NONE:
                self._earlier[after] = before
            else:
                self._newest[owner[record]] = before

    def before(self, record: int) -> Iterator[int]:
        """The records of its key that were put before it."""
        earlier = self._earlier[record]
        while earlier != _NONE:
            yield earlier
            earlier = self._earlier[earlier]
