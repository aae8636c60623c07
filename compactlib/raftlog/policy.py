# SPDX-License-Identifier: Apache-2.0
"""The contracts of policies and triggers of a Raft log, and helpers to write them.

A policy chooses groups of neighbouring segments, each of which becomes a single segment (`LogPolicy`); a trigger
decides when a major compaction is due (`Trigger`). `plan_for` applies a policy to a view without a log, and
`MajorCadence` evaluates a trigger as a log does. `plan_clump` chooses live entries for a state machine to rewrite.
"""

from __future__ import annotations

from compactlib.raftlog.compaction.clump import plan_clump
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
