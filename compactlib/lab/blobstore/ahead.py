# SPDX-License-Identifier: Apache-2.0
"""Records of one size that are placed many at once, by NumPy: the same segments as when each is placed in its turn."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from compactlib.lab.blobstore.by_arrays import by_key
from compactlib.lab.blobstore.contents import Contents
from compactlib.lab.blobstore.records import AGAIN, DEAD, Records

Numbers = npt.NDArray[np.int64]
Classes = Sequence[int] | npt.NDArray[Any]


class Shares:
    """Which segments some records of one size fill, in their order.

    Args:
        classes: of each record.
        rooms: how many records the open segment of each class takes; 0 if there is none.
        each: how many an empty one takes.

    Attributes:
        count: how many records there are.
        beginners: those that begin a segment, ascending.
    """

    def __init__(self, classes: Classes, rooms: Sequence[int], each: int) -> None:
        told = np.asarray(classes)
        self.count: int = len(told)
        self._rooms, self._each = rooms, each
        self._of = [np.flatnonzero(told == placed) for placed in range(len(rooms))]
        begin = [found[room::each] for found, room in zip(self._of, rooms, strict=True)]
        numbers = np.concatenate(begin)
        order = numbers.argsort()
        self.beginners: Numbers = numbers[order]
        self._begun = np.repeat(np.arange(len(rooms)), [len(found) for found in begin])[order]

    def begun(self, end: int) -> list[tuple[int, int]]:
        """The records before `end` that begin a segment, and its class."""
        count = self.beginners.searchsorted(end)
        return list(zip(self.beginners[:count].tolist(), self._begun[:count].tolist(), strict=True))

    def fillers(self) -> tuple[Numbers, list[int]]:
        """Which record fills the segment of each, and for each class which one fills the open segment.

        `count` where none does.
        """
        filled, first = np.full(self.count, self.count), []
        for found, room in zip(self._of, self._rooms, strict=True):
            ends = found[(room or self._each) - 1::self._each]
            first.append(int(ends[0]) if room and len(ends) else self.count)
            numbers = (np.arange(len(found)) - room) // self._each + (room > 0)
            is_full = numbers < len(ends)
            filled[found[is_full]] = ends[numbers[is_full]]
        return filled, first

    def laid(self, rows: Sequence[Sequence[int]], given: array[int], at: Numbers
             ) -> tuple[npt.NDArray[np.int32], list[tuple[int, int, int, bytes, int]]]:
        """Where the first records go: the row of each, and what goes into each segment, in the order of their ends.

        That is which record is the last, class, row, the numbers of the records, and when the newest was written.

        Args:
            rows: of the segments of each class, in order; first the one that is open and has room.
            given: the numbers of the records, one or more.
            at: when each was written.
        """
        numbers, count = np.frombuffer(given, np.int32), len(given)
        there, parts = np.empty(count, np.int32), []
        for placed, (found, room, own) in enumerate(zip(self._of, self._rooms, rows, strict=True)):
            if count < self.count:
                found = found[:found.searchsorted(count)]
            if not len(found):
                continue
            starts = [0, *range(room or self._each, len(found), self._each)]
            ends = [*starts[1:], len(found)]
            held, newest = numbers[found], np.maximum.reduceat(at[found], starts).tolist()
            for row, start, end, latest in zip(own, starts, ends, newest, strict=True):
                there[found[start:end]] = row
                parts.append((int(found[end - 1]), placed, row, held[start:end].tobytes(), latest))
        parts.sort()
        return there, parts


class Writes:
    """Writes of the user that come next, of one size and without times to live: what a placement is told of them.

    What one of them replaces is dead before it is placed. A segment is closed when it is full.

    Args:
        keys: the key of each.
        times: when, ascending.
        records: the columns.
        opened: the row of the open segment of each class; below 0 for none.
        placed: the class of each row.
        used: used bytes of each row.
        valid: valid bytes of each row.
        contents: what the log holds.
        each: how many records an empty segment takes.
        openings: how many segments may be begun.

    Attributes:
        numbers: 0 for the first, and so on.
        keys: see above.
        times: see above.
        rooms: how many records the open segment of each class takes; 0 if there is none.
        each: see above.
        openings: see above.
        before: which of these writes is the last one before of the same key; -1 for none.
        rows: the segment of what each replaces; -1 for none, and where that is one of these writes.
    """

    def __init__(self, keys: Sequence[int], times: Sequence[int], records: Records, opened: Sequence[int],
                 placed: array[int], used: Sequence[int], valid: Sequence[int], contents: Contents, each: int,
                 openings: int) -> None:
        self.keys: npt.NDArray[np.int32] = np.array(keys, np.int32)
        self.times: Numbers = np.array(times, np.int64)
        size = records.one_size
        self.rooms: list[int] = [each - used[row] // size if row >= 0 else 0 for row in opened]
        self.each: int = each
        self.openings: int = openings
        self._opened, self._placed, self._contents, self._size = tuple(opened), placed, contents, size
        self._dead_in = [(used[row] - valid[row]) // size if row >= 0 else 0 for row in opened]
        self.numbers: Numbers = np.arange(len(self.keys))
        self._order, self._has_earlier = by_key(self.keys)
        self.before: Numbers = np.full(len(self.keys), -1)
        self.before[self._order[1:][self._has_earlier]] = self._order[:-1][self._has_earlier]
        self._again = np.flatnonzero(self.before >= 0)
        self._old = np.frombuffer(records.current, np.int32).take(self.keys)
        self._old[self._again] = -1
        self.rows: npt.NDArray[np.int32] = np.frombuffer(records.place, np.int32).take(self._old)
        self.rows[self._old < 0] = -1
        self._shared: tuple[Any, Shares] | None = None

    def __len__(self) -> int:
        return len(self.keys)

    # ---------------------------------------------------------------------------------------------- for a placement

    def of_keys(self, column: array[int] | array[float]) -> npt.NDArray[Any]:
        """What a column holds for the key of each, now."""
        return np.frombuffer(column, column.typecode).take(self.keys)

    def earlier(self, column: array[int] | array[float], values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """What a column holds for the key of each when it is made, if each leaves its one of the values there."""
        found = self.of_keys(column)
        found[self._again] = values.take(self.before[self._again])
        return found

    def times_before(self) -> Numbers:
        """How many of the writes before each are of its key."""
        found, first = np.empty_like(self.numbers), np.append(True, ~self._has_earlier)
        found[self._order] = self.numbers - np.maximum.accumulate(np.where(first, self.numbers, 0))
        return found

    def leave(self, column: array[int] | array[float], values: npt.NDArray[Any], count: int) -> None:
        """Put into a column what so many writes leave there for their keys."""
        # Of those of one key the last one's stays.
        np.frombuffer(column, column.typecode)[self.keys[:count]] = values[:count]

    def take_off(self, column: array[int], values: npt.NDArray[Any] | int, count: int) -> None:
        """Take values off a column of rows, each off the row of what it replaces, for so many writes.

        Rows behind the end of the column are left out.
        """
        rows = self.rows[:count]
        held = np.flatnonzero((rows >= 0) & (rows < len(column)))
        np.subtract.at(np.frombuffer(column, column.typecode), rows.take(held),
                       values if isinstance(values, int) else values.take(held))

    def classes_left(self) -> Numbers:
        """The class of the segment of what each replaces; `DEAD`, and `AGAIN` where that is one of these writes."""
        found = np.frombuffer(self._placed, np.int64).take(self.rows)
        found[self.rows < 0] = DEAD
        found[self._again] = AGAIN
        return found

    def asked(self, classes: Classes) -> int:
        """How many of these writes are made, or asked for, before the policy may have to be asked.

        The last of them may be one whose class has no room; it has been asked for then.

        Args:
            classes: of each write.
        """
        shares = self.shares(classes)
        return int(shares.beginners[self.openings]) + 1 if len(shares.beginners) > self.openings else shares.count

    def valid_records(self, classes: Classes) -> npt.NDArray[np.float64]:
        """What `Placer.valid_records` gives when each is asked for, if the writes before it have these classes."""
        filled, first = self.shares(classes).fillers()
        count = len(self.keys)
        # A death counts as soon as its segment is closed.
        since = np.zeros(len(self._placed), np.int64)
        for row, filler in zip(self._opened, first, strict=True):
            if row >= 0:
                since[row] = filler + 1
        counts = self.numbers.copy()
        np.maximum(counts, since.take(self.rows), out=counts, where=self.rows >= 0)
        counts[self._again] = np.maximum(self._again, filled.take(self.before[self._again]) + 1)
        dead = np.bincount(counts[(self.rows >= 0) | (self.before >= 0)], minlength=count + 2)
        np.add.at(dead, np.array(first) + 1, self._dead_in)
        contents = self._contents
        return (contents.bytes + self.numbers * self._size  # type: ignore[no-any-return]
                - (contents.dead_bytes + dead.cumsum()[:count] * self._size)) / contents.record_bytes

    def settled(self, classes: Numbers, tell: Callable[[npt.NDArray[np.float64]], Numbers]) -> Numbers:
        """Classes that follow from `valid_records`, as it follows from them.

        Args:
            classes: a guess.
            tell: the classes, from what is valid; that of a write may follow from what is valid until then.
        """
        found = tell(self.valid_records(classes))
        # Each turn settles at least the first of those that are not right yet.
        while not np.array_equal(found, classes):
            classes = found
            found = tell(self.valid_records(classes))
        return classes

    # ------------------------------------------------------------------------------------------------------ for a log

    def shares(self, classes: Classes) -> Shares:
        """The segments that the writes fill; of the same classes the same."""
        if self._shared is None or self._shared[0] is not classes:
            self._shared = classes, Shares(classes, self.rooms, self.each)
        return self._shared[1]

    def bury(self, count: int, there: npt.NDArray[np.int32], records: Records, valid: array[int],
             moments: array[float]) -> int:
        """Take off what the first writes replace; gives how many bytes of that were in closed segments.

        Args:
            count: of the writes that replace something.
            there: the row of each that is made.
            records: the columns.
            valid: see `Records.bury`.
            moments: see `Records.bury`.
        """
        rows = self.rows[:count].copy()
        again = self._again[:self._again.searchsorted(count)]
        rows[again] = there.take(self.before[again])
        replaces = np.flatnonzero(rows >= 0)
        rows = rows.take(replaces)
        np.subtract.at(np.frombuffer(valid, np.int64), rows, self._size)
        np.add.at(np.frombuffer(moments, np.float64), rows,
                  (self.times.take(replaces) - records.since).astype(np.float64) * self._size)
        old, is_open = self._old[:count], np.zeros(len(self._placed), np.bool_)
        np.frombuffer(records.place, np.int32)[old[old >= 0]] = DEAD
        is_open[[row for row in self._opened if row >= 0]] = True
        earlier = self.rows[:count]
        return int(np.count_nonzero(~is_open[earlier[earlier >= 0]])) * self._size

    def enter(self, given: array[int], there: npt.NDArray[np.int32], asked: int, records: Records) -> None:
        """Note the first writes in the columns, dead where one of those that were asked for replaces them."""
        numbers, count = np.frombuffer(given, np.int32), len(given)
        place, current = np.frombuffer(records.place, np.int32), np.frombuffer(records.current, np.int32)
        keys = self.keys[:count]
        place[numbers] = there
        place[numbers[self.before[self._again[:self._again.searchsorted(asked)]]]] = DEAD
        np.frombuffer(records.written, np.int64)[numbers] = self.times[:count]
        np.frombuffer(records.key, np.int32)[numbers] = keys
        current[keys] = numbers
        current[self.keys[count:asked]] = -1


def written(kept: array[int], records: Records) -> Numbers:
    """When each of some records was written."""
    return np.frombuffer(records.written, np.int64).take(np.frombuffer(kept, np.int32))


def move(kept: array[int], there: npt.NDArray[np.int32], records: Records) -> None:
    """Note where some records lie now."""
    np.frombuffer(records.place, np.int32)[np.frombuffer(kept, np.int32)] = there
