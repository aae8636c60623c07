# SPDX-License-Identifier: Apache-2.0
"""Schemes that place records in segments: placements of a whole log, and of the survivors of a compaction.

A `Placement` chooses an open segment for each record, written or copied; only the lab has it. It is a frozen value: the
settings of a scheme. `placer()` makes the scheme's state for one log, a `Placer`. The log calls it once for each record
that it stores: `write` for a record of the user, `copy` for a survivor of a compaction. Both return a class from 0 to
`classes - 1`. Each class has one open segment, which stays open between compactions. The log also calls its placer when
a record dies, when a segment is full and when a compaction takes one. Times are milliseconds; a scheme may also count
in the user's writes, as most papers do (`Placer.writes`). Keys are small numbers: a scheme keeps its state of keys in
columns, `grown` with the keys.

A `SurvivorPlacement` is a function that a real store takes as `BlobStore(place=...)`: users' records go to the one
active segment, and a compaction that fills several segments fills them class by class, the lowest first. Neighbouring
classes may share a segment, so that no segment is left half empty.
"""

from __future__ import annotations

import math
from array import array
from typing import ClassVar, Protocol

import attrs

from compactlib._arguments import is_above
from compactlib.blobstore.policy import Survivor, whole
from compactlib.errors import InvalidInput

NEVER = (1 << 62) - 1
"""The end of a record without a time to live."""


@attrs.define
class Contents:
    """Sums over the records of a log.

    Attributes:
        bytes: bytes of all records, dead records included.
        dead_bytes: bytes of dead records in closed segments.
        records: the number of all records; only in a log with a placement.
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
    """The state of a placement for one log; a scheme overrides the methods that it needs. One thread at a time.

    Attributes:
        writes: the number of the user's writes, the current write included.
        contents: sums over the log's records.
        segment_records: the number of records of the current record's size that a segment takes.
        until_ms: the end of the current record's time to live; `NEVER` without a time to live.
        brief: classes whose open segment is closed at the end of each compaction, full or not.
    """

    writes: int = 0
    contents: Contents
    segment_records: int = 0
    until_ms: int = NEVER
    brief: tuple[int, ...] = ()

    def valid_records(self) -> float:
        """Estimate the number of valid records; dead records in open segments count as valid."""
        contents = self.contents
        return (contents.bytes - contents.dead_bytes) * contents.records / (contents.bytes or 1)

    def know_keys(self, keys: int) -> None:
        """Prepare for keys below `keys`; called before their first write, with ascending numbers."""

    def write(self, key: int, now_ms: int) -> int:
        """Return the class of a record of the user; `left` was called before for the record that it replaces."""
        raise NotImplementedError

    def copy(self, key: int, now_ms: int) -> int:
        """Return the class of a record that a compaction copies."""
        raise NotImplementedError

    def left(self, key: int, row: int, placed: int) -> None:
        """Handle the death of the record of `key` in segment `row` of class `placed`: replaced, deleted or expired."""

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


@attrs.frozen
class Mixed:
    """Append survivors to the segment of the user's records."""

    name: ClassVar[str] = "mixed"
    classes: ClassVar[int] = 1

    def placer(self) -> Placer:
        return OneForEach(survivors=0)


class OneForEach(Placer):
    """The user's records go to class 0, survivors to a fixed class."""

    def __init__(self, survivors: int) -> None:
        self._survivors = survivors

    def write(self, key: int, now_ms: int) -> int:
        return 0

    def copy(self, key: int, now_ms: int) -> int:
        return self._survivors


@attrs.frozen
class UserAndSurvivors:
    """Put the user's records into one segment, and survivors into another.

    Attributes:
        keep_open: whether the survivors' segment stays open between compactions; otherwise each compaction closes it,
            part-filled, as in a log without a placement.
    """

    keep_open: bool = True

    name: ClassVar[str] = "user_and_survivors"
    classes: ClassVar[int] = 2

    def placer(self) -> Placer:
        placer = OneForEach(survivors=1)
        placer.brief = () if self.keep_open else (1,)
        return placer


@attrs.frozen(kw_only=True)
class FADaC:
    """Class a key by its count, which rises by one with each write and falls with each copy, against the average.

    The average is taken over a number of requests equal to the number of valid records. Class 0 is at or below the
    average; each further class spans a factor of `step`. K. Kremer, A. Brinkmann, "FADaC: a self-adapting data
    classifier for flash memory", SYSTOR 2019.

    Attributes:
        classes: at least 2.
        step: the factor from one class to the next, above 1.
        request_records: records that a request of the user writes, on average, above 0. The average approaches this
            number.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    classes: int = whole(6, least=2)
    step: float = attrs.field(default=10.0, validator=is_above(1))
    request_records: float = attrs.field(default=1.0, validator=is_above(0))

    name: ClassVar[str] = "fadac"

    def placer(self) -> Placer:
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
            # Each record of a request of r records makes 1 / r of the request's step.
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
    """Class a record by its time to live if that ends early, else by the mean life of its key's records.

    A block device receives writes alone; a blob store also receives times to live. The scheme keeps for each key the
    number of its writes and the time since which it counts; every 16 writes it halves both. The mean life follows from
    these, with a prior of half a write in a turn of the log (the time in which the user writes the valid bytes once).
    A record whose time to live is shorter than the part `sooner` of the mean life goes to a class of ends, the others
    to a class of lives. A class spans a factor of two; the first ends at an eighth of a turn. 16 bytes a key.

    Attributes:
        rates: classes of records that writes replace, at least 2.
        ends: classes of records that expire, at least 1.
        sooner: the part of the mean life below which a time to live decides, above 0.

    Raises:
        InvalidInput: a setting is out of its range.
    """

    rates: int = whole(6, least=2)
    ends: int = whole(4, least=1)
    sooner: float = attrs.field(default=0.7, validator=is_above(0))

    name: ClassVar[str] = "by_lifetime"

    @property
    def classes(self) -> int:
        """The number of open segments."""
        return self.rates + self.ends

    def placer(self) -> Placer:
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
    """Return 0 below an eighth of a turn, and one more for each factor of two."""
    parts = 8 * span_ms / turn_ms if turn_ms else 0.0
    return 0 if parts < 1 else min(int(math.log2(parts)) + 1, steps - 1)


# ---------------------------------------------------------------------------------------------------- survivors

CLASSES = 1 << 32
"""The number of classes of survivors, which are numbered from 0."""


class SurvivorPlacement(Protocol):
    """A scheme and its settings; a frozen attrs class.

    A scheme that reads `Survivor.earlier_ms` has a class attribute `needs_history = True`.
    """

    @property
    def name(self) -> str:
        """A short name for reports."""

    def __call__(self, record: Survivor) -> int:
        """Return the class of a record, at least 0 and below `CLASSES`. Pure."""


@attrs.frozen(kw_only=True)
class ByAge:
    """Records of similar age share a segment: older records live longer from now on, as SepBIT infers.

    Attributes:
        step: the factor from one class to the next, above 1.

    Raises:
        InvalidInput: the step is not above 1.
    """

    step: float = attrs.field(default=4.0, validator=is_above(1))

    name: ClassVar[str] = "by_age"

    def __call__(self, record: Survivor) -> int:
        return _class_of_span(record.now_ms - record.written_ms, self.step)


@attrs.frozen(kw_only=True)
class ByEnd:
    """Records with a known end share segments by their remaining life; the others, in other classes, by the mean life
    of their id's records.

    A segment of records that end at about one time dies whole, and is not copied again. The mean life of an id that is
    put repeatedly (`replace=True`) is the time since its first PUT in the log, divided by the number of its PUTs; for
    an id that was put once, it is the record's age.

    Attributes:
        step: the factor from one class to the next, above 1.

    Raises:
        InvalidInput: the step is not above 1.
    """

    step: float = attrs.field(default=2.0, validator=is_above(1))

    name: ClassVar[str] = "by_end"
    needs_history: ClassVar[bool] = True

    def __call__(self, record: Survivor) -> int:
        if record.is_known:
            return _class_of_span(record.until_ms - record.now_ms, self.step)
        first_ms = min(record.earlier_ms, default=record.written_ms)
        lasted_ms = (record.now_ms - first_ms) // (1 + len(record.earlier_ms))
        return _class_of_span(NEVER, self.step) + 1 + _class_of_span(lasted_ms, self.step)


def class_of(placement: SurvivorPlacement, record: Survivor) -> int:
    """Return the class that a scheme gives a record.

    Raises:
        InvalidInput: the scheme returned another value.
    """
    found: object = placement(record)
    if not isinstance(found, int) or not 0 <= found < CLASSES:
        raise InvalidInput(f"placement {placement!r:.100} gave class {found!r:.100} to {record}; give a whole "
                           f"number from 0 to {CLASSES - 1}")
    return found


def _class_of_span(span_ms: int, step: float) -> int:
    # With a step barely above 1 the last class takes the longest spans.
    return min(int(math.log(max(span_ms, 1), step)), CLASSES // 4)
