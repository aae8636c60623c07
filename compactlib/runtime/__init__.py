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
    from compactlib.runtime.agenda import Accepted, Agenda, Refused, Removed, Turn
    from compactlib.runtime.async_service import AsyncServiceFace, AsyncWork, KeptTask
    from compactlib.runtime.budget import Budget, BudgetLimits
    from compactlib.runtime.daemon_threads import DaemonThreads
    from compactlib.runtime.later import LaterCalls, LaterObserver
    from compactlib.runtime.look import look_until_seen
    from compactlib.runtime.manager import CompactionManager, OnRequest, Periodic
    from compactlib.runtime.ownership import Ownership, Run
    from compactlib.runtime.service_face import ServiceFace
    from compactlib.runtime.steady_clock import SteadyClock
    from compactlib.runtime.tell import TellingObserver, tell, telling
    from compactlib.runtime.throttle import Throttle
    from compactlib.runtime.turns import Turns
    from compactlib.runtime.work_report import WorkReport, WorkRow
    from compactlib.runtime.work_service import Job, Stopped, Work, WorkService

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
    ".agenda": ("Accepted", "Agenda", "Refused", "Removed", "Turn"),
    ".async_service": ("AsyncServiceFace", "AsyncWork", "KeptTask"),
    ".daemon_threads": ("DaemonThreads",),
    ".later": ("LaterCalls", "LaterObserver"),
    ".look": ("look_until_seen",),
    ".manager": ("CompactionManager", "OnRequest", "Periodic"),
    ".ownership": ("Ownership", "Run"),
    ".service_face": ("ServiceFace",),
    ".steady_clock": ("SteadyClock",),
    ".tell": ("TellingObserver", "tell", "telling"),
    ".turns": ("Turns",),
    ".work_report": ("WorkReport", "WorkRow"),
    ".work_service": ("Job", "Stopped", "Work", "WorkService"),
})
