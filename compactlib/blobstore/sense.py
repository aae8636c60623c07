"""What a policy is shown of a store: its segments' statistics, and the plans it has carried out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from compactlib.blobstore.breather import Breather
from compactlib.blobstore.kept_statistics import BucketSettings, KeptStatistics
from compactlib.blobstore.lifetimes import PurgeRules
from compactlib.blobstore.names import SegmentName
from compactlib.blobstore.plan import CompactionPlan
from compactlib.blobstore.plan_history import PlanHistory, read_history, write_history
from compactlib.blobstore.policies.choose import bucket_count_of
from compactlib.blobstore.policy import Dying, SegmentView, StoreView
from compactlib.blobstore.segment import SEGMENT_HEADER_BYTES
from compactlib.blobstore.statistics import LogStatistics, log_statistics
from compactlib.blobstore.swap import CompactableStore, Snapshot
from compactlib.budget import Budget
from compactlib.errors import CorruptData
from compactlib.throttle import Throttle


class Sensor:
    """Makes the views of one store. One thread at a time; several sensors of one store do not disturb each other.

    With time buckets (`stats_bucket_count`, or a policy that needs them), statistics are kept up to date between views,
    and know what will die when; without, each view counts everything, exactly, and forecasts nothing.

    Args:
        store: whose views to make.
        rules: what a compaction may remove besides what is deleted and expired.
    """

    def __init__(self, store: CompactableStore, rules: PurgeRules | None = None) -> None:
        config = store.config
        self._store = store
        self._rules = PurgeRules(purge_tombstones=config.purge_tombstones) if rules is None else rules
        rate = config.stats_entries_per_second
        self._throttle = None if rate is None else Throttle(rate, clock=store.clock)
        self._kept: KeptStatistics | None = None
        bucket_count = bucket_count_of(config)
        if bucket_count:
            settings = BucketSettings(retention_seconds=config.deleted_retention_seconds,
                                      bucket_seconds=config.stats_bucket_seconds,
                                      bucket_count=bucket_count, rules=self._rules)
            self._kept = KeptStatistics(settings, throttle=self._throttle)

    def view(self, now: float, *, budget: Budget | None = None) -> StoreView:
        """The store as a policy sees it at `now` (seconds).

        The first view of a store begins its history of plans on the disk: schedules count from then.

        Args:
            now: when, seconds since the epoch.
            budget: asked while everything is counted; closing the store ends the counting as well.

        Raises:
            BudgetSpent: the budget ended, or the store was closed, before everything was counted.
            StorageError: the history of plans cannot be read or written.
        """
        lent = (Budget() if budget is None else budget).lend()
        with self._store.compactions.ownership.cancels(lent):
            return self._view(now, lent)

    def _view(self, now: float, budget: Budget) -> StoreView:
        snapshot, breather = self._store.snapshot(), Breather(self._store.clock, budget)
        retention = self._store.config.deleted_retention_seconds
        dying: Mapping[SegmentName, tuple[Dying, ...]] = {}
        if self._kept is None:
            statistics = log_statistics(snapshot, now - retention, now, self._rules, throttle=self._throttle,
                                        breather=breather, budget=budget)
        else:
            buckets = self._kept.refresh(snapshot, now, breather=breather, budget=budget)
            statistics, dying = buckets.statistics(now), buckets.dying(buckets.ends_at)
            # The buckets do not go back with a clock that was set back; the reference time has to.
            statistics = attrs.evolve(statistics, reference_time=min(statistics.reference_time, now - retention))
        return view_of(self._store, snapshot, statistics, self._history(now), dying)

    def carried_out(self, plan: CompactionPlan, done_at: float) -> None:
        """Remember that `plan` was carried out, so that schedules count from then.

        Raises:
            StorageError: the disk refuses; the schedule will come due again too early.
        """
        self._history(plan.planned_at, lambda before: before.after(plan, done_at))

    def full_carried_out(self, done_at: float) -> None:
        """Remember that a plan over the full range was carried out, when the plan itself is gone: after a restart.

        Raises:
            StorageError: as for `carried_out`.
        """
        self._history(done_at, lambda before: attrs.evolve(before, last_full_at=done_at))

    def _history(self, now: float, change: Callable[[PlanHistory], PlanHistory] | None = None) -> PlanHistory:
        """The history as it is kept, changed if asked for; begun if there is none."""
        store, damage = self._store, None
        # The file is replaced through one temporary name, and more than one sensor may look at a store.
        with store.compactions.side_files:
            store.require_mine()
            try:
                kept = read_history(store.folder)
            except CorruptData as error:
                kept, damage = None, error
            before = PlanHistory(since=now) if kept is None else kept
            after = before if change is None else change(before)
            if after != kept:
                write_history(store.files, store.folder, after)
        if damage is not None:
            # Only schedules depend on it: they start anew, and whoever watches is told.
            store.observer.event("blobstore_plan_history_damaged", {"store": store.name, "message": str(damage)})
        return after


def view_of(store: CompactableStore, snapshot: Snapshot, statistics: LogStatistics, history: PlanHistory,
            dying: Mapping[SegmentName, tuple[Dying, ...]] | None = None) -> StoreView:
    """The view that these statistics of `snapshot` give."""
    eligible = set(snapshot.eligible())
    segments = tuple(
        SegmentView(name=info.name, used_bytes=info.end - SEGMENT_HEADER_BYTES,
                    valid_bytes=statistics.valid_bytes.get(info.name, 0), eligible=info.name in eligible,
                    last_modified=info.last_modified_ms / 1000, dying=() if dying is None else dying.get(info.name, ()))
        for info in snapshot.segments)
    return StoreView(
        store=store.name, capacity_bytes=store.capacity_bytes, segment_bytes=store.segment_bytes,
        header_bytes=SEGMENT_HEADER_BYTES, max_blob_bytes=_reserve(store, snapshot), used_bytes=snapshot.used_bytes,
        reference_time=statistics.reference_time, retention_seconds=store.config.deleted_retention_seconds,
        segments=segments, history=history)


def _reserve(store: CompactableStore, snapshot: Snapshot) -> int:
    """What the benefit keeps free in each output: as configured, or the largest record there is if that is too much."""
    room = store.segment_bytes - SEGMENT_HEADER_BYTES
    configured = store.config.max_blob_bytes
    if configured < room:
        return configured
    return min(max((max(part.columns.sizes) for part in snapshot.index_parts()), default=0), room - 1)
