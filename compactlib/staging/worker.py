# SPDX-License-Identifier: Apache-2.0
"""`StagingWorker`: compacts the branches in the sensor's set, and reclaims now and then; one `PeriodicService`.

Each turn surveys repositories that were added, compacts the branches that the sensor gives, and reclaims what is due.
What fails, and what a policy does not want now, is put off with a growing delay; it keeps nothing else back.
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
"""When a branch is asked about again that the repository's policy did not want compacted."""


@attrs.define
class _Upkeep:
    """A repository that the worker looks after; when its survey and its reclaim are due, by the steady clock."""

    repository: Repository
    survey_at: float | None
    reclaim_at: float | None
    failures: int = 0  # in a row


class StagingWorker:
    """Compacts the branches that a sensor gives, and reclaims. It owns neither the sensor nor the repositories.

    `open` makes a repository that is joined to the worker's sensor and observer, and takes it in; one that was made
    elsewhere (with `sensor=worker.sensor`) is given to `add`. Both may be called at any time.

    Without `start`, `run_pending` does in the caller's thread what is due. The work of a worker is done one after the
    other, in one thread.

    Args:
        sensor: gives the branches; default one of the worker's own, with the default policy.
        repositories: whose branches; those of other repositories are left to other workers.
        policy: decides what is carried out, instead of each repository's own.
        executor: who rewrites.
        reclaim_seconds: how often to reclaim, at first when it starts; `None`: never.
        clock: for what is due when.
        budget: what the work may use up together; cancel it to stop.
        observer: notified of branches that are taken up and of work that failed; the repositories' own are notified of
            compactions. Those that `open` makes have this one.

    Raises:
        InvalidInput: two repositories have one name, or `reclaim_seconds` is not positive.
    """

    def __init__(self, sensor: CompactionSensor | None = None, repositories: Iterable[Repository] = (), *,
                 policy: StagingPolicy | None = None, executor: Executor | None = None,
                 reclaim_seconds: float | None = DEFAULT_RECLAIM_SECONDS, clock: Clock | None = None,
                 budget: Budget | None = None, observer: Observer | None = None) -> None:
        if reclaim_seconds is not None and not reclaim_seconds > 0:
            raise InvalidInput(f"reclaim_seconds is {reclaim_seconds}; give more than 0, or None")
        self.sensor: CompactionSensor = CompactionSensor(clock=clock) if sensor is None else sensor
        """What gives the branches: `sensor=worker.sensor` joins a repository to it."""
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
        """How often a piece of work failed."""
        return self._failures + self._service.failures

    @property
    def last_error(self) -> BaseException | None:
        """What it failed with last."""
        return self._last_error or self._service.last_error

    def open(self, store: KVStore, committed: CommittedRanges, *, name: str = "main",
             policy: StagingPolicy | None = None, options: StagingOptions | None = None,
             stores: OpenStores | None = None, rng: Random | None = None) -> Repository:
        """Make a repository whose branches the sensor counts, and that this worker compacts. Close it yourself.

        Arguments and errors are those of `Repository`; its clock and observer are the worker's.

        Raises:
            InvalidInput: there is a repository of this name.
        """
        repository = Repository(store, committed, name=name, policy=policy, options=options, stores=stores,
                                clock=self._clock, rng=rng, sensor=self.sensor, observer=self._observer)
        self.add(repository)
        return repository

    def add(self, repository: Repository) -> None:
        """Look after a repository from now on: survey it, reclaim, and compact. Adding it again does nothing.

        Raises:
            InvalidInput: there is another one of this name.
        """
        now = self._clock.monotonic()
        known = self._upkeep.setdefault(repository.name, _Upkeep(
            repository, now, None if self._reclaim_seconds is None else now))
        if known.repository is not repository:
            raise InvalidInput(f"two repositories are named {repository.name!r}; give one of each name, or remove one "
                               f"first")
        self._service.wake()

    def remove(self, name: str) -> None:
        """Look after a repository no more. What is done with it now is its last; closing the repository cancels it.

        Raises:
            NotFound: there is no repository of this name.
        """
        if self._upkeep.pop(name, None) is None:
            known = ", ".join(map(repr, self._upkeep)) or "none"
            raise NotFound(f"there is no repository {name!r}; known is {known}")

    def start(self) -> None:
        """Begin, in one thread of its own; starting again does nothing. After `stop` it begins anew."""
        self._service.start()

    def run_pending(self) -> int:
        """Do in the caller's thread what is due; for hosts without threads. Returns how many pieces of work it did."""
        before = self._done
        self._service.wake()
        self._service.run_pending()
        return self._done - before

    def stop(self, *, wait_seconds: float = 30.0) -> None:
        """Begin nothing more, cancel what runs, and wait for its end. What was cancelled has changed nothing.

        Raises:
            Busy: it has not ended in time, or called from within its own work; it ends all the same.
        """
        self._service.cancel()
        if self._lent is not None:
            self._lent.cancel()
        self._service.stop(wait_seconds=wait_seconds)

    def status(self) -> Table:
        """Return a table with a row for each branch to be compacted, and one for each repository."""
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
        """Do all that is due, one after the other."""
        for work in self._due():
            budget.check()
            self._lent = lent = (budget if self._budget is None else self._budget).child()
            if budget.cancelled:
                return  # stopped just now, before the budget was known
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
            return  # removed meanwhile
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
        """Do a piece of work; returns whether it succeeded. That others are at it, or that a budget ran out, is no
        failure (both are `Busy`).
        """
        try:
            work()
        except Busy:
            return False
        except Exception as error:
            self._last_error = error
            self._failures += 1
            _LOGGER.warning("%s failed, and is tried again", what, exc_info=error)
            self._observer.event("staging_worker_failed", work=what, error=type(error).__name__, message=str(error),
                                 failures=self.failures)
            return False
        return True


def _growing(number: int) -> float:
    return min(_FIRST_DELAY_SECONDS * 2.0 ** min(number - 1, 30), _LONGEST_DELAY_SECONDS)
