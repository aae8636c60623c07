"""What every package needs around its engine, decided once: who owns a running piece of work, how observers are told,
how a thread goes on after an error, how a lost answer is looked for, and how far a clock may jump.

Nothing here knows a store: what a package decides stays in the package, and stands on these parts.
"""

from __future__ import annotations

from compactlib.runtime.agenda import Accepted, Agenda, Refused, Removed, Turn
from compactlib.runtime.daemon_threads import DaemonThreads
from compactlib.runtime.later import LaterObserver
from compactlib.runtime.look import look_until_seen
from compactlib.runtime.ownership import Ownership, Run
from compactlib.runtime.service_face import ServiceFace
from compactlib.runtime.steady_clock import SteadyClock
from compactlib.runtime.tell import TellingObserver, tell, telling
from compactlib.runtime.turns import Turns
from compactlib.runtime.work_report import WorkReport, WorkRow
from compactlib.runtime.work_service import Job, Stopped, Work, WorkService

__all__ = [
    "Accepted",
    "Agenda",
    "DaemonThreads",
    "Job",
    "LaterObserver",
    "Ownership",
    "Refused",
    "Removed",
    "Run",
    "ServiceFace",
    "SteadyClock",
    "Stopped",
    "TellingObserver",
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
