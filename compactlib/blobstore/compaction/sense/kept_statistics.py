# SPDX-License-Identifier: Apache-2.0
"""Keeps `BucketStatistics` in step with a store: reads what was appended since the last look, and nothing else."""

from __future__ import annotations

from functools import partial

import attrs

from compactlib.blobstore.compaction.sense.buckets import BucketStatistics
from compactlib.blobstore.compaction.sense.statistics import all_lifetimes
from compactlib.blobstore.compaction.swap import Snapshot
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import IndexEntry
from compactlib.blobstore.validity.lifetimes import lifetimes
from compactlib.blobstore.validity.verdicts import PurgeRules
from compactlib.errors import AuditFailed, Stale
from compactlib.runtime.breather import Breather
from compactlib.runtime.budget import Budget


@attrs.frozen
class _Seen:
    """How far into the log the statistics have looked."""

    ends: dict[SegmentName, int]
    last_sequence: int

    @classmethod
    def of(cls, snapshot: Snapshot) -> _Seen:
        infos = snapshot.segments
        return cls({info.name: info.end for info in infos}, max((info.last_sequence for info in infos), default=0))


class KeptStatistics:
    """Bucket statistics of one store. One thread at a time.

    Everything is counted anew, in one pass over the index, at the first look, after a compaction, when the time of
    the buckets is over, and when so much was appended that looking each blob up would take longer. Otherwise a look
    costs as much as was appended. Losing it costs one pass.

    Args:
        retention_seconds: how long a delete is not yet in effect.
        bucket_seconds: span of a time bucket.
        bucket_count: how many buckets to look ahead.
        rules: what else a compaction may remove; asked when a record of the blob is written, and in each new count.
        throttle: limits the entries looked at in a second when everything is counted.
    """

    def __init__(self, *, retention_seconds: float, bucket_seconds: float = 3600.0, bucket_count: int = 168,
                 rules: PurgeRules | None = None, throttle: Budget | None = None) -> None:
        self._new_buckets = partial(BucketStatistics, retention_seconds=retention_seconds,
                                    bucket_seconds=bucket_seconds, bucket_count=bucket_count)
        self._rules = PurgeRules() if rules is None else rules
        self._throttle = throttle
        self._buckets: BucketStatistics | None = None
        self._seen = _Seen({}, 0)
        self.full_counts: int = 0
        """How often everything was counted anew."""

    def refresh(self, snapshot: Snapshot, now: float, *, breather: Breather | None = None,
                budget: Budget | None = None) -> BucketStatistics:
        """The statistics of `snapshot`, moved on to `now` (seconds); they stay this object's own.

        Raises:
            BudgetSpent: the budget (the breather's, too) ended before everything was counted; the next look counts
                anew.
        """
        buckets = self._buckets
        # Buckets do not go back: a clock that was ahead must not leave what lives counted as dead.
        if buckets is None or not self._continues(snapshot) or now < buckets.resolved_now:
            return self._count_anew(snapshot, now, breather, budget)
        # Half of what is new is worth nothing: whatever ends this early, everything is counted anew.
        self._buckets = None
        try:
            buckets.advance(now)
        except Stale:
            return self._count_anew(snapshot, now, breather, budget)
        new = self._appended(snapshot)
        ids = {entry.id for entry in new}
        if ids and len(ids) * len(snapshot.index_parts()) > sum(info.records for info in snapshot.segments):
            return self._count_anew(snapshot, now, breather, budget)
        for info in snapshot.segments:
            buckets.add_segment(info.name)
        for blob_id in ids:
            self._fold(snapshot.history(blob_id), buckets)
            if breather is not None:
                breather.breathe()
        self._buckets, self._seen = buckets, _Seen.of(snapshot)
        return buckets

    def _fold(self, history: list[IndexEntry], buckets: BucketStatistics) -> None:
        """What was written about a blob changes what its older records are worth."""
        before = [entry for entry in history if entry.sequence <= self._seen.last_sequence]
        buckets.remove(lifetimes(before, self._rules))
        buckets.add(lifetimes(history, self._rules))

    def _continues(self, snapshot: Snapshot) -> bool:
        """Whether the log was only appended to since the last look."""
        known = self._seen.ends
        names = [info.name for info in snapshot.segments]
        newest = max(known, default=None)
        return known.keys() <= set(names) and all(name in known or newest is None or name > newest for name in names)

    def _appended(self, snapshot: Snapshot) -> list[IndexEntry]:
        known = self._seen.ends
        return [entry for info in snapshot.segments if known.get(info.name) != info.end
                for entry in snapshot.entries_of(info.name, start=known.get(info.name, 0))]

    def _count_anew(self, snapshot: Snapshot, now: float, breather: Breather | None,
                    budget: Budget | None) -> BucketStatistics:
        buckets = self._new_buckets(now)
        for info in snapshot.segments:
            buckets.add_segment(info.name)
        buckets.add(all_lifetimes(snapshot, self._rules, throttle=self._throttle, breather=breather,
                                  budget=budget))
        self._buckets, self._seen = buckets, _Seen.of(snapshot)
        self.full_counts += 1
        return buckets

    def audit(self) -> None:
        """Check the buckets' own invariants.

        Raises:
            AuditFailed: one is broken; the message has the numbers.
        """
        if self._buckets is not None:
            self._buckets.audit()
            listed = {row["segment"] for row in self._buckets.to_dicts()}
            if listed != {str(name) for name in self._seen.ends}:
                raise AuditFailed(f"statistics list {sorted(listed)}, the log holds "
                                      f"{sorted(map(str, self._seen.ends))}")
