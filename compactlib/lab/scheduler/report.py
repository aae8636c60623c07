# SPDX-License-Identifier: Apache-2.0
"""The report of a scheduler's replay: bytes and space as of every replay, and what waiting and fencing cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

import attrs

from compactlib.lab.results.measures import HIDDEN, LAST, MOST, SPACE_AMPLIFICATION, Measures, part
from compactlib.lab.results.reports import MeasuredReport


def _numbers(values: object) -> tuple[float, ...]:
    return tuple(values)  # type: ignore[arg-type]


@attrs.frozen(kw_only=True)
class SchedulerMeasures(Measures):
    """One stretch of a scheduler's replay.

    An operation is a block's arrival, a compaction a completed job, a question a poll; `refused` are reports that came
    too late; dead are the sources of completed jobs, until a worker has deleted them.

    Attributes:
        assigned: assignments; more than `compactions` if leases ran out or jobs failed.
        failed: jobs that a worker reported as failed.
        given_up: jobs that are not tried any more at the end, as they failed too often.
        left_blocks: blocks that arrived and that no job has taken in the end.
        peak_jobs: the most jobs that were queued or running.
        waits: from a block's arrival to the end of its first job, seconds, one for each block that got there.
    """

    FIGURES: ClassVar[Mapping[str, str]] = {
        **Measures.FIGURES,
        "space_amplification": SPACE_AMPLIFICATION,
        "read_cost": "bytes read by jobs, those in vain too, for each byte that arrived",
        "vain_share": "assignments in vain, as a part of all",
        "median_wait_seconds": "seconds that half of the blocks wait at most for their first job",
        "wait_99_seconds": "seconds that 99 of 100 blocks wait at most for their first job",
    }

    assigned: int = 0
    failed: int = 0
    given_up: int = attrs.field(default=0, metadata=LAST)
    left_blocks: int = attrs.field(default=0, metadata=LAST)
    peak_jobs: int = attrs.field(default=0, metadata=MOST)
    waits: tuple[float, ...] = attrs.field(default=(), converter=_numbers, metadata=HIDDEN)

    @property
    def vain_share(self) -> float:
        """Which part of the assignments came to nothing: reported too late, or failed."""
        return part(self.refused + self.failed, self.assigned)

    @property
    def median_wait_seconds(self) -> float:
        """The wait that half of the blocks do not exceed; NaN if none got there. O(n log n)."""
        return self.wait_quantile(0.5)

    @property
    def wait_99_seconds(self) -> float:
        """The wait that 99 of 100 blocks do not exceed; NaN if none got there. O(n log n)."""
        return self.wait_quantile(0.99)

    def wait_quantile(self, share: float) -> float:
        """The least wait that this share of the blocks does not exceed; NaN if none got there. O(n log n)."""
        waits = sorted(self.waits)
        # The product may be off by its last bits.
        return waits[max(math.ceil(round(share * len(waits), 6)) - 1, 0)] if waits else math.nan


@attrs.frozen(kw_only=True, repr=False)
class SchedulerReport(MeasuredReport[SchedulerMeasures]):
    """What a configuration made of a load. See `MeasuredReport`."""

    MEASURES: ClassVar[type[Measures]] = SchedulerMeasures

    def _summary(self) -> str:
        total = self.total
        return (f"{total.operations:,} blocks in {total.compactions:,} jobs, "
                f"{total.assigned - total.compactions:,} assigned in vain; half waited at most "
                f"{total.median_wait_seconds:,.1f} s")
