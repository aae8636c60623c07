# SPDX-License-Identifier: Apache-2.0
"""Replays a workload against a Raft log's compaction policy, on metadata alone.

Each write or delete is one entry. A key's last write is live; at a snapshot everything else at or below it dies. After
each snapshot the segments that hold nothing alive are dropped, and now and then the policy is asked:
with `plan_for`, the function that the real log plans with, on the same statistics.
"""

from __future__ import annotations

import copy
from array import array

import attrs

from compactlib._arguments import is_whole
from compactlib.clock import ManualClock
from compactlib.errors import AuditFailed, CompactlibError
from compactlib.lab.operations import DELETE, READ, Operations
from compactlib.lab.report import Measures, ReplayReport
from compactlib.lab.workloads import Workload
from compactlib.observer import Observer, Observers
from compactlib.raftlog import DropDead, LogPlan, LogPolicy, LogView, SegmentLimits
from compactlib.raftlog.policy import (
    INDEX_RECORD_BYTES,
    MajorCadence,
    PlannedGroup,
    SegmentRef,
    SegmentStats,
    Trigger,
    plan_for,
    segment_bytes,
)
from compactlib.report import PolicyRecord

_NO_KEY = -1


@attrs.frozen(kw_only=True)
class RaftLogSettings:
    """The log of a replay.

    Attributes:
        limits: how large a segment may become.
        snapshot_every: entries from one snapshot to the next, at least 1.
        major_every: snapshots from one compaction that asks the policy to the next, at least 1; the others only drop.
        trigger: says instead, as in a real log, when the policy is asked; `None`: `major_every` does.
        delete_bytes: payload of the entry that a delete appends.
        intervals: into about how many parts the report is cut, if the length of the workload is known, at least 1.
        capacity_bytes: of the disk, for `peak_fill`; nothing is refused above it. 0: unknown.

    Raises:
        InvalidInput: a value is out of its range or of another type.
    """

    limits: SegmentLimits = attrs.Factory(SegmentLimits)
    snapshot_every: int = attrs.field(default=10_000, validator=is_whole(1))
    major_every: int = attrs.field(default=4, validator=is_whole(1))
    trigger: Trigger | None = None
    delete_bytes: int = attrs.field(default=16, validator=is_whole())
    intervals: int = attrs.field(default=20, validator=is_whole(1))
    capacity_bytes: int = attrs.field(default=0, validator=is_whole())

    def replay(self, workload: Workload, policy: LogPolicy, *, seed: int,
               observer: Observer | None = None) -> ReplayReport:
        """See `replay_raftlog`, and `Setup.replay`."""
        return replay_raftlog(workload, policy, self, seed=seed, observer=observer)

    def read_report(self, text: str) -> ReplayReport:
        """See `Setup.read_report`."""
        return ReplayReport.from_json(text)

    def name_of(self, policy: LogPolicy) -> str:
        """See `Setup.name_of`."""
        return policy.name


def replay_raftlog(workload: Workload, policy: LogPolicy, settings: RaftLogSettings | None = None, *,
                   seed: int = 0, observer: Observer | None = None) -> ReplayReport:
    """What `policy` makes of `workload`. Equal arguments give equal reports; memory follows the entries in the log.

    Bytes are payloads and index records. Times to live are not known to a log: a record lives until it is replaced or
    deleted.

    Args:
        workload: what the log's machine is asked.
        policy: decides what is rewritten.
        settings: the log, and when it is compacted.
        seed: of the workload.
        observer: notified of progress, in operations.
    """
    chosen = RaftLogSettings() if settings is None else settings
    replay = RaftLogReplay(policy, chosen, expected_operations=workload.operations)
    told = Observers(observer)
    work = f"replay {workload.name} against {policy.name}"
    for piece in workload.pieces(seed):
        replay.feed(piece)
        told.event("progress", work=work, done=replay.operations, total=max(workload.operations, replay.operations + 1),
                   unit="operations")
    told.event("progress", work=work, done=replay.operations, total=replay.operations, unit="operations")
    return replay.report(str(workload))


class _Segment:
    """One segment: its entries as columns. 20 bytes an entry."""

    __slots__ = ("data_bytes", "first", "indexes", "keys", "last", "live", "live_bytes", "moments", "number", "room",
                 "sizes")

    def __init__(self, number: int, room: int = 0) -> None:
        self.number = number
        # Records that its file has room for, beyond those that it holds.
        self.room = room
        self.indexes: array[int] = array("q")
        self.keys: array[int] = array("i")
        self.sizes: array[int] = array("q")
        self.first = self.last = self.live = self.live_bytes = self.data_bytes = 0
        # The sum over what is dead of its size and the time of its death.
        self.moments = 0

    def append(self, index: int, key: int, size: int) -> None:
        if not self.indexes:
            self.first = index
        self.last = index
        self.indexes.append(index)
        self.keys.append(key)
        self.sizes.append(size)
        self.live += 1
        self.live_bytes += size
        self.data_bytes += size

    @property
    def stored_bytes(self) -> int:
        return self.data_bytes + INDEX_RECORD_BYTES * len(self.indexes)

    @property
    def stats(self) -> SegmentStats:
        return SegmentStats(ref=SegmentRef(self.number, self.first, self.last), entries=len(self.indexes),
                            data_bytes=self.data_bytes, live_entries=self.live, live_bytes=self.live_bytes,
                            file_bytes=self.file_bytes)

    @property
    def file_bytes(self) -> int:
        # Payloads lie behind the records that there is room for.
        room = max(self.room, len(self.indexes)) if self.data_bytes else len(self.indexes)
        return segment_bytes(room, self.data_bytes)


class RaftLogReplay:
    """A replay under way; feed it pieces, ask for the report. One thread at a time.

    Args:
        policy: the policy that decides; copied.
        settings: the log.
        expected_operations: how many will come, for the length of an interval; 0: an interval a piece.
    """

    def __init__(self, policy: LogPolicy, settings: RaftLogSettings, *, expected_operations: int = 0) -> None:
        self.operations: int = 0
        self.last_index: int = 0
        self.snapshot_index: int | None = None
        self._policy = copy.deepcopy(policy)
        self._settings = settings
        self._segments: dict[int, _Segment] = {1: _Segment(1, settings.limits.max_entries)}
        self._newest = self._segments[1]
        self._index_of: dict[int, int] = {}
        self._segment_of: dict[int, int] = {}
        self._size_of: dict[int, int] = {}
        self._dying: list[tuple[int, int, int]] = []
        self._snapshots = 0
        self._clock = ManualClock()
        self._cadence: MajorCadence | None = None
        self._interval = max(expected_operations // settings.intervals, 1) if expected_operations else 0
        self._intervals: list[Measures] = []
        self._now_ms = self._started_ms = 0
        self._fresh_counts()

    def _fresh_counts(self) -> None:
        self._counts: dict[str, int] = dict.fromkeys(
            ("operations", "reads", "user_bytes", "copied_bytes", "read_bytes", "asked", "compactions", "victims",
             "freed_segments", "reclaimed_bytes", "used_sum", "live_sum", "record_sum", "peak_used_bytes",
             "most_moved_bytes"), 0)
        self._waited_ms = 0
        self._started_ms = self._now_ms

    # ------------------------------------------------------------------------------------------------------- feeding

    def feed(self, piece: Operations) -> None:
        """Append these operations; takes snapshots and compacts as it is time."""
        if len(piece) and not self.operations:
            self._started_ms = piece.times_ms[0]
            if self._settings.trigger is not None:
                self._clock.set_now(self._started_ms / 1000)
                self._cadence = MajorCadence(self._settings.trigger, self._clock)
        for kind, key, size, _, at in piece.rows():
            self._now_ms = at
            self._counts["operations"] += 1
            self.operations += 1
            if kind == READ:
                self._counts["reads"] += 1
                continue
            deleted = kind == DELETE
            self._append(_NO_KEY if deleted else key, key, self._settings.delete_bytes if deleted else size)
            if self.last_index % self._settings.snapshot_every == 0:
                self.snapshot()
                self.compact_when_due()
        if not self._interval or self._counts["operations"] >= self._interval:
            self._close_interval()

    def _append(self, owner: int, key: int, size: int) -> None:
        limits, newest = self._settings.limits, self._newest
        if len(newest.indexes) >= limits.max_entries or newest.data_bytes > limits.max_bytes:
            newest = self._newest = _Segment(newest.number + 1, limits.max_entries)
            self._segments[newest.number] = newest
        self.last_index += 1
        newest.append(self.last_index, owner, size)
        self._counts["user_bytes"] += size + INDEX_RECORD_BYTES
        if key in self._index_of:
            self._dying.append((self._segment_of[key], self._size_of[key], self._now_ms))
        if owner == _NO_KEY:
            # What a delete did is in the next snapshot.
            self._dying.append((newest.number, size, self._now_ms))
            for column in (self._index_of, self._segment_of, self._size_of):
                column.pop(key, None)
        else:
            self._index_of[key], self._segment_of[key], self._size_of[key] = self.last_index, newest.number, size

    def wait_until(self, now_ms: int) -> None:
        """Let time pass without operations. A time that is past changes nothing."""
        self._now_ms = max(self._now_ms, now_ms)

    def snapshot(self) -> tuple[int, ...]:
        """Take a snapshot of everything so far; gives the live indexes, ascending."""
        for number, size, at in self._dying:
            segment = self._segments[number]
            segment.live -= 1
            segment.live_bytes -= size
            segment.moments += at * (size + INDEX_RECORD_BYTES)
        self._dying.clear()
        self.snapshot_index = self.last_index
        return tuple(sorted(self._index_of.values()))

    # ------------------------------------------------------------------------------------------------------ deciding

    def view(self) -> LogView:
        """The log as a plan sees it. O(segments)."""
        return LogView(segments=tuple(each.stats for each in self._segments.values() if each.indexes),
                              snapshot_index=self.snapshot_index, limits=self._settings.limits)

    def compact_when_due(self) -> LogPlan:
        """A compaction by `DropDead`, or by the policy if the trigger or `major_every` demands it; right after a
        snapshot.

        Raises:
            CompactlibError: something was appended since the snapshot.
            InvalidInput: the policy's choice breaks a rule.
        """
        cadence = self._cadence
        if cadence is None:
            self._snapshots += 1
            return self.compact(self._policy if self._snapshots % self._settings.major_every == 0 else None)
        self._clock.advance(max(self._now_ms / 1000 - self._clock.now(), 0.0))
        view = self.view()
        is_due, _ = cadence.judge(view)
        plan = self.compact(self._policy if is_due else None)
        cadence.ended(view, drops_only=plan.drops_only)
        return plan

    def compact(self, policy: LogPolicy | None = None) -> LogPlan:
        """Plan as the real log does, and carry it out; only right after a snapshot, before anything else is appended.

        Args:
            policy: decides what is rewritten; default nothing is, `DropDead`.

        Raises:
            CompactlibError: something was appended since the snapshot.
            InvalidInput: the policy's choice breaks a rule.
        """
        if self._dying or self.snapshot_index != self.last_index:
            raise CompactlibError(f"entries were appended after snapshot {self.snapshot_index}; take one first")
        view = self.view()
        self._sample()
        self._counts["asked"] += 1
        plan = plan_for(view, DropDead() if policy is None else policy, self._now_ms / 1000)
        if plan.is_empty:
            return plan
        self._counts["compactions"] += 1
        self._counts["freed_segments"] += len(view.segments) - len(plan.forecast(view).segments)
        for drop in plan.drops:
            self._forget(self._segments.pop(drop.number))
        moved = sum(map(self._rewrite, plan.groups))
        self._counts["most_moved_bytes"] = max(self._counts["most_moved_bytes"], moved)
        self._segments = dict(sorted(self._segments.items()))
        return plan

    def _forget(self, segment: _Segment) -> None:
        self._counts["victims"] += 1
        self._reclaimed(segment.stored_bytes, segment.moments)

    def _reclaimed(self, size: int, moments: int) -> None:
        self._counts["reclaimed_bytes"] += size
        self._waited_ms += self._now_ms * size - moments

    def _rewrite(self, group: PlannedGroup) -> int:
        members = [self._segments.pop(number) for number in group.numbers]
        output = _Segment(members[0].number)
        index_of, segment_of = self._index_of, self._segment_of
        for member in members:
            for index, key, size in zip(member.indexes, member.keys, member.sizes, strict=True):
                if index_of.get(key) == index:
                    output.append(index, key, size)
                    segment_of[key] = output.number
        before = sum(member.stored_bytes for member in members)
        self._counts["victims"] += len(members)
        self._counts["copied_bytes"] += output.stored_bytes
        self._counts["read_bytes"] += before
        self._reclaimed(before - output.stored_bytes, sum(member.moments for member in members))
        self._segments[output.number] = output
        return before + output.stored_bytes

    # ----------------------------------------------------------------------------------------------------- reporting

    def _sample(self) -> None:
        used = sum(each.stored_bytes for each in self._segments.values())
        counts = self._counts
        counts["used_sum"] += used
        counts["record_sum"] += used
        counts["live_sum"] += self._live_bytes()
        counts["peak_used_bytes"] = max(counts["peak_used_bytes"], used)

    def _live_bytes(self) -> int:
        return sum(self._size_of.values()) + INDEX_RECORD_BYTES * len(self._size_of)

    def _close_interval(self) -> None:
        self._sample()
        used = sum(each.stored_bytes for each in self._segments.values())
        self._intervals.append(Measures(
            start=self._started_ms / 1000, end=self._now_ms / 1000, waited_byte_seconds=self._waited_ms / 1000,
            capacity_bytes=self._settings.capacity_bytes, used_bytes=used, live_bytes=self._live_bytes(),
            **self._counts))
        self._fresh_counts()

    def report(self, workload: str) -> ReplayReport:
        """What has come of it so far; `workload` is what was replayed, in words."""
        if self._counts["operations"] or not self._intervals:
            self._close_interval()
        return ReplayReport(policy=str(PolicyRecord.of(self._policy)), workload=workload,
                            intervals=tuple(self._intervals))

    def audit(self) -> None:
        """Check the segments' counts against their entries. O(entries).

        Raises:
            AuditFailed: they differ.
        """
        waiting: dict[int, int] = {}
        for number, _, _ in self._dying:
            waiting[number] = waiting.get(number, 0) + 1
        for segment in self._segments.values():
            live = sum(self._index_of.get(key) == index
                       for index, key in zip(segment.indexes, segment.keys, strict=True))
            if live + waiting.get(segment.number, 0) != segment.live or segment.data_bytes != sum(segment.sizes):
                raise AuditFailed(f"segment {segment.number} counts {segment.live} live entries; {live} are, and "
                                  f"{waiting.get(segment.number, 0)} wait for the next snapshot")
