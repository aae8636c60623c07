# SPDX-License-Identifier: Apache-2.0
"""What a policy is shown of a store: its segments' statistics, and the plans it has carried out."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Mapping

import attrs

from compactlib.blobstore.compaction.plan.last_plans import LastPlans, PlanKind, read_last_plans, write_last_plans
from compactlib.blobstore.compaction.plan.policy import BlobView, Dying, SegmentView
from compactlib.blobstore.compaction.sense.kept_statistics import KeptStatistics
from compactlib.blobstore.compaction.sense.statistics import LogStatistics, log_statistics
from compactlib.blobstore.compaction.swap import CompactableStore, Shown, Snapshot
from compactlib.blobstore.config import BlobStoreConfig
from compactlib.blobstore.index.index_file import index_file_bytes
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.segment.reader import SEGMENT_HEADER_BYTES
from compactlib.blobstore.validity.verdicts import PurgeRules
from compactlib.errors import CompactlibError, CorruptData
from compactlib.runtime.breather import Breather
from compactlib.runtime.budget import Budget
from compactlib.runtime.ownership import Ownership

_WEEK_SECONDS = 7 * 86_400.0
_LOOK_AGAIN_SECONDS = 0.005
"""How long a view waits for another one's counting before it looks, and asks its budget, again."""


class Sensor:
    """Makes the views of one store, and remembers its last plans. Threads may share it.

    With time buckets (`stats_bucket_count`, or a policy that needs them), statistics are kept up to date between views,
    and know what will die when; without, each view counts everything, exactly, and forecasts nothing.

    Args:
        store: whose views to make.
        rules: what a compaction may remove besides what is deleted and expired.
        ownership: of the store: closing it ends the counting.

    Attributes:
        side_files: held while the file of the last plans is replaced, which needs no run.
    """

    def __init__(self, store: CompactableStore, rules: PurgeRules, ownership: Ownership) -> None:
        rate = store.config.stats_entries_per_second
        self.side_files: threading.Lock = threading.Lock()
        self._store = store
        self._rules = rules
        self._ownership = ownership
        self._throttle = None if rate is None else Budget(bytes_per_second=rate, clock=store.clock)
        self._kept: KeptStatistics | None = None
        self._kept_rules = rules
        self._counting = threading.Lock()
        self._told_damage = False
        self._damaged_segments = 0
        with contextlib.suppress(CompactlibError):
            self._last_plans(store.snapshot())

    def use_rules(self, rules: PurgeRules) -> None:
        """From the next view on, what a compaction may remove is this."""
        # Not under the lock: a question of the host's may be what asks for it, in the middle of a count.
        self._rules = rules

    def view(self, now: float, *, forecast: bool = False, budget: Budget | None = None) -> BlobView:
        """The store as a policy sees it at `now` (seconds). Changes nothing.

        Args:
            now: when, seconds since the epoch.
            forecast: whether it has to say what dies when, although the configuration leaves it open.
            budget: asked while everything is counted; closing the store ends the counting as well.

        Raises:
            BudgetSpent: the budget ended, or the store was closed, before everything was counted.
            StorageError: the file of the last plans cannot be read.
        """
        lent = (Budget() if budget is None else budget).child()
        with self._ownership.cancels(lent):
            # By `with` alone: an interrupt between `acquire` and a `try` would leave it held.
            while self._counting.locked():
                lent.check()
                threading.Event().wait(_LOOK_AGAIN_SECONDS)
            with self._counting:
                snapshot = self._store.snapshot()
                statistics, dying = self._count(snapshot, now, self._bucket_count(forecast), lent)
        return view_of(self._store, snapshot, statistics, self._last_plans(snapshot), now, dying)

    def _bucket_count(self, forecast: bool) -> int:
        """How many time buckets to keep: as configured, or as many as the policy needs.

        A look at a store comes once a week by default, when hardly anything is left to be looked up cheaply; so only a
        policy that looks ahead gets buckets unasked.
        """
        config = self._store.config
        if config.stats_bucket_count is not None:
            return config.stats_bucket_count
        return week_of_buckets(config) if forecast or self._kept is not None else 0

    def _count(self, snapshot: Snapshot, now: float, bucket_count: int, budget: Budget
               ) -> tuple[LogStatistics, Mapping[SegmentName, tuple[Dying, ...]]]:
        config, breather = self._store.config, Breather(self._store.clock, budget)
        retention = config.deleted_retention_seconds
        if not bucket_count:
            return log_statistics(snapshot, now - retention, now, self._rules, throttle=self._throttle,
                                  breather=breather, budget=budget), {}
        if self._kept is None or self._kept_rules is not self._rules:
            self._kept_rules = self._rules
            self._kept = KeptStatistics(
                retention_seconds=retention, bucket_seconds=config.stats_bucket_seconds, bucket_count=bucket_count,
                rules=self._kept_rules, throttle=self._throttle)
        buckets = self._kept.refresh(snapshot, now, breather=breather, budget=budget)
        statistics = buckets.statistics(now)
        # The buckets do not go back with a clock that was set back; the reference time has to.
        statistics = attrs.evolve(statistics, reference_time=min(statistics.reference_time, now - retention))
        return statistics, buckets.dying(buckets.ends_at)

    @property
    def damaged_segments(self) -> int:
        """How many segments compactions have left out for damage, as of the last look. Takes no lock."""
        return self._damaged_segments

    def carried_out(self, kind: PlanKind, done_at: float, left_out: Mapping[SegmentName, str]) -> None:
        """Remember that a plan of this kind was carried out, so that schedules count from then.

        Args:
            kind: of the plan.
            done_at: when, seconds since the epoch.
            left_out: the segments that had to be left out, each with what is damaged in it.

        Raises:
            StorageError: the disk refuses; the schedule will come due again too early.
        """
        store = self._store
        # The file is replaced through one temporary name.
        with self.side_files:
            store.require_mine()
            before, _ = self._read()
            present = [info.name for info in store.snapshot().segments]
            after = before.after(kind, done_at).leaving_out(left_out, done_at, store.folder).still_damaged(
                present, store.folder)
            self._damaged_segments = len(after.damaged)
            if after != before:
                write_last_plans(store.files, store.folder, after)

    def _last_plans(self, snapshot: Snapshot) -> LastPlans:
        last, damage = self._read()
        last = last.still_damaged((info.name for info in snapshot.segments), self._store.folder)
        self._damaged_segments = len(last.damaged)
        if damage is not None and not self._told_damage:
            # Only schedules depend on it: they start anew, and the observer is notified, once.
            self._told_damage = True
            self._store.observer.event("blobstore_plan_history_damaged",
                                       {"store": self._store.name, "message": str(damage)})
        return last

    def _read(self) -> tuple[LastPlans, CorruptData | None]:
        """The last plans as kept; schedules count from when the store was created, until they have run once."""
        kept, damage = None, None
        try:
            kept = read_last_plans(self._store.folder)
        except CorruptData as error:
            damage = error
        return LastPlans(since=self._store.created_at) if kept is None else kept, damage

    def audit(self) -> None:
        """Check the kept statistics, unless a count is under way.

        Raises:
            AuditFailed: they do not hold together.
        """
        if not self._counting.locked():
            with self._counting:
                if self._kept is not None:
                    self._kept.audit()


def week_of_buckets(config: BlobStoreConfig) -> int:
    """How many time buckets a policy that looks ahead is shown, unless the configuration says."""
    return math.ceil(_WEEK_SECONDS / config.stats_bucket_seconds)


def view_of(store: Shown, snapshot: Snapshot, statistics: LogStatistics, history: LastPlans, now: float,
            dying: Mapping[SegmentName, tuple[Dying, ...]] | None = None) -> BlobView:
    """The view that these statistics of `snapshot` give."""
    damage = {SegmentName.parse(each.segment): f"left out for damage until {each.retry_at:.0f}: {each.found}"
              for each in history.damaged if each.waits(now)}
    eligible = set(snapshot.eligible()).difference(damage)
    indexes = {info.name: 0 for info in snapshot.segments}
    for part in snapshot.index_parts():
        indexes[part.segment] += index_file_bytes(len(part), part.columns.id_bytes)
    segments = tuple(
        SegmentView(name=info.name, used_bytes=info.end - SEGMENT_HEADER_BYTES,
                    valid_bytes=statistics.valid_bytes.get(info.name, 0), eligible=info.name in eligible,
                    last_modified=info.last_modified_ms / 1000, dying=() if dying is None else dying.get(info.name, ()),
                    disk_bytes=info.end + indexes[info.name], valid=statistics.valid.get(info.name),
                    damage=damage.get(info.name, ""))
        for info in snapshot.segments)
    return BlobView(
        store=store.name, incarnation=store.incarnation, swap_segments=store.config.swap_segments,
        index_max_entries=store.config.index_max_entries, capacity_bytes=store.capacity_bytes,
        segment_bytes=store.segment_bytes, header_bytes=SEGMENT_HEADER_BYTES,
        max_blob_bytes=_reserve(store, snapshot), used_bytes=snapshot.used_bytes,
        reference_time=statistics.reference_time, retention_seconds=store.config.deleted_retention_seconds,
        segments=segments, history=history)


def _reserve(store: Shown, snapshot: Snapshot) -> int:
    """What the benefit keeps free in each output: as configured, or the largest record there is if that is too much."""
    room = store.segment_bytes - SEGMENT_HEADER_BYTES
    configured = store.config.max_blob_bytes
    if configured < room:
        return configured
    return min(max((max(part.columns.sizes) for part in snapshot.index_parts()), default=0), room - 1)
