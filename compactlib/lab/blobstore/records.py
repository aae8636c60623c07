# SPDX-License-Identifier: Apache-2.0
"""The records of a log as columns of numbers: where each lies, how long it is, when it dies. No payload.

A record has a small number, which is used again once the record is gone from the log, so that memory follows what
the log holds. 28 bytes a record, and 4 for each key. The loops here are the ones that each operation runs through:
plain functions over arrays.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush
from itertools import compress
from operator import not_

from compactlib.errors import AuditFailed

NEVER = (1 << 62) - 1
"""When a record dies that does not."""
DEAD = -1
"""Where a record lies that is dead."""
AGAIN = -2
"""Where a record lies that is told of, and is still to be written."""
NO_SIZE = 0
MIXED = -1
_GROWTH = 4096
_BUCKET_MS = 60_000
_NUMBER_BITS = 32


class Records:
    """Columns of all records, and those that will die. One thread at a time.

    Attributes:
        place: the row of the segment that each record lies in; `DEAD` if a compaction need not copy it.
        size: bytes of each.
        until: the last millisecond at which each is kept; `NEVER` where it has no end, or where it is not asked for.
        written: when its operation was made, milliseconds.
        key: whose PUT it is; -1 for a tombstone. Not kept for those that are put plainly.
        free: numbers that can be given again.
        current: the record of each key, -1 for none.
        has_lives: whether any record was given a time to live.
        one_size: the size of all records, `NO_SIZE` before the first and `MIXED` once there are two sizes.
        since: what moments of death count from, milliseconds.
    """

    def __init__(self) -> None:
        self.place: array[int] = array("i")
        self.size: array[int] = array("I")
        self.until: array[int] = array("q")
        self.written: array[int] = array("q")
        self.key: array[int] = array("i")
        self.free: array[int] = array("i")
        self.current: array[int] = array("i")
        self.has_lives: bool = False
        self.one_size: int = NO_SIZE
        self.since: int = 0
        self._due: array[int] = array("q")
        self._leaving: array[int] = array("i")
        # By minutes; those of the minute at hand, and before, as a heap of time and number.
        self._expiring: dict[int, array[int]] = {}
        self._soon: list[int] = []
        self._opened = -NEVER
        self._horizon = -NEVER

    def reserve(self, records: int) -> None:
        """Have at least so many free numbers. Amortised O(records)."""
        missing = records - len(self.free)
        if missing <= 0:
            return
        start, count = len(self.place), max(missing, _GROWTH, len(self.place) >> 4)
        self.free.extend(range(start + count - 1, start - 1, -1))
        self.place.extend(array("i", (DEAD,)) * count)
        self.key.extend(array("i", (-1,)) * count)
        self.size.extend(array("I", (max(self.one_size, 0),)) * count)
        self.until.extend(array("q", (NEVER,)) * count)
        self.written.frombytes(bytes(8 * count))

    def know_keys(self, keys: int) -> None:
        """Make room for the keys below `keys`, which are more than before."""
        more = max(keys, len(self.current) * 5 // 4) - len(self.current)
        self.current.extend(array("i", (-1,)) * more)

    def sized(self, size: int) -> None:
        """Note that a record of this size comes. O(1), O(records) once."""
        if size != self.one_size:
            if self.one_size == NO_SIZE:
                self.size = array("I", (size,)) * len(self.size)
            self.one_size = size if self.one_size == NO_SIZE else MIXED

    def expires(self, record: int, until: int) -> None:
        """Note that a record has a time to live. O(1), O(log n) for one that ends within a minute."""
        self.has_lives = True
        bucket = until // _BUCKET_MS
        if bucket <= self._opened:
            heappush(self._soon, until << _NUMBER_BITS | record)
            return
        held = self._expiring.get(bucket)
        if held is None:
            held = self._expiring[bucket] = array("i")
        held.append(record)

    def leaves(self, record: int, due: int) -> None:
        """Note that a record is deleted, in effect strictly after `due`; calls ascend in `due`. O(1)."""
        self._due.append(due)
        self._leaving.append(record)

    def bury(self, horizon: int, valid: array[int], moments: array[float],
             told: Callable[[int, int], None] | None = None) -> int:
        """Take off what dies before `horizon` (milliseconds): strictly, as a compaction's reference time does.

        Gives how many bytes that were.

        Args:
            horizon: does not go back.
            valid: valid bytes of each row, lowered by what dies.
            moments: for each row the sum over what has died of time of death (from `since`) and size, raised.
            told: called with each record, and the row that it lay in.
        """
        if horizon <= self._horizon:
            return 0
        self._horizon = horizon
        died = 0
        count = bisect_left(self._due, horizon)
        if count:
            died += self._take_off(self._due[:count], self._leaving[:count], valid, moments, told)
            for column in (self._due, self._leaving):
                del column[:count]
        bucket = horizon // _BUCKET_MS
        if bucket > self._opened:
            self._opened = bucket
            for due in [each for each in self._expiring if each <= bucket]:
                # Of those whose number is another record's by now, that one is known by itself.
                self._soon += [self.until[record] << _NUMBER_BITS | record for record in self._expiring.pop(due)
                               if self.until[record] // _BUCKET_MS == due]
            heapify(self._soon)
        return died + self._expire(horizon, valid, moments, told)

    def _take_off(self, due: array[int], leaving: array[int], valid: array[int], moments: array[float],
                  told: Callable[[int, int], None] | None) -> int:
        place, size, since, died = self.place, self.size, self.since, 0
        for at, record in zip(due, leaving, strict=True):
            row = place[record]
            if row >= 0:
                dead = size[record]
                valid[row] -= dead
                moments[row] += (at - since) * dead
                place[record] = DEAD
                died += dead
                if told is not None:
                    told(record, row)
        return died

    def _expire(self, horizon: int, valid: array[int], moments: array[float],
                told: Callable[[int, int], None] | None) -> int:
        place, until, soon, died = self.place, self.until, self._soon, 0
        while soon and soon[0] >> _NUMBER_BITS < horizon:
            at, record = divmod(heappop(soon), 1 << _NUMBER_BITS)
            if place[record] == DEAD or until[record] != at:
                # It was deleted before, and the number may be another record's by now.
                continue
            died += self._end(record, at, valid, moments, told)
        return died

    def _end(self, record: int, at: int, valid: array[int], moments: array[float],
             told: Callable[[int, int], None] | None) -> int:
        row, size, owner = self.place[record], self.size[record], self.key[record]
        valid[row] -= size
        moments[row] += (at - self.since) * size
        self.place[record] = DEAD
        if told is not None:
            told(record, row)
        if owner >= 0 and self.current[owner] == record:
            self.current[owner] = -1
        return size

    @property
    def waiting(self) -> array[int]:
        """What is deleted or replaced, and is kept as that is not yet in effect."""
        return self._leaving

    @property
    def waiting_bytes(self) -> int:
        """Bytes of what waits. O(its records)."""
        return sum(map(self.size.__getitem__, self._leaving))

    @property
    def memory_bytes(self) -> int:
        """What the columns take."""
        columns = (self.place, self.size, self.until, self.written, self.key, self.free, self.current, self._due,
                   self._leaving, *self._expiring.values())
        return sum(column.itemsize * len(column) for column in columns) + 40 * len(self._soon)

    def audit(self) -> None:
        """Check that free numbers are dead ones, each once, and that the deletes ascend.

        Raises:
            AuditFailed: they are not.
        """
        free = set(self.free)
        if len(free) != len(self.free) or any(self.place[record] != DEAD for record in free):
            raise AuditFailed(f"of {len(self.free)} free numbers {len(free)} are different, or one is in use")
        if any(after < before for before, after in zip(self._due, self._due[1:], strict=False)):
            raise AuditFailed("the deletes that wait do not ascend in time")
        if any(record >= 0 and record in free for record in self.current):
            raise AuditFailed("a key leads to a record that is free")


def put_plainly(keys: array[int], times: array[int], given: array[int], rows: array[int], size: int, records: Records,
                valid: array[int], moments: array[float]) -> None:
    """Put records of one size without a time to live, where what is replaced is dead at once.

    What is replaced at the last of these times is noted as dying then, as nothing that looks at that time may miss it;
    all else is taken off here.

    Args:
        keys: the key of each.
        times: when, ascending.
        given: their numbers.
        rows: the segment of each, which has counted it.
        size: of each.
        records: the columns; all of one size, or of several.
        valid: see `Records.bury`.
        moments: see `Records.bury`.
    """
    place, sizes, written, current, since = records.place, records.size, records.written, records.current, records.since
    at_once, is_alike = bisect_left(times, times[-1]), records.one_size == size
    for key, at, record, row in zip(keys[:at_once], times, given, rows, strict=False):
        old = current[key]
        if old >= 0:
            there, dead = place[old], size if is_alike else sizes[old]
            valid[there] -= dead
            moments[there] += (at - since) * dead
            place[old] = DEAD
        current[key] = record
        place[record] = row
        written[record] = at
        if not is_alike:
            sizes[record] = size
    for key, at, record, row in zip(keys[at_once:], times[at_once:], given[at_once:], rows[at_once:], strict=True):
        if current[key] >= 0:
            records.leaves(current[key], at)
        current[key], place[record], sizes[record], written[record] = record, row, size, at


def sorted_out(members: Sequence[array[int]], rows: Sequence[int], place: array[int], free: array[int]
               ) -> tuple[array[int], list[int]]:
    """The members of segments that are valid, and behind which of them each segment ends; the others' numbers go to
    `free`."""
    kept, ends = array("i"), []
    for records, row in zip(members, rows, strict=True):
        alive = [place[record] == row for record in records]
        free.extend(array("i", compress(records, map(not_, alive))))
        kept.extend(array("i", compress(records, alive)))
        ends.append(len(kept))
    return kept, ends


def sums_in(members: Sequence[array[int]], rows: Sequence[int], records: Records, columns: Sequence[array[int]]
            ) -> list[list[int]]:
    """For each of some segments: how many members are valid and do not wait, and over their keys each column's sum."""
    place, owner, waiting, found = records.place, records.key, set(records.waiting), []
    for numbers, row in zip(members, rows, strict=True):
        keys = [owner[record] for record in numbers if place[record] == row and record not in waiting]
        found.append([len(keys), *(sum([column[key] for key in keys]) for column in columns)])
    return found


def lay_out(kept: array[int], rows: Sequence[int], each: int, records: Records) -> list[int]:
    """Put records into segments that take so many each, one behind the other; when the newest of each was written."""
    place, newest = records.place, []
    for number, row in enumerate(rows):
        part = kept[number * each:(number + 1) * each]
        for record in part:
            place[record] = row
        newest.append(max(map(records.written.__getitem__, part)))
    return newest
