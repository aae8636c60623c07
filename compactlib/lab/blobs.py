# SPDX-License-Identifier: Apache-2.0
"""A blob store without payloads: the records that `BlobStore` would store, and the views that its policy would read.

A record is a small number: the index of its columns (segment, size, end, time, key). The number is reused once a
compaction has dropped the record, so memory follows the log: 40 bytes a record, and 4 a key.

A record is appended to the open segment of its class. It dies when it is replaced, deleted or expires; until a
compaction takes its segment, its death only lowers the segment's valid bytes. A compaction copies the valid records of
its victims, in the order of the choice:

* Without a placement, the log has one open segment. A compaction fills new segments step by step, as a real store
  does. They get the positions of the step's first victims, with the next generation. With `survivors`, a step fills
  its segments class by class.
* With a placement, the log has an open segment for each class, for the user's records and for survivors. It stays open
  until it is full. New segments are always the last of the log.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate, compress
from operator import attrgetter, itemgetter, not_
from typing import Any, Self

import attrs

from compactlib._arguments import is_seconds, is_whole
from compactlib.blobstore import BlobChoice, BlobPolicy, BlobStoreConfig, BlobView
from compactlib.blobstore.errors import PlanDoesNotFit
from compactlib.blobstore.policy import (
    FIRST_SEGMENT,
    SEGMENT_HEADER_BYTES,
    Dying,
    SegmentName,
    SegmentView,
    Survivor,
    fraction,
    record_size,
    whole,
)
from compactlib.errors import InvalidInput
from compactlib.lab.placement import NEVER, Contents, Placement, Placer, SurvivorPlacement, Victim, class_of
from compactlib.lab.report import Measures
from compactlib.lab.simulation import Simulation
from compactlib.lab.workloads import DELETE, FOREVER, PUT, Row, Workload

MAX_SEGMENTS = 1 << 24
MAX_ROUNDS = 10_000
"""The largest number of plans for one write without room."""
_PATIENCE = 1_000
"""Operations from one call of the policy to the next while the log is full."""
_MOST_OUTPUTS = 8
"""The number of segments that one step of a real store fills if the disk has room."""
_LONGEST_SECONDS = NEVER // 1000
_NAME, _VIEW = attrgetter("name"), attrgetter("view")
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
        swap_segments: the most segments that one step of a compaction fills, at least 1. A step takes whole victims.
        min_free_segments: a new segment calls the policy if at most this number of segments is free, and again while
            that frees a segment; >= 0. `None`: 1, or with a placement the number of its classes.
        forecast_seconds: the length of the forecast of expiring bytes in the view; 0: no forecast.
        bucket_seconds: the steps of the forecast.
        max_dead_fraction: the policy is also called, once after the operations of each moment, while more than this
            part of the log's bytes is dead in closed segments; 0 to 1, 1: never.
        placement: which open segment a record goes to (`compactlib.lab.policies`). Survivors then go to segments that
            stay open between compactions; a replaced record is dead at once, also if the write is refused. `None`: as
            in a store, users' writes go to one segment, and survivors to segments that each compaction closes at its
            end; a refused write replaces nothing.
        survivors: which survivors share a segment, as a store's `place`; only without a placement.
        copies_renew: whether a copy counts as a write for `SegmentView.last_modified`. In a store it does not.

    Raises:
        InvalidInput: a value is out of its range, a placement has too many classes for the log, or a placement is
            combined with tombstones.
    """

    capacity_bytes: int = attrs.field(validator=is_whole(1))
    segment_bytes: int = attrs.field(validator=is_whole(1))
    header_bytes: int = whole(SEGMENT_HEADER_BYTES)
    max_blob_bytes: int = whole(0)
    record_overhead_bytes: int = whole(0)
    tombstone_bytes: int = whole(0)
    deleted_retention_seconds: float = attrs.field(default=0.0, validator=is_seconds(most=_LONGEST_SECONDS))
    swap_segments: int = whole(_MOST_OUTPUTS, least=1)
    min_free_segments: int | None = attrs.field(default=None, validator=is_whole(or_none=True))
    forecast_seconds: float = attrs.field(default=0.0, validator=is_seconds(most=_LONGEST_SECONDS))
    bucket_seconds: float = attrs.field(default=3600.0, validator=is_seconds(0.001, _LONGEST_SECONDS))
    max_dead_fraction: float = fraction(1.0)
    placement: Placement | None = None
    survivors: SurvivorPlacement | None = None
    copies_renew: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.header_bytes < self.segment_bytes <= self.capacity_bytes or not 2 <= self.segments <= MAX_SEGMENTS:
            raise InvalidInput(f"capacity_bytes {self.capacity_bytes} is a log of {self.segments} segments of "
                               f"{self.segment_bytes} bytes with header_bytes {self.header_bytes}; give 2 to "
                               f"{MAX_SEGMENTS} segments that are larger than their header")
        if self.placement is None:
            return
        if self.tombstone_bytes or self.survivors is not None:
            raise InvalidInput("a placement has no class for tombstones, and places survivors itself; give it with "
                               "tombstone_bytes=0 and survivors=None")
        if not 1 <= self.placement.classes < self.segments:
            raise InvalidInput(f"{self.placement.classes} classes in a log of {self.segments} segments; each takes one "
                               f"segment, and compactions need room")

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
    def for_workload(cls, workload: Workload, utilisation: float = 0.8, *, segments: int = 400, seed: int = 0,
                     **more: Any) -> Self:
        """Model the smallest log in which the live bytes never exceed a part of it. Reads the workload once.

        Args:
            workload: the workload to be replayed.
            utilisation: live bytes as a part of the log, above 0 and below 1.
            segments: the number of the log's segments; fewer if the largest record would not fit.
            seed: the workload's seed.
            more: other settings; by default headers and records' overhead are 0.

        Raises:
            InvalidInput: the utilisation is out of its range, or the workload has no put.
        """
        values: dict[str, Any] = {"header_bytes": 0, "record_overhead_bytes": 0, **more}
        live, largest = _peak_of(workload, seed, values["record_overhead_bytes"])
        if not 0 < utilisation < 1 or not live:
            raise InvalidInput(f"utilisation is {utilisation} of {workload}, which has {live} live bytes at most; give "
                               f"a part of the log, above 0 and below 1, and a workload with puts")
        room = max(math.ceil(live / utilisation / segments), largest)
        segment = room + values["header_bytes"]
        count = max(math.ceil(live / utilisation / room), 2)
        return cls(**{"capacity_bytes": count * segment, "segment_bytes": segment, **values})

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


def _peak_of(workload: Workload, seed: int, overhead: int) -> tuple[int, int]:
    """Return the maximum of live bytes, and the size of the largest record."""
    # The size and the end of each live record, by key.
    there: dict[int, tuple[int, int]] = {}
    ends: list[tuple[int, int]] = []
    live = peak = largest = 0
    for kind, key, size, life, time in workload.rows(seed):
        while ends and ends[0][0] < time:
            end, expired = heappop(ends)
            if expired in there and there[expired][1] == end:
                live -= there.pop(expired)[0]
        if kind in (PUT, DELETE):
            live -= there.pop(key, (0, 0))[0]
        if kind == PUT:
            until = NEVER if life == FOREVER else time + life
            if until != NEVER:
                heappush(ends, (until, key))
            there[key] = size + overhead, until
            live += size + overhead
            peak, largest = max(peak, live), max(largest, size + overhead)
    return peak, largest


@attrs.define(eq=False)
class Segment:
    """A segment of the log.

    Attributes:
        row: a small unique number, which is reused once the segment is freed.
        name: its name in views and plans.
        placed: its class.
        begun: the number of the user's writes at its opening.
        members: its records, with dead ones.
        used: bytes of its records.
        dead: bytes of its dead records.
        newest: the time of its newest record, milliseconds.
        moments: the sum over dead records of size times time of death (from `BlobLog.since`).
        view: its part of the last view.
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
        since: the time of the first operation, milliseconds; the origin of times of death.
        order: the segments, in log order.
        contents: sums over the log's records.
        placer: the state of the placement.
    """

    def __init__(self, model: BlobLogModel, policy: BlobPolicy) -> None:
        super().__init__(policy, model.segments * model.segment_bytes)
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
        self._free: array[int] = array("i")
        self._tombstone_bytes = 0
        self._horizon = -NEVER
        # Records that were deleted or replaced and are still valid: (last millisecond, record), ascending.
        self._leaving: deque[tuple[int, int]] = deque()
        self._dead_bytes = 0
        # A heap of `until << _NUMBER_BITS | record`; an entry is stale if the end of its record has changed.
        self._ends: list[int] = []
        self._retention_ms = round(model.deleted_retention_seconds * 1000)
        # Where a placement or a gate depends on dead bytes, a deleted record is dead at once.
        self._is_watched = model.placement is not None or model.max_dead_fraction < 1
        self._at_once = self._is_watched and not self._retention_ms
        self._room = model.room_bytes
        self.placer: Placer | None = None
        self._rows = 0
        self._free_rows: list[int] = []
        # Invariant: the view of every segment outside this set is current.
        self._changed: set[Segment] = set()
        self.order: list[Segment] = [self._new_segment(FIRST_SEGMENT)]
        # The open segment of each class, or `None`.
        self._open: list[Segment | None] = [self.order[0]]
        self.contents: Contents = Contents()
        # The records of each key in the log, the newest last. With tombstones, a replacement has another id, without
        # history.
        self._of_key: dict[int, list[int]] | None = (
            {} if getattr(model.survivors, "needs_history", False) and not model.tombstone_bytes else None)
        classes = 1
        if model.placement is not None:
            classes = model.placement.classes
            self._open += [None] * (classes - 1)
            self.placer = model.placement.placer()
            self.placer.contents = self.contents
        self._min_free: int = classes if model.min_free_segments is None else model.min_free_segments
        self._begun = False
        self._operations = self._ask_again_at = 0
        self._gate = "the policy was not called"
        self._refused_by: Counter[str] = Counter()

    # ---------------------------------------------------------------------------------------------------- operations

    def apply(self, rows: Sequence[Row]) -> None:
        """Make these operations.

        Raises:
            InvalidInput: a record does not fit into a segment.
        """
        overhead, tombstone, is_watched = (self.model.record_overhead_bytes, self.model.tombstone_bytes,
                                           self._is_watched)
        if not self._begun:
            self._begun = True
            self.since = rows[0][4]
        self._know_keys(max(map(itemgetter(1), rows)) + 1)
        current, append, leave, user_bytes = self.current, self._append, self._leave, 0
        for kind, key, size, life, at in rows:
            if at != self.now_ms:
                if is_watched:
                    self._ask_about_the_dead()
                self.now_ms = at
            if kind == PUT:
                size += overhead
                until = NEVER if life == FOREVER else at + life
                placed = self._class_of(key, size, at, until) if is_watched else 0
                record = append(size, at, until, key, placed)
                if record < 0 and self._make_room(size, placed):
                    record = append(size, at, until, key, placed)
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
            self._operations += 1
        if is_watched:
            self._ask_about_the_dead()
        self.advance(self.now_ms)
        self.counts.user_bytes += user_bytes
        self.counts.operations += len(rows)

    def _know_keys(self, keys: int) -> None:
        known = len(self.current)
        if keys > known:
            self.current.extend(array("i", (-1,)) * (max(keys, known * 5 // 4) - known))
            if self.placer is not None:
                self.placer.know_keys(len(self.current))

    def _ask_about_the_dead(self) -> None:
        if self.contents.dead_bytes > self.model.max_dead_fraction * self.contents.bytes:
            self.compact()

    def _class_of(self, key: int, size: int, at: int, until: int) -> int:
        """Bury the ended records and the replaced record; return the class of the new record."""
        self.advance(at)
        placer = self.placer
        if placer is None:
            return 0
        if (old := self.current[key]) >= 0:
            self._leave(old, at)
            self.current[key] = -1
        placer.writes += 1
        placer.segment_records, placer.until_ms = self._room // size, until
        return self._checked_class(placer.write(key, at))

    def _checked_class(self, placed: int) -> int:
        if 0 <= placed < len(self._open):
            return placed
        raise InvalidInput(f"placement {self.model.placement!r:.100} gave class {placed!r:.100}; a class is a whole "
                           f"number from 0 to {len(self._open) - 1}")

    def _delete(self, key: int, at: int) -> None:
        tombstone = self.model.tombstone_bytes
        old = self.current[key]
        if old < 0 or self.until[old] < at:
            return
        if tombstone and not self._has_room(tombstone) and not self._make_room(tombstone):
            self._refuse()
        elif self.current[key] == old:
            # The record may have expired while `_make_room` compacted.
            self.current[key] = -1
            if self._leave(old, at) and tombstone:
                self._write_tombstone(at)

    def _write_tombstone(self, at: int) -> None:
        tombstone = self.model.tombstone_bytes
        if not self._has_room(tombstone) and not self._make_room(tombstone):
            self._refuse()
            return
        self._append(tombstone, at)
        self._tombstone_bytes += tombstone
        self.counts.user_bytes += tombstone

    def _refuse(self) -> None:
        self.counts.refused += 1
        self._refused_by[self._gate] += 1

    # ------------------------------------------------------------------------------------------------------ room

    def _has_room(self, size: int, placed: int = 0) -> bool:
        """Return whether the open segment of a class takes a record of `size` bytes."""
        if not 0 < size <= self._room:
            raise InvalidInput(f"a record of {size} bytes; a segment has room for {self._room}")
        segment = self._open[placed]
        return segment is not None and segment.used + size <= self._room

    def _make_room(self, size: int, placed: int = 0) -> bool:
        """Begin a segment of a class; call the policy first if too few are free."""
        free = self.free_segments
        if free <= self._min_free and (free or self._operations >= self._ask_again_at):
            self._ask_until_free()
            if not self.free_segments:
                # In a full log every operation would call the policy; its choice changes less often.
                self._ask_again_at = self._operations + _PATIENCE
        # A compaction may have begun a segment of the class.
        if self._has_room(size, placed):
            return True
        if self.free_segments:
            self._begin(placed)
        return self._has_room(size, placed)

    def _ask_until_free(self) -> None:
        for _ in range(MAX_ROUNDS):
            before = self.free_segments
            choice = self.compact()
            if choice.is_empty or self.free_segments <= before:
                self._gate = choice.why if choice.is_empty else f"the choice freed no segment: {choice.why}"
                return
            if self.free_segments > self._min_free:
                return

    @property
    def free_segments(self) -> int:
        """The number of segments that the log can still begin."""
        return self.model.segments - len(self.order)

    def _new_segment(self, name: SegmentName, placed: int = 0) -> Segment:
        if not self._free_rows:
            self._free_rows.append(self._rows)
            self._rows += 1
        segment = Segment(self._free_rows.pop(), name, placed, 0 if self.placer is None else self.placer.writes)
        self._changed.add(segment)
        return segment

    def _begin(self, placed: int) -> Segment:
        self._close(placed)
        segment = self._open[placed] = self._new_segment(self.order[-1].name.next_position, placed)
        self.order.append(segment)
        return segment

    def _close(self, placed: int) -> None:
        if (segment := self._open[placed]) is None:
            return
        if self.placer is not None:
            self.placer.closed(segment.row, placed)
        self.contents.dead_bytes += segment.dead
        self._changed.add(segment)
        self._open[placed] = None

    def _release(self, segments: Iterable[Segment]) -> None:
        for segment in segments:
            self._free_rows.append(segment.row)
            self._changed.discard(segment)

    # ------------------------------------------------------------------------------------------------------- records

    def _append(self, size: int, at_ms: int, until_ms: int = NEVER, key: int = -1, placed: int = 0) -> int:
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
            # Most entries are stale: those of replaced records stay.
            self._ends = list({end for end in self._ends if self._is_end(*divmod(end, 1 << _NUMBER_BITS))})
            heapify(self._ends)
        heappush(self._ends, until << _NUMBER_BITS | record)

    def _is_end(self, until: int, record: int) -> bool:
        return self.until[record] == until and self.place[record] is not None

    def _leave(self, record: int, at_ms: int) -> bool:
        """Delete a record; return False if it had ended before. Calls ascend in `at_ms`. O(1).

        The record dies at once, or strictly after the retention.
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
        """Bury the records that end strictly before `now_ms`, as at a compaction's reference time. O(dying records)."""
        super().advance(now_ms)
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
        """Count records as dead; `deaths` has pairs of a time and a record."""
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
        model, now_ms = self.model, self.now_ms
        self.advance(now_ms)
        if self.last_full_at is None:
            # As in a real store, schedules count from its first day.
            self.last_full_at = self.since / 1000
        written_to = self._written_to()
        dying = self._dying() if model.forecast_seconds else {}
        # The time of a segment without records, which is never eligible.
        earliest = min(self.since, 0)
        for segment in self.order if dying else self._changed | written_to:
            segment.view = SegmentView(
                name=segment.name, used_bytes=segment.used, valid_bytes=segment.valid,
                eligible=segment not in written_to, last_modified=max(segment.newest, earliest) / 1000,
                dying=dying.get(segment.row, ()))
        # An open segment changes with its next record, and when it is closed.
        self._changed = written_to
        return BlobView(
            store=self.name, capacity_bytes=self.capacity_bytes, segment_bytes=model.segment_bytes,
            header_bytes=model.header_bytes, max_blob_bytes=model.max_blob_bytes, used_bytes=self.used_bytes,
            reference_time=(now_ms - self._retention_ms) / 1000, retention_seconds=model.deleted_retention_seconds,
            segments=tuple(map(_VIEW, self.order)), last_full_at=self.last_full_at)

    def _written_to(self) -> set[Segment]:
        return {self.order[-1], *filter(None, self._open)}

    def _dying(self) -> dict[int, tuple[Dying, ...]]:
        """Sum up the expiring bytes of each row by bucket of the forecast. O(records)."""
        span = round(self.model.bucket_seconds * 1000)
        horizon = self.now_ms + round(self.model.forecast_seconds * 1000)
        place, until, size = self.place, self.until, self.size
        found: dict[int, tuple[Dying, ...]] = {}
        for segment in self.order:
            sums: dict[int, int] = {}
            for record in segment.members:
                if place[record] is segment and until[record] < horizon:
                    bucket = until[record] // span
                    sums[bucket] = sums.get(bucket, 0) + size[record]
            found[segment.row] = tuple(Dying(((bucket + 1) * span - 1) / 1000, sums[bucket]) for bucket in sorted(sums))
        return found

    # ------------------------------------------------------------------------------------- rewrite, commit, reclaim

    def rewrite(self, choice: BlobChoice) -> None:
        """Copy the valid records of the victims, and free these. O(victims' records), and O(log segments) a victim.

        Raises:
            PlanDoesNotFit: a victim is not in the log, or is open.
        """
        written_to = self._written_to()
        victims, stray = list[Segment](), list[str]()
        for name in dict.fromkeys(choice.victims):
            index = self._index_of(name)
            if index < len(self.order) and (segment := self.order[index]).name == name and segment not in written_to:
                victims.append(segment)
            else:
                stray.append(str(name))
        if stray:
            raise PlanDoesNotFit(f"the choice names {', '.join(stray)}, which may not be compacted; choose again")
        done = _Copy(self)
        if self.placer is not None:
            done.by_placement(victims, self.placer)
        else:
            done.in_steps(victims)
        outputs = {} if self.placer is not None else {output.name.position: output for output in done.outputs}
        for segment in victims:
            index = self._index_of(segment.name)
            if (output := outputs.get(segment.name.position)) is None:
                del self.order[index]
            else:
                self.order[index] = output
        for placed in () if self.placer is None else self.placer.brief:
            self._close(placed)
        self._release(victims)
        if choice.kind == "full":
            self.last_full_at = self.now_ms / 1000
        self.moved(done.read_bytes, done.copied_bytes)
        counts = self.counts
        counts.victims += len(victims)
        counts.freed_segments += len(victims) - len(done.outputs)
        counts.reclaimed_bytes += done.reclaimed_bytes
        counts.waited_byte_seconds += done.waited / 1000

    def _index_of(self, name: SegmentName) -> int:
        return bisect_left(self.order, name, key=_NAME)

    # --------------------------------------------------------------------------------------------------- counting

    @property
    def used_bytes(self) -> int:
        """Bytes of the whole segments before the last, and of the last up to its end."""
        return (len(self.order) - 1) * self.model.segment_bytes + self.model.header_bytes + self.order[-1].used

    @property
    def record_bytes(self) -> int:
        return self.contents.bytes

    @property
    def live_bytes(self) -> int:
        """Valid bytes, less tombstones and deleted records under retention. O(deleted records under retention)."""
        return (self.contents.bytes - self._dead_bytes - self._tombstone_bytes
                - sum(self.size[record] for _, record in self._leaving))

    def cut(self) -> Measures:
        done = super().cut()
        done.refused_by = tuple(self._refused_by.items())
        self._refused_by.clear()
        return done


class _Copy:
    """One compaction; `rewrite` calls one of its two ways to place survivors."""

    def __init__(self, log: BlobLog) -> None:
        self.outputs: list[Segment] = []
        self.copied_bytes = self.read_bytes = self.reclaimed_bytes = 0
        self.waited = 0.0
        self._log = log

    def _sort_out(self, source: Segment) -> Sequence[int]:
        """Count a source, drop its dead records, and return the others."""
        log, members, dead = self._log, source.members, source.dead
        self.reclaimed_bytes += dead
        self.waited += (log.now_ms - log.since) * dead - source.moments
        if source not in self.outputs:
            self.copied_bytes += source.valid
            self.read_bytes += source.used if source.valid else 0
        alive = [segment is source for segment in map(log.place.__getitem__, members)]
        dropped = array("i", compress(members, map(not_, alive)))
        if log._of_key is not None:
            for record in dropped:
                if (owner := log.key[record]) >= 0:
                    log._of_key[owner].remove(record)
        log._free.extend(dropped)
        log._dead_bytes -= dead
        log.contents.bytes -= dead
        log.contents.dead_bytes -= dead
        if log.placer is not None:
            log.contents.records -= len(dropped)
        return array("i", compress(members, alive))

    # --------------------------------------------------------------------------------------------- in a store's steps

    def in_steps(self, victims: Sequence[Segment]) -> None:
        """Copy as many whole victims in a step as its outputs take. A last output with room is a source of the next
        step.
        """
        log, room, most = self._log, self._log.model.room_bytes, self._log.model.swap_segments
        waiting, carried = list(victims), list[Segment]()
        while waiting:
            budgeted = most * room - sum(each.valid for each in carried)
            count = max(1, bisect_right(list(accumulate(each.valid for each in waiting)), budgeted))
            while len(filled := self._filled([*carried, *waiting[:count]])) > most:
                if count > 1:
                    count = max(1, min(count - 1, count * most // len(filled)))
                else:
                    carried = []
            sources = [*carried, *waiting[:count]]
            for source in sources:
                self._sort_out(source)
            generation = 1 + max(source.name.generation for source in sources)
            made = [log._new_segment(SegmentName(source.name.position, generation))
                    for source, _ in zip(sources, filled, strict=False)]
            for output, records in zip(made, filled, strict=True):
                self._put(output, records)
            self.outputs = [output for output in self.outputs if output not in carried] + made
            log._release(carried)
            waiting, carried = waiting[count:], made[-1:]
            if carried and carried[0].used == room:
                carried = []

    def _put(self, output: Segment, records: Sequence[int]) -> None:
        log, place = self._log, self._log.place
        for record in records:
            place[record] = output
        output.members.extend(records)
        output.used = sum(map(log.size.__getitem__, records))
        output.newest = max(map(log.written.__getitem__, records))

    def _filled(self, sources: Sequence[Segment]) -> list[Sequence[int]]:
        """Return the records of each new segment, in log order; with `survivors` class by class, unless log order
        takes fewer segments.
        """
        log, survivors = self._log, self._log.model.survivors
        kept = array("i", [record for source in sources for record in source.members if log.place[record] is source])
        plain = self._packed(kept)
        if survivors is None:
            return plain
        classes: dict[int, int] = {}
        for record in kept:
            source = log.place[record]
            assert source is not None
            classes[record] = class_of(survivors, Survivor(
                log.written[record], log.until[record], log.size[record], source.name.generation,
                self._earlier_ms(record), log.now_ms))
        by_class = self._packed(sorted(kept, key=classes.__getitem__))
        return by_class if len(by_class) <= len(plain) else plain

    def _earlier_ms(self, record: int) -> Sequence[int]:
        """Return the times of the older records of its key, the newest first."""
        log = self._log
        if log._of_key is None:
            return ()
        records = log._of_key[log.key[record]]
        return [log.written[each] for each in reversed(records[:records.index(record)])]

    def _packed(self, records: Sequence[int]) -> list[Sequence[int]]:
        """Fill one segment after the other."""
        ends = list(accumulate(map(self._log.size.__getitem__, records), initial=0))
        outputs, start = list[Sequence[int]](), 0
        while start < len(records):
            stop = bisect_right(ends, ends[start] + self._log.model.room_bytes) - 1
            outputs.append(records[start:stop])
            start = stop
        return outputs

    # ------------------------------------------------------------------------------------ an open segment of each class

    def by_placement(self, victims: Sequence[Segment], placer: Placer) -> None:
        """Put records into the open segments of their classes; if no segment can be begun, into any with room.

        The victims so far count as free, although they are freed at the end.
        """
        log, room = self._log, self._log.model.room_bytes
        for released, victim in enumerate(victims, 1):
            count = len(victim.members)
            placer.taken(Victim(victim.row, victim.placed, victim.begun, count, victim.valid * count // victim.used))
            for record in self._sort_out(victim):
                size = log.size[record]
                placer.segment_records, placer.until_ms = room // size, log.until[record]
                placed = log._checked_class(placer.copy(log.key[record], log.now_ms))
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
                output.newest = max(output.newest, log.now_ms if log.model.copies_renew else log.written[record])
                if output.used + size > room:
                    log._close(output.placed)
