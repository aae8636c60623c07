# SPDX-License-Identifier: Apache-2.0
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
    Progress as Progress,
    RecordingObserver as RecordingObserver,
)
from compactlib.runtime.steady_clock import SteadyClock as SteadyClock
