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

import math
from array import array
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

import attrs

from compactlib._arguments import is_above
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


@attrs.frozen
class Mixed:
    """Survivors go behind the user's records, into the same segment."""

    name: ClassVar[str] = "mixed"
    classes: ClassVar[int] = 1

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        return OneForEach(survivors=0)


class OneForEach(Placer):
    """The user's records go to class 0, survivors to a class that is fixed."""

    def __init__(self, survivors: int) -> None:
        self._survivors = survivors

    def write(self, key: int, now_ms: int) -> int:
        return 0

    def copy(self, key: int, now_ms: int) -> int:
        return self._survivors


@attrs.frozen
class UserAndSurvivors:
    """The user's records go to one segment, survivors to another.

    Attributes:
        keep_open: whether the survivors' segment stays open between compactions; otherwise each compaction closes it
            at its end, part-filled, as in a log without a placement.

    Raises:
        InvalidInput: that is neither `True` nor `False`.
    """

    keep_open: bool = True

    name: ClassVar[str] = "user_and_survivors"
    classes: ClassVar[int] = 2

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        placer = OneForEach(survivors=1)
        placer.brief = () if self.keep_open else (1,)
        return placer


@attrs.frozen(kw_only=True)
class FADaC:
    """A key's count rises by one with each write and falls with each copy; its class is its distance from the average.

    The average fades over as many requests as there are valid records. A class spans a factor of `step`: 0 is at or
    below the average. K. Kremer, A. Brinkmann, "FADaC: a self-adapting data classifier for flash memory", SYSTOR 2019.

    Attributes:
        classes: at least 2.
        step: the factor from one class to the next, above 1.
        request_records: how many records a request of the user writes, on average; above 0. The average counts what a
            request brings, so that it nears this number.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    classes: int = class_count(6, least=2)
    step: float = attrs.field(default=10.0, validator=is_above(1))
    request_records: float = attrs.field(default=1.0, validator=is_above(0))

    name: ClassVar[str] = "fadac"

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        return _Fading(self)


class _Fading(Placer):
    def __init__(self, settings: FADaC) -> None:
        self._step, self._hottest = settings.step, settings.classes - 1
        self._request = settings.request_records
        self._average = 0.0
        self._count = array("q")

    def know_keys(self, keys: int) -> None:
        grown(keys, self._count)

    def write(self, key: int, now_ms: int) -> int:
        count = self._count[key] = self._count[key] + 1
        if valid := self.valid_records():
            # Of a request of r records each brings 1 / r of the request's step.
            request = self._request
            self._average += (request - self._average) / valid / request
        return self._class_of(count)

    def copy(self, key: int, now_ms: int) -> int:
        count = self._count[key]
        if count:
            count -= 1
            self._count[key] = count
        return self._class_of(count)

    def _class_of(self, count: int) -> int:
        bound, found = self._average, 0
        while bound and found < self._hottest and count > bound:
            found, bound = found + 1, bound * self._step
        return found


_REMEMBERED = 16
_PRIOR = 0.5


@attrs.frozen(kw_only=True)
class ByLifetime:
    """A record goes by its time to live where that ends first, else by how long its key's records live on average.

    A block device sees writes alone; a blob store is told when a record ends. Of a key the writes are counted, and
    since when; of both half is forgotten every 16 writes. From these, and from half a write in a turn of the log (the
    time in which as much is written as is valid), follows how long its records live. A record whose time to live ends
    before the part `sooner` of that goes to a class of ends, the others to a class of lives. A class spans a factor of
    two; the first ends at an eighth of a turn. It keeps two numbers a key, 16 bytes.

    Attributes:
        rates: classes of records that writes replace, at least 2.
        ends: classes of records that expire, at least 1.
        sooner: which part of a key's mean life a time to live has to be shorter than, above 0.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    rates: int = class_count(6, least=2)
    ends: int = class_count(4, least=1)
    sooner: float = attrs.field(default=0.7, validator=is_above(0))

    name: ClassVar[str] = "by_lifetime"

    @property
    def classes(self) -> int:
        """How many segments are open at once."""
        return self.rates + self.ends

    def placer(self) -> Placer:
        """See `Placement.placer`."""
        return _Lifetimes(self)


class _Lifetimes(Placer):
    def __init__(self, settings: ByLifetime) -> None:
        self._settings = settings
        self._writes = array("d")
        self._since = array("d")
        self._written_ms = 0
        self._gap_ms = 0.0

    def know_keys(self, keys: int) -> None:
        grown(keys, self._writes)
        grown(keys, self._since)

    def write(self, key: int, now_ms: int) -> int:
        if self.writes > 1:
            gap_ms = now_ms - self._written_ms
            self._gap_ms += (gap_ms - self._gap_ms) / min(max(self.valid_records(), 1), self.writes - 1)
        self._written_ms = now_ms
        writes = self._writes[key] + 1
        if writes == 1:
            self._since[key] = now_ms
        elif writes > _REMEMBERED:
            writes /= 2
            self._since[key] = (self._since[key] + now_ms) / 2
        self._writes[key] = writes
        return self.copy(key, now_ms)

    def copy(self, key: int, now_ms: int) -> int:
        turn_ms = self.valid_records() * self._gap_ms
        life_ms = (now_ms - self._since[key] + _PRIOR * turn_ms) / (self._writes[key] - 1 + _PRIOR)
        left_ms, settings = self.until_ms - now_ms, self._settings
        if left_ms < settings.sooner * life_ms:
            return settings.rates + _step(left_ms, turn_ms, settings.ends)
        return _step(life_ms, turn_ms, settings.rates)


def _step(span_ms: float, turn_ms: float, steps: int) -> int:
    """0 below an eighth of a turn, then one more for each factor of two."""
    parts = 8 * span_ms / turn_ms if turn_ms else 0.0
    return 0 if parts < 1 else min(int(math.log2(parts)) + 1, steps - 1)
