# SPDX-License-Identifier: Apache-2.0
"""The contract: what a store that can be compacted, a policy, a fence and a service offer, under the same names.

`docs/contract.md` explains it with one program over four packages; `compactlib.testing.check_compaction` and
`check_policy` hold an implementation to it, the library's own and a host's.

- `compact` and `reclaim` return their report, or raise. `Rejected` is the parent of all errors that changed nothing:
  `Busy`, `Stale` for an outdated plan, `InvalidInput` for a plan of another store or a plan and a policy together. The
  failure of one task or group stops no other; at the end `CompactionFailed` has the report and the failures.
- A report may be empty (`is_empty`) or partial (`is_partial`), and says `why`: nothing to do, no room for the copies,
  the caller's budget spent after something was committed. `BudgetSpent` means that nothing could be.
- A closed store raises `Closed`; closing it from within its own work raises `Busy`.
- What a policy or a fence of the host's raises propagates as it is, once everything is released.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol, Self, TypeVar

from compactlib.budget import Budget
from compactlib.report import Status, VerifyReport
from compactlib.rewrite import Executor


class View(Protocol):
    """What a plan is made from: a frozen value, true of one moment. Equal views give equal plans."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """Its rows as data: one a segment, a token or a node."""


class Plan(Protocol):
    """What a compaction would do: a frozen, picklable value that prints itself. Never `None`: an empty one says why."""

    @property
    def why(self) -> str:
        """Why this is done; of an empty plan which gate is shut, its value, and the setting to change."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""

    @property
    def bytes_to_copy(self) -> int | None:
        """Bytes to write, as on disk, headers and indexes included; `None` where that cannot be known before."""

    @property
    def bytes_freed(self) -> int | None:
        """By how much less is on disk afterwards, once `reclaim` has done its part; `None` as above."""

    @property
    def is_exact(self) -> bool:
        """Whether both forecasts hold to the byte as long as nothing else changes the store."""

    @property
    def bytes_needed(self) -> int | None:
        """The most room on disk that carrying it out takes before it gives any back; `None` as above."""

    @property
    def bytes_available(self) -> int | None:
        """The room there was when it was planned; `None` where it is unknown, as in a remote store."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """Its rows as data: what is taken, what is left, and each with its reason."""


ViewT_contra = TypeVar("ViewT_contra", bound=View, contravariant=True)
ChoiceT_co = TypeVar("ChoiceT_co", covariant=True)


class Policy(Protocol[ViewT_contra, ChoiceT_co]):
    """Decides what is worth compacting; a small frozen attrs class, one file each, whose fields are its settings."""

    @property
    def name(self) -> str:
        """A short name for plans and reports."""

    def choose(self, view: ViewT_contra, now: float) -> ChoiceT_co:
        """What to take of `view` at `now` (seconds since the epoch). Pure: equal arguments give equal choices.

        Never `None`: a choice of nothing has `is_empty` true, and its `why` names the gate, its value and its setting.
        """


class Compaction(Protocol):
    """A store that can be compacted. Threads may share it. Views, plans, choices and reports are its package's own.

    A store in one folder of this machine has the attribute `folder`, by which a `CompactionManager` knows its disk; one
    of a fixed capacity also offers what `compactlib.manager.HasCapacity` says.
    """

    def view(self, *, budget: Budget | None = None) -> Any:
        """Return the store as a policy sees it now. `budget` is asked where much has to be counted."""

    def plan(self, policy: Any = None, *, view: Any = None) -> Any:
        """Return what `compact` would do: a dry run that changes nothing. Defaults: the store's own policy, a new view.
        """

    def compact(self, plan: Any = None, *, policy: Any = None, executor: Executor | None = None,
                budget: Budget | None = None, observer: Any = None, fence: CommitFence | None = None) -> Any:
        """Carry out a plan, by default the one that `plan(policy)` makes now; returns the report, or raises.

        Args:
            plan: of this store. Not together with `policy`.
            policy: instead of the store's own.
            executor: runs the copying; default this thread.
            budget: what the work may use up; cancel it to stop.
            observer: notified, besides the store's own.
            fence: entered around each commit.
        """

    def reclaim(self, *, budget: Budget | None = None) -> Any:
        """Free what no reader, lease or snapshot can reach any more; returns the report, or raises.

        Every `compact` does of it what it can at once. Long work goes on from where the last call's budget ended it.
        """

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read everything, and list what is damaged or missing; raises nothing about what is only damaged."""

    def status(self) -> Status:
        """Return the store in numbers, at once, from memory."""

    def audit(self) -> None:
        """Check what is in memory against its own rules; raises `AuditFailed`."""

    def close(self) -> None:
        """Cancel what runs, wait for its end, let the folder go; closing again does nothing."""


class CommitFence(Protocol):
    """Decides whether a commit may still happen: a lease, a fencing token, a lock of the host's."""

    def guard(self) -> AbstractContextManager[object]:
        """Entered around each commit, in the thread that commits. What entering it raises ends the work."""


class Service(Protocol):
    """Work in a thread that the host starts and stops, as `compactlib.service.PeriodicService` and `CompactionManager`.
    """

    def start(self) -> None:
        """Begin; starting again does nothing. `with` starts and stops.

        After `stop` it begins anew, or raises `Closed` where a service lives only once, which its own docs say.
        """

    def run_pending(self) -> int:
        """Do in the caller's thread what is due, for hosts without threads; returns whether, or how much, that was."""

    def stop(self, *, wait_seconds: float = 30.0) -> None:
        """Begin nothing more, cancel what runs, and wait for its end. Stopping again waits again.

        Raises:
            Busy: it has not ended in time, or the caller is its own work; it ends all the same.
        """

    @property
    def last_error(self) -> BaseException | None:
        """What its work raised last; it was logged, and the work is tried again after a growing delay."""

    @property
    def failures(self) -> int:
        """How often its work raised."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...
