# SPDX-License-Identifier: Apache-2.0
"""`CompactionManager`: looks after the compactions of many stores, one at a time on each disk, disks side by side.

Whatever offers the contract's `Compaction` can be given to it: logs, blob stores, staging repositories, catalogs. What
is asked for goes first, then what was interrupted or has failed, then what is due by time; see `Agenda`.

What a store has to do for long, as a blob store its hard delete, comes in slices: each is a turn of its own, due by
itself, so that the other stores of the disk come in between.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import attrs

from compactlib.clock import Clock
from compactlib.errors import BudgetSpent, Closed, CompactlibError, InvalidInput, NotFound, StorageError
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer
from compactlib.runtime.services.agenda import Accepted, Refused, Removed
from compactlib.runtime.services.service_face import ServiceFace
from compactlib.runtime.services.work_report import WorkReport
from compactlib.runtime.services.work_service import Job, WorkService

if TYPE_CHECKING:
    from compactlib.contract import CommitFence, Compaction, Policy
    from compactlib.rewrite import Executor

COMPACTION_FAILING = "compaction_failing"
"""A compaction has failed: `work`, `lane`, `error`, `message`, `failures` in a row, `retry_in_seconds`."""
COMPACTION_RECOVERED = "compaction_recovered"
"""A store that was failing is well again: `work`, `lane`, `failures`."""


@attrs.frozen
class Periodic:
    """Each store is compacted when the manager starts, and then from time to time.

    Attributes:
        every_seconds: from one time to the next, > 0.

    Raises:
        InvalidInput: it is not above 0.
    """

    every_seconds: float = 7 * 86_400.0

    def __attrs_post_init__(self) -> None:
        given: object = self.every_seconds
        if isinstance(given, bool) or not isinstance(given, int | float) or not given > 0:
            raise InvalidInput(f"every_seconds is {given!r}; give seconds, more than 0")


@attrs.frozen
class OnRequest:
    """A store is compacted when `CompactionManager.request` asks for it, before all that is due by time."""


@attrs.frozen
class LowSpace:
    """A store of a fixed capacity, as a blob store is, is compacted as soon as little of it is free, before all that is
    due by time.

    Attributes:
        fraction: of its capacity: less than that is little; 0 to 1, and 0 never is.

    Raises:
        InvalidInput: it is not in that range.
    """

    fraction: float = 1 / 8

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.fraction <= 1:
            raise InvalidInput(f"fraction is {self.fraction!r}; give a part of the capacity, 0 to 1")


Trigger: TypeAlias = Periodic | OnRequest | LowSpace


class WatchesRoom(Protocol):
    """What a store of a fixed capacity offers besides the contract, so that `LowSpace` holds for it."""

    def watch_room(self, fraction: float, call: Callable[[], object]) -> Callable[[], object]:
        """Call back, at once and each time more room is taken, if less than `fraction` of the capacity is free then.
        What is returned ends that."""


class Slices(Protocol):
    """Long work of a store, done in slices. A store that has such work offers it as its attribute `slices`."""

    @property
    def what(self) -> str:
        """What it is, for reports."""

    def run(self, *, budget: Budget) -> tuple[Outcome[Any], float]:
        """Do one slice, which takes a moment and waits for no rate; what came of it, and in how many seconds the next
        one is due."""

    def reclaim(self, *, budget: Budget) -> Outcome[Any]:
        """The store's `reclaim` without this work."""


class CompactionManager(ServiceFace):
    """A `Service`. Threads may share it.

    Interrupted compactions are resumed, and failed ones tried again, whatever the triggers are.

    Args:
        triggers: what brings a store its turn, at most one of each kind; by default all three. `LowSpace()` holds
            also where others are chosen, so that no store fills up unnoticed; `LowSpace(fraction=0)` turns it off.
        retry_seconds: wait after a first failure, and after another was compacting the store, > 0; doubles.
        max_retry_seconds: how far it grows.
        clock: where time comes from; its `monotonic()` decides when something is due.
        observer: notified when a store begins to fail and when it is well again.

    Raises:
        InvalidInput: a trigger is none or is given twice, a time is out of its range, or another argument is
            not what it should be.
    """

    def __init__(self, triggers: Iterable[Trigger] = (Periodic(), OnRequest(), LowSpace()), *,
                 retry_seconds: float = 60.0, max_retry_seconds: float = 6 * 3_600.0, clock: Clock | None = None,
                 observer: Observer | None = None) -> None:
        self._triggers = _by_kind(triggers)
        low_space = self._triggers.setdefault(LowSpace, LowSpace())
        assert isinstance(low_space, LowSpace)
        self._low_space = low_space
        self._names: dict[str, tuple[str, ...]] = {}
        # Whose slices a name stands for, or stood for.
        self._sliced: dict[str, str] = {}
        # Ends the watch of a store's room.
        self._watches: dict[str, Callable[[], object]] = {}
        self._service = WorkService("the compaction manager", event=COMPACTION_FAILING, recovered=COMPACTION_RECOVERED,
                                    retry_seconds=retry_seconds, max_retry_seconds=max_retry_seconds, clock=clock,
                                    observer=observer)

    def add(self, name: str, store: Compaction[Any, Any, Any, Any, Any], *, disk: str | None = None,
            policy: Policy[Any, Any] | None = None, executor: Executor | None = None, fence: CommitFence | None = None,
            new_budget: Callable[[], Budget] | None = None, enabled: bool = True, is_open: bool = True) -> None:
        """Look after a store.

        Args:
            name: unique in the manager.
            store: what is compacted. One that has a `resume` is resumed first, before any other store of its disk is
                compacted. One that has `slices` has turns for these besides, which the report names `name (what)`. One
                that has `watch_room` (`WatchesRoom`) is compacted when little of it is free.
            disk: what to call its disk; default the device of its `folder`, if it has one.
            policy: instead of the store's own.
            executor: runs the copying; default the manager's thread.
            fence: entered around each commit.
            new_budget: what one compaction may use up; default the store's own `new_budget`, else no limit. One that
                can never be enough (`BudgetSpent.needed_bytes`) is a failure from the second time on.
            enabled: whether it may be compacted.
            is_open: whether it is open.

        Raises:
            InvalidInput: there is one of this name, the store offers no `compact`, `reclaim` and `status`, or another
                argument is not what it should be.
            StorageError: its disk cannot be found out.
        """
        for method in ("compact", "reclaim", "status"):
            if not callable(getattr(store, method, None)):
                raise InvalidInput(f"{store!r:.100} has no {method}(); give what offers compactlib.contract.Compaction")
        folder: str | None = getattr(store, "folder", None)
        periodic = self._triggers.get(Periodic)
        resume: Callable[..., Outcome[Any]] | None = getattr(store, "resume", None)
        slices: Slices | None = getattr(store, "slices", None)
        names = (name,) if slices is None else (name, f"{name} ({slices.what})")
        for each in names:
            if each in self._names or each in self._names.get(self._sliced.get(each, ""), ()):
                raise InvalidInput(f"there is work {each!r} already; names have to be unique")
        work = _Compacting(store, resume, policy, executor, fence, new_budget or getattr(store, "new_budget", None),
                           slices)
        lane = disk if disk is not None else "" if folder is None else disk_of(folder)
        every_seconds = periodic.every_seconds if isinstance(periodic, Periodic) else None
        self._service.add(name, work, lane=lane, every_seconds=every_seconds, resumes=resume is not None,
                          enabled=enabled, is_open=is_open)
        self._sliced.update(dict.fromkeys(names[1:], name))
        self._names[name] = names
        if slices is not None:
            sliced = names[-1]
            self._service.add(sliced, partial(_one_slice, slices, work), lane=lane, every_seconds=every_seconds,
                              enabled=enabled, is_open=is_open)
            if every_seconds is None and (OnRequest in self._triggers or self._low_space.fraction):
                # Not due by time: it follows what was requested.
                work.then = lambda: self._service.request(sliced)
        watch_room: Callable[..., Callable[[], object]] | None = getattr(store, "watch_room", None)
        if watch_room is not None:
            self._watches[name] = watch_room(self._low_space.fraction,
                                             lambda: self._service.request(name, joins=True))

    def _known(self, name: str) -> tuple[str, ...]:
        """The names of the work of one store; an unknown name is its own. An interrupt may have left one of two."""
        return tuple(filter(self._service.knows, self._names.get(name, ()))) or (name,)

    def remove(self, name: str) -> Removed | Refused:
        """Look after a store no more: only if it is disabled, or the manager is stopped, and nothing is done with it.

        Raises:
            NotFound: there is none of this name.
        """
        try:
            answer = self._service.remove(*self._known(name))
        except NotFound:
            self._forget(name)  # an interrupt came before this, the last time
            raise
        if isinstance(answer, Removed):
            self._forget(name)
        return answer

    def _forget(self, name: str) -> None:
        for each in self._names.pop(name, ())[1:]:
            self._sliced.pop(each, None)
        if (end := self._watches.pop(name, None)) is not None:
            end()

    def enable(self, name: str) -> None:
        """Let a store be compacted; its periodic turn is due at once.

        Raises:
            NotFound: there is none of this name.
        """
        for each in self._known(name):
            self._service.enable(each)

    def disable(self, name: str) -> None:
        """Do not compact a store any more. What is being done with it stops at the next record, and can be resumed.

        Raises:
            NotFound: there is none of this name.
        """
        for each in self._known(name):
            self._service.disable(each)

    def set_open(self, name: str, is_open: bool) -> None:
        """Report that a store was opened or closed; that one was closed the manager finds out by itself as well.

        Raises:
            NotFound: there is none of this name.
        """
        for each in self._known(name):
            self._service.set_open(each, is_open)

    def request(self, name: str) -> Accepted | Refused:
        """Ask for a store to be compacted next; a request while it is being compacted counts as done by that run."""
        if OnRequest not in self._triggers:
            return Refused(name, "this manager takes no requests; give it the trigger OnRequest()")
        return self._service.request(name, joins=True)

    def report(self) -> WorkReport:
        """The state of every store now."""
        return self._service.report()

    def wait_until_idle(self, seconds: float = 60.0) -> None:
        """Return when nothing is being compacted and nothing is due; what waits to be tried again is not waited for.

        Raises:
            Busy: that has not come in `seconds`; or called from within its own work.
            AuditFailed: a thread has ended, as after `SystemExit`.
        """
        self._service.wait_until_idle(seconds)

    def __repr__(self) -> str:
        return f"<CompactionManager: {self.report()._summary()}>"


@attrs.define
class _Compacting:
    """Compacts one store, and frees what can no longer be reached.

    Attributes:
        slices: what it has to do for long, which has turns of its own.
        then: called after each compaction.
        in_vain: how often in a row the store had less to spend than the least that it needs, and has changed nothing.
    """

    store: Compaction[Any, Any, Any, Any, Any]
    resume: Callable[..., Outcome[Any]] | None
    policy: Policy[Any, Any] | None
    executor: Executor | None
    fence: CommitFence | None
    new_budget: Callable[[], Budget] | None
    slices: Slices | None
    then: Callable[[], object] | None = None
    in_vain: int = 0

    def __call__(self, job: Job) -> Outcome[Any]:
        budget = job.budget if self.new_budget is None else job.lend(self.new_budget())
        try:
            outcome = self._outcome(job, budget)
        except CompactlibError as error:
            # A store answers what it expects. This is a policy's, say, unless the store was closed.
            if self.closed() is None:
                raise
            outcome = Failed(error)
        if isinstance(outcome, Failed) and (closed := self.closed()) is not None:
            job.rest()
            return Failed(closed, outcome.changed)
        if isinstance(outcome, Failed) and isinstance(outcome.error, BudgetSpent):
            is_in_vain = outcome.error.needed_bytes is not None and outcome.changed == "no"
            self.in_vain = self.in_vain + 1 if is_in_vain else 0
            if self.in_vain < 2:
                # It is being closed, say, or has had as much as its budgets give at once: it goes on another time.
                job.put_off()
        elif job.turn.strength:
            self.in_vain = 0
        return outcome

    def closed(self) -> Closed | None:
        """One that was closed is not busy, which `status` raises `Closed` for; that may also be a policy's own tool."""
        try:
            self.store.status()
        except Closed as closed:
            return closed
        return None

    def _outcome(self, job: Job, budget: Budget) -> Outcome[Any]:
        how: dict[str, Any] = {"executor": self.executor, "budget": budget, "fence": self.fence}
        if job.turn.strength == 0 and self.resume is not None:
            return self.resume(**how)
        outcome = self.store.compact(policy=self.policy, **how)
        if isinstance(outcome, Failed) or (isinstance(outcome, Skipped) and outcome.is_busy):
            return outcome
        if self.then is not None:
            self.then()
        reclaimed = (self.store if self.slices is None else self.slices).reclaim(budget=budget)
        match outcome, reclaimed:
            case _, Failed():
                return reclaimed
            case Skipped(), Skipped() if reclaimed.is_busy:
                return reclaimed
            case Skipped(reason), Done(stats):
                return Skipped(f"{reason}; reclaimed {stats!r}")
        return outcome


def _one_slice(slices: Slices, compacting: _Compacting, job: Job) -> Outcome[Any]:
    try:
        outcome, due_in = slices.run(budget=job.budget)
    except CompactlibError as error:
        if compacting.closed() is None:
            raise
        outcome = Failed(error)
    else:
        job.due_in(due_in)
    if isinstance(outcome, Failed) and (closed := compacting.closed()) is not None:
        job.rest()
        return Failed(closed, outcome.changed)
    return outcome


def disk_of(folder: str | os.PathLike[str]) -> str:
    """A name of the device that holds `folder`: equal for two folders on one file system.

    Partitions of one disk have different names; a host that knows better names its disks itself.

    Raises:
        StorageError: the folder cannot be looked at.
    """
    try:
        device = os.stat(folder).st_dev
    except OSError as error:
        raise StorageError.from_os(error, "stat", folder) from error
    return f"{os.major(device)}:{os.minor(device)}"


def _by_kind(triggers: Iterable[Trigger]) -> dict[type[Trigger], Trigger]:
    try:
        listed: list[object] = list(triggers)
    except TypeError as error:
        raise InvalidInput(f"the triggers are {triggers!r}; give a list of Periodic(), OnRequest() and LowSpace()"
                           ) from error
    found: dict[type[Trigger], Trigger] = {}
    for trigger in listed:
        if not isinstance(trigger, Periodic | OnRequest | LowSpace):
            raise InvalidInput(f"there is no trigger {trigger!r}; give some of Periodic(), OnRequest() and LowSpace()")
        if found.setdefault(type(trigger), trigger) is not trigger:
            raise InvalidInput(f"two triggers are {type(trigger).__name__}; give one of each kind")
    return found
