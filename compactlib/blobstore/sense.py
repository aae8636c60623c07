"""What a policy is shown of a store: its segments' statistics, and the plans it has carried out."""

from __future__ import annotations

from collections.abc import Mapping

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
from compactlib.errors import CorruptData
from compactlib.throttle import Throttle


class Sensor:
    """Makes the views of one store. One thread at a time.

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

    def view(self, now: float) -> StoreView:
        """The store as a policy sees it at `now` (seconds).

        The first view of a store begins its history of plans on the disk: schedules count from then.

        Raises:
            StorageError: the history of plans cannot be read or written.
        """
        snapshot = self._store.snapshot()
        retention = self._store.config.deleted_retention_seconds
        dying: Mapping[SegmentName, tuple[Dying, ...]] = {}
        if self._kept is None:
            statistics = log_statistics(snapshot, now - retention, now, self._rules, throttle=self._throttle,
                                        breather=Breather(self._store.clock))
        else:
            buckets = self._kept.refresh(snapshot, now, breather=Breather(self._store.clock))
            statistics, dying = buckets.statistics(now), buckets.dying(buckets.ends_at)
            # The buckets do not go back with a clock that was set back; the reference time has to.
            statistics = attrs.evolve(statistics, reference_time=min(statistics.reference_time, now - retention))
        return view_of(self._store, snapshot, statistics, self._history(now), dying)

    def carried_out(self, plan: CompactionPlan, done_at: float) -> None:
        """Remember that `plan` was carried out, so that schedules count from then.

        Raises:
            StorageError: the disk refuses; the schedule will come due again too early.
        """
        before = self._history(plan.planned_at)
        after = before.after(plan, done_at)
        if after != before:
            write_history(self._store.files, self._store.folder, after)

    def full_carried_out(self, done_at: float) -> None:
        """Remember that a plan over the full range was carried out, when the plan itself is gone: after a restart.

        Raises:
            StorageError: as for `carried_out`.
        """
        after = attrs.evolve(self._history(done_at), last_full_at=done_at)
        write_history(self._store.files, self._store.folder, after)

    def _history(self, now: float) -> PlanHistory:
        try:
            found = read_history(self._store.folder)
        except CorruptData as error:
            # Only schedules depend on it: they start anew, and whoever watches is told.
            self._store.observer.event("blobstore_plan_history_damaged",
                                       {"store": self._store.name, "message": str(error)})
            found = None
        if found is None:
            found = PlanHistory(since=now)
            write_history(self._store.files, self._store.folder, found)
        return found


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
