# SPDX-License-Identifier: Apache-2.0
"""What the engines share until they are re-drawn: ownership of running work, background services (threads and asyncio),
observers, retries after a lost answer, and a clock that notices jumps.

Nothing here knows a store: what a package decides stays in the package, and uses these parts. A service in threads is
built on `WorkService`, one in an event loop on `AsyncWork`; `ServiceFace` and `AsyncServiceFace` are the methods that
hosts call.
"""

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
    from compactlib.runtime.steady_clock import SteadyClock as SteadyClock
else:
    offer(__name__, {
        "compactlib.manager": "CompactionManager LowSpace OnRequest Periodic",
        "compactlib.observer": "LoggingObserver PrometheusObserver TqdmObserver",
        "compactlib.runtime.budget": "Budget BudgetLimits",
        "compactlib.runtime.observe": "Observer Observers Progress RecordingObserver telling",
        "compactlib.runtime.steady_clock": "SteadyClock",
    })
