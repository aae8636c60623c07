# SPDX-License-Identifier: Apache-2.0
"""`StagingWorker`: compacts the branches that the sensor triggers, and reclaims periodically; one `PeriodicService`.

Each turn surveys new repositories, compacts the triggered branches, and reclaims where that is due. A failed job is
retried after a growing delay, and a branch that a policy does not want compacted after a fixed one. Neither delays
another job.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from math import inf
from typing import Final, Literal, TypeAlias

import attrs

from compactlib.budget import Budget
from compactlib.clock import Clock
from compactlib.errors import Busy, CompactlibError, CorruptData, InvalidInput, NotFound
from compactlib.observer import Observer, Observers
from compactlib.rewrite import Executor
from compactlib.service import PeriodicService
from compactlib.staging.errors import BranchNotFound
from compactlib.staging.policy import StagingPolicy
from compactlib.staging.repository import Repository
from compactlib.staging.sensor import CompactionSensor, CompactionTrigger

_LOGGER = logging.getLogger("compactlib.services")

DEFAULT_RECLAIM_SECONDS: Final = 600.0
_TURN_SECONDS: Final = 1.0
_FIRST_DELAY_SECONDS: Final = 1.0
_LONGEST_DELAY_SECONDS: Final = 3600.0
_UNWANTED_SECONDS: Final = 60.0
"""Delay of a branch after an empty report: its policy's gate is closed, or there is no room."""


_Job: TypeAlias = tuple[Literal["survey", "compaction", "reclaim"], str]
"""The kind of the work, and the name of the branch of a compaction."""


@attrs.define(eq=False)
class _Entry:
    """A repository, and when each of its jobs may run again, by the steady clock, after how many failures in a row."""

    repository: Repository
    waits: dict[_Job, tuple[float, int]] = attrs.field(factory=dict)


class StagingWorker(PeriodicService):
    """Compacts the branches that a sensor triggers, and reclaims. It owns neither the sensor nor the repositories.

    `add` takes a repository made with `sensor=worker.sensor`, at any time, and surveys it: the worker counts the staged
    tombstones of each branch, up to `max_scanned`, for the sensor.

    `start` starts its thread; `run_pending` runs the due operations in the caller's thread. Operations run one after
    another. `stop` cancels the running one, which then changes nothing.

    Args:
        sensor: triggers branches; default: a new sensor with the default policy.
        repositories: to add; triggers of other repositories are left to other workers.
        policy: instead of each repository's.
        executor: runs the rewrites.
        reclaim_seconds: period of reclaims, the first of which runs at the start; `None`: never.
        clock: for due times.
        budget: limits of all operations together; cancel it to stop.
        observer: notified of triggers and failures; the observers of the repositories are notified of compactions.

    Attributes:
        sensor: give it to repositories as `sensor=worker.sensor`.
        failures: number of failed operations.
        last_error: the last failure.
    """

    def __init__(self, sensor: CompactionSensor | None = None, repositories: Iterable[Repository] = (), *,
                 policy: StagingPolicy | None = None, executor: Executor | None = None,
                 reclaim_seconds: float | None = DEFAULT_RECLAIM_SECONDS, clock: Clock | None = None,
                 budget: Budget | None = None, observer: Observer | None = None) -> None:
        if reclaim_seconds is not None and not reclaim_seconds > 0:
            raise InvalidInput(f"reclaim_seconds is {reclaim_seconds}; give more than 0, or None")
        super().__init__(self._turn, name="the compaction worker", every_seconds=_TURN_SECONDS, clock=clock)
        self.sensor: CompactionSensor = CompactionSensor(clock=clock) if sensor is None else sensor
        self._policy = policy
        self._executor = executor
        self._reclaim_seconds = reclaim_seconds
        self._limits = budget
        self._observer = Observers(observer)
        self._entries: dict[str, _Entry] = {}
        self._done = 0
        self._lent: Budget | None = None  # of the work under way
        for repository in repositories:
            self.add(repository)

    def add(self, repository: Repository) -> None:
        """Survey, compact and reclaim a repository from now on; `InvalidInput` for a second one of its name."""
        if self._entries.setdefault(repository.name, _Entry(repository)).repository is not repository:
            raise InvalidInput(f"two repositories are named {repository.name!r}; give each its own name, or remove the "
                               f"first")
        self.wake()

    def remove(self, name: str) -> None:
        """Remove a repository, or raise `NotFound`. A running operation continues, until the repository is closed."""
        if self._entries.pop(name, None) is None:
            known = ", ".join(map(repr, self._entries)) or "none"
            raise NotFound(f"there is no repository {name!r}; the worker has {known}")

    def run_pending(self) -> bool:
        """Run the due operations in the caller's thread, for hosts without threads. Returns whether one was due."""
        before = self._done
        if not self.is_own_thread:
            self.wake()
        super().run_pending()
        return self._done > before

    def cancel(self) -> None:
        super().cancel()
        if self._lent is not None:
            self._lent.cancel()

    # --- a turn

    def _turn(self, budget: Budget) -> None:
        """Run all due jobs, one after another."""
        for entry, job, why in self._due_jobs():
            budget.check()
            self._lent = lent = (budget if self._limits is None else self._limits).child()
            if budget.cancelled:
                return  # `stop` was called before it could see this budget
            if self._entries.get(entry.repository.name) is entry:
                self._attempt(entry, job, why, lent)
            if lent.cancelled:
                return
            self._done += 1

    def _due_jobs(self) -> list[tuple[_Entry, _Job, str]]:
        """Return the due jobs, with the reasons of compactions. Drops the waits of jobs that no longer exist."""
        triggers: Iterable[CompactionTrigger] = ()
        try:
            triggers = self.sensor.take()
        except Exception as error:
            self._note("the sensor's policy", error)
        now, due = self._clock.monotonic(), list[tuple[_Entry, _Job, str]]()
        for entry in list(self._entries.values()):
            jobs: dict[_Job, str] = {("survey", ""): ""}
            jobs |= {("compaction", each.branch): each.why
                     for each in triggers if each.repository == entry.repository.name}
            if self._reclaim_seconds is not None:
                jobs["reclaim", ""] = ""
            entry.waits = {job: wait for job, wait in entry.waits.items() if job in jobs}
            due += ((entry, job, why) for job, why in jobs.items() if entry.waits.get(job, (now, 0))[0] <= now)
        return due

    def _attempt(self, entry: _Entry, job: _Job, why: str, budget: Budget) -> None:
        """Run a job; after a failure it waits longer each time. `Busy`, as of a spent budget, counts as no failure."""
        kind, branch = job
        _, failures = entry.waits.get(job, (0.0, 0))
        wait = min(_FIRST_DELAY_SECONDS * 2.0 ** min(failures, 30), _LONGEST_DELAY_SECONDS)
        if kind == "reclaim" and self._reclaim_seconds is not None:
            wait = min(wait, self._reclaim_seconds)
        failures += 1
        try:
            wait, failures = self._work(entry.repository, kind, branch, why, budget), 0
        except Busy:
            if budget.cancelled:
                return
        except Exception as error:
            self._note(f"a {kind} of {f'branch {branch!r} of ' if branch else ''}{entry.repository.name!r}", error)
        entry.waits[job] = self._clock.monotonic() + wait, failures

    def _work(self, repository: Repository, kind: str, branch: str, why: str, budget: Budget) -> float:
        """Return the seconds until the job may run again."""
        if kind == "survey":
            self._survey(repository, budget)
            return inf
        if kind == "reclaim":
            repository.reclaim(budget=budget)
            return inf if self._reclaim_seconds is None else self._reclaim_seconds
        self._observer.event("staging_compaction_triggered", repository=repository.name, branch=branch, why=why)
        try:
            report = repository.compact(branch=branch, policy=self._policy, executor=self._executor, budget=budget)
        except BranchNotFound:
            self.sensor.forget(repository.name, branch)
            return 0.0
        return _UNWANTED_SECONDS if report.is_empty else 0.0

    def _survey(self, repository: Repository, budget: Budget) -> None:
        """Count the staged tombstones of each branch. Raises the error of an unreadable branch after all others."""
        unreadable: CompactlibError | None = None
        for branch in repository.branches():
            try:
                view = repository.view(branch=branch, budget=budget)
            except BranchNotFound:
                continue
            except (CorruptData, NotFound) as error:
                unreadable = error
                continue
            self.sensor.seed(repository.name, branch.name, view.record, view.tombstones)
        if unreadable is not None:
            raise unreadable

    def _note(self, what: str, error: Exception) -> None:
        self._count(error)
        _LOGGER.warning("%s failed, and is retried", what, exc_info=error)
        self._observer.event("staging_worker_failed", work=what, error=type(error).__name__, message=str(error),
                             failures=self.failures)
