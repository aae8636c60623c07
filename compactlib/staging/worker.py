# SPDX-License-Identifier: Apache-2.0
"""`StagingWorker`: turns the sensor's triggers into compactions, and reclaims now and then; a `contract.Service`.

Each branch that the sensor names is a piece of work of its own, and pending until it was compacted, or there is nothing
to compact: what the window holds back is asked again when it ends, what fails after a growing delay; it keeps no other
branch back. The machinery is `runtime.WorkService`; what is decided here is what the work is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from random import Random
from typing import Any

import attrs

from compactlib.clock import Clock
from compactlib.errors import BudgetSpent, CompactlibError, InvalidInput, NotFound
from compactlib.kv import KVStore
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.rewrite import Executor
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, telling
from compactlib.runtime.services.agenda import Refused, Removed
from compactlib.runtime.services.service_face import ServiceFace
from compactlib.runtime.services.work_report import WorkReport
from compactlib.runtime.services.work_service import Job, WorkService
from compactlib.staging.compaction.metrics import StagingMetrics
from compactlib.staging.compaction.outcome import PutOff
from compactlib.staging.compaction.policies import StagingPolicy
from compactlib.staging.compaction.rewrite import RewriteStores
from compactlib.staging.compaction.sensor import CompactionSensor
from compactlib.staging.errors import BranchNotFound
from compactlib.staging.events import StagingEvents
from compactlib.staging.options import StagingOptions
from compactlib.staging.ranges.committed import CommittedRanges
from compactlib.staging.repository import Repository

DEFAULT_RECLAIM_SECONDS = 600.0
_SHORTEST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 0.1, 3600.0
"""How soon and how late a branch is asked again that was put off, whatever the clocks say."""
_MAX_LISTED = 1000
"""How many branches are listed as work; those with which nothing is to be done are forgotten then."""


class StagingWorker(ServiceFace):
    """Compacts the branches that a sensor names, and reclaims. It owns neither the sensor nor the repositories.

    `open` makes a repository that is joined to the worker's sensor and observer, and takes it in; one that was made
    elsewhere (with `events=worker.sensor.events(name)`) is given to `add`. Both may be called at any time.

    Without `start`, `run_pending` does in the caller's thread what is due. The work of a worker is done one after the
    other, in one thread.

    Args:
        sensor: names the branches; default one of the worker's own, with the default policy.
        repositories: whose branches; triggers of other repositories are reported to the observer and dropped.
        policy: decides what is carried out, instead of each repository's own.
        executor: who rewrites.
        reclaim_seconds: how often to reclaim, at first when it starts; `None`: never.
        surveys: whether it begins by showing the sensor what earlier processes left on each branch; see `survey`.
        clock: for what is due when.
        budget: what the work may use up together; cancel it to stop.
        observer: notified of triggers and of work that failed; the repositories' own are notified of compactions. Those
            that `open` makes have this one.

    Raises:
        InvalidInput: two repositories have one name, `reclaim_seconds` is not positive, or an argument is not what it
            should be.
    """

    def __init__(self, sensor: CompactionSensor | None = None, repositories: Iterable[Repository] = (), *,
                 policy: StagingPolicy | None = None, executor: Executor | None = None,
                 reclaim_seconds: float | None = DEFAULT_RECLAIM_SECONDS, surveys: bool = True,
                 clock: Clock | None = None, budget: Budget | None = None, observer: Observer | None = None) -> None:
        if reclaim_seconds is not None and not reclaim_seconds > 0:
            raise InvalidInput(f"reclaim_seconds is {reclaim_seconds}; give more than 0, or None")
        given = tuple(repositories)
        self._sensor = CompactionSensor(clock=clock) if sensor is None else sensor
        self._policy = policy
        self._executor = executor
        self._reclaim_seconds = reclaim_seconds
        self._surveys = surveys
        self._clock = clock
        self._observer = telling(observer)
        names = ", ".join(repr(repository.name) for repository in given)
        self._service = WorkService(f"the compaction worker{names and ' of '}{names}", event="staging_worker_failed",
                                    clock=clock, budget=budget, observer=observer)
        self._repositories: dict[str, Repository] = {}
        # Of each branch that is listed as work, whose it is.
        self._listed: dict[str, str] = {}
        self._pending: set[str] = set()
        self._lock = threading.Lock()
        for repository in given:
            self.add(repository)

    @property
    def sensor(self) -> CompactionSensor:
        """What names the branches: `events=worker.sensor.events(name)` joins a repository to it."""
        return self._sensor

    def open(self, store: KVStore, committed: CommittedRanges, *, name: str = "main",
             policy: StagingPolicy | None = None, options: StagingOptions | None = None,
             stores: RewriteStores | None = None, rng: Random | None = None,
             events: StagingEvents | None = None) -> Repository:
        """Make a repository whose branches the sensor counts, the observer is told of, and this worker compacts.

        Arguments and errors are those of `Repository`; its clock is the worker's, its observer too, with the numbers
        of `StagingMetrics`. Close it yourself.

        Raises:
            InvalidInput: there is a repository of this name, or an argument is not what it should be.
        """
        others = () if events is None else (events,)
        repository = Repository(
            store, committed, name=name, policy=policy, options=options, stores=stores, clock=self._clock, rng=rng,
            events=StagingMetrics(self._observer, name, self._sensor.events(name), *others), observer=self._observer)
        self.add(repository)
        return repository

    def add(self, repository: Repository) -> None:
        """Look after a repository from now on: survey it, reclaim, and compact what the sensor names.

        Adding it again does nothing, unless it was about to be removed: then it stays.

        Raises:
            InvalidInput: there is another one of this name.
        """
        name = repository.name
        with self._lock:
            known = self._repositories.get(name)
            if known is repository:
                for work in self._works_of(name):
                    self._service.enable(work)  # A removal that was refused has disabled them.
                return
            if known is not None:
                raise InvalidInput(f"two repositories are named {name!r}; give one of each name, or remove one first")
            self._repositories[name] = repository
        if self._surveys:
            # Owed from the beginning, as what was interrupted is, until it was done once.
            self._service.add(f"survey {name}", partial(self._survey, repository), resumes=True,
                              retries=_is_tried_again)
        if self._reclaim_seconds is not None:
            self._service.add(f"reclaim {name}", partial(_reclaim, repository), every_seconds=self._reclaim_seconds,
                              retries=_is_tried_again)

    def remove(self, name: str) -> Removed | Refused:
        """Look after a repository no more, before it is closed, say. What is done with it is cancelled, and begins no
        more.

        Returns:
            `Refused` while something of it still runs: try again when it has stopped.

        Raises:
            NotFound: there is no repository of this name.
        """
        with self._lock:
            if name not in self._repositories:
                known = ", ".join(map(repr, self._repositories)) or "none"
                raise NotFound(f"there is no repository {name!r}; known is {known}")
            works = self._works_of(name)
            for work in works:
                self._service.disable(work)
            for work in works:
                answer = self._service.remove(work)
                if isinstance(answer, Refused):
                    return answer
                self._listed.pop(work, None)
                self._pending.discard(work)
            del self._repositories[name]
            return Removed(name)

    def _works_of(self, name: str) -> list[str]:
        """What is listed as work with a repository."""
        branches = (work for work, repository in self._listed.items() if repository == name)
        report = self._service.report()
        return [work for work in (f"survey {name}", f"reclaim {name}", *branches) if report.row(work) is not None]

    def start(self) -> None:
        """See `Service.start`: in one thread of its own. After `stop` it begins anew."""
        self._service.start()
        self._sensor.listen(self._take_triggers)
        self._take_triggers()
        with self._lock:
            for name in sorted(self._pending):
                self._service.request(name)  # A stop forgets what had been requested.

    def run_pending(self) -> Sequence[Outcome[Any]]:
        """See `Service.run_pending`: reclaim if it is time, and compact each branch that the sensor has named.

        Raises:
            Closed: it was stopped.
        """
        self._take_triggers()
        return self._service.run_pending()

    def stop(self, *, wait_seconds: float = 30.0) -> Done[Any] | Failed:
        """See `Service.stop`. A compaction that was cancelled has changed nothing that is read.

        Raises:
            Busy: called from within its own work: by a policy, an executor, a task or an observer.
        """
        self._sensor.unlisten(self._take_triggers)
        return self._service.stop(wait_seconds=wait_seconds)

    def wait_until_idle(self, seconds: float = 60.0) -> None:
        """Return when nothing is done and nothing is due; see `WorkService.wait_until_idle`.

        Raises:
            Busy: that has not come in `seconds`; or called from within its own work.
            AuditFailed: its thread has ended.
        """
        self._service.wait_until_idle(seconds)

    def survey(self) -> int:
        """Show the sensor what earlier processes left on each branch; returns how many branches there are.

        It does so by itself at its start (`surveys`). Reads the staged entries of each, up to `max_scanned`.
        """
        return sum(self._surveyed(repository, None) for repository in tuple(self._repositories.values()))

    def _surveyed(self, repository: Repository, budget: Budget | None) -> int:
        count = 0
        for branch in repository.branches():
            try:
                record, tombstones = repository.tombstones(branch=branch, budget=budget)
            except BranchNotFound:
                continue
            count += 1
            self._sensor.seed(repository.name, branch.name, record, tombstones=tombstones)
            self._take_triggers()  # The sensor holds only so many.
        return count

    def status(self) -> WorkReport:
        """All its work as it stands now: one row for each branch, and for the reclaim of each repository."""
        return self._service.report()

    def __repr__(self) -> str:
        return f"<StagingWorker: {self._service.report()._summary()}>"

    def _take_triggers(self) -> None:
        """Make the sensor's triggers requests; in the thread that triggered one, or of a caller."""
        while not self._service.is_stopped and (trigger := self._sensor.take()) is not None:
            fields = {"repository": trigger.repository, "branch": trigger.branch}
            if trigger.repository in self._repositories:
                self._observer.event("staging_compaction_triggered", {**fields, "why": trigger.why})
                self._request(trigger.repository, trigger.branch)
            else:
                self._observer.event("staging_trigger_dropped", {**fields, "reason": "no such repository is given"})

    def _request(self, name: str, branch: str) -> None:
        work = f"{name}/{branch}"
        with self._lock:
            repository = self._repositories.get(name)
            if repository is None:
                return  # Removed meanwhile.
            if work not in self._listed:
                if len(self._listed) >= _MAX_LISTED:
                    self._forget_idle()
                self._listed[work] = name
                self._service.add(work, partial(self._compact, repository, branch), retries=_is_tried_again)
            self._pending.add(work)
            self._service.request(work)

    def _forget_idle(self) -> None:
        """Drop the work of branches with which nothing is to be done."""
        for row in self._service.report().rows:
            if row.work in self._listed and row.work not in self._pending and row.condition == "waiting":
                self._service.disable(row.work)
                if isinstance(self._service.remove(row.work), Removed):
                    del self._listed[row.work]
                else:
                    self._service.enable(row.work)  # Its turn has come meanwhile.

    def _compact(self, repository: Repository, branch: str, job: Job) -> Outcome[Any]:
        name = job.turn.name
        with self._lock:
            if name not in self._pending:
                return Skipped("nothing was triggered since its last compaction")
            self._pending.remove(name)  # What is triggered from now on is pending anew.
        is_pending = True
        try:
            outcome = repository.compact(branch=branch, policy=self._policy, executor=self._executor, budget=job.budget)
            is_pending = self._is_pending(outcome, job)
            if isinstance(outcome, PutOff):
                left = outcome.again_at - repository.context.clock.now()
                job.due_in(min(max(left, _SHORTEST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS))
            return outcome
        except BranchNotFound as error:
            is_pending = False
            return Skipped(str(error))
        finally:
            with self._lock:
                if is_pending and name in self._listed:
                    self._pending.add(name)

    def _is_pending(self, outcome: Outcome[Any], job: Job) -> bool:
        """Whether the branch is still to be compacted; with what a policy does not want, it is not."""
        match outcome:
            case Done():
                return False
            case Skipped():
                return outcome.is_busy or isinstance(outcome, PutOff)
            case Failed(error):
                return job.is_stopped or _is_tried_again(error)

    def _survey(self, repository: Repository, job: Job) -> Outcome[Any]:
        try:
            return Done(StagingSurvey(repository.name, self._surveyed(repository, job.budget)))
        except CompactlibError as error:
            return Failed(error)


@attrs.frozen
class StagingSurvey:
    """What a worker's survey came to.

    Attributes:
        repository: which one.
        branches: how many it has; the sensor has been shown what lies on each.
    """

    repository: str
    branches: int


def _reclaim(repository: Repository, job: Job) -> Outcome[Any]:
    return repository.reclaim(budget=job.budget)


def _is_tried_again(error: CompactlibError) -> bool:
    return not isinstance(error, BudgetSpent)
