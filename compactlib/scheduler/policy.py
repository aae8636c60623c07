# SPDX-License-Identifier: Apache-2.0
"""What a policy of the scheduler sees and answers, and what helps to write one.

A policy says which waiting jobs a worker is given, and in which order (`AssignmentPolicy`).
"""

from __future__ import annotations

from compactlib.scheduler.model.update import Turn
from compactlib.scheduler.plan.policy import (
    AssignmentPolicy,
    AssignmentView,
    JobChoice,
    Lazily,
    LevelView,
    Order,
    TenantLine,
    WaitingJob,
    check_share,
    choose_by_level,
)

__all__ = [
    "AssignmentPolicy", "AssignmentView", "JobChoice", "Lazily", "LevelView", "Order", "TenantLine", "Turn",
    "WaitingJob", "check_share", "choose_by_level",
]
