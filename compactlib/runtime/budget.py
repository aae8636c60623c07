# SPDX-License-Identifier: Apache-2.0
"""`compactlib.budget` under another name."""

from __future__ import annotations

from compactlib.budget import Budget as Budget, BudgetLimits as BudgetLimits
