# SPDX-License-Identifier: Apache-2.0
"""The contracts of policies and triggers of a Raft log, and helpers to write them.

A policy chooses groups of neighbouring segments, each of which becomes a single segment (`LogPolicy`); a trigger
decides when a major compaction is due (`Trigger`). `plan_for` applies a policy to a view without a log, and
`MajorCadence` evaluates a trigger as a log does. `plan_clump` chooses live entries for a state machine to rewrite.
"""

from __future__ import annotations

from heapq import nsmallest

from compactlib.errors import InvalidInput
from compactlib.indexset import IndexSet
from compactlib.raftlog.compaction.plan import LogPlan, MajorCadence, PlannedGroup, plan_for
from compactlib.raftlog.compaction.policy import (
    MAX_GROUP_MEMBERS,
    LogChoice,
    LogPolicy,
    LogView,
    Trigger,
    chosen_groups,
    filled_groups,
    is_worthwhile,
    stored_dead_bytes,
    stored_live_bytes,
)
from compactlib.raftlog.values import INDEX_RECORD_BYTES, SegmentLimits, SegmentRef, SegmentStats, segment_bytes

__all__ = [
    "INDEX_RECORD_BYTES", "LogChoice", "LogPlan", "LogPolicy", "LogView", "MAX_GROUP_MEMBERS",
    "MajorCadence", "PlannedGroup", "SegmentLimits", "SegmentRef", "SegmentStats", "Trigger", "chosen_groups",
    "filled_groups", "is_worthwhile", "plan_clump", "plan_for",
    "segment_bytes", "stored_dead_bytes", "stored_live_bytes",
]


def plan_clump(live: IndexSet, max_runs: int) -> IndexSet:
    """Choose the fewest entries that must be appended again so that the live set has at most `max_runs` runs. Pure.

    For each of them the host proposes a command "rewrite entry i if it is still live": applied, it has the old entry's
    content if i is live at that point of the log, and none if another command has replaced it meanwhile. Then the old
    places die, and the new ones form one run.

    Whole runs are taken, since a part of one would leave it a run; the shortest first, and among equals the oldest,
    which pin the oldest segments.

    Args:
        live: the live set.
        max_runs: how many runs it may have in the end, the one at the head included; at least 1.

    Returns:
        The entries, to be appended in this order; empty if the live set has no more runs than that.

    Raises:
        InvalidInput: `max_runs` is less than 1.

    Cost: O(runs log runs).

    >>> list(plan_clump(IndexSet.from_runs([(1, 9), (20, 20), (31, 32), (44, 44), (60, 80)]), max_runs=3))
    [20, 31, 32, 44]
    """
    if max_runs < 1:
        raise InvalidInput(f"max_runs is {max_runs}; what is appended again is a run itself, so allow at least 1")
    surplus = live.run_count - max_runs
    # One more than the surplus: those taken come back as one.
    return IndexSet.from_runs(nsmallest(surplus + 1, live.runs(), key=_length_then_age) if surplus > 0 else ())


def _length_then_age(run: tuple[int, int]) -> tuple[int, int]:
    first, last = run
    return last - first, first
