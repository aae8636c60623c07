# SPDX-License-Identifier: Apache-2.0
"""A segmented log without payloads: what `BlobStore` would hold, and the views that its policy would be given.

A record is a small number: the index of its columns (segment, size, end, time, key). The number is used again once a
compaction has dropped the record, so memory follows what the log holds: 40 bytes a record, and 4 a key.

A record is appended to the open segment of its class. It dies when it is replaced, deleted or expires; until a
compaction takes its segment, it only lowers the segment's valid bytes. A compaction copies what is valid of its
victims, in the order of the choice:

* Without a placement there is one open segment. A compaction fills new segments, which take the first victims'
  positions with the next generation, and closes them at its end, as a store does, and with the same names. With
  `survivors`, a step fills its segments class by class.
* With a placement there is an open segment for each class, for the user's records and for survivors, and it stays open
  until it is full. New segments are always the last of the log.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate, compress
from operator import attrgetter, not_

import attrs

from compactlib.blobstore import BlobChoice, BlobView
from compactlib.blobstore.errors import PlanDoesNotFit
from compactlib.blobstore.policy import FIRST_SEGMENT, Dying, LastPlans, SegmentName, SegmentView, Survivor
from compactlib.errors import AuditFailed, InvalidInput
from compactlib.lab.blob_layout import BlobLayout
from compactlib.lab.placement import NEVER, Contents, Placer, Victim
from compactlib.lab.survivors import SurvivorPlacement, class_of, needs_history

_NAME, _VIEW = attrgetter("name"), attrgetter("view")
_GROWTH = 4096
_NUMBER_BITS = 32


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


@attrs.define(eq=False)
class Segment:
    """A segment of the log.

    Attributes:
        row: a small number of its own, which is used again once the segment is gone.
        name: its name in views and plans.
        placed: its class.
        begun: how many writes the user had made when it was opened.
        members: its records, dead ones included.
        used: bytes of them.
        dead: bytes of those that are dead.
        newest: when the newest was written, milliseconds.
        moments: the sum over the dead ones of time of death (from `BlobLog.since`) and size.
        view: as the last view showed it.
    """

    row: int
    name: SegmentName
    placed: int = 0
    begun: int = 0
    members: array[int] = attrs.field(factory=lambda: array("i"))
    used: int = 0
    dead: int = 0
    newest: int = -NEVER
    moments: float = 0.0
    view: SegmentView | None = None

    @property
    def valid(self) -> int:
        """Bytes of the records that are not dead."""
        return self.used - self.dead


class BlobLog:
    """A log of record numbers. One thread at a time.

    Args:
        settings: how it is laid out.
        name: the store's name in views and plans.

    Attributes:
        place: the segment of each record; `None` if it is dead: a compaction need not copy it.
        size: bytes of each record.
        until: the last millisecond at which each is kept; `NEVER` if it has no end.
        written: when each was written, milliseconds.
        key: the key of each; -1 for a tombstone.
        current: the newest record of each key; -1 for none.
        since: times of death count from here, milliseconds.
        tombstone_bytes: bytes of all tombstones.
        history: the plans carried out so far; `None` before the first view.
    """

    def __init__(self, settings: BlobLayout, *, name: str = "lab") -> None:
        self.settings: BlobLayout = settings
        self.name: str = name
        self.history: LastPlans | None = None
        self.place: list[Segment | None] = []
        self.size: array[int] = array("I")
        self.until: array[int] = array("q")
        self.written: array[int] = array("q")
        self.key: array[int] = array("i")
        self.current: array[int] = array("i")
        self.since: int = 0
        self.tombstone_bytes: int = 0
        self._free: array[int] = array("i")
        self._horizon = -NEVER
        # Deleted or replaced, and still valid: (last millisecond, record), ascending.
        self._leaving: deque[tuple[int, int]] = deque()
        self._dead_bytes = 0
        # A heap of `until << _NUMBER_BITS | record`; an entry whose record has another end by now is stale.
        self._ends: list[int] = []
        self._retention_ms = round(settings.deleted_retention_seconds * 1000)
        # Where deaths are watched, a deleted record is dead at once, not only at the next moment.
        self._at_once = settings.deaths_are_watched and not self._retention_ms
        self._room = settings.room_bytes
        self.placer: Placer | None = None
        self._by_row: list[Segment] = []
        self._free_rows: list[int] = []
        # Invariant: the view of a segment that is not here shows it as it is now.
        self._changed: set[Segment] = set()
        self._order: list[Segment] = [self._new_segment(FIRST_SEGMENT)]
        # Of each class; `None` if it has none.
        self._open: list[Segment | None] = [self._order[0]]
        self.contents: Contents = Contents()
        # The records of each key that the log holds, the newest last. Where a replacement leaves a tombstone, it is of
        # another id, which has no history.
        self._of_key: dict[int, list[int]] | None = (
            {} if needs_history(settings.survivors) and not settings.tombstone_bytes else None)
        if settings.placement is not None:
            self._open += [None] * (settings.placement.classes - 1)
            self.placer = settings.placement.placer()
            self.placer.contents, self.placer.sums_of = self.contents, self._sums_of
            self.placer.keeps_replaced = self._retention_ms > 0

    # ------------------------------------------------------------------------------------------------------ segments

    def _new_segment(self, name: SegmentName, placed: int = 0) -> Segment:
        if not self._free_rows:
            self._free_rows.append(len(self._by_row))
            self._by_row.append(Segment(-1, name))
        row = self._free_rows.pop()
        segment = self._by_row[row] = Segment(row, name, placed, 0 if self.placer is None else self.placer.writes)
        self._changed.add(segment)
        return segment

    def _release(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            self._free_rows.append(segment.row)
            self._changed.discard(segment)

    @property
    def free_segments(self) -> int:
        """How many segments the log can still begin."""
        return self.settings.segments - len(self._order)

    @property
    def used_bytes(self) -> int:
        """Used capacity: whole segments before the last one, and the last one up to its end."""
        return ((len(self._order) - 1) * self.settings.segment_bytes + self.settings.header_bytes
                + self._order[-1].used)

    @property
    def record_bytes(self) -> int:
        """Bytes of all records that the log holds, dead ones included."""
        return self.contents.bytes

    @property
    def valid_bytes(self) -> int:
        """Bytes of the records that compactions would copy."""
        return self.contents.bytes - self._dead_bytes

    @property
    def live_bytes(self) -> int:
        """Bytes that a reader can ask for: what is valid, less tombstones and what is deleted already.

        O(records that are deleted and kept).
        """
        return self.valid_bytes - self.tombstone_bytes - sum(self.size[record] for _, record in self._leaving)

    @property
    def names(self) -> tuple[SegmentName, ...]:
        """The segments' names, in log order."""
        return tuple(segment.name for segment in self._order)

    def has_room(self, size: int, placed: int = 0) -> bool:
        """Return whether the open segment of a class takes a record of `size` bytes.

        Raises:
            InvalidInput: an empty segment does not take one.
        """
        if not 0 < size <= self._room:
            raise InvalidInput(f"a record of {size} bytes; a segment has room for {self._room}")
        segment = self._open[placed]
        return segment is not None and segment.used + size <= self._room

    def roll(self, placed: int = 0) -> bool:
        """Begin the next segment, of a class; `False` if the log is full."""
        if not self.free_segments:
            return False
        self._begin(placed)
        return True

    def _begin(self, placed: int) -> Segment:
        self._close(placed)
        segment = self._open[placed] = self._new_segment(self._order[-1].name.next_position, placed)
        self._order.append(segment)
        return segment

    def _close(self, placed: int) -> None:
        if (segment := self._open[placed]) is None:
            return
        if self.placer is not None:
            self.placer.closed(segment.row, placed)
        self.contents.dead_bytes += segment.dead
        self._changed.add(segment)
        self._open[placed] = None

    # ------------------------------------------------------------------------------------------------------- records

    def know_keys(self, keys: int) -> None:
        """Make room for the keys below `keys`."""
        known = len(self.current)
        if keys > known:
            self.current.extend(array("i", (-1,)) * (max(keys, known * 5 // 4) - known))
            if self.placer is not None:
                self.placer.know_keys(len(self.current))

    def place_write(self, key: int, size: int, at_ms: int, until_ms: int) -> int:
        """Return the class of a record that the user writes now; 0 without a placement."""
        placer = self.placer
        if placer is None:
            return 0
        placer.writes += 1
        placer.segment_records, placer.until_ms = self._room // size, until_ms
        return self._class_in(placer.write(key, at_ms))

    def _class_in(self, placed: int) -> int:
        if 0 <= placed < len(self._open):
            return placed
        raise InvalidInput(f"placement {self.settings.placement!r:.100} gave class {placed!r:.100}; a class is a whole "
                           f"number from 0 to {len(self._open) - 1}")

    def append(self, size: int, at_ms: int, until_ms: int = NEVER, key: int = -1, placed: int = 0) -> int:
        """Write one record to the open segment of its class; return its number, or -1 if the segment has no room. O(1).

        O(log records) if it has an end.
        """
        segment, contents = self._open[placed], self.contents
        if segment is None or not 0 < size <= self._room - segment.used:
            return -1
        if not self._free:
            self._grow()
        record = self._free.pop()
        self.place[record] = segment
        self.size[record] = size
        self.until[record] = until_ms
        self.written[record] = segment.newest = at_ms
        self.key[record] = key
        segment.members.append(record)
        segment.used += size
        contents.bytes += size
        if until_ms != NEVER:
            self._expires(record, until_ms)
        if self._of_key is not None and key >= 0:
            self._of_key.setdefault(key, []).append(record)
        if self.placer is not None:
            contents.records += 1
            if segment.used + size > self._room:
                self._close(placed)
        return record

    def _grow(self) -> None:
        start, count = len(self.place), max(_GROWTH, len(self.place) >> 4)
        self._free.extend(range(start + count - 1, start - 1, -1))
        self.place.extend([None] * count)
        for column in (self.size, self.until, self.written, self.key):
            column.frombytes(bytes(column.itemsize * count))

    def _expires(self, record: int, until: int) -> None:
        if len(self._ends) > 2 * len(self.place):
            # Most are stale, as what is replaced stays here.
            self._ends = list({end for end in self._ends if self._is_end(*divmod(end, 1 << _NUMBER_BITS))})
            heapify(self._ends)
        heappush(self._ends, until << _NUMBER_BITS | record)

    def _is_end(self, until: int, record: int) -> bool:
        return self.until[record] == until and self.place[record] is not None

    def leave(self, record: int, at_ms: int) -> bool:
        """Delete a record, unless it has ended before; return whether it had not. Calls ascend in `at_ms`. O(1).

        It dies at once, or strictly after the retention.
        """
        until = self.until[record]
        if until < at_ms:
            return False
        if self._at_once:
            if self.place[record] is not None:
                self._bury([(at_ms, record)])
        elif (due := at_ms + self._retention_ms) < until:
            self.until[record] = due
            self._leaving.append((due, record))
        return True

    def advance(self, now_ms: int) -> None:
        """Have die what ends strictly before `now_ms`, as with a compaction's reference time. O(what dies)."""
        if now_ms <= self._horizon:
            return
        self._horizon = now_ms
        leaving, ends, deaths = self._leaving, self._ends, list[tuple[int, int]]()
        while leaving and leaving[0][0] < now_ms:
            deaths.append(leaving.popleft())
        if deaths:
            self._bury(deaths)
        while ends and ends[0] >> _NUMBER_BITS < now_ms:
            until, record = divmod(heappop(ends), 1 << _NUMBER_BITS)
            if self._is_end(until, record):
                self._bury([(until, record)])
                owner = self.key[record]
                if owner >= 0 and self.current[owner] == record:
                    self.current[owner] = -1

    def _bury(self, deaths: Sequence[tuple[int, int]]) -> None:
        """Have records die, each at a time."""
        place, sizes, since, placer = self.place, self.size, self.since, self.placer
        changed, opened, died, closed_died = self._changed, self._open, 0, 0
        for at_ms, record in deaths:
            segment, size = place[record], sizes[record]
            assert segment is not None
            place[record] = None
            segment.dead += size
            segment.moments += (at_ms - since) * size
            changed.add(segment)
            died += size
            if opened[segment.placed] is not segment:
                closed_died += size
            if placer is not None:
                placer.left(self.key[record], segment.row, segment.placed)
        self._dead_bytes += died
        self.contents.dead_bytes += closed_died

    def has_dead_beyond(self, fraction: float) -> bool:
        """Return whether more than this part of what the log holds is dead in closed segments. O(1)."""
        return self.contents.dead_bytes > fraction * self.contents.bytes

    def _sums_of(self, rows: Sequence[int], columns: Sequence[array[int]]) -> list[list[int]]:
        place, owner, leaving, found = self.place, self.key, {record for _, record in self._leaving}, []
        for row in rows:
            segment = self._by_row[row]
            keys = [owner[each] for each in segment.members if place[each] is segment and each not in leaving]
            found.append([len(keys), *(sum([column[key] for key in keys]) for column in columns)])
        return found

    # ---------------------------------------------------------------------------------------------------------- views

    def view(self, now_ms: int) -> BlobView:
        """Return the view that a real store's sensor would take. O(segments) in C, and more for those that changed;
        with a forecast O(records).
        """
        self.advance(now_ms)
        if self.history is None:
            # As in a real store, schedules count from its first day.
            self.history = LastPlans(since=self.since / 1000)
        settings = self.settings
        written_to = self._written_to()
        dying = self._dying(now_ms) if settings.forecast_seconds else {}
        # Of a segment without records, which nobody may take.
        earliest = min(self.since, 0)
        for segment in self._order if dying else self._changed | written_to:
            segment.view = SegmentView(
                name=segment.name, used_bytes=segment.used, valid_bytes=segment.valid,
                eligible=segment not in written_to, last_modified=max(segment.newest, earliest) / 1000,
                dying=dying.get(segment.row, ()))
        # What is written to changes with the next record, and when it is closed.
        self._changed = written_to
        return BlobView(
            store=self.name, capacity_bytes=settings.segments * settings.segment_bytes,
            segment_bytes=settings.segment_bytes, header_bytes=settings.header_bytes,
            max_blob_bytes=settings.max_blob_bytes, used_bytes=self.used_bytes,
            reference_time=(now_ms - self._retention_ms) / 1000, retention_seconds=settings.deleted_retention_seconds,
            segments=tuple(map(_VIEW, self._order)),
            history=self.history)

    def _written_to(self) -> set[Segment]:
        return {self._order[-1], *filter(None, self._open)}

    def _dying(self, now_ms: int) -> dict[int, tuple[Dying, ...]]:
        """Sum up what of each row dies in which bucket of the forecast. O(records)."""
        span = round(self.settings.bucket_seconds * 1000)
        horizon = now_ms + round(self.settings.forecast_seconds * 1000)
        place, until, size = self.place, self.until, self.size
        found: dict[int, tuple[Dying, ...]] = {}
        for segment in self._order:
            sums: dict[int, int] = {}
            for record in segment.members:
                if place[record] is segment and until[record] < horizon:
                    bucket = until[record] // span
                    sums[bucket] = sums.get(bucket, 0) + size[record]
            found[segment.row] = tuple(Dying(((bucket + 1) * span - 1) / 1000, sums[bucket]) for bucket in sorted(sums))
        return found

    # --------------------------------------------------------------------------------------------------- compactions

    def compact(self, choice: BlobChoice, now_ms: int) -> Compacted:
        """Carry out a policy's choice. O(records in the victims), and O(log segments) a victim.

        Raises:
            PlanDoesNotFit: it names a segment that the log does not have, or one that is written to.
        """
        written_to = self._written_to()
        victims, stray = list[Segment](), list[str]()
        for name in dict.fromkeys(choice.victims):
            index = self._index_of(name)
            if index < len(self._order) and (segment := self._order[index]).name == name and segment not in written_to:
                victims.append(segment)
            else:
                stray.append(str(name))
        if stray:
            raise PlanDoesNotFit(f"the choice names {', '.join(stray)}, which may not be compacted; choose again")
        done = _Copy(self, now_ms)
        done.take(victims)
        outputs = {} if self.placer is not None else {output.name.position: output for output in done.outputs}
        for segment in victims:
            index = self._index_of(segment.name)
            if (output := outputs.get(segment.name.position)) is None:
                del self._order[index]
            else:
                self._order[index] = output
        for placed in () if self.placer is None else self.placer.brief:
            self._close(placed)
        self._release(victims)
        if self.history is not None:
            self.history = self.history.after(choice.kind, now_ms / 1000)
        return Compacted(victims=len(victims), outputs=len(done.outputs), copied_bytes=done.copied_bytes,
                         read_bytes=done.read_bytes, reclaimed_bytes=done.reclaimed_bytes, waited=done.waited)

    def _index_of(self, name: SegmentName) -> int:
        return bisect_left(self._order, name, key=_NAME)

    # --------------------------------------------------------------------------------------------------------- audit

    @property
    def memory_bytes(self) -> int:
        """What records and segments take, in their columns."""
        columns = (self.size, self.until, self.written, self.key, self._free, self.current,
                   *(segment.members for segment in self._order))
        return (sum(column.itemsize * len(column) for column in columns) + 8 * len(self.place)
                + 40 * len(self._ends) + 120 * len(self._leaving))

    def audit(self) -> None:
        """Check the log's sums against its records. O(records).

        Raises:
            AuditFailed: a number is not what its parts come to.
        """
        names, place, size = self.names, self.place, self.size
        free = set(self._free)
        if len(free) != len(self._free) or any(place[record] is not None for record in free):
            raise AuditFailed(f"of {len(self._free)} free numbers {len(free)} are different, or one is in use")
        if any(record >= 0 and record in free for record in self.current):
            raise AuditFailed("a key leads to a record that is free")
        if list(names) != sorted(set(names)) or len(names) > self.settings.segments:
            raise AuditFailed(f"{len(names)} segments that do not ascend, or more than {self.settings.segments}")
        held = 0
        for segment in self._order:
            valid = [record for record in segment.members if place[record] is segment]
            held += len(valid)
            used = sum(size[record] for record in valid)
            if used != segment.valid or not used <= segment.used <= self._room:
                raise AuditFailed(f"segment {segment.name} counts {segment.valid} valid bytes of {segment.used}; its "
                                  f"records come to {used}")
        written_to = self._written_to()
        for segment in self._order:
            view = segment.view
            if segment not in self._changed and (view is None or view.eligible == (segment in written_to) or (
                    view.used_bytes, view.valid_bytes) != (segment.used, segment.valid)):
                raise AuditFailed(f"the view {view} of segment {segment.name} is not as the segment is")
        alive = sum(each is not None for each in place)
        if alive != held:
            raise AuditFailed(f"{alive} records are alive, the segments hold {held}")
        segments, contents = self._order, self.contents
        sums = (sum(each.valid for each in segments), sum(each.used for each in segments),
                0 if self.placer is None else sum(len(each.members) for each in segments),
                sum(each.dead for each in segments if each not in self._open))
        counted = (self.valid_bytes, contents.bytes, contents.records, contents.dead_bytes)
        if sums != counted:
            raise AuditFailed(f"valid bytes, bytes, records and dead bytes are {sums}, counted were {counted}")

    def __repr__(self) -> str:
        return f"BlobLog({len(self._order)} of {self.settings.segments} segments, {self.valid_bytes:,} valid bytes)"


class _Copy:
    """One compaction under way."""

    def __init__(self, log: BlobLog, now_ms: int) -> None:
        self.outputs: list[Segment] = []
        self.copied_bytes = self.read_bytes = self.reclaimed_bytes = 0
        self.waited = 0.0
        self._log = log
        self._now_ms = now_ms
        # The outputs of the cycle at hand, and the victims whose positions they may take. A cycle fills at most
        # `swap_segments`.
        self._in_cycle: list[Segment] = []
        self._sources: list[SegmentName] = []

    def take(self, victims: Sequence[Segment]) -> None:
        """Copy what is valid of the victims, and give back the numbers of what is dead."""
        log = self._log
        if log.settings.survivors is not None:
            self._take_in_steps(victims, log.settings.survivors)
            return
        for number, victim in enumerate(victims, 1):
            if log.placer is None:
                self._copy(self._sort_out(victim))
                self._sources.append(victim.name)
            else:
                count = len(victim.members)
                log.placer.taken(Victim(victim.row, victim.placed, victim.begun, count,
                                        victim.valid * count // victim.used))
                self._place(self._sort_out(victim), log.placer, number)
        self._end_cycle()

    def _sort_out(self, source: Segment) -> array[int]:
        """Count a source, and drop its dead records; return the others."""
        log, members, dead_bytes = self._log, source.members, source.dead
        self.reclaimed_bytes += dead_bytes
        self.waited += (self._now_ms - log.since) * dead_bytes - source.moments
        if source not in self.outputs:
            self.copied_bytes += source.valid
            self.read_bytes += source.used if source.valid else 0
        alive = [segment is source for segment in map(log.place.__getitem__, members)]
        kept = array("i", compress(members, alive))
        gone = array("i", compress(members, map(not_, alive)))
        if log._of_key is not None:
            for record in gone:
                if (owner := log.key[record]) >= 0:
                    log._of_key[owner].remove(record)
        log._free.extend(gone)
        log.contents.bytes -= dead_bytes
        log.contents.dead_bytes -= dead_bytes
        log._dead_bytes -= dead_bytes
        if log.placer is not None:
            log.contents.records -= len(gone)
        return kept

    # ---------------------------------------------------------------------------------------- one open segment, in turn

    def _copy(self, kept: array[int]) -> None:
        log, place, done = self._log, self._log.place, 0
        sizes = list(map(log.size.__getitem__, kept))
        while done < len(kept):
            if not self._in_cycle or not (count := bisect_right(
                    ends := list(accumulate(sizes[done:])), log._room - self._in_cycle[-1].used)):
                self._begin_output()
                continue
            output, part = self._in_cycle[-1], kept[done:done + count]
            for record in part:
                place[record] = output
            output.members.extend(part)
            output.used += ends[count - 1]
            output.newest = max(output.newest, *map(log.written.__getitem__, part))
            done += count

    def _begin_output(self) -> None:
        if len(self._in_cycle) == self._log.settings.swap_segments:
            self._end_cycle()
        # Its name depends on how far the cycle gets.
        self._in_cycle.append(self._log._new_segment(FIRST_SEGMENT))

    def _end_cycle(self) -> None:
        assert len(self._in_cycle) <= len(self._sources), "what one source keeps fits into one output"
        if self._in_cycle:
            generation = 1 + max(name.generation for name in self._sources)
            for output, source in zip(self._in_cycle, self._sources, strict=False):
                output.name = SegmentName(source.position, generation)
        self.outputs += self._in_cycle
        self._in_cycle, self._sources = [], []

    # ------------------------------------------------------------------------------------ an open segment of each class

    def _place(self, kept: array[int], placer: Placer, released: int) -> None:
        """Put records into the open segments of their classes; where no segment is left to begin, into any with room.

        `released` segments are given back when all is copied, and count as free now.
        """
        log, now_ms, room, renew = self._log, self._now_ms, self._log._room, self._log.settings.copies_renew
        for record in kept:
            size = log.size[record]
            placer.segment_records, placer.until_ms = room // size, log.until[record]
            placed = log._class_in(placer.copy(log.key[record], now_ms))
            output = log._open[placed]
            if output is None or output.used + size > room:
                if log.free_segments + released:
                    output = log._begin(placed)
                    self.outputs.append(output)
                else:
                    output = next(each for each in log._open if each is not None and each.used + size <= room)
            log.place[record] = output
            output.members.append(record)
            output.used += size
            output.newest = max(output.newest, now_ms if renew else log.written[record])
            if output.used + size > room:
                log._close(output.placed)

    # -------------------------------------------------------------------------------------- survivors, class by class

    def _take_in_steps(self, victims: Sequence[Segment], survivors: SurvivorPlacement) -> None:
        """Copy by class in a store's steps: whole segments, as many as the new ones take; the last of these once more.
        """
        log, most = self._log, self._log.settings.swap_segments
        waiting, carried = list(victims), list[Segment]()
        while waiting:
            budgeted = most * log._room - sum(each.valid for each in carried)
            count = max(1, bisect_right(list(accumulate(each.valid for each in waiting)), budgeted))
            while len(outputs := self._by_class([*carried, *waiting[:count]], survivors)) > most:
                if count > 1:
                    count = max(1, min(count - 1, count * most // len(outputs)))
                else:
                    carried = []
            sources: list[Segment] = [*carried, *waiting[:count]]
            self._sources = [source.name for source in sources]
            for source in sources:
                self._sort_out(source)
            self._in_cycle = [log._new_segment(FIRST_SEGMENT) for _ in outputs]
            for output, kept in zip(self._in_cycle, outputs, strict=True):
                output.members.extend(kept)
                output.used = sum(map(log.size.__getitem__, kept))
                output.newest = max(map(log.written.__getitem__, kept))
                for record in kept:
                    log.place[record] = output
            self.outputs = [output for output in self.outputs if output not in carried]
            log._release(carried)
            self._end_cycle()
            waiting, carried = waiting[count:], self.outputs[-1:] if outputs else []
            if carried and carried[0].used == log._room:
                carried = []

    def _by_class(self, sources: Sequence[Segment], survivors: SurvivorPlacement) -> list[list[int]]:
        """Return the records of each new segment: class by class, unless as they are copied takes fewer."""
        log, kept, classes = self._log, list[int](), dict[int, int]()
        for source in sources:
            for record in source.members:
                if log.place[record] is source:
                    kept.append(record)
                    classes[record] = class_of(survivors, Survivor(
                        log.written[record], log.until[record], log.size[record], source.name.generation,
                        self._earlier_ms(record), self._now_ms))
        plain, by_class = self._packed(kept), self._packed(sorted(kept, key=classes.__getitem__))
        return by_class if len(by_class) <= len(plain) else plain

    def _earlier_ms(self, record: int) -> Sequence[int]:
        """When the records of its key were written that are older, the newest first."""
        log = self._log
        if log._of_key is None:
            return ()
        records = log._of_key[log.key[record]]
        return [log.written[each] for each in reversed(records[:records.index(record)])]

    def _packed(self, kept: Iterable[int]) -> list[list[int]]:
        """Fill segments one behind the other."""
        left, outputs = 0, list[list[int]]()
        for record in kept:
            if (size := self._log.size[record]) > left:
                outputs.append([])
                left = self._log._room
            left -= size
            outputs[-1].append(record)
        return outputs
