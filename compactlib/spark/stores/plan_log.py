"""`PlanLog`: what a Raft log has to do, looked up on a worker by the log's own plan."""

from __future__ import annotations

import attrs

from compactlib.outcome import Skipped
from compactlib.raftlog import CompactionPolicy, LogReader, SeedPolicy, SegmentLimits, leftovers
from compactlib.spark.stores.store_plans import StoreWork


@attrs.frozen(kw_only=True)
class PlanLog:
    """A `PlanStore` for folders of Raft logs: reads their segments' indexes and the snapshot, and changes nothing.

    The weight is the bytes to copy, for a log with nothing to copy but segments to drop 0. A log in which a
    crash has left something has work as well: opening it finishes or removes that.

    Attributes:
        limits: those that the log is written with.
        policy: the one that it is going to be compacted with; `DropDead()` for drops alone.
    """

    limits: SegmentLimits = attrs.field(factory=SegmentLimits)
    policy: CompactionPolicy = attrs.field(factory=SeedPolicy)

    def __call__(self, folder: str) -> StoreWork | Skipped:
        """What this log has to do; raises what `LogReader` does."""
        with LogReader(folder) as log:
            left = leftovers(folder)
            # A reader does not know the limits that the log is written with.
            plan = log.plan(self.policy, view=attrs.evolve(log.view(), limits=self.limits))
        told = plan.table().title
        if left:
            return StoreWork(plan.bytes_to_copy, f"{told}; left by an interrupted run: {', '.join(left[:3])}"
                                                 f"{', ...' if len(left) > 3 else ''}")
        return Skipped(told) if plan.is_empty else StoreWork(plan.bytes_to_copy, told)
