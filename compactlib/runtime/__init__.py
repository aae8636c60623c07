"""What every package needs around its engine, decided once: who owns a running piece of work, how services take turns
and come to their end, how observers are told, how a lost answer is looked for, and how far a clock may jump.

Nothing here knows a store: what a package decides stays in the package, and stands on these parts. A service in threads
stands on `WorkService`, one in an event loop on `AsyncWork`; `ServiceFace` and `AsyncServiceFace` are the methods that
hosts call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compactlib._lazy import load_lazily

if TYPE_CHECKING:
    from compactlib.runtime.budget import Budget, BudgetLimits
    from compactlib.runtime.later import LaterCalls, LaterObserver
    from compactlib.runtime.look import look_until_seen
    from compactlib.runtime.observe import TellingObserver, tell, telling
    from compactlib.runtime.ownership import Ownership, Run
    from compactlib.runtime.services.agenda import Accepted, Agenda, Refused, Removed, Turn
    from compactlib.runtime.services.async_service import AsyncServiceFace, AsyncWork, KeptTask
    from compactlib.runtime.services.daemon_threads import DaemonThreads
    from compactlib.runtime.services.manager import CompactionManager, OnRequest, Periodic
    from compactlib.runtime.services.service_face import ServiceFace
    from compactlib.runtime.services.turns import Turns
    from compactlib.runtime.services.work_report import WorkReport, WorkRow
    from compactlib.runtime.services.work_service import Job, Stopped, Work, WorkService
    from compactlib.runtime.steady_clock import SteadyClock
    from compactlib.runtime.throttle import Throttle

__all__ = [
    "Accepted",
    "Agenda",
    "AsyncServiceFace",
    "AsyncWork",
    "Budget",
    "BudgetLimits",
    "CompactionManager",
    "DaemonThreads",
    "Job",
    "KeptTask",
    "LaterCalls",
    "LaterObserver",
    "OnRequest",
    "Ownership",
    "Periodic",
    "Refused",
    "Removed",
    "Run",
    "ServiceFace",
    "SteadyClock",
    "Stopped",
    "TellingObserver",
    "Throttle",
    "Turn",
    "Turns",
    "Work",
    "WorkReport",
    "WorkRow",
    "WorkService",
    "look_until_seen",
    "tell",
    "telling",
]

load_lazily(__name__, {
    ".budget": ("Budget", "BudgetLimits"),
    ".throttle": ("Throttle",),
    ".services.agenda": ("Accepted", "Agenda", "Refused", "Removed", "Turn"),
    ".services.async_service": ("AsyncServiceFace", "AsyncWork", "KeptTask"),
    ".services.daemon_threads": ("DaemonThreads",),
    ".later": ("LaterCalls", "LaterObserver"),
    ".look": ("look_until_seen",),
    ".services.manager": ("CompactionManager", "OnRequest", "Periodic"),
    ".ownership": ("Ownership", "Run"),
    ".services.service_face": ("ServiceFace",),
    ".steady_clock": ("SteadyClock",),
    ".observe": ("TellingObserver", "tell", "telling"),
    ".services.turns": ("Turns",),
    ".services.work_report": ("WorkReport", "WorkRow"),
    ".services.work_service": ("Job", "Stopped", "Work", "WorkService"),
})
