# SPDX-License-Identifier: Apache-2.0
"""A blob store without payloads: the records that `BlobStore` would store, and the views that its policy would read.

A record is a small number: the index of its columns (segment, size, end, time, key). The number is reused once a
compaction has dropped the record, so memory follows the log: 40 bytes a record, and 4 a key.

A record is appended to the last segment. It dies when it is replaced, deleted or expires; until a compaction takes its
segment, its death only lowers the segment's valid bytes. A compaction copies the valid records of its victims, in the
order of the choice, step by step as a real store does. A step fills new segments, which get the positions of its first
victims, with the next generation. With `survivors`, a step fills its segments class by class.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate, takewhile
from operator import attrgetter, itemgetter
from typing import Any, Self

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.blobstore import BlobChoice, BlobPolicy, BlobStoreConfig, BlobView
from compactlib.blobstore.errors import PlanDoesNotFit
from compactlib.blobstore.policy import (
    FIRST_SEGMENT,
    SEGMENT_HEADER_BYTES,
    Dying,
    Place,
    SegmentName,
    SegmentView,
    Survivor,
    record_size,
    whole,
)
from compactlib.errors import InvalidInput
from compactlib.lab.simulation import Simulation
from compactlib.lab.workloads import DELETE, FOREVER, NEVER, PUT, Row

MAX_SEGMENTS = 1 << 24
MAX_ROUNDS = 10_000
"""The largest number of plans for one write without room."""
_PATIENCE = 1_000
"""Refused writes from one call of the policy to the next while the log is full."""
_MOST_OUTPUTS = 8
"""The number of segments that one step of a real store fills if the disk has room."""
_LONGEST_SECONDS = NEVER // 1000
_VIEW, _VALID = attrgetter("view"), attrgetter("valid")
_GROWTH = 4096
_NUMBER_BITS = 32


@attrs.frozen(kw_only=True)
class BlobLogModel:
    """A blob store to be replayed, and the conditions that call its policy. Sizes are bytes, times seconds.

    Attributes:
        capacity_bytes: the capacity of the whole log.
        segment_bytes: the size of one segment, its header included.
        header_bytes: the size of a segment's header.
        max_blob_bytes: the free bytes that a plan's benefit assumes in each output.
        record_overhead_bytes: bytes of a record in addition to its content.
        tombstone_bytes: size of the record that a delete writes and that is never dropped; 0: a delete writes nothing.
        deleted_retention_seconds: the time from a delete to its effect.
        min_free_segments: a new segment calls the policy if at most this number of segments is free, and again while
            that frees a segment; >= 0.
        forecast_seconds: the length of the forecast of expiring bytes in the view; 0: no forecast.
        bucket_seconds: the steps of the forecast.
        survivors: which survivors of a compaction share a segment, as `BlobStore(place=...)`.

    Raises:
        InvalidInput: a value is out of its range.
    """

    capacity_bytes: int = attrs.field(validator=is_whole(1))
    segment_bytes: int = attrs.field(validator=is_whole(1))
    header_bytes: int = whole(SEGMENT_HEADER_BYTES)
    max_blob_bytes: int = whole(0)
    record_overhead_bytes: int = whole(0)
    tombstone_bytes: int = whole(0)
    deleted_retention_seconds: float = attrs.field(default=0.0, validator=is_seconds(most=_LONGEST_SECONDS))
    min_free_segments: int = whole(1)
    forecast_seconds: float = attrs.field(default=0.0, validator=is_seconds(most=_LONGEST_SECONDS))
    bucket_seconds: float = attrs.field(default=3600.0, validator=is_seconds(0.001, _LONGEST_SECONDS))
    survivors: Place | None = None

    def __attrs_post_init__(self) -> None:
        if not self.header_bytes < self.segment_bytes <= self.capacity_bytes or not 2 <= self.segments <= MAX_SEGMENTS:
            raise InvalidInput(f"capacity_bytes {self.capacity_bytes} is a log of {self.segments} segments of "
                               f"{self.segment_bytes} bytes with header_bytes {self.header_bytes}; give 2 to "
                               f"{MAX_SEGMENTS} segments that are larger than their header")
        if self.max_blob_bytes >= self.room_bytes:
            raise InvalidInput(f"max_blob_bytes is {self.max_blob_bytes}; give less than the {self.room_bytes} bytes "
                               f"of records that a segment takes")

    @property
    def segments(self) -> int:
        """The number of segments of the log."""
        return self.capacity_bytes // self.segment_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes of records that a segment takes."""
        return self.segment_bytes - self.header_bytes

    @classmethod
    def of_slots(cls, segments: int, records_per_segment: int, record_bytes: int = 1, **more: Any) -> Self:
        """Model a log without headers, whose segments take a number of equal records, as the literature does.

        Args:
            segments: the number of the log's segments.
            records_per_segment: the number of records of `record_bytes` that fit.
            record_bytes: the size of each record.
            more: other settings.
        """
        size = records_per_segment * record_bytes
        return cls(**{"capacity_bytes": segments * size, "segment_bytes": size, "header_bytes": 0, **more})

    @classmethod
    def of_store(cls, config: BlobStoreConfig, *, id_bytes: int, **more: Any) -> Self:
        """Model a real store whose ids have `id_bytes` bytes each.

        Every sealed segment is eligible, as in a store with an empty journal (`journal_max_entries=0`). For a policy
        that reads a forecast, give `forecast_seconds`: a store's has seven days, by the hour.

        Args:
            config: the store's.
            id_bytes: length of an id.
            more: other settings.
        """
        overhead = record_size(id_bytes, 0)
        return cls(**{
            "capacity_bytes": config.capacity_bytes, "segment_bytes": config.segment_bytes,
            "record_overhead_bytes": overhead, "tombstone_bytes": overhead, "max_blob_bytes": config.max_blob_bytes,
            "deleted_retention_seconds": config.deleted_retention_seconds, **more})

    def start(self, policy: BlobPolicy, seed: int = 0) -> BlobLog:
        """Make an empty log."""
        return BlobLog(self, policy)


@attrs.define(eq=False)
class Segment:
    """A segment of the log.

    Attributes:
        name: its name in views and plans.
        members: its records, with dead ones.
        used: bytes of its records.
        dead: bytes of its dead records.
        newest: the time of its newest record, milliseconds; 0 without records.
        view: its part of the last view.
    """

    name: SegmentName
    members: array[int] = attrs.field(factory=lambda: array("i"))
    used: int = 0
    dead: int = 0
    newest: int = 0
    view: SegmentView | None = None

    @property
    def valid(self) -> int:
        """Bytes of the records that are not dead."""
        return self.used - self.dead


class BlobLog(Simulation):
    """A blob store under replay: a log of record numbers.

    Args:
        model: its settings.
        policy: chooses the victims.

    Attributes:
        name: the store's name in views and plans.
        last_full_at: when the last full plan was carried out, or the log began; `None` before the first view.
        place: the segment of each record; `None`: the record is dead.
        size: bytes of each record.
        until: the last millisecond of each record's life; `NEVER` without an end.
        written: the time at which each record was written, milliseconds.
        key: the key of each record; -1 for a tombstone.
        current: the newest record of each key; -1: the key has no record.
        since: the time of the first operation, milliseconds.
        segments: the segments by position, in log order.
        last: the last segment, to which records are appended.
    """

    def __init__(self, model: BlobLogModel, policy: BlobPolicy) -> None:
        super().__init__(policy)
        self.model: BlobLogModel = model
        self.name: str = "lab"
        self.last_full_at: float | None = None
        self.place: list[Segment | None] = []
        self.size: array[int] = array("I")
        self.until: array[int] = array("q")
        self.written: array[int] = array("q")
        self.key: array[int] = array("i")
        self.current: array[int] = array("i")
        self.since: int = 0
        self.last: Segment = Segment(FIRST_SEGMENT)
        self.segments: dict[int, Segment] = {FIRST_SEGMENT.position: self.last}
        self._free: array[int] = array("i")
        self._bytes = self._dead_bytes = self._tombstone_bytes = 0
        self._horizon = -NEVER
        # Records that were deleted or replaced and are still valid: (last millisecond, record), ascending.
        self._leaving: deque[tuple[int, int]] = deque()
        # A heap of `until << _NUMBER_BITS | record`; an entry is stale if the end of its record has changed.
        self._ends: list[int] = []
        self._retention_ms = round(float(model.deleted_retention_seconds) * 1000)
        self._room = model.room_bytes
        # Invariant: the view of every segment outside this set is current, except the last.
        self._changed: set[Segment] = set()
        # The records of each key in the log, the newest last, for `survivors`. With tombstones, a replacement has
        # another id, without history.
        self._of_key: dict[int, list[int]] | None = (
            None if model.survivors is None or model.tombstone_bytes else {})
        self._begun = False
        # Writes that are still refused without a call of the policy.
        self._patience = 0
        self._gate = "the policy was not called"

    # ---------------------------------------------------------------------------------------------------- operations

    def apply(self, rows: Sequence[Row]) -> None:
        """Make these operations.

        Raises:
            InvalidInput: a record does not fit into a segment.
        """
        overhead, tombstone = self.model.record_overhead_bytes, self.model.tombstone_bytes
        if not self._begun:
            self._begun = True
            self.since = rows[0][4]
        self._know_keys(max(map(itemgetter(1), rows)) + 1)
        current, append, leave, user_bytes = self.current, self._append, self._leave, 0
        for kind, key, size, life, at in rows:
            if kind == PUT:
                size += overhead
                until = NEVER if life == FOREVER else at + life
                record = append(size, at, until, key)
                if record < 0 and self._make_room(size, at):
                    record = append(size, at, until, key)
                if record < 0:
                    self._refuse()
                else:
                    user_bytes += size
                    # Read only here: the record may have expired while `_make_room` compacted.
                    old, current[key] = current[key], record
                    if old >= 0 and leave(old, at) and tombstone:
                        self._write_tombstone(at)
            elif kind == DELETE:
                self._delete(key, at)
            else:
                self.counts.reads += 1
        self.advance(rows[-1][4])
        self.counts.user_bytes += user_bytes
        self.counts.operations += len(rows)

    def _know_keys(self, keys: int) -> None:
        known = len(self.current)
        if keys > known:
            self.current.extend(array("i", (-1,)) * (max(keys, known * 5 // 4) - known))

    def _delete(self, key: int, at: int) -> None:
        tombstone = self.model.tombstone_bytes
        old = self.current[key]
        if old < 0 or self.until[old] < at:
            return
        if tombstone and not self._has_room(tombstone) and not self._make_room(tombstone, at):
            self._refuse()
        elif self.current[key] == old:
            # The record may have expired while `_make_room` compacted.
            self.current[key] = -1
            if self._leave(old, at) and tombstone:
                self._write_tombstone(at)

    def _write_tombstone(self, at: int) -> None:
        tombstone = self.model.tombstone_bytes
        if not self._has_room(tombstone) and not self._make_room(tombstone, at):
            self._refuse()
            return
        self._append(tombstone, at)
        self._tombstone_bytes += tombstone
        self.counts.user_bytes += tombstone

    def _refuse(self) -> None:
        self.counts.refused += 1
        self.counts.refused_why = self._gate

    # ------------------------------------------------------------------------------------------------------ room

    def _has_room(self, size: int) -> bool:
        """Return whether the last segment takes a record of `size` bytes."""
        if not 0 < size <= self._room:
            raise InvalidInput(f"a record of {size} bytes; a segment has room for {self._room}")
        return self.last.used + size <= self._room

    def _make_room(self, size: int, at_ms: int) -> bool:
        """Begin a segment; call the policy first if too few are free."""
        self._has_room(size)
        self.now_ms = at_ms
        least, free = self.model.min_free_segments, self.free_segments
        if free <= least and (free or not self._patience):
            self._ask_until_free(least)
            if not self.free_segments:
                # In a full log every write would call the policy; its choice changes less often.
                self._patience = _PATIENCE
        if not self.free_segments:
            self._patience -= 1
            return False
        self._changed.add(self.last)
        self.last = Segment(self.last.name.next_position)
        self.segments[self.last.name.position] = self.last
        return True

    def _ask_until_free(self, least: int) -> None:
        for _ in range(MAX_ROUNDS):
            before = self.free_segments
            choice = self.compact()
            if choice.is_empty or self.free_segments <= before:
                self._gate = choice.why if choice.is_empty else f"the choice freed no segment: {choice.why}"
                return
            if self.free_segments > least:
                return

    @property
    def free_segments(self) -> int:
        """The number of segments that the log can still begin."""
        return self.model.segments - len(self.segments)

    # ------------------------------------------------------------------------------------------------------- records

    def _append(self, size: int, at_ms: int, until_ms: int = NEVER, key: int = -1) -> int:
        """Write one record to the last segment; return its number, or -1 if the segment has no room. O(1).

        O(log records) if it has an end.
        """
        segment = self.last
        if not 0 < size <= self._room - segment.used:
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
        self._bytes += size
        if until_ms != NEVER:
            self._expires(record, until_ms)
        if self._of_key is not None and key >= 0:
            self._of_key.setdefault(key, []).append(record)
        return record

    def _grow(self) -> None:
        start, count = len(self.place), max(_GROWTH, len(self.place) >> 4)
        self._free.extend(range(start + count - 1, start - 1, -1))
        self.place.extend([None] * count)
        for column in (self.size, self.until, self.written, self.key):
            column.frombytes(bytes(column.itemsize * count))

    def _expires(self, record: int, until: int) -> None:
        if len(self._ends) > 2 * len(self.place):
            # Most entries are stale: those of replaced records stay.
            self._ends = list({end for end in self._ends if self._is_end(*divmod(end, 1 << _NUMBER_BITS))})
            heapify(self._ends)
        heappush(self._ends, until << _NUMBER_BITS | record)

    def _is_end(self, until: int, record: int) -> bool:
        return self.until[record] == until and self.place[record] is not None

    def _leave(self, record: int, at_ms: int) -> bool:
        """Delete a record; return False if it had ended before. Calls ascend in `at_ms`. O(1).

        The record dies strictly after the retention.
        """
        until = self.until[record]
        if until < at_ms:
            return False
        if (due := at_ms + self._retention_ms) < until:
            self.until[record] = due
            self._leaving.append((due, record))
        return True

    def advance(self, now_ms: int) -> None:
        """Bury the records that end strictly before `now_ms`, as at a compaction's reference time. O(dying records)."""
        super().advance(now_ms)
        if now_ms <= self._horizon:
            return
        self._horizon = now_ms
        leaving, ends, deaths = self._leaving, self._ends, list[int]()
        while leaving and leaving[0][0] < now_ms:
            deaths.append(leaving.popleft()[1])
        self._bury(deaths)
        while ends and ends[0] >> _NUMBER_BITS < now_ms:
            until, record = divmod(heappop(ends), 1 << _NUMBER_BITS)
            if self._is_end(until, record):
                self._bury([record])
                owner = self.key[record]
                if owner >= 0 and self.current[owner] == record:
                    self.current[owner] = -1

    def _bury(self, deaths: Sequence[int]) -> None:
        """Count records as dead."""
        place, sizes, changed, died = self.place, self.size, self._changed, 0
        for record in deaths:
            segment, size = place[record], sizes[record]
            assert segment is not None
            place[record] = None
            segment.dead += size
            changed.add(segment)
            died += size
        self._dead_bytes += died

    # ------------------------------------------------------------------------------------------------ sense and plan

    def compact(self) -> BlobChoice:
        """Call the policy with a view of the log, carry out its choice, and return it."""
        view = self.view()
        self.sample()
        self.counts.asked += 1
        choice: BlobChoice = self.policy.choose(view, self.now_ms / 1000)
        if not choice.is_empty:
            self.counts.compactions += 1
            self.rewrite(choice)
        return choice

    def view(self) -> BlobView:
        """Return the view of a real store's sensor. O(segments), mostly in C; with a forecast O(records)."""
        model, now_ms, last = self.model, self.now_ms, self.last
        self.advance(now_ms)
        if self.last_full_at is None:
            # As in a real store, schedules count from its first day.
            self.last_full_at = self.since / 1000
        for segment in self.segments.values() if model.forecast_seconds else self._changed | {last}:
            segment.view = SegmentView(
                name=segment.name, used_bytes=segment.used, valid_bytes=segment.valid,
                eligible=segment is not last, last_modified=segment.newest / 1000,
                dying=self._dying(segment) if model.forecast_seconds else ())
        self._changed.clear()
        return BlobView(
            store=self.name, capacity_bytes=model.segments * model.segment_bytes,
            segment_bytes=model.segment_bytes, header_bytes=model.header_bytes, max_blob_bytes=model.max_blob_bytes,
            used_bytes=self.used_bytes,
            reference_time=(now_ms - self._retention_ms) / 1000, retention_seconds=model.deleted_retention_seconds,
            segments=tuple(map(_VIEW, self.segments.values())), last_full_at=self.last_full_at)

    def _dying(self, segment: Segment) -> tuple[Dying, ...]:
        """Sum up the expiring bytes by bucket of the forecast. O(records of the segment)."""
        span = round(float(self.model.bucket_seconds) * 1000)
        horizon = self.now_ms + round(float(self.model.forecast_seconds) * 1000)
        sums: dict[int, int] = {}
        for record in segment.members:
            if self.place[record] is not None and self.until[record] < horizon:
                bucket = self.until[record] // span
                sums[bucket] = sums.get(bucket, 0) + self.size[record]
        return tuple(Dying(((bucket + 1) * span - 1) / 1000, sums[bucket]) for bucket in sorted(sums))

    # ------------------------------------------------------------------------------------- rewrite, commit, reclaim

    def rewrite(self, choice: BlobChoice) -> None:
        """Copy the valid records of the victims, and free these. O(victims' records).

        Raises:
            PlanDoesNotFit: a victim is not in the log, or is the last segment.
        """
        victims = list(map(self._victim, dict.fromkeys(choice.victims)))
        outputs = {output.name.position: output for output in self._copied(victims)}
        self._changed.update(outputs.values())
        for segment in victims:
            if segment.name.position not in outputs:
                del self.segments[segment.name.position]
        self.segments.update(outputs)
        if choice.kind == "full":
            self.last_full_at = self.now_ms / 1000
        self.counts.victims += len(victims)
        self.counts.freed_segments += len(victims) - len(outputs)

    def _victim(self, name: SegmentName) -> Segment:
        segment = self.segments.get(name.position)
        if segment is None or segment is self.last or segment.name != name:
            raise PlanDoesNotFit(f"the choice names {name}, which may not be compacted; choose again")
        return segment

    def _copied(self, victims: Sequence[Segment]) -> list[Segment]:
        """Copy the valid records of the victims into new segments, and return these.

        A step copies as many whole victims as its outputs take. If its last output has room, it is a source of the next
        step.
        """
        room, most = self.model.room_bytes, _MOST_OUTPUTS
        outputs, waiting, carried = list[Segment](), list(victims), list[Segment]()
        while waiting:
            budgeted = most * room - sum(map(_VALID, carried))
            count = max(1, len(list(takewhile(budgeted.__ge__, accumulate(map(_VALID, waiting))))))
            while len(filled := self._filled([*carried, *waiting[:count]])) > most:
                if count > 1:
                    count = max(1, min(count - 1, count * most // len(filled)))
                else:
                    carried = []
            sources: list[Segment] = [*carried, *waiting[:count]]
            for source in sources:
                self._drop_dead(source)
            generation = 1 + max(source.name.generation for source in sources)
            made = list[Segment]()
            for source, records in zip(sources[:len(filled)], filled, strict=True):
                output = Segment(SegmentName(source.name.position, generation), array("i", records),
                                 used=sum(map(self.size.__getitem__, records)),
                                 newest=max(map(self.written.__getitem__, records)))
                for record in records:
                    self.place[record] = output
                made.append(output)
            if carried:
                outputs.pop()
            outputs += made
            waiting = waiting[count:]
            carried = [] if not made or made[-1].used == room else made[-1:]
        self.counts.copied_bytes += sum(map(_VALID, victims))
        return outputs

    def _drop_dead(self, source: Segment) -> None:
        """Forget the dead records of a source."""
        dropped = [record for record in source.members if self.place[record] is None]
        if self._of_key is not None:
            for record in dropped:
                if (owner := self.key[record]) >= 0:
                    self._of_key[owner].remove(record)
        self._free.extend(dropped)
        self._bytes -= source.dead
        self._dead_bytes -= source.dead

    def _filled(self, sources: Sequence[Segment]) -> list[Sequence[int]]:
        """Return the records of each new segment, in log order; with `survivors` class by class, unless log order
        takes fewer segments.
        """
        place, survivors = self.place, self.model.survivors
        kept = array("i", [record for source in sources for record in source.members if place[record] is not None])
        plain = self._packed(kept)
        if survivors is None:
            return plain
        classes: dict[int, int] = {}
        for source in sources:
            for record in source.members:
                if place[record] is not None:
                    survivor = Survivor(self.written[record], self.until[record], self.size[record],
                                        self._earlier_ms(record), self.now_ms)
                    found: object = survivors(survivor)
                    if not isinstance(found, int):
                        raise InvalidInput(f"placement {survivors!r:.100} gave class {found!r:.100} to {survivor}; "
                                           f"give a whole number")
                    classes[record] = found
        by_class = self._packed(sorted(classes, key=classes.__getitem__))
        return by_class if len(by_class) <= len(plain) else plain

    def _earlier_ms(self, record: int) -> Sequence[int]:
        """Return the times of the older records of its key, the newest first."""
        if self._of_key is None:
            return ()
        records = self._of_key[self.key[record]]
        return [self.written[each] for each in reversed(records[:records.index(record)])]

    def _packed(self, records: Sequence[int]) -> list[Sequence[int]]:
        """Fill one segment after the other."""
        ends = list(accumulate(map(self.size.__getitem__, records), initial=0))
        outputs, start = list[Sequence[int]](), 0
        while start < len(records):
            stop = bisect_right(ends, ends[start] + self.model.room_bytes) - 1
            outputs.append(records[start:stop])
            start = stop
        return outputs

    # --------------------------------------------------------------------------------------------------- counting

    @property
    def used_bytes(self) -> int:
        """Bytes of the whole segments before the last, and of the last up to its end."""
        return (len(self.segments) - 1) * self.model.segment_bytes + self.model.header_bytes + self.last.used

    @property
    def record_bytes(self) -> int:
        return self._bytes

    @property
    def live_bytes(self) -> int:
        """Valid bytes, less tombstones and deleted records under retention. O(deleted records under retention)."""
        return (self._bytes - self._dead_bytes - self._tombstone_bytes
                - sum(self.size[record] for _, record in self._leaving))
