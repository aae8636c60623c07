# SPDX-License-Identifier: Apache-2.0
"""The policies and triggers that come with the Raft log; `docs/raftlog.md` compares them."""

from __future__ import annotations

from compactlib.raftlog.compaction.plan.policies.cost import CostPolicy
from compactlib.raftlog.compaction.plan.policies.drop import DropDead
from compactlib.raftlog.compaction.plan.policies.ra import RaPolicy
from compactlib.raftlog.compaction.plan.policies.seed import SeedPolicy
from compactlib.raftlog.compaction.sense.trigger import (
    AllOf,
    AnyOf,
    DeadBytes,
    DeadRatio,
    Elapsed,
    EveryNMinors,
    Manual,
)

__all__ = [
    "AllOf", "AnyOf", "CostPolicy", "DeadBytes", "DeadRatio", "DropDead", "Elapsed", "EveryNMinors", "Manual",
    "RaPolicy", "SeedPolicy",
]
