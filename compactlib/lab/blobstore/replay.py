# SPDX-License-Identifier: Apache-2.0
"""Replays a workload against a blob store's policy, on metadata alone.

The policy is the one that a store would be given, and it is shown the same views: a decision here is a decision there.
"""

from __future__ import annotations

import copy
import math
from array import array
from collections import Counter
from typing import Any

import attrs

from compactlib._arguments import (
    is_seconds,
    is_whole,
    require_whole,
)
from compactlib.blobstore import BlobChoice, BlobPolicy, BlobStoreConfig
from compactlib.blobstore.policy import SEGMENT_HEADER_BYTES, flag, fraction, record_size, whole
from compactlib.errors import InvalidInput
from compactlib.lab.blobstore.log import NO_ROW, BlobLog
from compactlib.lab.blobstore.placement.placement import Placement
from compactlib.lab.blobstore.records import NEVER
from compactlib.lab.blobstore.survivors import SurvivorPlacement
from compactlib.lab.results.measures import Measures
from compactlib.lab.results.reports import ReplayReport
from compactlib.lab.traces.description import describe
from compactlib.lab.traces.operations import DELETE, FOREVER, PUT, Operations
from compactlib.lab.traces.workloads import Workload
from compactlib.observer import Observer, Observers
from compactlib.report import PolicyRecord

MAX_ROUNDS = 10_000
"""The most choices that one question may lead to."""
MAX_SEGMENTS = 1 << 24
_PATIENCE = 1_000
_MOST_OUTPUTS = 8
"""So many segments a step of a real store fills, if the disk has room."""
_LONGEST_SECONDS = NEVER // 1000


@attrs.frozen(kw_only=True)
class BlobSettings:
    """The store of a replay. Sizes are bytes, times seconds.

    Attributes:
        capacity_bytes: of the whole log.
        segment_bytes: of one segment, its header included.
        header_bytes: of a segment's header.
        max_blob_bytes: what a plan's benefit keeps free in each output.
        record_overhead_bytes: what a record takes beside its content.
        tombstone_bytes: size of the record that a delete writes, which is kept for good; 0: none is written.
        deleted_retention_seconds: how long a delete is not yet in effect.
        swap_segments: how many segments a compaction fills before it frees its sources; decides names, and with
            `survivors` which ones share a segment.
        check_every_operations: ask the policy after so many operations; 0: not by number.
        min_free_segments: also ask, and again as long as it finds something, when fewer are free; >= 0. `None`: 1, or
            with a placement as many as it has classes, each of which a compaction may begin a segment of.
        forecast_seconds: how far ahead the policy is shown what dies when; 0: not at all.
        bucket_seconds: if there is a forecast, its steps.
        intervals: into about how many parts the report is cut, if the length of the workload is known, >= 1.
        max_dead_fraction: also ask, once after the operations of each moment, while more than this part of what the log
            holds is dead in segments that are closed; 0 to 1, 1: not by that.
        placement: which open segment a record goes to (`compactlib.lab.blobstore.placement`); survivors then go on in
            segments that stay open between compactions, and what is replaced is dead at once. `None`: as in a store,
            what users write goes to one segment, and survivors into segments that each compaction closes at its end,
            and a write that is refused replaces nothing; with a placement, what it would have replaced is dead.
        survivors: which survivors share a segment, as a store's `place`; only without a placement.
        copies_renew: whether a copy counts as a write for `SegmentView.last_modified`. In a store it does not.

    Raises:
        InvalidInput: a value is out of its range or of another type, or a placement has more classes than the log has
            room for, or is to place tombstones.
    """

    capacity_bytes: int = attrs.field(validator=is_whole(1))
    segment_bytes: int = attrs.field(validator=is_whole(1))
    header_bytes: int = whole(SEGMENT_HEADER_BYTES)
    max_blob_bytes: int = whole(0)
    record_overhead_bytes: int = whole(0)
    tombstone_bytes: int = whole(0)
    deleted_retention_seconds: float = attrs.field(default=0.0, validator=is_seconds(most=_LONGEST_SECONDS))
    swap_segments: int = whole(1, least=1)
    check_every_operations: int = whole(0)
    min_free_segments: int | None = attrs.field(default=None, validator=is_whole(or_none=True))
    forecast_seconds: float = attrs.field(default=0.0, validator=is_seconds(most=_LONGEST_SECONDS))
    bucket_seconds: float = attrs.field(default=3600.0, validator=is_seconds(0.001, _LONGEST_SECONDS))
    intervals: int = whole(20, least=1)
    max_dead_fraction: float = fraction(1.0)
    placement: Placement | None = None
    survivors: SurvivorPlacement | None = None
    copies_renew: bool = flag(False)

    def __attrs_post_init__(self) -> None:
        if not self.header_bytes < self.segment_bytes <= self.capacity_bytes:
            raise InvalidInput(f"segment_bytes {self.segment_bytes} with header_bytes {self.header_bytes} do not fit "
                               f"capacity_bytes {self.capacity_bytes}")
        if not 2 <= self.segments <= MAX_SEGMENTS:
            raise InvalidInput(f"capacity_bytes {self.capacity_bytes} is a log of {self.segments} segments; give 2 to "
                               f"{MAX_SEGMENTS}")
        for name in ("placement", "survivors"):
            if isinstance(given := getattr(self, name), type):
                raise InvalidInput(f"{name} is the class {given.__name__}; give one that is made of it: "
                                   f"{given.__name__}()")
        classes = getattr(self.placement, "classes", None)
        if self.placement is not None and not (isinstance(classes, int) and classes >= 1):
            raise InvalidInput(f"placement is {self.placement!r:.100}, whose classes are {classes!r}; give it "
                               f"`classes`, how many it has, at least 1")
        if self.placement is not None and self.tombstone_bytes:
            raise InvalidInput("a placement has no class for tombstones; give tombstone_bytes=0")
        if self.placement is not None and self.survivors is not None:
            raise InvalidInput("a placement places survivors, too; give it, or survivors")
        if self.placement is not None and self.segments <= self.placement.classes:
            raise InvalidInput(f"{self.placement.classes} classes in a log of {self.segments} segments; each takes one "
                               f"segment, and compactions need room")

    @property
    def segments(self) -> int:
        """How many segments the log has."""
        return self.capacity_bytes // self.segment_bytes

    @property
    def room_bytes(self) -> int:
        """What a segment holds beside its header."""
        return self.segment_bytes - self.header_bytes

    def replay(self, workload: Workload, policy: BlobPolicy, *, seed: int,
               observer: Observer | None = None) -> ReplayReport:
        """See `replay_blobs`, and `Setup.replay`."""
        return replay_blobs(workload, policy, self, seed=seed, observer=observer)

    def read_report(self, text: str) -> ReplayReport:
        """See `Setup.read_report`."""
        return ReplayReport.from_json(text)

    def name_of(self, policy: BlobPolicy) -> str:
        """See `Setup.name_of`."""
        return policy.name

    @classmethod
    def of_slots(cls, segments: int, records_per_segment: int, record_bytes: int = 1, **more: Any
                 ) -> BlobSettings:
        """A log without headers, of segments that hold so many records of one size: as the literature reckons.

        Args:
            segments: of the log.
            records_per_segment: how many records of `record_bytes` fit.
            record_bytes: the size of each.
            more: other settings.
        """
        size = records_per_segment * record_bytes
        values: dict[str, Any] = {"header_bytes": 0, **more}
        return cls(capacity_bytes=segments * size, segment_bytes=size, **values)

    @classmethod
    def for_workload(cls, workload: Workload, utilisation: float = 0.8, *, segments: int = 400, seed: int = 0,
                     **more: Any) -> BlobSettings:
        """A log just large enough that what lives at one time is at most such a part of it. Reads the workload once.

        Args:
            workload: what will be replayed.
            utilisation: live bytes as a part of the log, above 0 and below 1.
            segments: of the log; fewer, if else the largest record would not fit.
            seed: of the workload.
            more: other settings; headers and records' overhead count as they say, and there are none by default.

        Raises:
            InvalidInput: the utilisation is none, nothing lives in the workload, or a value is of another type.
        """
        require_whole("segments", segments, 1)
        if not 0 < utilisation < 1:
            raise InvalidInput(f"utilisation is {utilisation}; it is a part of the log, above 0 and below 1")
        found = describe(workload, seed=seed)
        if not found.peak_live_bytes:
            raise InvalidInput(f"{found.workload} puts nothing; give one that does")
        values: dict[str, Any] = {"header_bytes": 0, "record_overhead_bytes": 0, **more}
        overhead, header = values["record_overhead_bytes"], values["header_bytes"]
        require_whole("record_overhead_bytes", overhead)
        require_whole("header_bytes", header)
        live = found.peak_live_bytes + overhead * found.peak_live_keys
        try:
            room = max(math.ceil(live / utilisation / segments), found.largest_bytes + overhead)
        except OverflowError:
            raise InvalidInput(f"utilisation is {utilisation}; with that, the segments and record_overhead_bytes that "
                               f"were given, no log is so large") from None
        segment = room + header
        count = max(math.ceil(live / utilisation / room), 2)
        return cls(capacity_bytes=count * segment, segment_bytes=segment, **values)

    @classmethod
    def of_store(cls, config: BlobStoreConfig, *, id_bytes: int, **more: Any) -> BlobSettings:
        """The settings of a real store whose ids have `id_bytes` bytes each.

        Every sealed segment may be taken, as in a store whose journal is empty (`journal_max_entries=0`). For a policy
        that looks ahead, give `forecast_seconds`: a store shows seven days, by the hour.
        Of a compaction that fills more than eight segments, names may be others unless `survivors` are laid out.

        Args:
            config: the store's.
            id_bytes: length of an id.
            more: other settings.
        """
        overhead = record_size(id_bytes, 0)
        values: dict[str, Any] = {
            "record_overhead_bytes": overhead, "tombstone_bytes": overhead, "max_blob_bytes": config.max_blob_bytes,
            "deleted_retention_seconds": config.deleted_retention_seconds, "swap_segments": _MOST_OUTPUTS, **more}
        return cls(capacity_bytes=config.capacity_bytes, segment_bytes=config.segment_bytes,
                   **values)


def replay_blobs(workload: Workload, policy: BlobPolicy, settings: BlobSettings, *, seed: int = 0,
                 observer: Observer | None = None) -> ReplayReport:
    """What `policy` makes of `workload`. About a microsecond an operation; memory follows the records in the log.

    Equal arguments give equal reports. A policy that draws at random draws from a copy of its generator.

    Args:
        workload: what is asked of the store.
        policy: the policy that decides.
        settings: the store, and when the policy is asked.
        seed: of the workload.
        observer: notified of progress, in operations.

    Raises:
        InvalidInput: a record does not fit into a segment.
        PlanDoesNotFit: the policy named a segment that it may not take.
        InvalidInput: it is no policy.
    """
    replay = BlobReplay(policy, settings, expected_operations=workload.operations)
    told = Observers(observer)
    work = f"replay {workload.name} against {policy.name}"
    for piece in workload.pieces(seed):
        replay.feed(piece)
        total = max(workload.operations, replay.operations + 1)
        told.event("progress", work=work, done=replay.operations, total=total, unit="operations")
    told.event("progress", work=work, done=replay.operations, total=replay.operations, unit="operations")
    return replay.report(str(workload))


class BlobReplay:
    """A replay under way; feed it pieces, ask for the report. One thread at a time.

    Args:
        policy: the policy that decides; copied, so that the caller's does not change.
        settings: the store, and when the policy is asked.
        expected_operations: how many will come, for the length of an interval; 0: an interval a piece.
        store: what the store is called in views and plans.
    """

    def __init__(self, policy: BlobPolicy, settings: BlobSettings, *, expected_operations: int = 0,
                 store: str = "lab") -> None:
        self.log: BlobLog = BlobLog(settings, name=store)
        self.operations: int = 0
        self._policy = copy.deepcopy(policy)
        self._settings = settings
        self._retention_ms = round(settings.deleted_retention_seconds * 1000)
        self._interval = max(expected_operations // settings.intervals, 1) if expected_operations else 0
        self._begun = False
        self._now_ms = 0
        self._intervals: list[Measures] = []
        self._until_check = settings.check_every_operations
        self._ask_again_at = 0
        self._gate = "the policy was not asked"
        # Where deaths are watched, what is replaced is dead at once, not only at the next moment.
        self._watched = settings.placement is not None or settings.max_dead_fraction < 1
        classes = 1 if settings.placement is None else settings.placement.classes
        self._min_free: int = classes if settings.min_free_segments is None else settings.min_free_segments
        self._fresh_counts()

    def _fresh_counts(self) -> None:
        self._counts: dict[str, int] = dict.fromkeys(
            ("operations", "reads", "refused", "user_bytes", "copied_bytes", "read_bytes", "asked", "compactions",
             "victims", "freed_segments", "reclaimed_bytes", "used_sum", "live_sum", "record_sum",
             "peak_used_bytes", "most_moved_bytes"), 0)
        self._refused_by: Counter[str] = Counter()
        self._waited_ms = 0.0
        self._started_ms = self._now_ms

    # ------------------------------------------------------------------------------------------------------- feeding

    def feed(self, piece: Operations) -> None:
        """Make these operations.

        Raises:
            InvalidInput: a record does not fit into a segment.
        """
        if not len(piece):
            return
        if not self._begun:
            self._begun = True
            self._now_ms = self._started_ms = self.log.records.since = piece.times_ms[0]
        self.log.know_keys(max(piece.keys) + 1)
        plain = (piece.are_plain_puts and not self._settings.tombstone_bytes and not self.log.records.has_lives
                 and not self._settings.forecast_seconds and not self._retention_ms and self.log.histories is None)
        if plain and self._settings.placement is not None:
            self._feed_placed(piece)
        elif plain and not self._watched:
            self._feed_plain(piece)
        else:
            self._feed_rows(piece)
        self.log.advance(self._now_ms)
        if not self._interval or self._counts["operations"] >= self._interval:
            self._close_interval()

    def _feed_plain(self, piece: Operations) -> None:
        log = self.log
        assert isinstance(piece.sizes, int)
        size = piece.sizes + self._settings.record_overhead_bytes
        keys, times = array("i", piece.keys), array("q", piece.times_ms)
        done, count = 0, len(keys)
        while done < count:
            room = log.room(size) + max(log.free_segments - self._min_free, 0) * (self._settings.room_bytes // size)
            if not room:
                self._now_ms = times[done]
                if not self._make_room(size):
                    self._count_refused(1)
                    done += 1
                continue
            step = min(room, count - done, self._until_check or count)
            log.put_plainly(keys[done:done + step], times[done:done + step], size)
            done += step
            self._now_ms = times[done - 1]
            self._counts["user_bytes"] += step * size
            self._made(step)

    def _feed_placed(self, piece: Operations) -> None:
        log, most, keys, times = self.log, self._settings.max_dead_fraction, piece.keys, piece.times_ms
        assert isinstance(piece.sizes, int)
        size, done = piece.sizes + self._settings.record_overhead_bytes, 0
        log.room(size)
        while done < len(piece):
            end = min(len(piece), done + (self._until_check or len(piece)))
            made, placed = log.put_placed(keys, times, size, range(done, end), self._now_ms, most,
                                          max(log.free_segments - self._min_free, 0))
            if made > done:
                self._now_ms = times[made - 1]
                self._counts["user_bytes"] += (made - done) * size
                self._made(made - done)
            done = made
            if placed != NO_ROW:
                self._now_ms = times[done]
                if self._has_room_for(size, placed):
                    log.records.current[keys[done]] = log.append(size, self._now_ms, NEVER, keys[done], placed)
                    self._counts["user_bytes"] += size
                else:
                    self._count_refused(0)
                self._made(1)
                done += 1
            elif done < end and most < 1:
                self.check()
                self._now_ms = times[done]
        self._ask_about_the_dead()

    def _feed_rows(self, piece: Operations) -> None:
        overhead = self._settings.record_overhead_bytes
        for kind, key, size, life, at in piece.rows():
            if at != self._now_ms:
                self._ask_about_the_dead()
                self._now_ms = at
            if kind == PUT:
                self._put(key, size + overhead, NEVER if life == FOREVER else at + life, at)
            elif kind == DELETE:
                self._delete(key, at)
            else:
                self._counts["reads"] += 1
            self._made(1)
        self._ask_about_the_dead()

    def _ask_about_the_dead(self) -> None:
        if self._settings.max_dead_fraction < 1 and self.log.has_dead_beyond(self._settings.max_dead_fraction):
            self.check()

    def _put(self, key: int, size: int, until: int, at: int) -> None:
        log, current = self.log, self.log.records.current
        old = current[key]
        placed = 0
        if self._watched:
            log.advance(at)
            if old >= 0 and log.placer is not None:
                # A placement chooses by what is left.
                self._leave(old, at)
                old = current[key] = -1
            placed = log.place(key, size, at, until)
        if not self._has_room_for(size, placed):
            self._count_refused(0)
            return
        # It may have expired while room was made: then its number is the next one's to be given.
        old = current[key]
        current[key] = log.append(size, at, until, key, placed)
        self._counts["user_bytes"] += size
        if old >= 0:
            self._leave(old, at)

    def _delete(self, key: int, at: int) -> None:
        current = self.log.records.current
        old = current[key]
        if old < 0 or self.log.records.until[old] < at:
            return
        tombstone = self._settings.tombstone_bytes
        if tombstone and not self._has_room_for(tombstone):
            self._count_refused(0)
        elif current[key] == old:
            # It may have expired while room was made.
            current[key] = -1
            self._leave(old, at)

    def _leave(self, record: int, at: int) -> None:
        """The record of a key is replaced or deleted, unless it has expired before."""
        records, tombstone = self.log.records, self._settings.tombstone_bytes
        due, until = at + self._retention_ms, records.until[record]
        if until < at:
            return
        if self._watched and not self._retention_ms:
            self.log.kill(record, at)
        elif due < until:
            # Only then does the delete decide when it dies.
            records.leaves(record, due)
            if records.has_lives or self._settings.forecast_seconds or self._settings.survivors is not None:
                records.until[record] = due
        if tombstone and not self._has_room_for(tombstone):
            self._count_refused(0)
        elif tombstone:
            self.log.append(tombstone, at)
            self.log.tombstone_bytes += tombstone
            self._counts["user_bytes"] += tombstone

    def _has_room_for(self, size: int, placed: int = 0) -> bool:
        log = self.log
        return bool(log.room(size, placed)) or (self._make_room(size, placed) and bool(log.room(size, placed)))

    def _make_room(self, size: int, placed: int = 0) -> bool:
        """Begin a segment of a class; ask the policy first if too few are free."""
        free = self.log.free_segments
        if free <= self._min_free and (free or self.operations >= self._ask_again_at):
            self._ask_until_free()
            if not self.log.free_segments:
                # A writer that fills a full log asks with every operation; the answer changes less often.
                self._ask_again_at = self.operations + _PATIENCE
        # What was copied just now may have begun one.
        return bool(self.log.room(size, placed)) or self.log.roll(placed)

    def _count_refused(self, operations: int) -> None:
        self._counts["refused"] += 1
        self._refused_by[self._gate] += 1
        self._counts["operations"] += operations
        self.operations += operations

    def _made(self, operations: int) -> None:
        self._counts["operations"] += operations
        self.operations += operations
        if self._until_check:
            self._until_check -= operations
            if not self._until_check:
                self.check()
                self._until_check = self._settings.check_every_operations

    def wait_until(self, now_ms: int) -> None:
        """Let time pass without operations. A time that is past changes nothing."""
        self._now_ms = max(self._now_ms, now_ms)

    # ------------------------------------------------------------------------------------------------------ deciding

    def check(self) -> BlobChoice:
        """Ask the policy now, and carry out its choice; gives the choice."""
        log, counts = self.log, self._counts
        view = log.view(self._now_ms)
        counts["asked"] += 1
        self._sample()
        choice = self._policy.choose(view, self._now_ms / 1000)
        if choice.is_empty:
            return choice
        done = log.compact(choice, self._now_ms)
        counts["compactions"] += 1
        counts["victims"] += done.victims
        counts["freed_segments"] += done.victims - done.outputs
        counts["copied_bytes"] += done.copied_bytes
        counts["read_bytes"] += done.read_bytes
        counts["reclaimed_bytes"] += done.reclaimed_bytes
        counts["most_moved_bytes"] = max(counts["most_moved_bytes"], done.read_bytes + done.copied_bytes)
        self._waited_ms += done.waited
        return choice

    def _ask_until_free(self) -> None:
        for _ in range(MAX_ROUNDS):
            before = self.log.free_segments
            choice = self.check()
            if choice.is_empty or self.log.free_segments <= before:
                self._gate = choice.why if choice.is_empty else f"what was chosen freed no segment: {choice.why}"
                return
            if self.log.free_segments > self._min_free:
                return

    # ----------------------------------------------------------------------------------------------------- reporting

    def _sample(self) -> None:
        counts, log = self._counts, self.log
        counts["used_sum"] += log.used_bytes
        counts["live_sum"] += log.live_bytes
        counts["record_sum"] += log.record_bytes
        counts["peak_used_bytes"] = max(counts["peak_used_bytes"], log.used_bytes)

    def _close_interval(self) -> None:
        self._sample()
        self._intervals.append(Measures(
            start=self._started_ms / 1000, end=self._now_ms / 1000, waited_byte_seconds=self._waited_ms / 1000,
            capacity_bytes=self._settings.segments * self._settings.segment_bytes,
            used_bytes=self.log.used_bytes, live_bytes=self.log.live_bytes, refused_by=self._refused_by.items(),
            **self._counts))
        self._fresh_counts()

    def report(self, workload: str) -> ReplayReport:
        """What has come of it so far; `workload` is what was replayed, in words."""
        if any(self._counts.values()) or not self._intervals:
            self._close_interval()
        return ReplayReport(policy=str(PolicyRecord.of(self._policy)), workload=workload,
                            intervals=tuple(self._intervals))
