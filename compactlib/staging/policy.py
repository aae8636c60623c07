# SPDX-License-Identifier: Apache-2.0
"""What the policies of a repository and of its sensor see and answer, and what helps to write one.

A sense policy counts what this process has seen of a branch (`BranchPressure`) and says when to look at it; a
repository's policy sees what lies on the branch (`StagingView`) and decides.
"""

from __future__ import annotations

from compactlib.staging.names import StagingToken
from compactlib.staging.plan import CLEAN, StagingChoice, StagingPlan, StagingView, plan_for
from compactlib.staging.policies import (
    DEFAULT_WINDOW_SECONDS,
    BranchPressure,
    SensePolicy,
    StagingPolicy,
    window_gate,
)
from compactlib.staging.record import BranchRecord

__all__ = [
    "BranchPressure", "BranchRecord", "CLEAN", "DEFAULT_WINDOW_SECONDS", "SensePolicy", "StagingChoice",
    "StagingPlan", "StagingPolicy", "StagingToken", "StagingView", "plan_for", "window_gate",
]
