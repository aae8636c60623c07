# SPDX-License-Identifier: Apache-2.0
"""The contract of a placement: which open segment of a log takes a record.

A `Placement` is a frozen value: the settings of a scheme. `placer()` makes the scheme's state for one log, a `Placer`.
The log calls it once for each record that it stores: `write` for a record of the user, `copy` for a survivor of a
compaction. Both return a class from 0 to `classes - 1`. Each class has one open segment, which stays open between
compactions. The log also calls its placer when a record dies, when a segment is full and when a compaction takes one.
Times are milliseconds; a scheme may also count in the user's writes, as most papers do (`Placer.writes`). Keys are
small numbers: a scheme keeps its state of keys in columns, `grown` with the keys.
"""

from __future__ import annotations

from array import array
from typing import Protocol

import attrs


@attrs.define
class Contents:
    """Sums over the records of a log.

    Attributes:
        records: the number of all records, dead records included.
        dead: the number of dead records in closed segments.
    """

    records: int = 0
    dead: int = 0


@attrs.frozen
class Victim:
    """A segment whose records a compaction is about to copy.

    Attributes:
        row: the segment's number, that of `Placer.left` and `Placer.closed`.
        placed: its class.
        begun: the number of the user's writes when it was opened.
        records: the number of its records.
        valid: the number of records to copy.
    """

    row: int
    placed: int
    begun: int
    records: int
    valid: int


class Placer:
    """The state of a placement for one log; a scheme overrides the methods that it needs.

    Attributes:
        writes: the number of the user's writes, the current write included.
        contents: sums over the log's records.
        segment_records: the number of records that a segment takes.
        brief: classes whose open segment is closed at the end of each compaction, full or not.
    """

    writes: int = 0
    contents: Contents
    segment_records: int = 0
    brief: tuple[int, ...] = ()

    def valid_records(self) -> int:
        """Return the number of valid records; dead records in open segments count as valid."""
        return self.contents.records - self.contents.dead

    def know_keys(self, keys: int) -> None:
        """Prepare for keys below `keys`; called before the first write."""

    def write(self, key: int, now_ms: int) -> int:
        """Return the class of a record of the user; `left` was called before for the record that it replaces."""
        raise NotImplementedError

    def copy(self, key: int, now_ms: int) -> int:
        """Return the class of a record that a compaction copies."""
        raise NotImplementedError

    def left(self, key: int, row: int, placed: int) -> None:
        """Handle the death of the record of `key` in segment `row` of class `placed`."""

    def closed(self, row: int, placed: int) -> None:
        """Handle that segment `row` of class `placed` is full."""

    def taken(self, victim: Victim) -> None:
        """Handle that a compaction is about to copy the valid records of a segment."""


class Placement(Protocol):
    """A scheme and its settings; a frozen attrs class."""

    @property
    def name(self) -> str:
        """A short name for reports."""

    @property
    def classes(self) -> int:
        """The number of open segments."""

    def placer(self) -> Placer:
        """Make the state for a new log."""


def grown(keys: int, column: array[int] | array[float], fill: float = 0) -> None:
    """Extend a column to `keys` values; new values are `fill`. O(new keys)."""
    column.frombytes(array(column.typecode, (fill,)).tobytes() * (keys - len(column)))
