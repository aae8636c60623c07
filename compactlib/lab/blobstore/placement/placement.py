# SPDX-License-Identifier: Apache-2.0
"""The contract between a log and the placement that decides which open segment a record goes to.

A `Placement` is a frozen value: the settings of a scheme. `placer()` begins its memory for one log, a `Placer`, which
the log asks once for each record that it stores: `write` for a record of the user, `copy` for one that a compaction
keeps. The answer is a class from 0 to `classes - 1`; each class has one open segment, which stays open between
compactions. A log also tells its placer what happens to records and segments; a scheme keeps of that what it needs.
Asked for each record, a placer takes most of a replay's time: one may answer for many at once, `ahead` and `copies`.

Times are milliseconds; a scheme may also count in writes of the user, as most papers do (`Placer.writes`). Keys are
small numbers: what a scheme keeps of each is a column, `grown` with the keys.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol

import attrs

from compactlib.errors import InvalidInput
from compactlib.lab.blobstore.contents import Contents
from compactlib.lab.blobstore.records import NEVER

if TYPE_CHECKING:
    from compactlib.lab.blobstore.ahead import Classes, Writes


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
        return (contents.bytes - contents.dead_bytes) / contents.record_bytes

    def know_keys(self, keys: int) -> None:
        """Keys below `keys` may come from now on; called before they do, with ever more."""

    def write(self, key: int, now_ms: int) -> int:
        """The class of a record that the user writes; `left` has told of an earlier one that is not kept."""
        raise NotImplementedError

    def ahead(self, writes: Writes) -> Classes:
        """The classes of writes of the user that come next: those that `write` would give, at a part of the time.

        A scheme need not have this. Where it has, and NumPy is installed, it is called instead of `write`, and of
        `left` for what is replaced, where many records of one size without times to live come. Some of the last of them
        may have to wait until a compaction has made room: a scheme remembers as many as `writes.asked` gives for its
        answer, which need not go on behind them. `writes` and `contents` are as before the first, and `closed` is
        called when all are placed.
        """
        raise NotImplementedError

    def copy(self, key: int, now_ms: int) -> int:
        """The class of a record that a compaction copies."""
        raise NotImplementedError

    def copies(self, keys: Sequence[int], now_ms: int) -> Sequence[int]:
        """As `copy` for all that is copied from one segment, where records are of one size and have no times to live.

        A scheme need not have this. Where it has, it is asked, and told what is `taken`, for all victims of a
        compaction before any of their records is placed: it may not use what that changes.
        """
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

    def all_checked(ask: Callable[..., Classes]) -> Callable[..., list[int]]:
        def asked(of: Writes | Sequence[int], *more: int) -> list[int]:
            told: object = ask(of, *more)
            listed = told.tolist() if hasattr(told, "tolist") else told
            if not isinstance(listed, Iterable):
                raise InvalidInput(f"placement {placement!r:.100} gave {told!r:.100} of {len(of)} records; give a "
                                   f"class for each")
            found = [_class_in(placement, each) for each in listed]
            # What is told ahead may end where the first write waits.
            least = len(of) if more else 1
            if not least <= len(found) <= len(of):
                raise InvalidInput(f"placement {placement!r:.100} gave {len(found)} classes of {len(of)} records; give "
                                   f"one for each")
            return found
        return asked

    for name in ("write", "copy"):
        setattr(placer, name, checked(getattr(placer, name)))
    for name in ("copies", "ahead"):
        setattr(placer, name, all_checked(getattr(placer, name)))
    return placer


def tells_many(placer: Placer, many: str, *instead_of: str) -> bool:
    """Whether a scheme has a method `many`, and no class that comes after that has another one of those that are not
    called then."""
    holder = next(each for each in type(placer).__mro__ if not vars(each).keys().isdisjoint({many, *instead_of}))
    return holder is not Placer and many in vars(holder)


def _class_in(placement: Placement, found: Any) -> int:
    if not isinstance(found, Integral) or not 0 <= int(found) < placement.classes:
        raise InvalidInput(f"placement {placement!r:.100} gave class {found!r:.100}; a class is a whole number from 0 "
                           f"to {placement.classes - 1}")
    return int(found)


def grown(keys: int, column: array[int] | array[float], fill: float = 0) -> None:
    """Have a column hold a value for each key below `keys`; new ones are `fill`. O(new keys)."""
    column.frombytes(array(column.typecode, (fill,)).tobytes() * (keys - len(column)))


def class_count(default: int, *, least: int) -> int:
    """The setting `classes` of a scheme, for `attrs`; `InvalidInput` if it is no whole number from `least` to 64."""
    def check(_: object, field: attrs.Attribute[int], value: object) -> None:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 64:
            raise InvalidInput(f"{field.name} is {value!r}; give a whole number from {least} to 64")

    return attrs.field(default=default, validator=check)
