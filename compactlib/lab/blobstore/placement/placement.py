# SPDX-License-Identifier: Apache-2.0
"""The contract between a log and the placement that decides which open segment a record goes to.

A `Placement` is a frozen value: the settings of a scheme. `placer()` begins its memory for one log, a `Placer`, which
the log asks once for each record that it stores: `write` for a record of the user, `copy` for one that a compaction
keeps. The answer is a class from 0 to `classes - 1`; each class has one open segment, which stays open between
compactions. A log also notifies its placer of what happens to records and segments; a scheme keeps what it needs.

Times are milliseconds; a scheme may also count in writes of the user, as most papers do (`Placer.writes`). Keys are
small numbers: what a scheme keeps of each is a column, `grown` with the keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

import attrs

from compactlib.errors import InvalidInput

NEVER = (1 << 62) - 1
"""The end of a record that has none."""


@attrs.define
class Contents:
    """What a log holds.

    Attributes:
        bytes: of all its records, dead ones included.
        dead_bytes: of that, what is dead in segments that are closed.
        records: how many records that is, in a log with a placement.
    """

    bytes: int = 0
    dead_bytes: int = 0
    records: int = 0


@attrs.frozen
class Victim:
    """A segment whose records a compaction is about to copy.

    Attributes:
        row: the segment's number, that of `Placer.left` and `Placer.closed`.
        placed: its class.
        begun: how many writes the user had made when it was opened.
        records: how many it was given.
        valid: how many of them are copied.
    """

    row: int
    placed: int
    begun: int
    records: int
    valid: int


class Placer:
    """What a placement knows of one log; a scheme overrides what it needs. One thread at a time.

    Attributes:
        writes: how many writes the user has made, the one that is being placed included.
        contents: what the log holds.
        sums_of: for each of some segments, by their rows: how many records are valid and not replaced, and over their
            keys the sum of each of some columns of 64 bits. O(their records).
        keeps_replaced: whether what is replaced or deleted stays valid for a while, so that `left` tells of it later.
        segment_records: how many records of the kind at hand a segment takes.
        until_ms: until when the record at hand is kept if nobody replaces it; `NEVER` without a time to live.
        brief: classes whose open segment is closed at the end of each compaction, full or not.
    """

    writes: int = 0
    contents: Contents
    sums_of: Callable[[Sequence[int], Sequence[array[int]]], list[list[int]]]
    keeps_replaced: bool = False
    segment_records: int = 0
    until_ms: int = NEVER
    brief: tuple[int, ...] = ()

    def valid_records(self) -> float:
        """How many records are valid, those counted that died in a segment that is still open."""
        contents = self.contents
        return (contents.bytes - contents.dead_bytes) * contents.records / (contents.bytes or 1)

    def know_keys(self, keys: int) -> None:
        """Keys below `keys` may come from now on; called before they do, with ever more."""

    def write(self, key: int, now_ms: int) -> int:
        """The class of a record that the user writes; `left` has told of an earlier one that is not kept."""
        raise NotImplementedError

    def copy(self, key: int, now_ms: int) -> int:
        """The class of a record that a compaction copies."""
        raise NotImplementedError

    def left(self, key: int, row: int, placed: int) -> None:
        """The record of `key` in segment `row`, of class `placed`, was replaced or deleted, or has expired."""

    def closed(self, row: int, placed: int) -> None:
        """Segment `row` of class `placed` is full."""

    def taken(self, victim: Victim) -> None:
        """A compaction is about to copy what is valid of a segment."""


class Placement(Protocol):
    """A scheme and its settings; a frozen attrs class. Those that come with the library have a file each here."""

    @property
    def name(self) -> str:
        """A short name for reports."""

    @property
    def classes(self) -> int:
        """How many segments are open at once."""

    def placer(self) -> Placer:
        """The memory of a new log."""


def grown(keys: int, column: array[int] | array[float], fill: float = 0) -> None:
    """Have a column hold a value for each key below `keys`; new ones are `fill`. O(new keys)."""
    column.frombytes(array(column.typecode, (fill,)).tobytes() * (keys - len(column)))


def class_count(default: int, *, least: int) -> int:
    """The setting `classes` of a scheme, for `attrs`; `InvalidInput` if it is no whole number from `least` to 64."""
    def check(_: object, field: attrs.Attribute[int], value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 64:
            raise InvalidInput(f"{field.name} is {value!r}; give a whole number from {least} to 64")

    return attrs.field(default=default, validator=check)
