# SPDX-License-Identifier: Apache-2.0
from compactlib.runtime.budget import Budget as Budget, BudgetLimits as BudgetLimits
from compactlib.runtime.observe import (
    LoggingObserver as LoggingObserver,
    Observer as Observer,
    Observers as Observers,
    Progress as Progress,
    PrometheusObserver as PrometheusObserver,
    RecordingObserver as RecordingObserver,
    TqdmObserver as TqdmObserver,
    telling as telling,
)
from compactlib.runtime.services.manager import (
    CompactionManager as CompactionManager,
    LowSpace as LowSpace,
    OnRequest as OnRequest,
    Periodic as Periodic,
)
from compactlib.runtime.steady_clock import SteadyClock as SteadyClock
from compactlib.runtime.throttle import Throttle as Throttle
