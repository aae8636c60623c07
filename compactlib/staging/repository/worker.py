# SPDX-License-Identifier: Apache-2.0
"""`StagingWorker`: turns the sensor's triggers into compactions, and reclaims now and then; a `contract.Service`.

Each branch that the sensor names is a piece of work of its own: one that fails is tried again after a growing delay,
and keeps no other one back. The machinery is `runtime.WorkService`; what is decided here is what the work is.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from compactlib._arguments import require_method, require_policy, require_type
from compactlib.clock import Clock
from compactlib.errors import BudgetSpent, CompactlibError, InvalidInput
from compactlib.outcome import Done, Failed, Outcome, Skipped
from compactlib.rewrite import Executor
from compactlib.runtime.budget import Budget
from compactlib.runtime.observe import Observer, telling
from compactlib.runtime.services.agenda import Removed
from compactlib.runtime.services.service_face import ServiceFace
from compactlib.runtime.services.work_report import WorkReport
from compactlib.runtime.services.work_service import Job, WorkService
from compactlib.staging.compaction.policies import StagingPolicy
from compactlib.staging.compaction.sense import CompactionSensor
from compactlib.staging.errors import BranchNotFound
from compactlib.staging.repository.repository import Repository

DEFAULT_RECLAIM_SECONDS = 600.0
_MAX_LISTED = 1000
"""How many branches are listed as work; those with which nothing is to be done are forgotten then."""


class StagingWorker(ServiceFace):
    """Compacts the branches that a sensor names, and reclaims. It owns neither the sensor nor the repositories.

    Without `start`, `run_pending` does in the caller's thread what is due. The work of a worker is done one after the
    other, in one thread.

    Args:
        sensor: names the branches.
        repositories: whose branches; triggers of other repositories are reported to the observer and dropped.
        policy: decides what is carried out, instead of each repository's own.
        executor: who rewrites.
        reclaim_seconds: how often to reclaim, at first when it starts; `None`: never.
        clock: for what is due when.
        budget: what the work may use up together; cancel it to stop.
        observer: notified of triggers and of work that failed; the repositories' own are notified of compactions.

    Raises:
        InvalidInput: two repositories have one name, `reclaim_seconds` is not positive, or an argument is not what it
            should be.
    """

    def __init__(self, sensor: CompactionSensor, repositories: Iterable[Repository], *,
                 policy: StagingPolicy | None = None, executor: Executor | None = None,
                 reclaim_seconds: float | None = DEFAULT_RECLAIM_SECONDS, clock: Clock | None = None,
                 budget: Budget | None = None, observer: Observer | None = None) -> None:
        require_type("the sensor", sensor, CompactionSensor)
        require_policy("the policy", policy, or_none=True)
        require_method("the executor", executor, "run", or_none=True)
        require_method("the clock", clock, "monotonic", or_none=True)
        require_type("the budget", budget, Budget, or_none=True)
        require_type("the observer", observer, Observer, or_none=True)
        require_type("repositories", repositories, Iterable)
        require_type("reclaim_seconds", reclaim_seconds, (int, float), or_none=True)
        if reclaim_seconds is not None and not reclaim_seconds > 0:
            raise InvalidInput(f"reclaim_seconds is {reclaim_seconds}; give more than 0, or None")
        self._sensor = sensor
        self._repositories: dict[str, Repository] = {}
        for repository in repositories:
            require_type("each repository", repository, Repository)
            if self._repositories.setdefault(repository.name, repository) is not repository:
                raise InvalidInput(f"two repositories are named {repository.name!r}; give one of each name")
        self._policy = policy
        self._executor = executor
        self._observer = telling(observer)
        names = ", ".join(map(repr, self._repositories))
        self._service = WorkService(f"the compaction worker of {names or 'no repository'}",
                                    event="staging_worker_failed", clock=clock, budget=budget, observer=observer)
        self._listed: set[str] = set()
        self._lock = threading.Lock()
        if reclaim_seconds is not None:
            for name, repository in self._repositories.items():
                self._service.add(f"reclaim {name}", partial(_reclaim, repository), every_seconds=reclaim_seconds,
                                  retries=_is_tried_again)

    def start(self) -> None:
        """See `Service.start`: in one thread of its own. After `stop` it begins anew."""
        self._service.start()
        self._sensor.listen(self._take_triggers)
        self._take_triggers()

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
        """Show the sensor what earlier processes left on each branch, as a host may at its start; returns how many.

        A view of each branch: reads its staged entries, up to `max_scanned`.
        """
        count = 0
        for name, repository in self._repositories.items():
            for branch in repository.branches():
                try:
                    view = repository.view(branch=branch)
                except BranchNotFound:
                    continue
                count += 1
                self._sensor.seed(name, branch.name, view.record, tombstones=view.tombstones)
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

    def _request(self, repository: str, branch: str) -> None:
        name = f"{repository}/{branch}"
        with self._lock:
            if name not in self._listed:
                if len(self._listed) >= _MAX_LISTED:
                    self._forget_idle()
                self._listed.add(name)
                self._service.add(name, partial(self._compact, self._repositories[repository], branch),
                                  retries=_is_tried_again)
            self._service.request(name)

    def _forget_idle(self) -> None:
        """Drop the work of branches with which nothing is to be done."""
        for row in self._service.report().rows:
            if row.work in self._listed and row.condition == "waiting":
                self._service.disable(row.work)
                if isinstance(self._service.remove(row.work), Removed):
                    self._listed.remove(row.work)

    def _compact(self, repository: Repository, branch: str, job: Job) -> Outcome[Any]:
        try:
            return repository.compact(branch=branch, policy=self._policy, executor=self._executor, budget=job.budget)
        except BranchNotFound as error:
            return Skipped(str(error))


def _reclaim(repository: Repository, job: Job) -> Outcome[Any]:
    return repository.reclaim(budget=job.budget)


def _is_tried_again(error: CompactlibError) -> bool:
    return not isinstance(error, BudgetSpent)
