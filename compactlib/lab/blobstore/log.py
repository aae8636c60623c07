# SPDX-License-Identifier: Apache-2.0
"""A segmented log without payloads: what `BlobStore` would hold, and what its policy would be shown.

Records go to the active segment until one does not fit; then the next segment begins. A compaction copies what is
valid of its victims, in the order of the choice, packed tightly, into segments that take the first victims' places: as
the real one does (`blobstore.cycle_plan`), and with the same names.

With a placement there is an open segment for each of its classes, and compactions go on in these: a segment is closed
when it is full, and not before. New segments are then always the last of the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from types import ModuleType
from typing import Protocol

import attrs

from compactlib.blobstore import BlobChoice, BlobView
from compactlib.blobstore.errors import PlanDoesNotFit
from compactlib.blobstore.policy import (
    FIRST_SEGMENT,
    Dying,
    LastPlans,
    SegmentName,
    SegmentView,
    Survivor,
)
from compactlib.errors import AuditFailed, InvalidInput
from compactlib.lab.blobstore import records as records_by_loops
from compactlib.lab.blobstore.contents import Contents
from compactlib.lab.blobstore.histories import Histories
from compactlib.lab.blobstore.packing import Packing
from compactlib.lab.blobstore.placement.placement import Placement, Placer, Victim, checked_placer, tells_many
from compactlib.lab.blobstore.records import DEAD, NEVER, Records
from compactlib.lab.blobstore.survivors import SurvivorPlacement, class_of, needs_history

NO_ROW = -1
"""The row of a class without an open segment."""
_MANY = 128
"""Arrays pay from so many records on."""


@attrs.frozen(kw_only=True)
class Compacted:
    """What carrying out a choice came to.

    Attributes:
        victims: segments taken.
        outputs: segments written.
        copied_bytes: bytes of the records copied.
        read_bytes: used bytes of the victims that had something to copy: what reading them whole takes.
        reclaimed_bytes: bytes of dead records that are gone.
        waited: the sum over what was reclaimed of its size and the milliseconds since it died.
    """

    victims: int
    outputs: int
    copied_bytes: int
    read_bytes: int
    reclaimed_bytes: int
    waited: float


class Layout(Protocol):
    """How a log is laid out: what it needs to know of `BlobSettings`."""

    @property
    def segments(self) -> int:
        """How many segments the log has."""

    @property
    def segment_bytes(self) -> int:
        """Size of one segment, its header included."""

    @property
    def header_bytes(self) -> int:
        """Size of a segment's header."""

    @property
    def room_bytes(self) -> int:
        """What a segment holds beside its header."""

    @property
    def max_blob_bytes(self) -> int:
        """What a plan's benefit keeps free in each output."""

    @property
    def swap_segments(self) -> int:
        """How many segments a compaction fills before it frees its sources."""

    @property
    def tombstone_bytes(self) -> int:
        """Size of the record that a delete writes; 0: none is written."""

    @property
    def deleted_retention_seconds(self) -> float:
        """How long a delete is not yet in effect."""

    @property
    def placement(self) -> Placement | None:
        """Which open segment a record goes to; `None`: all that users write to one, survivors into closed ones."""

    @property
    def survivors(self) -> SurvivorPlacement | None:
        """Which survivors share a segment, in a log without a placement."""

    @property
    def copies_renew(self) -> bool:
        """Whether a copy counts as a write for `SegmentView.last_modified`."""

    @property
    def forecast_seconds(self) -> float:
        """How far ahead the policy is shown what dies when; 0: not at all."""

    @property
    def bucket_seconds(self) -> float:
        """The steps of the forecast."""


class BlobLog:
    """A log of record numbers. One thread at a time. Memory follows the records that the log holds.

    Args:
        settings: how it is laid out.
        name: the store's name in views and plans.
    """

    def __init__(self, settings: Layout, *, name: str = "lab") -> None:
        self.settings: Layout = settings
        self.records: Records = Records()
        self.history: LastPlans | None = None
        self.name: str = name
        self.tombstone_bytes: int = 0
        self._retention_ms = round(settings.deleted_retention_seconds * 1000)
        self._names: list[SegmentName] = []
        self._members: list[array[int]] = []
        self._used: list[int] = []
        self._valid: array[int] = array("q")
        self._newest: list[int] = []
        self._moments: array[float] = array("d")
        self._views: list[SegmentView | None] = []
        self._free_rows: list[int] = []
        self._classes: array[int] = array("q")
        self._begun: list[int] = []
        # Where deaths are told at once.
        self._contents = Contents()
        self._order: list[int] = [self._new_row(FIRST_SEGMENT)]
        self._open: list[int] = [self._order[0]]
        self._by_arrays = _by_arrays()
        # Where a replacement leaves a tombstone, it is of another id, which has no history.
        self.histories: Histories | None = (
            Histories() if needs_history(settings.survivors) and not settings.tombstone_bytes else None)
        self.placer: Placer | None = None
        # Where a placement is told of many records at once: what does so, and whether also of the user's.
        self._ahead: ModuleType | None = None
        self._tells_ahead = False
        if settings.placement is not None:
            self._open += [NO_ROW] * (settings.placement.classes - 1)
            self.placer = checked_placer(settings.placement)
            self.placer.contents, self.placer.sums_of = self._contents, self._sums_of
            self.placer.keeps_replaced = self._retention_ms > 0
            self._ahead = None if self._by_arrays is None else _ahead()
            self._tells_ahead = self._ahead is not None and tells_many(self.placer, "ahead", "write", "left")

    # ------------------------------------------------------------------------------------------------------ segments

    def _new_row(self, name: SegmentName) -> int:
        if self._free_rows:
            row = self._free_rows.pop()
            self._names[row], self._members[row] = name, array("i")
            self._used[row] = self._valid[row] = 0
            self._newest[row] = -NEVER
            self._moments[row] = 0.0
            self._views[row] = None
            self._classes[row] = self._begun[row] = 0
            return row
        self._names.append(name)
        self._members.append(array("i"))
        for column in (self._used, self._valid, self._classes, self._begun):
            column.append(0)
        self._newest.append(-NEVER)
        self._moments.append(0.0)
        self._views.append(None)
        return len(self._names) - 1

    @property
    def active(self) -> int:
        """The row of the newest segment; without a placement, the one that is written to."""
        return self._order[-1]

    @property
    def free_segments(self) -> int:
        """How many segments the log can still begin."""
        return self.settings.segments - len(self._order)

    @property
    def used_bytes(self) -> int:
        """Used capacity: whole segments before the last one, and the last one up to its end."""
        return ((len(self._order) - 1) * self.settings.segment_bytes + self.settings.header_bytes
                + self._used[self.active])

    @property
    def record_bytes(self) -> int:
        """Bytes of all records that the log holds, dead ones included."""
        return sum(map(self._used.__getitem__, self._order))

    @property
    def valid_bytes(self) -> int:
        """Bytes of the records that compactions would copy."""
        return sum(map(self._valid.__getitem__, self._order))

    @property
    def live_bytes(self) -> int:
        """Bytes that a reader can ask for: what is valid, less tombstones and what is deleted already. O(segments)."""
        return self.valid_bytes - self.tombstone_bytes - self.records.waiting_bytes

    @property
    def names(self) -> tuple[SegmentName, ...]:
        """The segments' names, in log order."""
        return tuple(self._names[row] for row in self._order)

    def room(self, size: int, placed: int = 0) -> int:
        """How many records of `size` bytes the open segment of a class still takes.

        Raises:
            InvalidInput: an empty segment does not take one.
        """
        if not 0 < size <= self.settings.room_bytes:
            raise InvalidInput(f"a record of {size} bytes; a segment has room for {self.settings.room_bytes}")
        row = self._open[placed]
        return 0 if row == NO_ROW else (self.settings.room_bytes - self._used[row]) // size

    def roll(self, placed: int = 0) -> bool:
        """Begin the next segment, of a class; `False` if the log is full."""
        if not self.free_segments:
            return False
        self._begin(placed)
        return True

    def _begin(self, placed: int) -> None:
        if self._open[placed] != NO_ROW:
            self._close(placed)
        row = self._new_row(self._names[self.active].next_position)
        self._order.append(row)
        self._open[placed], self._classes[row] = row, placed
        if self.placer is not None:
            self._begun[row] = self.placer.writes

    def _close(self, placed: int) -> None:
        if self.placer is not None:
            self.placer.closed(self._open[placed], placed)
        self._contents.dead_bytes += self._used[self._open[placed]] - self._valid[self._open[placed]]
        self._open[placed] = NO_ROW

    # ------------------------------------------------------------------------------------------------------- placing

    def _weigh(self) -> None:
        """Note how many bytes a record has: about so many if sizes differ."""
        records = self.records
        self._contents.record_bytes = records.one_size if records.one_size > 0 else max(
            self._contents.bytes // max(len(records.place) - len(records.free), 1), 1)

    def _sums_of(self, rows: Sequence[int], columns: Sequence[array[int]]) -> list[list[int]]:
        members = [self._members[row] for row in rows]
        steps = self._steps(sum(map(len, members)))
        return steps.sums_in(members, rows, self.records, columns)  # type: ignore[no-any-return]

    def has_dead_beyond(self, fraction: float) -> bool:
        """Whether what is dead in closed segments is more than this part of what the log holds. O(1).

        Only in a log that is told of each death by `kill` or `advance`, and does not put plainly.
        """
        return self._contents.dead_bytes > fraction * self._contents.bytes

    def know_keys(self, keys: int) -> None:
        """Make room for the keys below `keys`."""
        if keys > len(self.records.current):
            self.records.know_keys(keys)
            if self.placer is not None:
                self.placer.know_keys(len(self.records.current))

    def place(self, key: int, size: int, at_ms: int, until_ms: int) -> int:
        """The class of a record that the user writes now; 0 without a placement."""
        if self.placer is None:
            return 0
        self.placer.writes += 1
        self.placer.segment_records = self.settings.room_bytes // size
        self.placer.until_ms = until_ms
        return self._write_weighed(key, at_ms)

    def _write_weighed(self, key: int, at_ms: int) -> int:
        assert self.placer is not None
        self._weigh()
        return self.placer.write(key, at_ms)

    def kill(self, record: int, at_ms: int) -> None:
        """A record is dead at once."""
        records = self.records
        row, size = records.place[record], records.size[record]
        if row == DEAD:
            return
        self._valid[row] -= size
        self._moments[row] += (at_ms - records.since) * size
        records.place[record] = DEAD
        if self._open[self._classes[row]] != row:
            self._contents.dead_bytes += size
        if self.placer is not None:
            self.placer.left(records.key[record], row, self._classes[row])

    def put_placed(self, keys: Sequence[int], times: Sequence[int], size: int, numbers: range, last_ms: int,
                   max_dead_fraction: float, openings: int) -> tuple[int, int]:
        """Write records of one size that live until they are replaced, each to the segment of its class.

        Only in a log with a placement in which every record does so. Stops at a new time when too much is dead
        (`NO_ROW`), or at a record whose class, which it gives, has no room for it: what the record replaces is dead
        then. Gives which record that is, and the class; behind the last one it gives `NO_ROW`. O(records).

        Args:
            keys: the key of each, known to the records.
            times: when, ascending, milliseconds.
            size: of each.
            numbers: which of them are to be written.
            last_ms: when the one before the first was.
            max_dead_fraction: see `has_dead_beyond`; 1: whatever is dead.
            openings: how many segments it may begin; without NumPy it begins none.
        """
        records, placer, opened, classes = self.records, self.placer, self._open, self._classes
        assert placer is not None
        records.sized(size)
        records.reserve(len(numbers))
        place, sizes, written, owner, current = (records.place, records.size, records.written, records.key,
                                                 records.current)
        free, since = records.free, records.since
        used, valid, moments, newest, members = self._used, self._valid, self._moments, self._newest, self._members
        contents, fullest = self._contents, self.settings.room_bytes - size
        self._weigh()
        write = placer.write if records.one_size == size else self._write_weighed
        left = None if type(placer).left is Placer.left else placer.left
        placer.segment_records, placer.until_ms = self.settings.room_bytes // size, NEVER
        if openings and self._tells_ahead and records.one_size == size and max_dead_fraction == 1:
            done = self._put_ahead(keys, times, numbers, openings)
            if done is not None:
                return done
        for number in numbers:
            key, at = keys[number], times[number]
            if at != last_ms and max_dead_fraction < 1 and self.has_dead_beyond(max_dead_fraction):
                return number, NO_ROW
            last_ms = at
            old = current[key]
            if old >= 0:
                row, dead = place[old], sizes[old]
                valid[row] -= dead
                moments[row] += (at - since) * dead
                place[old], current[key] = DEAD, -1
                placed = classes[row]
                if opened[placed] != row:
                    contents.dead_bytes += dead
                if left is not None:
                    left(key, row, placed)
            placer.writes += 1
            placed = write(key, at)
            row = opened[placed]
            if row == NO_ROW or used[row] > fullest:
                return number, placed
            record = current[key] = free.pop()
            place[record], sizes[record], written[record], owner[record] = row, size, at, key
            members[row].append(record)
            used[row] += size
            valid[row] += size
            if at > newest[row]:
                newest[row] = at
            contents.bytes += size
            if used[row] > fullest:
                self._close(placed)
        return numbers.stop, NO_ROW

    def _put_ahead(self, keys: Sequence[int], times: Sequence[int], numbers: range, openings: int
                   ) -> tuple[int, int] | None:
        """Write as many as the placer tells the classes of ahead; `None` if they are too few to pay."""
        assert self.placer is not None
        assert self._ahead is not None
        records, placer, opened = self.records, self.placer, self._open
        size, each = records.one_size, placer.segment_records
        count = sum(each - self._used[row] // size for row in opened if row != NO_ROW) + openings * each + 1
        span = slice(numbers.start, min(numbers.start + count, numbers.stop))
        if span.stop - span.start < _MANY:
            return None
        writes = self._ahead.Writes(keys[span], times[span], records, opened, self._classes, self._used, self._valid,
                                    self._contents, each, openings)
        classes = placer.ahead(writes)
        asked, earlier = writes.asked(classes), placer.writes
        shares = writes.shares(classes)
        made = asked - (len(shares.begun(asked)) > openings)
        given = records.free[-made:]
        del records.free[-made:]
        there, parts = shares.laid(self._begin_all(shares.begun(made), earlier + 1), given, writes.times)
        placer.writes = earlier + asked
        self._contents.bytes += made * size
        self._lay(parts, size)
        self._contents.dead_bytes += writes.bury(asked, there, records, self._valid, self._moments)
        writes.enter(given, there, asked, records)
        self._close_full(parts, size)
        return span.start + made, NO_ROW if asked == made else int(classes[made])

    def _begin_all(self, begun: Sequence[tuple[int, int]], first_write: int) -> list[list[int]]:
        """Begin segments, each at a write and of a class; gives the rows of each class, and which had room before."""
        assert self.placer is not None
        rows = [[] if row == NO_ROW else [row] for row in self._open]
        for number, placed in begun:
            self.placer.writes = first_write + number
            # What is open is full by then, and closed later.
            self._open[placed] = NO_ROW
            self._begin(placed)
            rows[placed].append(self._open[placed])
        return rows

    def _lay(self, parts: Sequence[tuple[int, int, int, bytes, int]], size: int) -> None:
        """Take records into segments, as `Shares.laid` gives them."""
        for _, _, row, numbers, newest in parts:
            self._members[row].frombytes(numbers)
            total = len(numbers) // self._members[row].itemsize * size
            self._used[row] += total
            self._valid[row] += total
            self._newest[row] = max(self._newest[row], newest)

    def _close_full(self, parts: Sequence[tuple[int, int, int, bytes, int]], size: int) -> None:
        """Close the segments that are full, in their order; the last ones of the other classes stay open."""
        for _, placed, row, _, _ in parts:
            self._open[placed] = row
            if self._used[row] + size > self.settings.room_bytes:
                self._close(placed)

    def put_plainly(self, keys: array[int], times: array[int], size: int) -> None:
        """Write records of one size that live until they are replaced; the log has segments for them to begin.

        Only in a log in which every record does so, and what is replaced is dead at once. O(records).

        Args:
            keys: the key of each, known to the records.
            times: when, ascending, milliseconds.
            size: of each.
        """
        records, count, rows = self.records, len(keys), array("i")
        records.sized(size)
        records.reserve(count)
        given = records.free[-count:]
        del records.free[-count:]
        while len(rows) < count:
            done, step = len(rows), min(self.room(size), count - len(rows))
            if not step:
                self._begin(0)
                continue
            row, part = self._open[0], given[done:done + step]
            self._members[row] = self._members[row] + part if self._members[row] else part
            self._used[row] += step * size
            self._valid[row] += step * size
            self._newest[row] = max(self._newest[row], times[done + step - 1])
            rows.extend(array("i", (row,)) * step)
        self._steps(count).put_plainly(keys, times, given, rows, size, records, self._valid, self._moments)

    def _steps(self, count: int) -> ModuleType:
        """What carries out a step of so many records: by arrays where that is quicker, and NumPy is installed."""
        return records_by_loops if self._by_arrays is None or count < _MANY else self._by_arrays

    def append(self, size: int, at_ms: int, until_ms: int = NEVER, key: int = -1, placed: int = 0) -> int:
        """Write one record; the open segment of its class has room for it. O(1)."""
        records = self.records
        records.sized(size)
        records.reserve(1)
        record = records.free.pop()
        row = self._open[placed]
        records.place[record] = row
        records.size[record] = size
        records.until[record] = until_ms
        records.written[record] = at_ms
        records.key[record] = key
        if until_ms != NEVER:
            records.expires(record, until_ms)
        if self.histories is not None and key >= 0:
            self.histories.put(record, key)
        self._members[row].append(record)
        self._used[row] += size
        self._valid[row] += size
        if at_ms > self._newest[row]:
            self._newest[row] = at_ms
        self._contents.bytes += size
        if self.placer is not None and self._used[row] + size > self.settings.room_bytes:
            self._close(placed)
        return record

    # ---------------------------------------------------------------------------------------------------------- time

    def advance(self, now_ms: int) -> None:
        """Take off what has died by `now_ms`. O(what has died)."""
        before = self._open_valid_bytes()
        died = self.records.bury(now_ms, self._valid, self._moments, self._told_expired())
        self._contents.dead_bytes += died - (before - self._open_valid_bytes())

    def _open_valid_bytes(self) -> int:
        return sum(self._valid[row] for row in self._open if row != NO_ROW)

    def _told_expired(self) -> Callable[[int, int], None] | None:
        return None if self.placer is None else self._tell_expired

    def _tell_expired(self, record: int, row: int) -> None:
        assert self.placer is not None
        self.placer.left(self.records.key[record], row, self._classes[row])

    # ---------------------------------------------------------------------------------------------------------- views

    def view(self, now_ms: int) -> BlobView:
        """What a policy is shown: the same as a real store's sensor would show it. O(segments), more with a forecast.
        """
        self.advance(now_ms)
        if self.history is None:
            # As in a real store, schedules count from its first day.
            self.history = LastPlans(since=self.records.since / 1000)
        settings = self.settings
        dying = self._dying(now_ms) if settings.forecast_seconds else {}
        written_to = {self.active, *self._open}
        names, used, valid, newest, views = self._names, self._used, self._valid, self._newest, self._views
        segments: list[SegmentView] = []
        # Of a segment without records, which nobody may take.
        earliest = min(self.records.since, 0)
        for row in self._order:
            view = views[row]
            ends = dying.get(row, ())
            if view is None or view.valid_bytes != valid[row] or view.dying != ends or row in written_to:
                view = SegmentView(name=names[row], used_bytes=used[row], valid_bytes=valid[row],
                                   eligible=row not in written_to, last_modified=max(newest[row], earliest) / 1000,
                                   dying=ends)
                views[row] = None if row in written_to else view
            segments.append(view)
        return BlobView(
            store=self.name, capacity_bytes=settings.segments * settings.segment_bytes,
            segment_bytes=settings.segment_bytes, header_bytes=settings.header_bytes,
            max_blob_bytes=settings.max_blob_bytes, used_bytes=self.used_bytes,
            reference_time=(now_ms - self._retention_ms) / 1000,
            retention_seconds=settings.deleted_retention_seconds, segments=tuple(segments), history=self.history)

    def _dying(self, now_ms: int) -> dict[int, tuple[Dying, ...]]:
        """What of each row dies in which bucket of the forecast. O(records in the log)."""
        span = round(self.settings.bucket_seconds * 1000)
        horizon = now_ms + round(self.settings.forecast_seconds * 1000)
        place, until, size = self.records.place, self.records.until, self.records.size
        found: dict[int, tuple[Dying, ...]] = {}
        for row in self._order:
            sums: dict[int, int] = {}
            for record in self._members[row]:
                if place[record] == row and until[record] < horizon:
                    bucket = until[record] // span
                    sums[bucket] = sums.get(bucket, 0) + size[record]
            found[row] = tuple(Dying(((bucket + 1) * span - 1) / 1000, sums[bucket]) for bucket in sorted(sums))
        return found

    # --------------------------------------------------------------------------------------------------- compactions

    def compact(self, choice: BlobChoice, now_ms: int) -> Compacted:
        """Carry out a policy's choice. O(segments + records in the victims).

        Raises:
            PlanDoesNotFit: it names a segment that the log does not have, or the one that is written to.
        """
        taken = set(choice.victims)
        written_to = {self.active, *self._open}
        by_name = {self._names[row]: row for row in self._order if row not in written_to and self._names[row] in taken}
        stray = [str(name) for name in sorted(taken) if name not in by_name]
        if stray:
            raise PlanDoesNotFit(f"the choice names {', '.join(stray)}, which may not be compacted; choose again")
        victims = [by_name[name] for name in choice.victims]
        done = _Copy(self, now_ms)
        done.take(victims)
        outputs = done.finish()
        gone = set(victims)
        if self.placer is None:
            replaced = {self._names[row].position: row for row in outputs}
            self._order = [row if row not in gone else replaced[self._names[row].position] for row in self._order
                           if row not in gone or self._names[row].position in replaced]
        else:
            self._order = [row for row in self._order if row not in gone]
            for placed in self.placer.brief:
                if self._open[placed] != NO_ROW:
                    self._close(placed)
        for row in victims:
            self._contents.bytes -= self._used[row] - self._valid[row]
            self._contents.dead_bytes -= self._used[row] - self._valid[row]
        self._release(victims)
        if self.history is not None:
            self.history = self.history.after(choice.kind, now_ms / 1000)
        return Compacted(victims=len(victims), outputs=len(outputs), copied_bytes=done.copied_bytes,
                         read_bytes=done.read_bytes, reclaimed_bytes=done.reclaimed_bytes, waited=done.waited)

    def _release(self, rows: Iterable[int]) -> None:
        for row in rows:
            self._members[row], self._views[row] = array("i"), None
            self._free_rows.append(row)

    # --------------------------------------------------------------------------------------------------------- audit

    @property
    def memory_bytes(self) -> int:
        """What records and segments take, in their columns."""
        return self.records.memory_bytes + sum(4 * len(self._members[row]) for row in self._order)

    def audit(self) -> None:
        """Check the log against its records. O(records).

        Raises:
            AuditFailed: a number is not what its parts come to.
        """
        self.records.audit()
        names = self.names
        if list(names) != sorted(set(names)) or len(names) > self.settings.segments:
            raise AuditFailed(f"{len(names)} segments that do not ascend, or more than {self.settings.segments}")
        place, size = self.records.place, self.records.size
        for row in self._order:
            members = self._members[row]
            used = sum(size[record] for record in members if place[record] == row)
            if used != self._valid[row] or not used <= self._used[row] <= self.settings.room_bytes:
                raise AuditFailed(f"segment {self._names[row]} counts {self._valid[row]} valid bytes of "
                                  f"{self._used[row]}; its records come to {used}")
        alive = sum(each != DEAD for each in place)
        held = sum(place[record] == row for row in self._order for record in self._members[row])
        if alive != held:
            raise AuditFailed(f"{alive} records are alive, the segments hold {held}")

    def __repr__(self) -> str:
        return f"BlobLog({len(self._order)} of {self.settings.segments} segments, {self.valid_bytes:,} valid bytes)"


def _by_arrays() -> ModuleType | None:
    try:
        from compactlib.lab.blobstore import by_arrays
    except ImportError:
        return None
    return by_arrays


def _ahead() -> ModuleType:
    from compactlib.lab.blobstore import ahead
    return ahead


class _Copy:
    """One compaction under way: fills outputs, in cycles of as many as there are swap segments."""

    def __init__(self, log: BlobLog, now_ms: int) -> None:
        self._log = log
        self._now_ms = now_ms
        self._outputs: list[int] = []
        self._in_cycle: list[int] = []
        self._sources: list[SegmentName] = []
        self.copied_bytes = self.read_bytes = self.reclaimed_bytes = 0
        self.waited = 0.0
        # Segments that are given back when all is copied, and count as free until then.
        self._room_segments = 0
        self._begin_cycle()

    def take(self, victims: Sequence[int]) -> None:
        """Copy what is valid of the victims; the numbers of the dead are free again."""
        log = self._log
        settings, records = log.settings, log.records
        if log.placer is None and settings.survivors is None and records.one_size > 0:
            for row in victims:
                self._count(row)
            self._copy_alike(victims)
            return
        if log.placer is not None and self._are_alike and tells_many(log.placer, "copies", "copy"):
            self._place_alike(victims, log.placer)
            return
        for row in victims:
            self._count(row)
            if log.placer is not None:
                self._tell_taken(row, log.placer)
            free = len(records.free)
            kept, _ = records_by_loops.sorted_out([log._members[row]], [row], records.place, records.free)
            if log.histories is not None:
                log.histories.remove(records.free[free:], records.key)
            if settings.survivors is not None:
                self._classify(kept, log._names[row], settings.survivors)
            elif log.placer is not None:
                self._room_segments += 1
                self._place(kept, self._classes_for(kept, log.placer))
            else:
                self._copy(kept)
                self._sources.append(log._names[row])

    def _count(self, row: int) -> None:
        log, valid = self._log, self._log._valid[row]
        dead_bytes = log._used[row] - valid
        self.copied_bytes += valid
        self.read_bytes += log._used[row] if valid else 0
        self.reclaimed_bytes += dead_bytes
        self.waited += (self._now_ms - log.records.since) * dead_bytes - log._moments[row]

    def _copy_alike(self, victims: Sequence[int]) -> None:
        """Copy records of one size: each output but the last takes as many."""
        log, records = self._log, self._log.records
        steps = log._steps(sum(len(log._members[row]) for row in victims))
        kept, ends = steps.sorted_out([log._members[row] for row in victims], victims, records.place, records.free)
        each = log.settings.room_bytes // records.one_size
        outputs = [log._new_row(FIRST_SEGMENT) for _ in range(-(-len(kept) // each))]
        if not outputs:
            return
        for number, (row, newest) in enumerate(zip(outputs, steps.lay_out(kept, outputs, each, records), strict=True)):
            log._members[row] = kept[number * each:(number + 1) * each]
            log._used[row] = log._valid[row] = len(log._members[row]) * records.one_size
            log._newest[row] = newest
        names, in_cycle, begun = [log._names[row] for row in victims], log.settings.swap_segments, 0
        for first in range(0, len(outputs), in_cycle):
            is_last = first + in_cycle >= len(outputs)
            end = len(victims) if is_last else bisect_right(ends, (first + in_cycle) * each)
            self._in_cycle, self._sources = outputs[first:first + in_cycle], names[begun:end]
            self._end_cycle()
            begun = end

    def _copy(self, kept: array[int]) -> None:
        log, records, done = self._log, self._log.records, 0
        while done < len(kept):
            if not self._in_cycle:
                self._begin_output()
            output = self._in_cycle[-1]
            taken, total, newest = _fill(kept, done, log.settings.room_bytes - log._used[output], output, records)
            log._members[output].extend(kept[done:done + taken])
            log._used[output] += total
            log._valid[output] += total
            log._newest[output] = max(log._newest[output], newest)
            done += taken
            if done < len(kept):
                self._begin_output()

    def _tell_taken(self, row: int, placer: Placer) -> None:
        log = self._log
        placer.taken(Victim(row, log._classes[row], log._begun[row], len(log._members[row]),
                            log._valid[row] * len(log._members[row]) // log._used[row]))

    @property
    def _are_alike(self) -> bool:
        """Whether a placer is told of survivors by segments: they are of one size, and have no times to live."""
        records = self._log.records
        return records.one_size > 0 and not records.has_lives and not self._log.settings.forecast_seconds

    def _place_alike(self, victims: Sequence[int], placer: Placer) -> None:
        """Put what is valid into the open segments of its classes, of which the placer tells many at once."""
        log, records, size = self._log, self._log.records, self._log.records.one_size
        placer.segment_records, placer.until_ms = log.settings.room_bytes // size, NEVER
        members = [log._members[row] for row in victims]
        kept, ends = log._steps(sum(map(len, members))).sorted_out(members, victims, records.place, records.free)
        keys, classes = list(map(records.key.__getitem__, kept)), list[int]()
        for row, end in zip(victims, ends, strict=True):
            self._count(row)
            self._tell_taken(row, placer)
            classes += placer.copies(keys[len(classes):end], self._now_ms)
        if len(kept) >= _MANY and log._ahead is not None and self._place_at_once(kept, classes, ends, log._ahead):
            return
        start = 0
        for end in ends:
            self._room_segments += 1
            self._place(kept[start:end], classes[start:end])
            start = end

    def _place_at_once(self, kept: array[int], classes: Sequence[int], ends: Sequence[int], ahead: ModuleType
                       ) -> bool:
        """By arrays; `False`, and nothing done, if the log has too few segments for all that they begin."""
        log, placer, size = self._log, self._log.placer, self._log.records.one_size
        assert placer is not None
        each = placer.segment_records
        rooms = [0 if row == NO_ROW else each - log._used[row] // size for row in log._open]
        shares = ahead.Shares(classes, rooms, each)
        begun = shares.begun(len(kept))
        free = log.free_segments
        # Of the victims those count as free whose records are placed by then.
        if any(number > free + bisect_right(ends, record) for number, (record, _) in enumerate(begun)):
            return False
        opened = tuple(log._open)
        rows = log._begin_all([(0, placed) for _, placed in begun], placer.writes)
        self._outputs += [row for own, open_row in zip(rows, opened, strict=True) for row in own if row != open_row]
        there, parts = shares.laid(rows, kept, ahead.written(kept, log.records))
        ahead.move(kept, there, log.records)
        if log.settings.copies_renew:
            parts = [(*part[:-1], self._now_ms) for part in parts]
        log._lay(parts, size)
        log._close_full(parts, size)
        return True

    def _place(self, kept: array[int], classes: Iterable[int]) -> None:
        """Put records into the open segments of their classes; where no segment is left to begin, into any with room.
        """
        log, now_ms = self._log, self._now_ms
        records, renew, room = log.records, log.settings.copies_renew, log.settings.room_bytes
        place, sizes, written, members = records.place, records.size, records.written, log._members
        used, valid, newest, opened = log._used, log._valid, log._newest, log._open
        for record, placed in zip(kept, classes, strict=True):
            size = sizes[record]
            row = opened[placed]
            if row == NO_ROW or used[row] + size > room:
                if log.free_segments + self._room_segments:
                    log._begin(placed)
                    self._outputs.append(opened[placed])
                else:
                    placed = next(each for each, open_row in enumerate(opened)
                                  if open_row != NO_ROW and used[open_row] + size <= room)
                row = opened[placed]
            place[record] = row
            members[row].append(record)
            used[row] += size
            valid[row] += size
            at = now_ms if renew else written[record]
            if at > newest[row]:
                newest[row] = at
            if used[row] + size > room:
                log._close(placed)

    def _classes_for(self, kept: array[int], placer: Placer) -> Iterable[int]:
        """The class of each record, asked for as its turn comes; those that differ are told of one by one."""
        records, room = self._log.records, self._log.settings.room_bytes
        if self._are_alike:
            placer.segment_records, placer.until_ms = room // records.one_size, NEVER
            return map(placer.copy, [records.key[record] for record in kept], repeat(self._now_ms))
        return self._classes_one_by_one(kept, placer)

    def _classes_one_by_one(self, kept: array[int], placer: Placer) -> Iterable[int]:
        records, room = self._log.records, self._log.settings.room_bytes
        for record in kept:
            placer.segment_records, placer.until_ms = room // records.size[record], records.until[record]
            self._log._weigh()
            yield placer.copy(records.key[record], self._now_ms)

    def _classify(self, kept: array[int], source: SegmentName, survivors: SurvivorPlacement) -> None:
        """Take records into the cycle, as `cycle_plan` does it; into which segments follows at its end."""
        records, histories, packing = self._log.records, self._log.histories, self._packing
        for record in kept:
            if not packing.admit(records.size[record]):
                self._end_cycle()
                packing = self._packing
                packing.admit(records.size[record])
            self._waiting.append(record)
            earlier = [] if histories is None else [records.written[each] for each in histories.before(record)]
            self._classes.append(class_of(survivors, Survivor(
                records.written[record], records.until[record], records.size[record], source.generation, earlier),
                self._now_ms))
        self._sources.append(source)
        packing.sources += 1

    def _put_by_class(self) -> None:
        log, records, numbers = self._log, self._log.records, self._packing.placed(self._classes)
        self._in_cycle = [log._new_row(FIRST_SEGMENT) for _ in range(self._packing.filled)]
        for record, number in zip(self._waiting, numbers, strict=True):
            row = records.place[record] = self._in_cycle[number]
            log._members[row].append(record)
            log._used[row] += records.size[record]
            log._valid[row] += records.size[record]
            log._newest[row] = max(log._newest[row], records.written[record])
        self._begin_cycle()

    def _begin_cycle(self) -> None:
        settings = self._log.settings
        self._packing = Packing(settings.room_bytes, settings.swap_segments, is_placed=True)
        self._waiting, self._classes = array("i"), array("I")

    def _begin_output(self) -> None:
        if len(self._in_cycle) == self._log.settings.swap_segments:
            self._end_cycle()
        # Its name depends on how far the cycle gets.
        self._in_cycle.append(self._log._new_row(FIRST_SEGMENT))

    def _end_cycle(self) -> None:
        if self._waiting:
            self._put_by_class()
        assert len(self._in_cycle) <= len(self._sources), "what one source keeps fits into one output"
        if self._in_cycle:
            generation = 1 + max(name.generation for name in self._sources)
            for row, source in zip(self._in_cycle, self._sources, strict=False):
                self._log._names[row] = SegmentName(source.position, generation)
        self._outputs += self._in_cycle
        self._in_cycle, self._sources = [], []

    def finish(self) -> list[int]:
        """The rows of the outputs."""
        self._end_cycle()
        return self._outputs


def _fill(kept: array[int], start: int, room: int, row: int, records: Records) -> tuple[int, int, int]:
    """Place records from `start` on in `row` until one does not fit: how many, their bytes, the newest's time."""
    place, size, written = records.place, records.size, records.written
    total, newest, taken = 0, -NEVER, 0
    for record in kept[start:]:
        bytes_ = size[record]
        total += bytes_
        if total > room:
            return taken, total - bytes_, newest
        place[record] = row
        if written[record] > newest:
            newest = written[record]
        taken += 1
    return taken, total, newest
