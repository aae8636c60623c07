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
from collections.abc import Iterable
from itertools import compress
from operator import not_
from typing import Protocol

import attrs

from compactlib.blobstore.compaction.plan.last_plans import LastPlans
from compactlib.blobstore.compaction.plan.policy import BlobChoice, BlobView, Dying, SegmentView
from compactlib.blobstore.compaction.rewrite.packing import Packing
from compactlib.blobstore.errors import PlanDoesNotFit
from compactlib.blobstore.model.names import FIRST_SEGMENT, SegmentName
from compactlib.blobstore.model.placement import Survivor, SurvivorPlacement, class_of
from compactlib.errors import AuditFailed, InvalidInput
from compactlib.lab.blobstore.placement.placement import Placement, Placer, Victim
from compactlib.lab.blobstore.records import DEAD, NEVER, Records, put_plainly

NO_ROW = -1
"""The row of a class without an open segment."""


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
        self._classes: list[int] = []
        self._begun: list[int] = []
        self._held_bytes = self._died_bytes = 0
        self._order: list[int] = [self._new_row(FIRST_SEGMENT)]
        self._open: list[int] = [self._order[0]]
        self.placer: Placer | None = None
        if settings.placement is not None:
            self._open += [NO_ROW] * (settings.placement.classes - 1)
            self.placer = settings.placement.placer()
            self.placer.valid_records = self._valid_records

    # ------------------------------------------------------------------------------------------------------ segments

    def _new_row(self, name: SegmentName) -> int:
        if self._free_rows:
            row = self._free_rows.pop()
            self._names[row], self._members[row] = name, array("i")
            self._used[row] = self._valid[row] = self._newest[row] = 0
            self._moments[row] = 0.0
            self._views[row] = None
            self._classes[row] = self._begun[row] = 0
            return row
        self._names.append(name)
        self._members.append(array("i"))
        for column in (self._used, self._valid, self._newest, self._classes, self._begun):
            column.append(0)
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
        self._open[placed] = NO_ROW

    # ------------------------------------------------------------------------------------------------------- placing

    def _valid_records(self) -> float:
        """How many records are valid, or died in a segment that is open; about so many if sizes differ."""
        if not self._held_bytes:
            return 0.0
        return (self._held_bytes - self._closed_dead_bytes) / self._record_bytes

    @property
    def _record_bytes(self) -> int:
        size, records = self.records.one_size, len(self.records.place) - len(self.records.free)
        return size if size > 0 else max(self._held_bytes // max(records, 1), 1)

    @property
    def _closed_dead_bytes(self) -> int:
        used, valid = self._used, self._valid
        return self._died_bytes - sum(used[row] - valid[row] for row in self._open if row != NO_ROW)

    def has_dead_beyond(self, fraction: float) -> bool:
        """Whether what is dead in closed segments is more than this part of what the log holds. O(classes).

        Only in a log that is told of each death by `kill` or `advance`, and does not put plainly.
        """
        most = fraction * self._held_bytes
        return self._died_bytes > most and self._closed_dead_bytes > most

    def place(self, key: int, size: int, at_ms: int) -> int:
        """The class of a record that the user writes now; 0 without a placement."""
        if self.placer is None:
            return 0
        self.placer.writes += 1
        self.placer.segment_records = self.settings.room_bytes // size
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
        self._died_bytes += size
        if self.placer is not None:
            self.placer.left(records.key[record], row, self._classes[row])

    def put_plainly(self, keys: array[int], times: array[int], size: int) -> None:
        """Write records of one size that live until they are replaced; the active segment has room for them.

        Only in a log in which every record does so, and what is replaced is dead at once. O(records).

        Args:
            keys: the key of each, known to the records.
            times: when, ascending, milliseconds.
            size: of each.
        """
        records, row, count = self.records, self._open[0], len(keys)
        records.sized(size)
        records.reserve(count)
        given = records.free[-count:]
        del records.free[-count:]
        put_plainly(keys, times, given, row, size, records, self._valid, self._moments)
        self._members[row].extend(given)
        self._used[row] += count * size
        self._valid[row] += count * size
        self._newest[row] = max(self._newest[row], times[-1])

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
        self._members[row].append(record)
        self._used[row] += size
        self._valid[row] += size
        if at_ms > self._newest[row]:
            self._newest[row] = at_ms
        self._held_bytes += size
        if self.placer is not None:
            self._stored(key, row, placed, size)
        return record

    def _stored(self, key: int, row: int, placed: int, size: int) -> None:
        assert self.placer is not None
        self.placer.stored(key, row)
        if self._used[row] + size > self.settings.room_bytes:
            self._close(placed)

    # ---------------------------------------------------------------------------------------------------------- time

    def _horizon(self, now_ms: int) -> int:
        """What dies before this does not count at `now_ms`: the beginning of its bucket, if there are buckets."""
        if not self.settings.forecast_seconds:
            return now_ms
        span = round(self.settings.bucket_seconds * 1000)
        return now_ms // span * span

    def advance(self, now_ms: int) -> None:
        """Take off what has died by `now_ms`. O(what has died)."""
        told = None if self.placer is None else self._tell_expired
        self._died_bytes += self.records.bury(self._horizon(now_ms), self._valid, self._moments, told)

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
        horizon = self._horizon(now_ms)
        dying = self._dying(horizon) if settings.forecast_seconds else {}
        written_to = {self.active, *self._open}
        names, used, valid, newest, views = self._names, self._used, self._valid, self._newest, self._views
        segments: list[SegmentView] = []
        for row in self._order:
            view = views[row]
            if view is None or view.valid_bytes != valid[row] or dying or row in written_to:
                view = SegmentView(name=names[row], used_bytes=used[row], valid_bytes=valid[row],
                                   eligible=row not in written_to, last_modified=newest[row] / 1000,
                                   dying=dying.get(row, ()))
                views[row] = None if dying or row in written_to else view
            segments.append(view)
        return BlobView(
            store=self.name, capacity_bytes=settings.segments * settings.segment_bytes,
            segment_bytes=settings.segment_bytes, header_bytes=settings.header_bytes,
            swap_segments=settings.swap_segments, max_blob_bytes=settings.max_blob_bytes, used_bytes=self.used_bytes,
            reference_time=(horizon - self._retention_ms) / 1000,
            retention_seconds=settings.deleted_retention_seconds, segments=tuple(segments), history=self.history)

    def _dying(self, horizon: int) -> dict[int, tuple[Dying, ...]]:
        """What of each row dies in which bucket of the forecast. O(records in the log)."""
        span = round(self.settings.bucket_seconds * 1000)
        first = horizon // span
        last = first + round(self.settings.forecast_seconds * 1000) // span
        place, until, size = self.records.place, self.records.until, self.records.size
        found: dict[int, tuple[Dying, ...]] = {}
        for row in self._order:
            sums: dict[int, int] = {}
            for record in self._members[row]:
                bucket = until[record] // span
                if place[record] == row and bucket < last:
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
        for row in victims:
            done.take(row)
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
            self._held_bytes -= self._used[row] - self._valid[row]
            self._died_bytes -= self._used[row] - self._valid[row]
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

    def take(self, row: int) -> None:
        """Copy what is valid of one victim; the numbers of the dead are free again."""
        log = self._log
        records, valid = log.records, log._valid[row]
        dead_bytes = log._used[row] - valid
        self.copied_bytes += valid
        self.read_bytes += log._used[row] if valid else 0
        self.reclaimed_bytes += dead_bytes
        self.waited += (self._now_ms - records.since) * dead_bytes - log._moments[row]
        if log.placer is not None:
            log.placer.taken(Victim(row, log._classes[row], log._begun[row], len(log._members[row]),
                                    valid * len(log._members[row]) // log._used[row]))
        kept = _sorted_out(log._members[row], row, records.place, records.free)
        if log.settings.survivors is not None:
            self._classify(kept, log._names[row], log.settings.survivors)
            return
        if log.placer is not None:
            self._room_segments += 1
            self._place(kept, log.placer)
            return
        done = 0
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
        self._sources.append(log._names[row])

    def _place(self, kept: array[int], placer: Placer) -> None:
        """Put records into the open segments of their classes; where no segment is left to begin, into any with room.
        """
        log, now_ms = self._log, self._now_ms
        records, renew, room = log.records, log.settings.copies_renew, log.settings.room_bytes
        for record in kept:
            size = records.size[record]
            placer.segment_records = room // size
            placed = placer.copy(records.key[record], now_ms)
            row = log._open[placed]
            if row == NO_ROW or log._used[row] + size > room:
                if log.free_segments + self._room_segments:
                    log._begin(placed)
                    self._outputs.append(log._open[placed])
                else:
                    placed = next(each for each, open_row in enumerate(log._open)
                                  if open_row != NO_ROW and log._used[open_row] + size <= room)
                row = log._open[placed]
            records.place[record] = row
            log._members[row].append(record)
            log._used[row] += size
            log._valid[row] += size
            log._newest[row] = max(log._newest[row], now_ms if renew else records.written[record])
            log._stored(records.key[record], row, placed, size)

    def _classify(self, kept: array[int], source: SegmentName, survivors: SurvivorPlacement) -> None:
        """Take records into the cycle, as `cycle_plan` does it; into which segments follows at its end."""
        records, packing = self._log.records, self._packing
        for record in kept:
            if not packing.admit(records.size[record]):
                self._end_cycle()
                packing = self._packing
                packing.admit(records.size[record])
            self._waiting.append(record)
            self._classes.append(class_of(survivors, Survivor(
                records.written[record], records.until[record], records.size[record], source.generation), self._now_ms))
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


def _sorted_out(members: array[int], row: int, place: array[int], free: array[int]) -> array[int]:
    """The members that are valid; the others' numbers go to `free`."""
    alive = [place[record] == row for record in members]
    free.extend(array("i", compress(members, map(not_, alive))))
    return array("i", compress(members, alive))


def _fill(kept: array[int], start: int, room: int, row: int, records: Records) -> tuple[int, int, int]:
    """Place records from `start` on in `row` until one does not fit: how many, their bytes, the newest's time."""
    place, size, written = records.place, records.size, records.written
    if records.one_size > 0:
        part = kept[start:start + room // records.one_size]
        for record in part:
            place[record] = row
        return len(part), len(part) * records.one_size, max(map(written.__getitem__, part), default=0)
    total = newest = taken = 0
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
