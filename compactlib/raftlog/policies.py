# SPDX-License-Identifier: Apache-2.0
"""The policies and triggers that come with the Raft log; `docs/raftlog.md` compares them."""

from __future__ import annotations

from compactlib.raftlog.compaction.policies import CostPolicy, DropDead, RaPolicy, SeedPolicy
from compactlib.raftlog.compaction.triggers import DeadBytes, DeadRatio, Elapsed, EveryNMinors, Manual

__all__ = [
    "CostPolicy", "DeadBytes", "DeadRatio", "DropDead", "Elapsed", "EveryNMinors", "Manual", "RaPolicy", "SeedPolicy",
]
