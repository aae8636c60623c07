# SPDX-License-Identifier: Apache-2.0
"""The contract between a log and the placement that decides which open segment a record goes to.

A `Placement` is a frozen value: the settings of a scheme. `placer()` begins its memory for one log, a `Placer`, which
the log asks once for each record that it stores: `write` for a record of the user, `copy` for one that a compaction
keeps. The answer is a class from 0 to `classes - 1`; each class has one open segment, which stays open between
compactions. A log also tells its placer what happens to records and segments; a scheme keeps of that what it needs.

Times are milliseconds; a scheme may also count in writes of the user, as most papers do (`Placer.writes`). Keys are
small numbers: what a scheme keeps of each is a column, `grown` with the keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from numbers import Integral
from types import ModuleType
from typing import Protocol

import attrs

from compactlib.blobstore.model.values import is_a
from compactlib.errors import InvalidInput
from compactlib.lab.blobstore.records import NEVER


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


@attrs.define
class Contents:
    """What a log holds.

    Attributes:
        bytes: of all its records.
        dead_bytes: of that, what is dead in segments that are closed.
        record_bytes: size of a record; where sizes differ, about the mean.
    """

    bytes: float = 0
    dead_bytes: int = 0
    record_bytes: float = 1


class Placer:
    """What a placement knows of one log; a scheme overrides what it needs. One thread at a time.

    Attributes:
        writes: how many writes the user has made, the one that is being placed included.
        contents: what the log holds.
        sums_of: for each of some segments, by their rows: how many records are valid and not replaced, and over their
            keys the sum of each of some columns of 64 bits. O(their records).
        keeps_replaced: whether what is replaced or deleted stays valid for a while, so that `left` tells of it later.
        arrays: steps that NumPy takes (`compactlib.lab.blobstore.by_arrays`); `None` where it is not installed.
        segment_records: how many records of the kind at hand a segment takes.
        until_ms: until when the record at hand is kept if nobody replaces it; `NEVER` without a time to live.
        brief: classes whose open segment is closed at the end of each compaction, full or not.
    """

    writes: int = 0
    contents: Contents
    sums_of: Callable[[Sequence[int], Sequence[array[int]]], list[list[int]]]
    keeps_replaced: bool = False
    arrays: ModuleType | None = None
    segment_records: int = 0
    until_ms: int = NEVER
    brief: tuple[int, ...] = ()

    def valid_records(self) -> float:
        """How many records are valid, those counted that died in a segment that is still open."""
        contents = self.contents
        return (contents.bytes - contents.dead_bytes) / contents.record_bytes

    def know_keys(self, keys: int) -> None:
        """Keys below `keys` may come from now on; called before they do, with ever more."""

    def write(self, key: int, now_ms: int) -> int:
        """The class of a record that the user writes; `left` has told of an earlier one that is not kept."""
        raise NotImplementedError

    def ahead(self, keys: Sequence[int], times: Sequence[int]) -> bool:
        """The writes of the user that come next, of one size and without times to live; whether `classes_ahead` and
        `made` are to be called for them, and not `write`, or `left` for what they replace."""
        return False

    def classes_ahead(self) -> list[int]:
        """The classes of at least one of the writes that come next, the next one last; until the next compaction."""
        raise NotImplementedError

    def made(self, rows: Sequence[int]) -> None:
        """So many writes more are made; the segment of what each replaced, below 0 for none. Before each compaction."""

    def copy(self, key: int, now_ms: int) -> int:
        """The class of a record that a compaction copies."""
        raise NotImplementedError

    def copies(self, keys: Sequence[int], now_ms: int) -> Iterable[int]:
        """As `copy` for all that is copied from one segment, where records are of one size and have no times to live.

        Each is placed before the next is asked for; a scheme that answers at once may not use what that changes.
        """
        return map(self.copy, keys, repeat(now_ms))

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


def checked_placer(placement: Placement) -> Placer:
    """The memory of a new log; of a scheme that is not the library's, each answer is checked.

    Raises:
        InvalidInput: later, when it is asked: what it answers is no class.
    """
    placer = placement.placer()
    if type(placer).__module__.startswith("compactlib."):
        # Their tests show that they give classes, and each answer would cost a call more.
        return placer

    def checked(ask: Callable[..., int]) -> Callable[..., int]:
        return lambda *given: _class_in(placement, ask(*given))

    def each_checked(ask: Callable[..., Iterable[int]]) -> Callable[..., list[int]]:
        return lambda *given: [_class_in(placement, each) for each in ask(*given)]

    for name in ("write", "copy"):
        setattr(placer, name, checked(getattr(placer, name)))
    for name in ("copies", "classes_ahead"):
        setattr(placer, name, each_checked(getattr(placer, name)))
    return placer


def _class_in(placement: Placement, found: int) -> int:
    if not is_a(found, Integral) or not 0 <= found < placement.classes:
        raise InvalidInput(f"placement {placement!r:.100} gave class {found!r:.100}; a class is a whole number from 0 "
                           f"to {placement.classes - 1}")
    return found


def grown(keys: int, column: array[int] | array[float], fill: float = 0) -> None:
    """Have a column hold a value for each key below `keys`; new ones are `fill`. O(new keys)."""
    column.frombytes(array(column.typecode, (fill,)).tobytes() * (keys - len(column)))


def class_count(default: int, *, least: int) -> int:
    """The setting `classes` of a scheme, for `attrs`; `InvalidInput` if it is no whole number from `least` to 64."""
    def check(_: object, field: attrs.Attribute[int], value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 64:
            raise InvalidInput(f"{field.name} is {value!r}; give a whole number from {least} to 64")

    return attrs.field(default=default, validator=check)
