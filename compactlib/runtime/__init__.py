# SPDX-License-Identifier: Apache-2.0
"""Budgets, observers of four methods, and small parts that several engines share."""

from typing import TYPE_CHECKING

from compactlib._lazy import offer

if TYPE_CHECKING:
    from compactlib.manager import (
        CompactionManager as CompactionManager,
        LowSpace as LowSpace,
        OnRequest as OnRequest,
        Periodic as Periodic,
    )
    from compactlib.observer import (
        LoggingObserver as LoggingObserver,
        PrometheusObserver as PrometheusObserver,
        TqdmObserver as TqdmObserver,
    )
    from compactlib.runtime.budget import Budget as Budget, BudgetLimits as BudgetLimits
    from compactlib.runtime.observe import (
        Observer as Observer,
        Observers as Observers,
        Progress as Progress,
        RecordingObserver as RecordingObserver,
        telling as telling,
    )
else:
    offer(__name__, {
        "compactlib.manager": "CompactionManager LowSpace OnRequest Periodic",
        "compactlib.observer": "LoggingObserver PrometheusObserver TqdmObserver",
        "compactlib.runtime.budget": "Budget BudgetLimits",
        "compactlib.runtime.observe": "Observer Observers Progress RecordingObserver telling",
    })
