# SPDX-License-Identifier: Apache-2.0
"""A Raft log without payloads.

Each write or delete is one entry. A key's last write is live; at a snapshot every other entry at or below it dies.
After each snapshot the segments without live entries are dropped, and after some, as the trigger decides, the policy is
called, through `MajorCadence`: the real log's planning function, on the same statistics.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import attrs

from compactlib._arguments import is_whole
from compactlib.clock import ManualClock
from compactlib.lab.simulation import Simulation
from compactlib.lab.workloads import DELETE, READ, Row
from compactlib.raftlog import EveryNMinors, LogPlan, LogPolicy, LogView, SegmentLimits
from compactlib.raftlog.policy import (
    INDEX_RECORD_BYTES,
    MajorCadence,
    PlannedGroup,
    SegmentRef,
    SegmentStats,
    Trigger,
    segment_bytes,
)

_NO_KEY = -1
_DELETE_BYTES = 16
"""Payload of the entry that a delete appends."""


@attrs.frozen(kw_only=True)
class RaftLogModel:
    """A Raft log to be replayed.

    Bytes are payloads and index records. A log ignores times to live: a record lives until it is replaced or deleted.

    Attributes:
        limits: the limits of a segment.
        snapshot_every: entries from one snapshot to the next, at least 1.
        trigger: decides after which snapshots the policy is called, as in a real log; the others only drop segments.

    Raises:
        InvalidInput: a value is out of its range.
    """

    limits: SegmentLimits = attrs.Factory(SegmentLimits)
    snapshot_every: int = attrs.field(default=10_000, validator=is_whole(1))
    trigger: Trigger = attrs.Factory(lambda: EveryNMinors(3))

    def start(self, policy: LogPolicy, seed: int = 0) -> RaftLogSimulation:
        """Make an empty log."""
        return RaftLogSimulation(self, policy)


@attrs.define(eq=False)
class _Segment:
    """One segment: its entries as columns. 20 bytes an entry.

    Attributes:
        number: its place in the log.
        room: the number of index records that its file reserves.
    """

    number: int
    room: int = 0
    indexes: array[int] = attrs.field(factory=lambda: array("q"))
    keys: array[int] = attrs.field(factory=lambda: array("i"))
    sizes: array[int] = attrs.field(factory=lambda: array("q"))
    live: int = 0
    live_bytes: int = 0
    data_bytes: int = 0

    def append(self, index: int, key: int, size: int) -> None:
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
        # Payloads follow the reserved index records.
        room = max(self.room, len(self.indexes)) if self.data_bytes else len(self.indexes)
        return SegmentStats(ref=SegmentRef(self.number, self.indexes[0], self.indexes[-1]), entries=len(self.indexes),
                            data_bytes=self.data_bytes, live_entries=self.live, live_bytes=self.live_bytes,
                            file_bytes=segment_bytes(room, self.data_bytes))


class RaftLogSimulation(Simulation):
    """A Raft log under replay.

    Args:
        model: the log.
        policy: chooses the segments to rewrite.
    """

    def __init__(self, model: RaftLogModel, policy: LogPolicy) -> None:
        super().__init__(policy)
        self.last_index: int = 0
        self.snapshot_index: int | None = None
        self._model = model
        self._newest = _Segment(1, model.limits.max_entries)
        self._segments: dict[int, _Segment] = {1: self._newest}
        # Index, segment and size of the last entry of each live key.
        self._index_of: dict[int, int] = {}
        self._segment_of: dict[int, int] = {}
        self._size_of: dict[int, int] = {}
        # Entries that die with the next snapshot: segment and size.
        self._dying: list[tuple[int, int]] = []
        self._clock = ManualClock()
        self._cadence: MajorCadence | None = None

    def apply(self, rows: Sequence[Row]) -> None:
        """Append these operations; take snapshots and compact when due."""
        model, counts = self._model, self.counts
        if self._cadence is None:
            self._clock.set_now(rows[0][4] / 1000)
            self._cadence = MajorCadence(model.trigger, self._clock)
        counts.operations += len(rows)
        for kind, key, size, _, at in rows:
            self.now_ms = at
            if kind == READ:
                counts.reads += 1
                continue
            self._append(key, size, is_delete=kind == DELETE)
            if self.last_index % model.snapshot_every == 0:
                self.snapshot()
                self.compact()

    def _append(self, key: int, size: int, *, is_delete: bool) -> None:
        limits, newest = self._model.limits, self._newest
        if len(newest.indexes) >= limits.max_entries or newest.data_bytes > limits.max_bytes:
            newest = self._newest = _Segment(newest.number + 1, limits.max_entries)
            self._segments[newest.number] = newest
        size = _DELETE_BYTES if is_delete else size
        self.last_index += 1
        newest.append(self.last_index, _NO_KEY if is_delete else key, size)
        self.counts.user_bytes += size + INDEX_RECORD_BYTES
        if key in self._index_of:
            self._dying.append((self._segment_of[key], self._size_of[key]))
        if is_delete:
            # The next snapshot contains the effect of a delete, so its entry dies.
            self._dying.append((newest.number, size))
            for column in (self._index_of, self._segment_of, self._size_of):
                column.pop(key, None)
        else:
            self._index_of[key], self._segment_of[key], self._size_of[key] = self.last_index, newest.number, size

    def snapshot(self) -> tuple[int, ...]:
        """Take a snapshot of all entries so far; return the live indexes, ascending."""
        for number, size in self._dying:
            segment = self._segments[number]
            segment.live -= 1
            segment.live_bytes -= size
        self._dying.clear()
        self.snapshot_index = self.last_index
        return tuple(sorted(self._index_of.values()))

    # ---------------------------------------------------------------------------------------------------- compaction

    def compact(self) -> LogPlan:
        """After a snapshot, plan by the policy if the trigger demands it, else drop dead segments."""
        cadence, view, now = self._cadence, self.view(), self.now_ms / 1000
        assert cadence is not None
        self._clock.advance(max(now - self._clock.now(), 0.0))
        self.sample()
        self.counts.asked += 1
        plan = cadence.plan(view, self.policy, now)
        if not plan.is_empty:
            self.counts.compactions += 1
            self.counts.freed_segments += len(view.segments) - len(plan.forecast().segments)
            self.rewrite(plan)
        cadence.ended(plan)
        return plan

    def view(self) -> LogView:
        """Return the view for a plan. O(segments)."""
        return LogView(segments=tuple(each.stats for each in self._segments.values() if each.indexes),
                       snapshot_index=self.snapshot_index, limits=self._model.limits)

    def rewrite(self, plan: LogPlan) -> None:
        """Drop and rewrite the plan's segments."""
        for drop in plan.drops:
            del self._segments[drop.number]
            self.counts.victims += 1
        for group in plan.groups:
            self._rewrite_group(group)
        self._segments = dict(sorted(self._segments.items()))

    def _rewrite_group(self, group: PlannedGroup) -> None:
        """Copy the live entries of a group into one segment."""
        members = [self._segments.pop(number) for number in group.numbers]
        output = _Segment(members[0].number)
        index_of, segment_of = self._index_of, self._segment_of
        for member in members:
            for index, key, size in zip(member.indexes, member.keys, member.sizes, strict=True):
                if index_of.get(key) == index:
                    output.append(index, key, size)
                    segment_of[key] = output.number
        self._segments[output.number] = output
        self.counts.victims += len(members)
        self.counts.copied_bytes += output.stored_bytes

    @property
    def used_bytes(self) -> int:
        return sum(each.stored_bytes for each in self._segments.values())

    @property
    def live_bytes(self) -> int:
        return sum(self._size_of.values()) + INDEX_RECORD_BYTES * len(self._size_of)
