# SPDX-License-Identifier: Apache-2.0
"""The counts of a replay, the figures computed from them, and the report of all intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from compactlib.errors import InvalidInput
from compactlib.report import Printed


def _first(values: Sequence[Any]) -> Any:
    return values[0]


def _last(values: Sequence[Any]) -> Any:
    return values[-1]


def _last_known(values: Sequence[str]) -> str:
    return next(filter(None, reversed(values)), "")


def _sum(values: Sequence[Any]) -> Any:
    return sum(values[1:], start=values[0])


def _count(join: Any = _sum, *, default: Any = 0, hidden: bool = False) -> Any:
    """A field of `Measures`.

    Args:
        join: combines the values of several intervals.
        default: the value in an interval without events.
        hidden: tables leave the count out; figures are computed from it.
    """
    return attrs.field(default=default, metadata={"join": join, "hidden": hidden})


def part(share: float, whole: float) -> float:
    """Divide; NaN if `whole` is 0."""
    return share / whole if whole else math.nan


@attrs.define(kw_only=True)
class Measures:
    """One interval of a replay. Bytes are bytes of records, times are seconds. A compaction may drop dead records.

    Attributes:
        start: its first moment, seconds since the epoch.
        end: its last moment.
        capacity_bytes: the store's capacity; 0: the store has no limit, and `peak_fill` is unknown.
        operations: operations made, with reads and refused writes; of a scheduler, blocks that arrived.
        reads: reads among the operations; of a branch, listings.
        refused: writes without room; of a scheduler, reports that arrived too late.
        refused_why: why a blob store's policy freed no room for the last refused write: its gate and setting.
        user_bytes: bytes of the user's writes and deletes.
        copied_bytes: bytes that compactions wrote.
        read_bytes: bytes that compactions read: each victim whole, unless all its records were dead.
        asked: calls of the policy; of a scheduler, polls.
        compactions: plans carried out; of a scheduler, completed jobs.
        victims: segments (ranges, blocks) that compactions took.
        freed_segments: segments (ranges, blocks) that compactions freed, less those that they wrote.
        reclaimed_bytes: bytes of dead records that were dropped.
        waited_byte_seconds: the sum over dropped records of bytes times seconds from death to reclaim.
        used_bytes: used at the end.
        live_bytes: bytes at the end of the records that a reader can read.
        used_sum: the sum of used bytes over samples, one at each call of the policy and one at the end.
        live_sum: the same of live bytes.
        record_sum: the same of the bytes of all records, dead records included.
        peak_used_bytes: the maximum of used bytes.
        deletes: tombstones that a branch's deletes wrote.
        listed_keys: keys that listings returned.
        passed_tombstones: tombstones that listings skipped.
        peak_tombstones: the maximum of staged tombstones.
        reasons: the trigger of each compaction of a branch, in order.
        assigned: assignments; more than `compactions` if leases expired or jobs failed.
        failed: jobs that a worker reported as failed.
        given_up: jobs at the end that failed too often for another attempt.
        left_blocks: blocks at the end that arrived and are in no completed job.
        waits: the seconds from the arrival of each compacted block to the end of its first job.
    """

    FIGURES: ClassVar[tuple[str, ...]] = (
        "write_amplification", "space_amplification", "copied_per_reclaimed", "read_cost", "seconds_to_reclaim",
        "peak_fill", "read_amplification", "vain_share", "median_wait_seconds", "wait_99_seconds")
    """The properties that measure a replay."""

    start: float = _count(_first, default=0.0)
    end: float = _count(_last, default=0.0)
    capacity_bytes: int = _count(_last, hidden=True)
    operations: int = _count()
    reads: int = _count()
    refused: int = _count()
    user_bytes: int = _count()
    copied_bytes: int = _count()
    read_bytes: int = _count()
    asked: int = _count()
    compactions: int = _count()
    victims: int = _count()
    freed_segments: int = _count()
    reclaimed_bytes: int = _count()
    waited_byte_seconds: float = _count(default=0.0, hidden=True)
    used_bytes: int = _count(_last)
    live_bytes: int = _count(_last)
    used_sum: int = _count(hidden=True)
    live_sum: int = _count(hidden=True)
    record_sum: int = _count(hidden=True)
    peak_used_bytes: int = _count(max)
    refused_why: str = _count(_last_known, default="", hidden=True)
    deletes: int = _count()
    listed_keys: int = _count()
    passed_tombstones: int = _count()
    peak_tombstones: int = _count(max)
    reasons: tuple[str, ...] = _count(default=(), hidden=True)
    assigned: int = _count()
    failed: int = _count()
    given_up: int = _count(_last)
    left_blocks: int = _count(_last)
    waits: tuple[float, ...] = _count(default=(), hidden=True)

    @property
    def write_amplification(self) -> float:
        """Bytes written for each byte that a user wrote: 1 without compactions, NaN without writes."""
        return part(self.user_bytes + self.copied_bytes, self.user_bytes)

    @property
    def space_amplification(self) -> float:
        """Bytes used for each live byte, on average over the samples."""
        return part(self.used_sum, self.live_sum)

    @property
    def utilisation(self) -> float:
        """The live part of the records' bytes, on average over the samples: the argument of closed forms."""
        return part(self.live_sum, self.record_sum)

    @property
    def copied_per_reclaimed(self) -> float:
        """Bytes that compactions wrote for each byte of dead records that they dropped."""
        return part(self.copied_bytes, self.reclaimed_bytes)

    @property
    def read_cost(self) -> float:
        """Bytes that compactions read for each byte that a user wrote."""
        return part(self.read_bytes, self.user_bytes)

    @property
    def seconds_to_reclaim(self) -> float:
        """Seconds from a byte's death to its reclaim, on average over the dropped bytes."""
        return part(self.waited_byte_seconds, self.reclaimed_bytes)

    @property
    def peak_fill(self) -> float:
        """The maximum of used bytes, as a part of the capacity."""
        return part(self.peak_used_bytes, self.capacity_bytes)

    @property
    def read_amplification(self) -> float:
        """Entries that listings read for each key that they returned."""
        return part(self.listed_keys + self.passed_tombstones, self.listed_keys)

    @property
    def vain_share(self) -> float:
        """The part of the assignments that failed or was reported too late."""
        return part(self.refused + self.failed, self.assigned)

    @property
    def median_wait_seconds(self) -> float:
        """The wait that half of the blocks do not exceed."""
        return self.wait_quantile(0.5)

    @property
    def wait_99_seconds(self) -> float:
        """The wait that 99 of 100 blocks do not exceed."""
        return self.wait_quantile(0.99)

    def wait_quantile(self, share: float) -> float:
        """The least wait that this share of the blocks does not exceed; NaN if no block was compacted. O(n log n)."""
        waits = sorted(self.waits)
        # The product may be off by its last bits.
        return waits[max(math.ceil(round(share * len(waits), 6)) - 1, 0)] if waits else math.nan

    def figures(self) -> dict[str, float | None]:
        """Return the figures of `FIGURES`; an unknown figure is `None`."""
        values = {name: getattr(self, name) for name in self.FIGURES}
        return {name: None if math.isnan(value) else value for name, value in values.items()}


_COUNTS = attrs.fields(Measures)


def together(intervals: Sequence[Measures]) -> Measures:
    """Combine consecutive intervals, at least one."""
    return Measures(**{field.name: field.metadata["join"]([getattr(each, field.name) for each in intervals])
                       for field in _COUNTS})


@attrs.frozen(kw_only=True, repr=False)
class Report(Printed):
    """The report of one replay.

    Attributes:
        policy: the policy and its settings.
        workload: the workload and its settings.
        intervals: the parts of the replay, in order.
    """

    policy: str
    workload: str
    intervals: tuple[Measures, ...]

    @property
    def total(self) -> Measures:
        """All intervals as one."""
        return together(self.intervals)

    def steady(self, skip: float = 0.5) -> Measures:
        """Combine the intervals after the first part `skip`, in which the store filled up.

        Raises:
            InvalidInput: `skip` is not below 1.
        """
        if not 0 <= skip < 1:
            raise InvalidInput(f"skip is {skip}; it is a part of the whole, less than 1")
        return together(self.intervals[int(len(self.intervals) * skip):])

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dictionary an interval, with counts and figures.

        A count that is 0 in all intervals, and a figure that is unknown in all of them, are left out.
        """
        figures = [each.figures() for each in self.intervals]
        counts = [field.name for field in _COUNTS if not field.metadata["hidden"]
                  and any(getattr(each, field.name) for each in self.intervals)]
        known = [name for name in Measures.FIGURES if any(each[name] is not None for each in figures)]
        return [{"interval": number, **{name: getattr(each, name) for name in counts},
                 **{name: own[name] for name in known}}
                for number, (each, own) in enumerate(zip(self.intervals, figures, strict=True))]

    def _summary(self) -> str:
        total = self.total
        why = f"; the last: {total.refused_why}" if total.refused_why else ""
        return (f"{self.policy} on {self.workload}: {total.operations:,} operations, write amplification "
                f"{total.write_amplification:.3f}, space amplification {total.space_amplification:.3f}, "
                f"{total.compactions:,} compactions, {total.refused:,} refused{why}")
