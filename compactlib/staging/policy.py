# SPDX-License-Identifier: Apache-2.0
"""The contract of policies: the views and choices of a repository's policy and of a sense policy, and helpers.

A sense policy reads the counts of this process (`BranchPressure`) and decides whether to inspect a branch. A
repository's policy reads the branch (`StagingView`) and decides whether to compact it.
"""

from __future__ import annotations

from compactlib.staging.plan import CLEAN, StagingChoice, StagingPlan, StagingView, plan_for
from compactlib.staging.policies import (
    DEFAULT_WINDOW_SECONDS,
    BranchPressure,
    SensePolicy,
    StagingPolicy,
    window_gate,
)
from compactlib.staging.record import BranchRecord
from compactlib.staging.values import StagingToken

__all__ = [
    "BranchPressure", "BranchRecord", "CLEAN", "DEFAULT_WINDOW_SECONDS", "SensePolicy", "StagingChoice",
    "StagingPlan", "StagingPolicy", "StagingToken", "StagingView", "plan_for", "window_gate",
]
