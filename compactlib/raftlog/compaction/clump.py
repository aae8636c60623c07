# SPDX-License-Identifier: Apache-2.0
"""Clumping: which scattered live entries to append again at the head of the log, so that the live set has fewer runs.

Pure: a plan names indexes, and the host proposes for each a command "rewrite entry i if it is still live": applied, it
has the old entry's content if i is live at that point of the log, and none if it is not, since another command may have
outdone it after the plan was made. When these are applied, the old places die and the new ones form one run.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest
from typing import Any

import attrs

from compactlib.errors import InvalidInput
from compactlib.indexset import IndexSet
from compactlib.raftlog.values import SegmentStats
from compactlib.report import Printed


@attrs.frozen(kw_only=True, repr=False)
class ClumpPlan(Printed):
    """What to append again, and what that brings. `str()` is a table, `to_dicts()` its row.

    Attributes:
        indexes: the entries to append again, in this order; empty if there is nothing to gain.
        runs_before: runs of the live set now.
        runs_after: runs once they have been applied anew.
        emptied: segments of which nothing will be alive then, so that the next compaction drops them.
        emptied_bytes: payload bytes in those segments.
    """

    indexes: IndexSet
    runs_before: int
    runs_after: int
    emptied: tuple[int, ...] = ()
    emptied_bytes: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to gain."""
        return not self.indexes

    @property
    def gain_runs(self) -> int:
        """By how many runs the live set becomes shorter."""
        return self.runs_before - self.runs_after

    def to_dicts(self) -> list[dict[str, Any]]:
        """One row: the cost and each gain."""
        return [{"entries": self.indexes.count, "runs_before": self.runs_before, "runs_after": self.runs_after,
                 "emptied": len(self.emptied),
                 "emptied_bytes": self.emptied_bytes}]

    def _summary(self) -> str:
        return f"{self.indexes.count} entries again, {self.runs_before} to {self.runs_after} runs, " \
               f"{len(self.emptied)} segments emptied"


def plan_clump(live: IndexSet, max_runs: int, *, segments: Sequence[SegmentStats] = ()) -> ClumpPlan:
    """The fewest entries that must be appended again so that the live set has at most `max_runs` runs.

    Whole runs are taken, since a part of one would leave it a run; the shortest first, and among equals the oldest,
    which pin the oldest segments. Those taken become one run at the head.

    Args:
        live: the live set.
        max_runs: how many runs it may have in the end, the one at the head included; at least 1.
        segments: the log's statistics, to say which segments become empty by it; left out, none are named.

    Raises:
        InvalidInput: `max_runs` is less than 1.

    Cost: O(runs log runs).

    >>> print(repr(plan_clump(IndexSet.from_runs([(1, 9), (20, 20), (31, 32), (44, 44), (60, 80)]), max_runs=3)))
    <ClumpPlan: 4 entries again, 5 to 3 runs, 0 segments emptied>
    """
    if max_runs < 1:
        raise InvalidInput(f"max_runs is {max_runs}; what is appended again is a run itself, so allow at least 1")
    before = live.run_count
    if before <= max_runs:
        return ClumpPlan(indexes=IndexSet(), runs_before=before, runs_after=before)
    # One more than the surplus: those taken come back as one.
    taken = nsmallest(before - max_runs + 1, live.runs(), key=_length_then_age)
    moved = IndexSet.from_runs(taken)
    left = live - moved
    emptied = [stats for stats in segments if stats.live_entries and live.overlaps(stats.ref.first, stats.ref.last)
               and not left.overlaps(stats.ref.first, stats.ref.last) and stats.ref.last <= live.last]
    return ClumpPlan(indexes=moved, runs_before=before, runs_after=before - len(taken) + 1,
                     emptied=tuple(stats.number for stats in emptied),
                     emptied_bytes=sum(stats.data_bytes for stats in emptied))


def _length_then_age(run: tuple[int, int]) -> tuple[int, int]:
    first, last = run
    return last - first, first
