# SPDX-License-Identifier: Apache-2.0
"""The counts of a replay, the figures computed from them, and the report of all intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import attrs

from compactlib.errors import InvalidInput
from compactlib.report import Printed


def part(share: float, whole: float) -> float:
    """Divide; NaN if `whole` is 0."""
    return share / whole if whole else math.nan


def require_skip(skip: float) -> None:
    """Check a part to leave out."""
    if not 0 <= skip < 1:
        raise InvalidInput(f"skip is {skip}; it is a part of the whole, less than 1")


@attrs.define(kw_only=True)
class Measures:
    """One interval of a replay. Bytes are bytes of records, times are seconds. A compaction may drop dead records.

    Attributes:
        start: its first moment, seconds since the epoch.
        end: its last moment.
        operations: operations made, with reads and refused writes; of a scheduler, blocks that arrived.
        reads: reads among the operations; of a branch, listings.
        refused: writes without room; of a scheduler, reports that arrived too late.
        refused_why: why a blob store's policy freed no room for the last refused write: its gate and setting.
        user_bytes: bytes of the user's writes and deletes.
        copied_bytes: bytes that compactions wrote.
        asked: calls of the policy; of a scheduler, polls.
        compactions: plans carried out; of a scheduler, completed jobs.
        victims: segments (ranges, blocks) that compactions took.
        freed_segments: segments (ranges, blocks) that compactions freed, less those that they wrote.
        used_bytes: bytes used at the end of the interval.
        live_bytes: bytes of the records that a reader can read at the end of the interval.
        used_sum: the sum of used bytes over the samples, one at each call of the policy and one at the end.
        live_sum: the same of live bytes.
        record_sum: the same of the bytes of all records, dead records included.
        listed_keys: keys that listings returned.
        passed_tombstones: tombstones that listings skipped.
        assigned: assignments; more than `compactions` if leases expired.
        left_blocks: blocks that have arrived, and are in no completed job at the end of the interval.
        waits: the seconds from the arrival of each compacted block to the end of its first job.
    """

    FIGURES: ClassVar[tuple[str, ...]] = (
        "write_amplification", "space_amplification", "read_amplification", "vain_share", "median_wait_seconds",
        "wait_99_seconds")
    """The properties that measure a replay."""

    start: float = 0.0
    end: float = 0.0
    operations: int = 0
    reads: int = 0
    refused: int = 0
    user_bytes: int = 0
    copied_bytes: int = 0
    asked: int = 0
    compactions: int = 0
    victims: int = 0
    freed_segments: int = 0
    used_bytes: int = 0
    live_bytes: int = 0
    used_sum: int = 0
    live_sum: int = 0
    record_sum: int = 0
    refused_why: str = ""
    listed_keys: int = 0
    passed_tombstones: int = 0
    assigned: int = 0
    left_blocks: int = 0
    waits: tuple[float, ...] = ()

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
    def read_amplification(self) -> float:
        """Entries that listings read for each key that they returned."""
        return part(self.listed_keys + self.passed_tombstones, self.listed_keys)

    @property
    def vain_share(self) -> float:
        """The part of the assignments that was reported too late."""
        return part(self.refused, self.assigned)

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
        # Rounded, since the last bits of the product may be wrong.
        return waits[max(math.ceil(round(share * len(waits), 6)) - 1, 0)] if waits else math.nan

    def figures(self) -> dict[str, float | None]:
        """Return the figures of `FIGURES`; an unknown figure is `None`."""
        values = {name: getattr(self, name) for name in self.FIGURES}
        return {name: None if math.isnan(value) else value for name, value in values.items()}


_COUNTS = tuple(field.name for field in attrs.fields(Measures))
_OF_THE_LAST = ("end", "used_bytes", "live_bytes", "left_blocks")
_HIDDEN = ("used_sum", "live_sum", "record_sum", "refused_why", "waits")
"""Counts that tables leave out."""


def together(intervals: Sequence[Measures]) -> Measures:
    """Combine consecutive intervals, at least one."""
    first, *others = intervals
    values: dict[str, Any] = {name: sum((getattr(each, name) for each in others), start=getattr(first, name))
                              for name in _COUNTS if name not in (*_OF_THE_LAST, "start", "refused_why")}
    why = next((each.refused_why for each in reversed(intervals) if each.refused_why), "")
    return Measures(start=first.start, refused_why=why, **values,
                    **{name: getattr(intervals[-1], name) for name in _OF_THE_LAST})


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
        require_skip(skip)
        return together(self.intervals[int(len(self.intervals) * skip):])

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return one dictionary an interval, with counts and figures.

        A count that is 0 in all intervals, and a figure that is unknown in all of them, are left out.
        """
        figures = [each.figures() for each in self.intervals]
        counts = [name for name in _COUNTS
                  if name not in _HIDDEN and any(getattr(each, name) for each in self.intervals)]
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
