# SPDX-License-Identifier: Apache-2.0
"""The contract: protocols of a store, its views and plans, a policy, a fence and a service.

`docs/contract.md` explains it with one program over four packages; `compactlib.testing.check_compaction` and
`check_policy` test an implementation, the library's or a host's.

- `compact` and `reclaim` return their report, or raise. `Rejected` is the parent of all errors that changed nothing:
  `Busy`, `Stale` for an outdated plan, `InvalidInput` for a plan of another store or a plan and a policy together. The
  failure of one task or group stops no other; at the end `CompactionFailed` has the report and the failures.
- A report may be empty (`is_empty`) or partial (`is_partial`), and gives its reason as `why`: nothing to do, no room
  for the copies, the caller's budget spent after a commit. `BudgetSpent` means that nothing could be committed.
- A closed store raises `Closed`; closing it from within its own work raises `Busy`.
- An exception of the host's policy or fence propagates unchanged, after all locks and files are released.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol, Self, TypeVar

from compactlib.budget import Budget
from compactlib.report import Status, VerifyReport
from compactlib.rewrite import Executor


class View(Protocol):
    """The input of a policy: a frozen value, the state of a store at one moment. Equal views give equal plans."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return its rows as data: one for each segment, token or node."""


class Plan(Protocol):
    """A dry run of a compaction: a frozen, picklable value that prints itself. An empty plan gives its reason."""

    @property
    def why(self) -> str:
        """The reason; of an empty plan the gate that is shut, its value, and the setting to change."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""

    @property
    def bytes_to_copy(self) -> int | None:
        """Bytes to write to disk, headers and indexes included: a bound or an estimate; `None` if unknown."""

    @property
    def bytes_freed(self) -> int | None:
        """Bytes freed on disk after the compaction and `reclaim`: a bound or an estimate; `None` if unknown."""

    @property
    def bytes_needed(self) -> int | None:
        """The room on disk that the compaction takes before it frees any, in bytes; `None` if unknown."""

    @property
    def bytes_available(self) -> int | None:
        """The room on disk when the plan was made; `None` if unknown, as in a remote store."""

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return its rows as data: victims and the rest, each with its reason."""


ViewT_contra = TypeVar("ViewT_contra", bound=View, contravariant=True)
ChoiceT_co = TypeVar("ChoiceT_co", covariant=True)


class Policy(Protocol[ViewT_contra, ChoiceT_co]):
    """Decides what to compact; a small frozen attrs class, one file each, with its settings as fields."""

    @property
    def name(self) -> str:
        """A short name for plans and reports."""

    def choose(self, view: ViewT_contra, now: float) -> ChoiceT_co:
        """Return what to compact of `view` at `now` (seconds since the epoch). Pure: equal arguments, equal choices.

        Never returns `None`: an empty choice has `is_empty` true, and its `why` names the gate, its value and setting.
        """


class Compaction(Protocol):
    """A store that can be compacted. Threads may share it. Views, plans, choices and reports are its package's own.

    A store in a folder of this machine has the attribute `folder`, from which a `CompactionManager` finds its disk. A
    store of a fixed capacity is also a `compactlib.manager.HasCapacity`.
    """

    def view(self, *, budget: Budget | None = None) -> Any:
        """Return the present state for a policy. `budget` limits and cancels a long count."""

    def plan(self, policy: Any = None, *, view: Any = None) -> Any:
        """Return the plan of a compaction; changes nothing. Defaults: the store's own policy, a new view."""

    def compact(self, plan: Any = None, *, policy: Any = None, executor: Executor | None = None,
                budget: Budget | None = None, observer: Any = None, fence: CommitFence | None = None) -> Any:
        """Carry out a plan, by default the result of `plan(policy)`, and return the report.

        Args:
            plan: a plan of this store. Not together with `policy`.
            policy: instead of the store's own.
            executor: runs the copying; default this thread.
            budget: limits the work; cancel it to stop.
            observer: receives the events, as the store's own observer does.
            fence: entered around each commit.
        """

    def reclaim(self, *, budget: Budget | None = None) -> Any:
        """Free what no reader, lease or snapshot can reach, and return the report.

        Every `compact` does the quick part of it. Long work continues where the budget of the last call ended it.
        """

    def verify(self, *, budget: Budget | None = None) -> VerifyReport:
        """Read everything, and list the damaged and missing parts; damage raises no error."""

    def status(self) -> Status:
        """Return the store in numbers, at once, from memory."""

    def audit(self) -> None:
        """Check the invariants of the state in memory; raises `AuditFailed`."""

    def close(self) -> None:
        """Cancel the runs, wait for their end, and release the folder; closing again does nothing."""


class CommitFence(Protocol):
    """Decides whether a commit may still happen: a lease, a fencing token, a lock of the host's."""

    def guard(self) -> AbstractContextManager[object]:
        """Return the context manager of one commit, entered in the committing thread; raising in it ends the work."""


class Service(Protocol):
    """Work in a thread that the host starts and stops, as `compactlib.service.PeriodicService` and `CompactionManager`.
    """

    def start(self) -> None:
        """Start the thread; starting again does nothing. `with` starts and stops.

        After `stop`, a service starts again, or raises `Closed` if its docs say that it runs only once.
        """

    def run_pending(self) -> int:
        """Do all due work in the caller's thread, for hosts without threads; return whether, or how much, was due."""

    def stop(self, *, wait_seconds: float = 30.0) -> None:
        """Cancel the present work, wait for its end, and begin no other. Stopping again waits again.

        Raises:
            Busy: the work has not ended in time, or makes this call itself. No other work begins.
        """

    @property
    def last_error(self) -> BaseException | None:
        """The last exception of the work; it was logged, and the work is retried after a growing delay."""

    @property
    def failures(self) -> int:
        """The number of times that the work raised."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *error: object) -> None: ...
