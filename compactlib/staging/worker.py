# SPDX-License-Identifier: Apache-2.0
"""`StagingWorker`: compacts the branches that the sensor triggers, and reclaims periodically; one `PeriodicService`.

Each turn surveys new repositories, compacts the triggered branches, and reclaims where that is due. A failed operation,
and a branch that a policy does not want compacted, is retried after a growing delay, and delays nothing else.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any, Final, Self

import attrs

from compactlib.budget import Budget
from compactlib.clock import Clock, SystemClock
from compactlib.errors import Busy, InvalidInput, NotFound
from compactlib.kv import KVStore
from compactlib.observer import Observer, Observers
from compactlib.report import Table
from compactlib.rewrite import Executor
from compactlib.service import PeriodicService
from compactlib.staging.compaction.rewrite import OpenStores
from compactlib.staging.errors import BranchNotFound
from compactlib.staging.options import StagingOptions
from compactlib.staging.policies import StagingPolicy
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.repository import Repository
from compactlib.staging.sensor import CompactionSensor, CompactionTrigger

_LOGGER = logging.getLogger("compactlib.services")

DEFAULT_RECLAIM_SECONDS: Final = 600.0
_TURN_SECONDS: Final = 1.0
_FIRST_DELAY_SECONDS: Final = 1.0
_SHORTEST_DELAY_SECONDS: Final = 0.1
_LONGEST_DELAY_SECONDS: Final = 3600.0
_UNWANTED_SECONDS: Final = 300.0
"""Delay of a branch after an empty plan without an `again_at`."""


@attrs.define
class _Upkeep:
    """A repository of the worker; when its survey and its reclaim are due, by the steady clock."""

    repository: Repository
    survey_at: float | None
    reclaim_at: float | None
    failures: int = 0  # in a row


class StagingWorker:
    """Compacts the branches that a sensor triggers, and reclaims. It owns neither the sensor nor the repositories.

    `open` makes a repository with the worker's sensor and observer, and adds it. `add` takes a repository made with
    `sensor=worker.sensor`. Both may be called at any time. Adding a repository surveys it: the worker counts the staged
    tombstones of each branch, up to `max_scanned`, for the sensor.

    Without `start`, `run_pending` runs the due operations in the caller's thread. A worker runs its operations one
    after another, in one thread.

    Args:
        sensor: triggers branches; default: a new sensor with the default policy.
        repositories: to add; triggers of other repositories are left to other workers.
        policy: instead of each repository's.
        executor: runs the rewrites.
        reclaim_seconds: period of reclaims, the first of which runs at the start; `None`: never.
        clock: for due times.
        budget: limits of all operations together; cancel it to stop.
        observer: notified of triggers and failures; the observers of the repositories are notified of compactions.
            Repositories made by `open` have this observer.

    Raises:
        InvalidInput: two repositories have the same name, or `reclaim_seconds` is not positive.
    """

    def __init__(self, sensor: CompactionSensor | None = None, repositories: Iterable[Repository] = (), *,
                 policy: StagingPolicy | None = None, executor: Executor | None = None,
                 reclaim_seconds: float | None = DEFAULT_RECLAIM_SECONDS, clock: Clock | None = None,
                 budget: Budget | None = None, observer: Observer | None = None) -> None:
        if reclaim_seconds is not None and not reclaim_seconds > 0:
            raise InvalidInput(f"reclaim_seconds is {reclaim_seconds}; give more than 0, or None")
        self.sensor: CompactionSensor = CompactionSensor(clock=clock) if sensor is None else sensor
        """Triggers branches. Give it to repositories as `sensor=worker.sensor`."""
        self._clock: Clock = SystemClock() if clock is None else clock
        self._policy = policy
        self._executor = executor
        self._reclaim_seconds = reclaim_seconds
        self._budget = budget
        self._observer = Observers(observer)
        self._upkeep: dict[str, _Upkeep] = {}
        self._refused: dict[tuple[str, str], int] = {}  # attempts in a row
        self._failures = 0
        self._last_error: BaseException | None = None
        self._done = 0
        self._lent: Budget | None = None  # of the work under way
        self._service = PeriodicService(self._turn, name="the compaction worker", every_seconds=_TURN_SECONDS,
                                        clock=self._clock)
        for repository in repositories:
            self.add(repository)

    @property
    def failures(self) -> int:
        """Number of failed operations."""
        return self._failures + self._service.failures

    @property
    def last_error(self) -> BaseException | None:
        """The last failure."""
        return self._last_error or self._service.last_error

    def open(self, store: KVStore, committed: CommittedRanges, *, name: str = "main",
             policy: StagingPolicy | None = None, options: StagingOptions | None = None,
             stores: OpenStores | None = None, rng: Random | None = None) -> Repository:
        """Make a repository with the worker's sensor, clock and observer, and add it. The caller closes it.

        Arguments and errors as for `Repository`.

        Raises:
            InvalidInput: the worker has a repository of this name.
        """
        repository = Repository(store, committed, name=name, policy=policy, options=options, stores=stores,
                                clock=self._clock, rng=rng, sensor=self.sensor, observer=self._observer)
        self.add(repository)
        return repository

    def add(self, repository: Repository) -> None:
        """Survey, compact and reclaim a repository from now on. Idempotent.

        Raises:
            InvalidInput: the worker has another repository of this name.
        """
        now = self._clock.monotonic()
        known = self._upkeep.setdefault(repository.name, _Upkeep(
            repository, now, None if self._reclaim_seconds is None else now))
        if known.repository is not repository:
            raise InvalidInput(f"two repositories are named {repository.name!r}; give each its own name, or remove the "
                               f"first")
        self._service.wake()

    def remove(self, name: str) -> None:
        """Remove a repository. A running operation continues; closing the repository cancels it.

        Raises:
            NotFound: the worker has no repository of this name.
        """
        if self._upkeep.pop(name, None) is None:
            known = ", ".join(map(repr, self._upkeep)) or "none"
            raise NotFound(f"there is no repository {name!r}; the worker has {known}")

    def start(self) -> None:
        """Start the worker's thread. Idempotent; also after `stop`."""
        self._service.start()

    def run_pending(self) -> int:
        """Run the due operations in the caller's thread, for hosts without threads, and return their number."""
        before = self._done
        self._service.wake()
        self._service.run_pending()
        return self._done - before

    def stop(self, *, wait_seconds: float = 30.0) -> None:
        """Cancel the running operation, start no other, and wait. A cancelled operation changes nothing.

        Raises:
            Busy: the operation has not ended in time, or is the caller; the worker stops after it.
        """
        self._service.cancel()
        if self._lent is not None:
            self._lent.cancel()
        self._service.stop(wait_seconds=wait_seconds)

    def status(self) -> Table:
        """Return a table with a row for each triggered branch and each repository."""
        now = self._clock.monotonic()
        rows: list[dict[str, Any]] = [
            {"repository": each.repository, "branch": each.branch, "why": each.why, "reclaim_in_seconds": None}
            for each in self.sensor.take() if each.repository in self._upkeep]
        rows += [{"repository": name, "branch": "", "why": "",
                  "reclaim_in_seconds": None if each.reclaim_at is None else max(0.0, each.reclaim_at - now)}
                 for name, each in tuple(self._upkeep.items())]
        return Table.from_dicts(rows, title=f"{len(self._upkeep)} repositories, {self.failures} failures")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- a turn

    def _turn(self, budget: Budget) -> None:
        """Run all due operations, one after another."""
        for work in self._due():
            budget.check()
            self._lent = lent = (budget if self._budget is None else self._budget).child()
            if budget.cancelled:
                return  # `stop` was called before it could see this budget
            work(lent)
            if lent.cancelled:
                return
            self._done += 1

    def _due(self) -> list[Callable[[Budget], object]]:
        now, upkeep = self._clock.monotonic(), list(self._upkeep.values())
        return [
            *(partial(self._survey, each) for each in upkeep
              if each.survey_at is not None and each.survey_at <= now),
            *(partial(self._compact, trigger) for trigger in self._wanted()),
            *(partial(self._reclaim, each) for each in upkeep
              if each.reclaim_at is not None and each.reclaim_at <= now),
        ]

    def _wanted(self) -> list[CompactionTrigger]:
        wanted: list[CompactionTrigger] = []
        self._attempt("the sensor's policy", lambda: wanted.extend(
            each for each in self.sensor.take() if each.repository in self._upkeep))
        return wanted

    def _compact(self, trigger: CompactionTrigger, budget: Budget) -> None:
        key = trigger.repository, trigger.branch
        wait: float | None = None
        upkeep = self._upkeep.get(trigger.repository)
        if upkeep is None:
            return  # removed since the trigger
        repository = upkeep.repository
        self._observer.event("staging_compaction_triggered", repository=key[0], branch=key[1], why=trigger.why)

        def compact() -> None:
            nonlocal wait
            try:
                report = repository.compact(branch=trigger.branch, policy=self._policy, executor=self._executor,
                                            budget=budget)
            except BranchNotFound:
                self.sensor.forget(*key)
            else:
                if report.again_at is not None:
                    wait = report.again_at - repository.context.clock.now()
                elif report.is_empty:
                    wait = _UNWANTED_SECONDS

        if not self._attempt(f"a compaction of branch {trigger.branch!r} of {trigger.repository!r}", compact):
            self._refused[key] = self._refused.get(key, 0) + 1
            wait = _growing(self._refused[key])
        if wait is None:
            self._refused.pop(key, None)
        else:
            self.sensor.put_off(*key, min(max(wait, _SHORTEST_DELAY_SECONDS), _LONGEST_DELAY_SECONDS))

    def _reclaim(self, upkeep: _Upkeep, budget: Budget) -> None:
        assert self._reclaim_seconds is not None
        before, wait = self._failures, self._reclaim_seconds
        self._attempt(f"a reclaim of {upkeep.repository.name!r}", lambda: upkeep.repository.reclaim(budget=budget))
        if budget.cancelled:
            return
        upkeep.failures = upkeep.failures + 1 if self._failures > before else 0
        upkeep.reclaim_at = self._clock.monotonic() + (
            min(wait, _growing(upkeep.failures)) if upkeep.failures else wait)

    def _survey(self, upkeep: _Upkeep, budget: Budget) -> None:
        repository = upkeep.repository

        def survey() -> None:
            for branch in repository.branches():
                with contextlib.suppress(BranchNotFound):
                    record, tombstones = repository.tombstones(branch=branch, budget=budget)
                    self.sensor.seed(repository.name, branch.name, record, tombstones=tombstones)

        if self._attempt(f"a survey of {repository.name!r}", survey):
            upkeep.survey_at, upkeep.failures = None, 0
        else:
            upkeep.failures += 1
            upkeep.survey_at = self._clock.monotonic() + _growing(upkeep.failures)

    def _attempt(self, what: str, work: Callable[[], object]) -> bool:
        """Run an operation and return whether it succeeded. `Busy`, as of a spent budget, is no failure."""
        try:
            work()
        except Busy:
            return False
        except Exception as error:
            self._last_error = error
            self._failures += 1
            _LOGGER.warning("%s failed, and is retried", what, exc_info=error)
            self._observer.event("staging_worker_failed", work=what, error=type(error).__name__, message=str(error),
                                 failures=self.failures)
            return False
        return True


def _growing(number: int) -> float:
    return min(_FIRST_DELAY_SECONDS * 2.0 ** min(number - 1, 30), _LONGEST_DELAY_SECONDS)
