# SPDX-License-Identifier: Apache-2.0
"""Statistics that are kept up to date with what is written, so that a decision need not look at every entry.

For each log segment there is one number, its valid bytes now, and a list of what will die when, in buckets of time.
Moving on in time empties the buckets that are due; a record that is written changes the numbers of its own blob's
records, and nothing else. A decision then costs as much as there are segments.

The numbers hold for the beginning of the current bucket: what dies within it is still counted. The reference time
goes with them, so that a plan made from them copies what they say, or less.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sortedcontainers import SortedDict

from compactlib.blobstore.compaction.plan.policy import Dying
from compactlib.blobstore.compaction.sense.statistics import LogStatistics
from compactlib.blobstore.model.names import SegmentName
from compactlib.blobstore.model.values import milliseconds
from compactlib.blobstore.validity.lifetimes import Lifetime
from compactlib.blobstore.validity.verdicts import FOREVER
from compactlib.errors import AuditFailed, InvalidInput, Stale


class BucketStatistics:
    """Valid bytes of each log segment at the beginning of a time bucket, and when they will die. One thread at a time.

    A delete counts `retention_seconds` after it was made, so reference time and now are one time here.

    Memory: 100 bytes or so for each segment, and for each pair of a segment and a bucket in which something of it dies.

    Args:
        start: from when on it can answer, seconds since the epoch; what died before is never counted.
        bucket_seconds: span of a bucket, > 0.
        bucket_count: how many buckets it looks ahead, >= 1; behind them it has to be built anew.
        retention_seconds: how long a delete is not yet in effect, >= 0.

    Raises:
        InvalidInput: a number is out of its range.
    """

    def __init__(self, start: float, *, bucket_seconds: float = 3600.0, bucket_count: int = 168,
                 retention_seconds: float) -> None:
        self._span = milliseconds(bucket_seconds)
        self._retention = milliseconds(retention_seconds)
        if self._span < 1 or bucket_count < 1 or self._retention < 0:
            raise InvalidInput(f"buckets of {bucket_seconds} seconds, {bucket_count} of them, with deletes kept for "
                               f"{retention_seconds} seconds: give a positive span and count, and no negative time")
        self._bucket = milliseconds(start) // self._span
        self._last = self._bucket + bucket_count
        self._valid: dict[SegmentName, int] = {}
        self._dying: SortedDict[int, dict[SegmentName, int]] = SortedDict()

    @property
    def resolved_now(self) -> float:
        """The time that the numbers hold for, seconds: the beginning of the current bucket."""
        return self._bucket * self._span / 1000

    @property
    def reference_time(self) -> float:
        """The reference time that the numbers hold for, seconds."""
        return (self._bucket * self._span - self._retention) / 1000

    @property
    def ends_at(self) -> float:
        """Until when it can answer, seconds."""
        return self._last * self._span / 1000

    def add_segment(self, name: SegmentName) -> None:
        """List a log segment, also while nothing in it is valid."""
        self._valid.setdefault(name, 0)

    def add(self, lives: Iterable[Lifetime]) -> None:
        """Count these records. O(log buckets) each."""
        for life in lives:
            self._change(life, life.size)

    def remove(self, lives: Iterable[Lifetime]) -> None:
        """Take back what `add` counted of the same records before something was written about their blob."""
        for life in lives:
            self._change(life, -life.size)

    def _change(self, life: Lifetime, size: int) -> None:
        self._valid.setdefault(life.segment, 0)
        dies = self._bucket_of(life)
        if dies < self._bucket:
            return
        self._valid[life.segment] += size
        if dies < self._last:
            bucket = self._dying.setdefault(dies, {})
            left = bucket.get(life.segment, 0) + size
            if left:
                bucket[life.segment] = left
            else:
                # A bucket that is empty again leaves nothing behind, however often blobs are deleted and undeleted.
                bucket.pop(life.segment, None)
                if not bucket:
                    del self._dying[dies]

    def _bucket_of(self, life: Lifetime) -> int:
        """The bucket in which the record dies: it is still kept at the beginning of that one."""
        until = FOREVER
        if life.reference_until != FOREVER:
            until = life.reference_until + self._retention
        return min(until, life.now_until) // self._span

    def advance(self, now: float) -> None:
        """Move to the bucket that `now` lies in. O(what has died since). A clock set back changes nothing.

        Raises:
            Stale: `now` lies behind the last bucket; build the statistics anew.
        """
        bucket = milliseconds(now) // self._span
        if bucket >= self._last:
            raise Stale(f"these statistics look ahead until {self.ends_at:.3f}, and it is {now:.3f}; build them anew")
        if bucket <= self._bucket:
            return
        self._bucket = bucket
        while self._dying and self._dying.peekitem(0)[0] < bucket:
            for name, size in self._dying.popitem(0)[1].items():
                self._valid[name] -= size

    def statistics(self, now: float) -> LogStatistics:
        """Valid bytes of each log segment, in log order, for the beginning of the bucket that `now` lies in.

        O(segments * log segments), and what has died since the last time.

        Raises:
            Stale: as for `advance`.
        """
        self.advance(now)
        return LogStatistics(reference_time=self.reference_time, now=self.resolved_now,
                             valid_bytes=dict(sorted(self._valid.items())))

    def dying(self, until: float) -> Mapping[SegmentName, tuple[Dying, ...]]:
        """What of the segments' valid bytes dies by itself before `until` (seconds), at the end of each bucket.

        O(pairs of a segment and a bucket until then).
        """
        found: dict[SegmentName, list[Dying]] = {}
        last = milliseconds(until) // self._span
        for bucket, sizes in self._dying.items():
            if bucket > last:
                break
            at = ((bucket + 1) * self._span - 1) / 1000
            for name, size in sizes.items():
                found.setdefault(name, []).append(Dying(at, size))
        return {name: tuple(each) for name, each in found.items()}

    def audit(self) -> None:
        """Check that what is dying is a part of what is valid, and that no bucket is past.

        Raises:
            AuditFailed: it is not; the message has the numbers.
        """
        sums: dict[SegmentName, int] = {}
        for bucket, sizes in self._dying.items():
            if not self._bucket <= bucket < self._last or not sizes:
                raise AuditFailed(f"bucket {bucket} with {len(sizes)} segments is kept, outside of {self._bucket} "
                                      f".. {self._last} or empty")
            for name, size in sizes.items():
                sums[name] = sums.get(name, 0) + size
                if size <= 0:
                    raise AuditFailed(f"{size} bytes of segment {name} die in bucket {bucket}")
        for name, valid in self._valid.items():
            if not 0 <= sums.get(name, 0) <= valid:
                raise AuditFailed(f"{sums.get(name, 0)} bytes of segment {name} are dying, {valid} are valid")

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary a segment, in log order: its valid bytes, and how many of them will die in the buckets."""
        sums: dict[SegmentName, int] = {}
        for sizes in self._dying.values():
            for name, size in sizes.items():
                sums[name] = sums.get(name, 0) + size
        return [{"segment": str(name), "valid_bytes": valid, "dying_bytes": sums.get(name, 0)}
                for name, valid in sorted(self._valid.items())]

    def __repr__(self) -> str:
        return (f"BucketStatistics({len(self._valid)} segments, {len(self._dying)} buckets, from "
                f"{self.resolved_now:.3f} to {self.ends_at:.3f})")
